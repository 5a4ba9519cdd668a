"""CPU and memory of a host.

That is usable cores, load, pressure, memory, swap and the storage it lies on, and OOM kills.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from .limits import cgroup_cpus, cgroup_values
from .machine import Fact, Machine, Unread, attempt
from .storage import block_kind, mount_of

STATUS = "/proc/self/status Cpus_allowed_list"


def cpu_facts(machine: Machine) -> Iterator[Fact]:
    """All ``cpu.`` and ``memory.`` facts; memory in bytes, pressure in percent of time."""
    online = "/sys/devices/system/cpu/online"
    yield attempt("cpu.total", lambda: count(machine.read(online)), "CPUs", online)
    yield attempt("cpu.usable", lambda: usable(machine), "CPUs", STATUS + ", cgroup cpu.max")
    yield attempt("cpu.affinity", lambda: _affinity(machine), source=STATUS)
    yield attempt("cpu.model", lambda: _model(machine), source="/proc/cpuinfo")
    yield attempt(
        "cpu.load",
        lambda: [float(x) for x in machine.read("/proc/loadavg").split()[:3]],
        "processes",
        "/proc/loadavg",
    )
    for kind in ("cpu", "memory"):
        file = "/proc/pressure/" + kind
        yield attempt(kind + ".pressure", partial(_pressure, machine, file), "%", file)
    yield attempt("cpu.numa", lambda: _numa_nodes(machine), source="/sys/devices/system/node")
    for name, title in (("memory.total", "MemTotal"), ("memory.available", "MemAvailable")):
        yield attempt(name, partial(_meminfo, machine, title), "bytes", "/proc/meminfo")
    yield attempt("memory.swap", lambda: _swap_areas(machine), source="/proc/swaps")
    yield attempt(
        "memory.oom_kills",
        lambda: _oom_kills(machine),
        "processes",
        "/proc/vmstat, cgroup memory.events",
    )


def count(ranges: str) -> int:
    """How many numbers a kernel list such as ``0-3,8`` names."""
    total = 0
    for part in ranges.strip().split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def usable(machine: Machine) -> float:
    """Cores that this process may use: affinity, and the cgroup quota if it is smaller."""
    allowed = count(_affinity(machine))
    quota = cgroup_cpus(machine)
    if quota > 0:
        return min(allowed, quota)
    return allowed


def _affinity(machine: Machine) -> str:
    """The CPUs on which the kernel may run this process, as it writes them: ``0-15,32-47``."""
    return machine.field("/proc/self/status", r"^Cpus_allowed_list:\s*(\S+)", "Cpus_allowed_list")


def _model(machine: Machine) -> str:
    return machine.field(
        "/proc/cpuinfo", r"^(?:model name|Model|cpu model)\s*:\s*(.+)", "model name", 4096
    ).strip()


def _pressure(machine: Machine, file: str) -> float:
    """Share of the last 10 s in which some process waited, in percent."""
    return float(machine.field(file, r"some avg10=([\d.]+)", "avg10"))


def _numa_nodes(machine: Machine) -> dict[str, str]:
    folder = "/sys/devices/system/node"
    nodes = machine.names(folder, r"node\d+")
    return {name[4:]: machine.read("%s/%s/cpulist" % (folder, name)).strip() for name in nodes}


def _meminfo(machine: Machine, title: str) -> int:
    return int(machine.field("/proc/meminfo", r"^%s:\s*(\d+) kB" % title, title)) * 1024


def _swap_areas(machine: Machine) -> list[dict[str, Any]]:
    """Each swap area with size and use in bytes, and what it lies on."""
    areas = []
    for line in machine.read("/proc/swaps").splitlines()[1:]:
        device, kind, size, used = line.split()[:4]
        device = device.replace("\\040", " ")
        areas.append(
            {
                "device": device,
                "size": int(size) * 1024,
                "used": int(used) * 1024,
                "storage": _storage_of_swap(machine, device, kind),
            }
        )
    return areas


def _storage_of_swap(machine: Machine, device: str, kind: str) -> str:
    """What a swap area lies on, e.g. "nfs", "file on ext4 (ssd)", "partition (disk)", "unknown"."""
    try:
        if kind == "partition":
            return "partition (%s)" % block_kind(machine, device)
        mount = mount_of(machine, device)
        if not mount["source"].startswith("/dev/"):
            return "file on %s" % mount["type"]
        return "file on %s (%s)" % (mount["type"], block_kind(machine, mount["source"]))
    except Unread:
        return "unknown"


def _oom_kills(machine: Machine) -> int:
    """Processes that the OOM killer ended since boot.

    Where the host's count is hidden, it is the count of this cgroup.
    """
    kills, why = [], "/proc/vmstat has no oom_kill"
    events = partial(cgroup_values, machine, "memory", "memory.events", "memory.oom_control")
    for read in (lambda: "\n".join(events()), lambda: machine.read("/proc/vmstat")):
        try:
            kills += [int(number) for number in re.findall(r"^oom_kill (\d+)", read(), re.M)]
        except Unread as error:
            why = str(error)
    if not kills:
        raise Unread(why)
    return max(kills)
