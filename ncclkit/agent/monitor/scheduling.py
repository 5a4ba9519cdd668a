"""How long the processes of each rank ran, and how long they waited for a core: what the kernel's scheduler counted.

A rank's family is its process and what that started, data-loader workers above all.  More of them than cores means that
somebody waits at every moment, and the rank itself is one of them.
"""

import os

from ..run import processes

SECOND = 1e9
"""Nanoseconds, in which the kernel counts."""


class Crowd:
    """Totals of each family since the run began; what a process did before it was first seen counts too."""

    def __init__(self):
        self.before = {}  # type: dict[int, tuple[float, float, int]]
        self.totals = {}  # type: dict[int, list[float]]

    def take(self, families):
        """{rank: [most processes at once, cores that they may use, s run, s waited for a core, times taken off it]}.

        families: {rank: its process, then all others}.  Of each process its main thread is counted, which is the one
        that loads data.  Ranks of which the kernel tells nothing are left out.
        """
        for rank, pids in families.items():
            counted = {pid: found for pid in pids if (found := _counted(pid))}
            cores = _cores(pids[0])
            if not counted or not cores:
                continue
            total = self.totals.setdefault(rank, [0, 0, 0.0, 0.0, 0])
            total[:2] = max(total[0], len(counted)), cores
            for pid, now in counted.items():
                for place, (new, old) in enumerate(zip(now, self.before.get(pid, (0.0, 0.0, 0))), 2):
                    total[place] += max(0, new - old)
            self.before.update(counted)
        return {rank: [most, cores, round(ran, 2), round(waited, 2), off]
                for rank, (most, cores, ran, waited, off) in self.totals.items()}  # fmt: skip


def _counted(pid):
    """(s run, s waited for a core, times taken off it) of a process's main thread; None where it cannot be read."""
    times = processes.read("/proc/%d/schedstat" % pid).split()
    status = processes.read("/proc/%d/status" % pid).partition("nonvoluntary_ctxt_switches:")[2].split()
    if len(times) < 2 or not status:
        return None
    return int(times[0]) / SECOND, int(times[1]) / SECOND, int(status[0])


def _cores(pid):
    """How many cores the process may use; 0 when it is gone."""
    try:
        return len(os.sched_getaffinity(pid))
    except OSError:
        return 0
