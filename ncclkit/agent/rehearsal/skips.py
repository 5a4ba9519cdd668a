"""When sleep may be skipped: only where nothing else can happen before the first sleeper goes on.

Each living rank must wait in a call or sleep.  Then all of them are asked whether any other thread
or child of theirs is at work; a word of anybody before the last answer ends the round.  What all
answer stays true: of ranks that rest, nobody can stir another, and time alone lets one go on.  So
the clock is put forward to the time of the first sleeper and no further.
"""

from __future__ import annotations

from collections.abc import Collection

WORTH = 0.2
"""Seconds of sleep that are worth a question."""
AGAIN = 0.2
"""Seconds after which ranks are asked again, where one was at work."""
MOST = 86_400.0
"""Seconds that are skipped in all: a loop may sleep for ever."""


class SleepWatch:
    """The sleepers of all ranks, and the round of questions that is under way."""

    def __init__(self) -> None:
        self.round = 0
        """The number of the last round of questions."""
        self._until: dict[int, dict[int, float]] = {}
        """Rank → its threads that sleep → when they go on, by the clock of ranks."""
        self._unanswered: set[int] = set()
        """Ranks whose answer is missing; empty where no round is under way."""
        self._next_look = 0.0

    @property
    def sleeping(self) -> tuple[int, ...]:
        """Ranks of which a thread sleeps."""
        return tuple(self._until)

    def begin_sleep(self, rank: int, thread: int, until: float) -> None:
        """A thread of a rank sleeps."""
        self.end_round()
        self._until.setdefault(rank, {})[thread] = until

    def end_sleep(self, rank: int, thread: int) -> None:
        """It goes on."""
        self.end_round()
        sleepers = self._until.get(rank, {})
        sleepers.pop(thread, None)
        if not sleepers:
            self._until.pop(rank, None)

    def end_rank(self, rank: int) -> None:
        """A rank is gone, and its sleepers with it."""
        self.end_round()
        self._until.pop(rank, None)

    def end_round(self) -> None:
        """Something has happened, so what ranks have answered says nothing any more."""
        self._unanswered = set()

    def ranks_to_ask(
        self,
        living: Collection[int],
        waiting: Collection[int],
        now: float,
    ) -> list[int]:
        """Begin a round where all sleep or wait; returns whom to ask, nobody where it is too early.

        now: by the clock of ranks.
        """
        if self._unanswered or now < self._next_look or not self._until:
            return []
        if self._first_end() - now < WORTH:
            return []
        for rank in living:
            if rank not in self._until and rank not in waiting:
                return []
        self.round += 1
        self._unanswered = set(living)
        return sorted(living)

    def add_answer(
        self,
        rank: int,
        number: int,
        is_quiet: bool,
        now: float,
    ) -> float:
        """A rank has answered; returns the seconds that may be skipped now, mostly 0.

        number: that of the round in which it was asked.
        """
        if number != self.round or rank not in self._unanswered:
            return 0.0
        if not is_quiet:
            self.end_round()
            self._next_look = now + AGAIN
            return 0.0
        self._unanswered.discard(rank)
        if self._unanswered:
            return 0.0
        # whose time has come may be at work already
        return max(0.0, self._first_end() - now)

    def _first_end(self) -> float:
        ends: list[float] = []
        for sleepers in self._until.values():
            ends += sleepers.values()
        return min(ends)
