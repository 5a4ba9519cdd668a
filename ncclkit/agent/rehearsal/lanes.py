"""How far each rank has come: a mark for each of its last calls, for who watches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from .. import wire
from .calls import Call

LETTERS = {
    "all_reduce": "R",
    "all_gather": "G",
    "all_to_all": "T",
    "barrier": "|",
    "broadcast": "B",
    "gather": "g",
    "recv": "<",
    "reduce": "r",
    "reduce_scatter": "S",
    "scatter": "s",
    "send": ">",
}
OTHER = "o"
"""The letter of all other calls: those that make groups."""
SHOWN_CALLS = 40
SHOWN_RANKS = 32
"""So many fit into one record of the wire."""
BETWEEN = 0.3
"""Seconds between two records."""


class CallLane:
    """The last calls of one rank."""

    def __init__(self) -> None:
        self.calls = 0
        self.end = ""
        """How the rank ended; empty of one that has not."""
        self._last: deque[tuple[int, str]] = deque(maxlen=SHOWN_CALLS)
        """(number, letter) of each."""
        self._open: set[int] = set()
        """Numbers of those to which not all have come."""

    def add_call(self, call: Call) -> None:
        """The rank posts a call."""
        self.calls += 1
        self._last.append((call.number, LETTERS.get(call.op, OTHER)))
        self._open.add(call.number)

    def free_call(self, number: int) -> None:
        """All have come to this call."""
        self._open.discard(number)

    def record(self, rank: int) -> dict[str, Any]:
        """The lane as plain values: a letter for each call, and `?` below those that wait."""
        letters = ""
        waits = ""
        for number, letter in self._last:
            letters += letter
            waits += "?" if number in self._open else " "
        return {
            "rank": rank,
            "calls": self.calls,
            "letters": letters,
            "waits": waits.rstrip(),
            "end": self.end,
        }


class CallLanes:
    """The lanes of all ranks; beyond `SHOWN_RANKS` the first ones stand for the others."""

    def __init__(self, ranks: int) -> None:
        self._lanes = {rank: CallLane() for rank in range(min(ranks, SHOWN_RANKS))}
        self._changed = False
        self._sent = 0.0

    def add_call(self, rank: int, call: Call) -> None:
        """A rank posts a call."""
        if rank in self._lanes:
            self._lanes[rank].add_call(call)
            self._changed = True

    def add_released(self, released: Iterable[tuple[int, int]]) -> None:
        """Calls to which all have come."""
        for rank, number in released:
            if rank in self._lanes:
                self._lanes[rank].free_call(number)
                self._changed = True

    def end_rank(self, rank: int, how: str) -> None:
        """A rank makes no calls any more."""
        if rank in self._lanes:
            self._lanes[rank].end = how
            self._changed = True

    def records(self) -> list[dict[str, Any]]:
        """All lanes as plain values."""
        return [lane.record(rank) for rank, lane in self._lanes.items()]

    def send_changes(self, now: float) -> None:
        """Tell whoever watches, but not more often than anybody can see."""
        if self._changed and now - self._sent >= BETWEEN:
            self._changed = False
            self._sent = now
            wire.send("lanes", lanes=self.records())
