"""How long ranks wait in a call, against the limit that the job has for one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .calls import Call


class LongWait(NamedTuple):
    """A rank in a call that others have not come to."""

    seconds: float
    rank: int
    call: Call
    late: int | None
    """Who came last; None where the rehearsal ended before."""


class WaitTimes:
    """Finds the longest wait, as a library counts it: from a call to when all have come."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        """Seconds; 0: nothing is measured."""
        self._longest: LongWait | None = None
        self._posted: dict[tuple[int, int], tuple[float, Call]] = {}
        """(rank, number) → when it was posted, of calls that are not released."""

    def add_call(self, rank: int, call: Call, now: float) -> None:
        """A rank posts a call."""
        if self._limit:
            self._posted[rank, call.number] = now, call

    def add_released(self, released: Iterable[tuple[int, int]], late: int, now: float) -> None:
        """Calls are released, as the last rank has come."""
        if not self._limit:
            return
        for rank, number in released:
            began, call = self._posted.pop((rank, number))
            self._keep_longer(LongWait(now - began, rank, call, late))

    def _keep_longer(self, wait: LongWait) -> None:
        if self._longest is None or wait.seconds > self._longest.seconds:
            self._longest = wait

    def add_open(self, now: float) -> None:
        """The rehearsal ends while ranks may still come to these calls."""
        for (rank, _), (began, call) in self._posted.items():
            self._keep_longer(LongWait(now - began, rank, call, None))

    def notes(self) -> list[str]:
        """A sentence where a wait was longer than the limit."""
        wait = self._longest
        if wait is None or wait.seconds <= self._limit:
            return []
        awaited = "and not all had come when the rehearsal ended"
        if wait.late is not None:
            awaited = "until rank %d came" % wait.late
        return [
            "Rank %d waited %.0f s in %s at %s, %s; the job's limit is %g s. On the job's own"
            " machines all of it may be faster or slower, so this is an estimate."
            % (wait.rank, wait.seconds, wait.call.op, wait.call.place, awaited, self._limit)
        ]
