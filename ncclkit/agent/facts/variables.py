"""Variables: what is set, where (environment or nccl.conf), and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from . import checks, network, rdma, redact
from .fact import Fact, attempt, known
from .machine import Machine, Unread

SCOPE = re.compile(
    r"(?:NCCL|TORCH|TORCHELASTIC|GLOO|MASTER|SLURM|UCX|FI|OFI_NCCL|AWS_OFI)_\w+$|(?:LOCAL_|GROUP_)?RANK$|(?:LOCAL_)?WORLD_SIZE$"
    r"|CUDA_VISIBLE_DEVICES$|CUDA_DEVICE_MAX_CONNECTIONS$|CUDA_LAUNCH_BLOCKING$|NVIDIA_VISIBLE_DEVICES$"
    r"|PYTORCH_CUDA_ALLOC_CONF$|OMP_NUM_THREADS$|USE_LIBUV$|LD_LIBRARY_PATH$|LD_PRELOAD$"
)
"""The variables that leave the agent; nothing else of the environment does."""

NOTES = ("unknown", "renamed", "shadowed", "harmful", "unchecked")
"""Kinds of ``env.notes``: worth knowing, but not an error by themselves."""

Settings = dict[str, tuple[str, str]]
Problem = dict[str, Any]


def facts(machine: Machine) -> Iterator[Fact]:
    """``env.<NAME>`` of every variable in scope; ``env.problems`` have no effect or fail, ``env.notes`` are legal."""
    set_here, shadowed = settings(machine)
    for name, (value, source) in sorted(set_here.items()):
        yield known("env." + name, redact.clean(value, name), source=source)
    for name, kinds in (("env.problems", ("misspelt", "value", "device")), ("env.notes", NOTES)):
        yield attempt(name, partial(_rows, machine, set_here, shadowed, kinds), source="ncclkit's variable tables")


def _rows(machine: Machine, set_here: Settings, shadowed: list[Problem], kinds: tuple[str, ...]) -> list[Problem]:
    return [row for row in shadowed + problems(machine, set_here) if row["kind"] in kinds]


def settings(machine: Machine) -> tuple[Settings, list[Problem]]:
    """{name: (value, source)} as NCCL sees it, and the settings in files that something else overrules."""
    found: Settings = {name: (value, "environment") for name, value in machine.environ.items() if SCOPE.match(name)}
    shadowed = []
    for path in _files(machine):
        for name, value in _conf(machine, path):
            if name not in found:
                found[name] = (value, path)
            elif found[name][0] != value:
                shadowed.append(
                    checks.problem(
                        "shadowed",
                        name,
                        redact.clean(value, name),
                        "set in %s, but %s wins" % (path, found[name][1]),
                        "remove one of the two",
                    )
                )
    return found, shadowed


def _files(machine: Machine) -> list[str]:
    """nccl.conf files in the order in which NCCL reads them; the first one that sets a name wins."""
    home = machine.environ.get("HOME", "")
    own = machine.environ.get("NCCL_CONF_FILE") or (home + "/.nccl.conf" if home else "")
    return [path for path in (own, "/etc/nccl.conf") if path.startswith("/")]


def _conf(machine: Machine, path: str) -> list[tuple[str, str]]:
    """The NAME=VALUE lines of one file; NCCL skips lines that start with #."""
    try:
        lines = machine.read(path).splitlines()
    except Unread:
        return []  # the usual case: there is no such file
    pairs = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
    return [(name.strip(), value.strip()) for name, value in pairs if SCOPE.match(name.strip())]


def problems(machine: Machine, set_here: Settings) -> list[Problem]:
    """What is wrong with the settings: rows ``{kind, name, value, problem, hint}``."""
    values = {name: value for name, (value, _) in set_here.items()}
    rows = [row for name, value in sorted(values.items()) for row in checks.check(name, value)]
    ports = rdma.ports(machine)
    rows += checks.devices(values, ports)
    rows += checks.ranks(values)
    try:
        rows += checks.interfaces(values, network.addresses(machine))
    except Unread as why:
        rows += [
            checks.problem("unchecked", name, values[name], "the interfaces could not be read: %s" % why, "")
            for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
            if name in values
        ]
    return [{**row, "value": redact.clean(row["value"], row["name"])} for row in rows]
