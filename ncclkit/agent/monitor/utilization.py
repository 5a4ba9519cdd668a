"""How busy the process of each rank is: CPU of all its threads and of the main one, its state, its TCP traffic.

In a hang one rank differs from all others: it computes while they wait, or sleeps while they spin.  That can be seen
from outside, without stopping or signalling anybody, also where no stack may be read.
"""

import os
import time

from ..run import processes
from . import sockets

TICKS = os.sysconf("SC_CLK_TCK")
"""Units of a second in which ``/proc`` counts CPU time."""


class Load:
    """Rates since the last sample; `take` one at a time."""

    def __init__(self):
        self.before = {}  # type: dict[int, tuple[float, float, float]]
        self.moved = None  # type: dict[int, tuple[int, int]] | None
        self.asked = 0.0

    def take(self, ranks):
        """{rank: ``state`` (as in ps), ``cpu``, ``main`` (both %), ``sent`` and ``received`` (bytes/s)}.

        ``cpu`` is of a core, all threads together; ``main`` the share of time in which the main thread had something to
        do: it ran, or waited for a core, so that a crowded host does not look idle.  ranks: {rank: pid}.  Rates are
        missing where there is no sample before, or the kernel does not tell.
        """
        found = {}
        for rank, pid in ranks.items():
            stat, main = processes.read("/proc/%d/stat" % pid).rpartition(")")[2].split(), _wanted(pid)
            if len(stat) < 13 or main is None or stat[0] in "ZX":
                self.before.pop(pid, None)
                continue
            now, old = (time.monotonic(), (int(stat[11]) + int(stat[12])) / TICKS, main), self.before.get(pid)
            self.before[pid] = now
            found[rank] = {"state": stat[0]}
            if old and now[0] > old[0]:
                cpu, busy = (100 * (new - then) / (now[0] - old[0]) for new, then in zip(now[1:], old[1:]))
                found[rank].update(cpu=round(cpu, 1), main=round(busy, 1))
        for rank, (sent, received) in self._traffic({rank: ranks[rank] for rank in found}).items():
            found[rank].update(sent=sent, received=received)
        return found

    def _traffic(self, ranks):
        """{rank: (bytes sent, received) a second}, over the sockets that it holds now."""
        moved, moment = sockets.counts(), time.monotonic()
        (before, asked), (self.moved, self.asked) = (self.moved, self.asked), (moved, moment)
        if moved is None or before is None:
            return {}
        rates = {}
        for rank, pid in ranks.items():
            held = [inode for inode in sockets.inodes(pid) if inode in moved]
            grown = [[new - old for new, old in zip(moved[i], before.get(i, (0, 0)))] for i in held]
            if held:
                rates[rank] = [round(max(0, sum(way)) / max(moment - asked, 1e-3)) for way in zip(*grown)]
        return rates


def _wanted(pid):
    """Seconds that the main thread of a process ran, or waited for a core; None when it is gone."""
    times = processes.read("/proc/%d/schedstat" % pid).split()
    return (int(times[0]) + int(times[1])) / 1e9 if len(times) > 1 else None
