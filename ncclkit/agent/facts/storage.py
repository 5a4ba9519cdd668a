"""Storage: what each folder of interest lies on, its free space and the latency of a small write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .fact import Fact, attempt, known, unread
from .machine import Machine, Unread
from .mounts import mount_of

DEADLINE = 3.0
"""Seconds for five small writes: local disks need milliseconds; more is a stall worth reporting."""


def facts(machine: Machine, paths: Mapping[str, str]) -> Iterator[Fact]:
    """``storage.<label>.path|type|free|latency`` of each folder, measured in a process of its own, as it may hang."""
    for label, path in paths.items():
        yield from _folder(machine, label, path)


def _folder(machine: Machine, label: str, path: str) -> Iterator[Fact]:
    name = "storage.%s." % label
    source = "statvfs and small writes in %s" % path
    try:
        said: dict[str, Any] = machine.child("child_disk", path, deadline=DEADLINE)
    except Unread as why:
        said = {"error": str(why)}
    where = said.get("path") or machine.absolute(path)
    yield known(name + "path", where, source="realpath")
    yield attempt(name + "type", lambda: mount_of(machine, where)["type"], source="/proc/self/mountinfo")
    for key, unit in (("free", "bytes"), ("latency", "ms")):
        if key in said:
            yield known(name + key, said[key], unit, source)
        else:
            yield unread(name + key, said.get("error", "not measured"), unit, source)
