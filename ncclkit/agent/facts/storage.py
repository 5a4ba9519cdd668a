"""What a path or a block device lies on, and how fast it is.

That is the free space of a folder and the latency of a small write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .machine import Fact, Machine, Unread, attempt, known, unread

DEADLINE = 3.0
"""Seconds for five small writes: local disks need milliseconds; more is a stall worth reporting."""


def storage_facts(machine: Machine, paths: Mapping[str, str]) -> Iterator[Fact]:
    """``storage.<label>.path|type|free|latency`` of each folder.

    Each is measured in a process of its own, as it may hang.
    """
    for label, path in paths.items():
        yield from _folder_facts(machine, label, path)


def _folder_facts(machine: Machine, label: str, path: str) -> Iterator[Fact]:
    name = "storage.%s." % label
    source = "statvfs and small writes in %s" % path
    try:
        said: dict[str, Any] = machine.child("disk", path, deadline=DEADLINE)
    except Unread as why:
        said = {"error": str(why)}
    where = said.get("path") or machine.absolute(path)
    yield known(name + "path", where, source="realpath")
    yield attempt(
        name + "type", lambda: mount_of(machine, where)["type"], source="/proc/self/mountinfo"
    )
    for key, unit in (("free", "bytes"), ("latency", "ms")):
        if key in said:
            yield known(name + key, said[key], unit, source)
        else:
            yield unread(name + key, said.get("error", "not measured"), unit, source)


NETWORK = ("nbd", "rbd", "drbd")
"""Block devices that are a server somewhere else."""


def mount_of(machine: Machine, path: str) -> dict[str, str]:
    """The mount that holds an absolute path, as `mounts_of` describes it; raises Unread."""
    best: dict[str, str] = {}
    for mount in mounts_of(machine):
        point = mount["point"]
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # a later mount hides an earlier one
        if inside and len(point) >= len(best.get("point", "")):
            best = mount
    if not best:
        raise Unread("/proc/self/mountinfo lists no mount for %s" % path)
    return best


def mounts_of(machine: Machine) -> list[dict[str, str]]:
    """Every mount of this host.

    A row is where it is (``point``), which folder of the file system it shows (``root``), ``type``,
    ``source`` and ``options``.  The options are those of the file system, where cgroup v1 names its
    controllers.
    """
    rows = []
    # a host of many containers has thousands of mounts
    for line in machine.read("/proc/self/mountinfo", 1 << 20).splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        tail = [*right.split(), ""]
        if len(fields) < 5 or len(tail) < 3:
            continue
        root, point, source = (_unescape(text) for text in (fields[3], fields[4], tail[1]))
        rows.append(
            {"root": root, "point": point, "type": tail[0], "source": source, "options": tail[2]}
        )
    return rows


def block_kind(machine: Machine, device: str) -> str:
    """ssd, disk, zram or network, for /dev/…; raises Unread."""
    name = device.rsplit("/", 1)[-1]
    if name.startswith("zram"):
        return "zram"
    if name.startswith(NETWORK):
        return "network"
    # a partition has no queue of its own; the kernel links it below its disk
    disk = re.sub(
        r"^(nvme\d+n\d+|mmcblk\d+)p\d+$|^([a-z]+)\d+$", lambda m: m.group(1) or m.group(2), name
    )
    for candidate in (name, disk):
        try:
            rotational = machine.read("/sys/class/block/%s/queue/rotational" % candidate).strip()
            if rotational == "1":
                return "disk"
            return "ssd"
        except Unread:
            continue
    raise Unread("/sys/class/block says nothing about %s" % device)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
