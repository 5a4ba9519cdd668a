"""What this process may use, and tables that the whole kernel shares.

Its limits are rlimits, /dev/shm, cgroups, ptrace and ports.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from functools import partial

from ..digits import whole_number, whole_numbers
from .machine import Fact, Machine, Unread, attempt
from .storage import mounts_of

RLIMITS = {
    "nofile.soft": ("Max open files", 0, "files"),
    "nofile.hard": ("Max open files", 1, "files"),
    "memlock": ("Max locked memory", 0, "bytes"),
    "nproc": ("Max processes", 0, "processes"),
    "stack": ("Max stack size", 0, "bytes"),
}
"""Fact → (title in /proc/self/limits, 0 = soft or 1 = hard, unit)."""


def limit_facts(machine: Machine) -> Iterator[Fact]:
    """All ``limits.`` facts of this process; "unlimited" is the value -1."""
    source = "/proc/self/limits"
    for name, (title, which, unit) in RLIMITS.items():
        yield attempt("limits." + name, partial(rlimit, machine, title, which), unit, source)
    yield attempt("limits.shm.size", lambda: shm(machine)[0], "bytes", "statvfs /dev/shm")
    yield attempt("limits.shm.free", lambda: shm(machine)[1], "bytes", "statvfs /dev/shm")
    yield attempt(
        "limits.cgroup.memory", lambda: cgroup_memory(machine), "bytes", "cgroup memory.max"
    )
    yield attempt("limits.cgroup.cpus", lambda: cgroup_cpus(machine), "CPUs", "cgroup cpu.max")
    yield attempt(
        "limits.cgroup.pids", lambda: cgroup_pids(machine), "processes", "cgroup pids.max"
    )
    yield attempt(
        "limits.ptrace_scope", lambda: _ptrace(machine), source="/proc/sys/kernel/yama/ptrace_scope"
    )
    ports = "/proc/sys/net/ipv4/ip_local_port_range"
    yield attempt(
        "limits.ports", lambda: [int(port) for port in machine.read(ports).split()], "ports", ports
    )


def rlimit(machine: Machine, title: str, which: int = 0) -> int:
    """The soft (0) or hard (1) limit of a line of /proc/self/limits; -1 = unlimited."""
    for line in machine.read("/proc/self/limits").splitlines():
        if line.startswith(title + " "):
            value = line[len(title) :].split()[which]
            if value == "unlimited":
                return -1
            return int(value)
    raise Unread("/proc/self/limits has no line for %s" % title)


def shm(machine: Machine) -> tuple[int, int]:
    """(size, free) of /dev/shm in bytes."""
    size, free = machine.call("statvfs /dev/shm", _statvfs_shm)
    return int(size), int(free)


def _statvfs_shm() -> list[int]:
    space = os.statvfs("/dev/shm")
    return [space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize]


def _ptrace(machine: Machine) -> int:
    """0 where any process of the same user may be attached to.

    A kernel without Yama behaves so, too.
    """
    if not machine.names("/proc/sys/kernel", "yama"):
        return 0
    return int(machine.read("/proc/sys/kernel/yama/ptrace_scope"))


def cgroup_folders(machine: Machine, controller: str) -> list[str]:
    """The folders that limit this process, innermost first.

    They are those of cgroup v2, or of v1's `controller`.  Raises Unread where none is mounted, as
    in some containers: that no limit is seen does not mean that there is none.
    """
    folders = []
    for line in machine.read("/proc/self/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        if number == "0" or controller in names.split(","):
            folders += _cgroup_places(machine, "" if number == "0" else controller, path)
    if not folders:
        raise Unread("no cgroup file system is mounted that would show limits of %s" % controller)
    return folders


def _cgroup_places(machine: Machine, controller: str, path: str) -> list[str]:
    """Where the group `path` and those above it are mounted.

    `controller` is that of cgroup v1, and empty for v2.
    """
    mounts = [m for m in mounts_of(machine) if m["type"] == ("cgroup" if controller else "cgroup2")]
    mounts = [m for m in mounts if not controller or controller in m["options"].split(",")]
    # a container's own group may be mounted as the root; beside it, the mounts of other containers
    # may be seen
    holding = [m for m in mounts if (path + "/").startswith(m["root"].rstrip("/") + "/")]
    folders = []
    for mount in holding or mounts:
        if holding:
            own = path[len(mount["root"].rstrip("/")) :]
        else:
            own = path
        while own not in ("", "/"):
            folders.append(mount["point"] + own)
            own = own.rpartition("/")[0]
        folders.append(mount["point"])
    return folders


def cgroup_values(machine: Machine, controller: str, *files: str) -> list[str]:
    """The contents of these files in all folders that limit this process, where they exist."""
    values = []
    for folder in cgroup_folders(machine, controller):
        for file in files:
            try:
                values.append(machine.read(folder + "/" + file).strip())
            except Unread:
                continue  # the root and other controllers' folders have no such file
    return values


def cgroup_memory(machine: Machine) -> int:
    """The smallest memory limit above this process in bytes; -1 = none."""
    values = cgroup_values(machine, "memory", "memory.max", "memory.limit_in_bytes")
    limits = [int(value) for value in values if re.fullmatch(r"\d+", value)]
    # v1 writes 2^63 rounded to pages for "none"
    real = [limit for limit in limits if limit < 1 << 60]
    if real:
        return min(real)
    return -1


def cgroup_pids(machine: Machine) -> int:
    """The smallest limit of processes and threads above this process; -1 = none."""
    limits = whole_numbers(cgroup_values(machine, "pids", "pids.max"))
    if limits:
        return min(limits)
    return -1


def cgroup_cpus(machine: Machine) -> float:
    """The smallest CPU quota above this process in CPUs; -1 = none."""
    pairs = [value.split() for value in cgroup_values(machine, "cpu", "cpu.max")]
    quotas = cgroup_values(machine, "cpu", "cpu.cfs_quota_us")
    pairs += [
        [quota, period]
        for quota, period in zip(quotas, cgroup_values(machine, "cpu", "cpu.cfs_period_us"))
    ]
    real = []
    for quota, period in pairs:
        allowed = whole_number(quota)
        every = whole_number(period)
        if allowed is not None and every:
            real.append(allowed / every)
    if real:
        return round(min(real), 2)
    return -1


BACKLOG, NETSTAT = "/proc/sys/net/core/somaxconn", "/proc/net/netstat"
NEIGHBOURS, ARP = "/proc/sys/net/ipv4/neigh/default/gc_thresh3", "/proc/net/stat/arp_cache"
TRACKED = "/proc/sys/net/netfilter/nf_conntrack_count"
MOST = "/proc/sys/net/netfilter/nf_conntrack_max"
UNSYNCED, ROOM = 0x40, 256
"""STA_UNSYNC of <sys/timex.h>, and more integers than its struct has on any architecture."""


def tables(machine: Machine) -> Iterator[Fact]:
    """``net.backlog``, ``net.neighbours`` and ``net.conntrack``, which connections fill;
    ``host.clock.synced``.
    """
    for name, file, unit in (
        ("net.backlog", BACKLOG, "connections"),
        ("net.neighbours.max", NEIGHBOURS, "hosts"),
        ("net.conntrack", TRACKED, "connections"),
        ("net.conntrack.max", MOST, "connections"),
    ):
        yield attempt(name, partial(_number_in_file, machine, file), unit, file)
    yield attempt(
        "net.backlog.overflows",
        lambda: _queue_overflows(machine),
        "connections",
        NETSTAT + " ListenOverflows",
    )
    yield attempt(
        "net.neighbours.overflows",
        lambda: _refused_neighbours(machine),
        "hosts",
        ARP + " table_fulls",
    )
    yield attempt(
        "host.clock.synced",
        lambda: not machine.call("adjtimex", _clock_status) & UNSYNCED,
        source="adjtimex(2)",
    )


def _number_in_file(machine: Machine, file: str) -> int:
    return int(machine.read(file))


def _queue_overflows(machine: Machine) -> int:
    """Connections that came while a listening socket's queue was full, since boot."""
    rows = [
        line.split() for line in machine.read(NETSTAT).splitlines() if line.startswith("TcpExt:")
    ]
    return int(dict(zip(*rows))["ListenOverflows"])


def _refused_neighbours(machine: Machine) -> int:
    """Neighbours that found no place in the table since boot.

    The kernel writes one hexadecimal number for each CPU.
    """
    head, *rows = [line.split() for line in machine.read(ARP).splitlines()]
    return sum(int(dict(zip(head, row))["table_fulls"], 16) for row in rows)


def _clock_status() -> int:
    """The status bits of the kernel's clock; with nothing to set, any user may ask."""
    timex = (ctypes.c_int * ROOM)()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        raise Unread("adjtimex is not allowed here")
    # struct timex: unsigned modes; long offset, freq, maxerror, esterror; int status
    return timex[5 * ctypes.sizeof(ctypes.c_long) // ctypes.sizeof(ctypes.c_int)]
