"""Variables: what is set, where (environment or nccl.conf), and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from .. import redact
from . import checks, conf, conflicts, devices, network, rdma
from .checks import Problem
from .fact import Fact, attempt, known
from .machine import Machine, Unread

PROBLEMS = ("misspelt", "value", "device", "path", "conflict")
"""Kinds of ``env.problems``: the setting has no effect, or something fails because of it."""

NOTES = ("unknown", "renamed", "shadowed", "overruled", "harmful", "unchecked")
"""Kinds of ``env.notes``: worth knowing, but not an error by themselves."""


def facts(machine: Machine) -> Iterator[Fact]:
    """``env.<NAME>`` of every variable in scope; ``env.problems`` have no effect or fail, ``env.notes`` are legal."""
    set_here, rows = conf.settings(machine)
    for name, (value, source) in sorted(set_here.items()):
        yield known("env." + name, redact.clean(value, name), source=source)
    for name, kinds in (("env.problems", PROBLEMS), ("env.notes", NOTES)):
        yield attempt(name, partial(_rows, machine, set_here, rows, kinds), source="ncclkit's variable tables")


def _rows(machine: Machine, set_here: conf.Settings, rows: list[Problem], kinds: tuple[str, ...]) -> list[Problem]:
    return [row for row in rows + problems(machine, set_here) if row["kind"] in kinds]


def problems(machine: Machine, set_here: conf.Settings) -> list[Problem]:
    """What is wrong with the settings: rows ``{kind, name, value, problem, hint}``, the hint naming a file at fault."""
    values = {name: value for name, (value, _) in set_here.items()}
    rows = [row for name, value in sorted(values.items()) for row in checks.check(name, value)]
    ports: list[dict[str, Any]] = []
    try:
        ports = rdma.ports(machine)
        rows += devices.rdma(values, ports)
    except Unread as why:
        rows += _unchecked(values, ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX"), "the RDMA devices could not be read: %s" % why)
    rows += devices.gpus(values, machine)
    rows += devices.paths(values, machine)
    rows += conflicts.check(values, any(port["state"] == "ACTIVE" for port in ports))
    try:
        rows += devices.interfaces(values, network.addresses(machine))
    except Unread as why:
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        rows += _unchecked(values, names, "the interfaces could not be read: %s" % why)
    return [_placed(row, set_here[row["name"]][1]) for row in rows]


def _unchecked(values: Mapping[str, str], names: Iterable[str], why: str) -> list[Problem]:
    return [checks.problem("unchecked", name, values[name], why, "") for name in names if name in values]


def _placed(row: Problem, source: str) -> Problem:
    """The row without secrets; one about a file's line says which file."""
    hint = row["hint"] if source == "environment" else "%s (set in %s)" % (row["hint"], source)
    return {**row, "value": redact.clean(row["value"], row["name"]), "hint": hint}
