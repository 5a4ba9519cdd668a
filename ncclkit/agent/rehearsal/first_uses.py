"""Whether `batch_isend_irecv` is the first call of a group, and only some of its ranks make it.

NCCL's communicator of a group is made at its first use, which returns when all members have come
to one.  A single send or recv has a communicator of its two ranks, and waits for nobody else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping
from typing import NamedTuple

from .calls import POINT_TO_POINT, Call
from .endings import Ending


class FirstUse(NamedTuple):
    """Ranks that wait in the first call of a group, and members that need them before they come."""

    begun: dict[int, Call]
    """Rank → its batched call."""
    missing: tuple[int, ...]


class FirstUseWatch:
    """Keeps who has used a group, as long as not all members have."""

    def __init__(self) -> None:
        self._begun: dict[str, dict[int, Call]] = {}
        """Group that not all have used → rank → the batched call with which it began."""
        self._used: dict[str, set[int]] = defaultdict(set)
        self._made: set[str] = set()
        """Groups that all members have used."""

    def add_call(self, rank: int, call: Call) -> None:
        """A rank posts a call."""
        group = call.group
        if group in self._made or call.backend != "nccl":
            return
        if call.op in POINT_TO_POINT and not call.batched:
            return
        used = self._used[group]
        if call.batched and rank not in used:
            self._begun.setdefault(group, {})[rank] = call
        used.add(rank)
        if len(used) == len(call.members):
            self._made.add(group)
            self._begun.pop(group, None)
            del self._used[group]

    def add_released(self, calls: Mapping[int, Call], threaded: Container[int]) -> FirstUse | None:
        """Calls meet here; returns a first use in which one of their ranks would still wait.

        threaded: ranks of which another thread may have made the call.
        """
        for group, begun in self._begun.items():
            blocked = False
            for rank, call in calls.items():
                if rank in begun and rank not in threaded:
                    blocked = blocked or call.number > begun[rank].number
            missing = self._missing_of(group, calls)
            if blocked and missing:
                return FirstUse(dict(begun), missing)
        return None

    def never_made(self, endings: Mapping[int, Ending]) -> FirstUse | None:
        """A first use to which members that have ended never came."""
        for group, begun in self._begun.items():
            missing = self._missing_of(group, endings)
            # one that we stopped might have come later
            stopped = [rank for rank in missing if endings[rank].how == "stopped"]
            if missing and not stopped:
                return FirstUse(dict(begun), missing)
        return None

    def _missing_of(self, group: str, ranks: Container[int]) -> tuple[int, ...]:
        """Members among these ranks that have not used a group."""
        first = next(iter(self._begun[group].values()))
        missing = []
        for member in first.members:
            if member in ranks and member not in self._used[group]:
                missing.append(member)
        return tuple(missing)
