"""Which ranks wait: those of which every thread that communicates waits for a call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .calls import Call


class WaitingRanks:
    """What the threads of all ranks say of themselves."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}
        """Rank → the call that it waited for last, of ranks of which no thread runs."""
        self._threads: dict[int, set[int]] = defaultdict(set)
        """Rank → its threads that have communicated and may do so again."""
        self._waits: dict[int, dict[int, Call]] = defaultdict(dict)
        """Rank → thread → the call for which it waits."""

    def add_thread(self, rank: int, thread: int) -> None:
        """A thread of a rank communicates, so it runs."""
        self._threads[rank].add(thread)
        if thread not in self._waits[rank]:
            self.calls.pop(rank, None)

    def begin_wait(
        self,
        rank: int,
        thread: int,
        call: Call,
        alive: Iterable[int],
    ) -> None:
        """A thread does not go on before its call is made.

        alive: threads of the rank that have communicated and may do so again.
        """
        waits = self._waits[rank]
        waits[thread] = call
        self._threads[rank] = {thread, *alive}
        # a thread that runs may free this one
        if self._threads[rank] <= waits.keys():
            self.calls[rank] = call

    def free_call(self, rank: int, call: Call) -> None:
        """A call is released: whoever waits for it runs again."""
        waits = self._waits.get(rank)
        if not waits:
            return
        for thread, awaited in list(waits.items()):
            if awaited is call:
                del waits[thread]
                self.calls.pop(rank, None)

    def end_rank(self, rank: int) -> None:
        """A rank waits no more."""
        self.calls.pop(rank, None)
        self._waits.pop(rank, None)
        self._threads.pop(rank, None)

    def has_threads(self, rank: int) -> bool:
        """Whether several threads of a rank communicate."""
        return len(self._threads[rank]) > 1
