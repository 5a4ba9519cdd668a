"""Who waits for whom: decides whether the ranks of a script agree, without sockets and clocks.

A rank first posts a call and, where it cannot go on without it, says that it waits.  A call is
released when all members have posted calls that fit.  Three things are proven at once, whatever
other ranks do (looked for when a rank ends, and when all wait):

- *mismatch*: all members came to one collective with calls that do not fit;
- *left*: a rank waits for one that has ended;
- *deadlock*: ranks wait for each other in a circle.

A rank that still runs is only waited for: it may be slow.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import NamedTuple

from .calls import POINT_TO_POINT, Call, differing_field, fits_pair, unequal_pairs


class Ending(NamedTuple):
    """How a rank came to its end."""

    how: str
    """`ended`, `exited`, `failed` (an exception), `died`, or `stopped` by us after its steps."""
    say: str = ""
    place: str = ""
    """file:line of the user's program."""
    unrehearsable: bool = False
    """It failed in something that only a GPU can do, so the script is not to blame."""


class Ruling(NamedTuple):
    """What a rehearsal has shown."""

    kind: str
    """`agree`, `mismatch`, `left`, `deadlock`, or `unknown`."""
    ranks: tuple[int, ...] = ()
    """Those that stand differently from the others; all of a circle."""
    calls: dict[int, Call] = {}
    """Rank → the call at which it stands."""
    endings: dict[int, Ending] = {}
    field: str = ""
    """In what the calls of a mismatch differ."""
    waits: dict[int, tuple[int, ...]] = {}
    """Rank → for whom it waits."""
    why: str = ""
    """Of `unknown`: why it cannot be told."""


Released = list[tuple[int, int]]
"""(rank, number of its call), which may now be made."""


class Coordinator:
    """The calls of all ranks; `verdict` is set as soon as one is proven."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.verdict: Ruling | None = None
        self.released = 0
        """Collectives, sends and receives that all came to."""
        self.endings: dict[int, Ending] = {}
        self._queues: dict[tuple[str, int], deque[Call]] = defaultdict(deque)
        self._open: dict[tuple[int, int], Call] = {}
        self._waiting: dict[int, Call] = {}
        self._threads: dict[int, set[int]] = defaultdict(set)

    # ---------------------------------------------------------------- what ranks say

    def post(self, rank: int, call: Call, thread: int = 0) -> Released:
        """A rank announces a call; returns the calls that may now be made."""
        self._threads[rank].add(thread)
        self._open[rank, call.number] = call
        if call.op in POINT_TO_POINT:
            return self._meet(rank, call)
        self._queues[call.group, rank].append(call)
        return self._release(call)

    def wait(self, rank: int, number: int) -> None:
        """A rank does not go on before its call is made."""
        call = self._open.get((rank, number))
        # it may have been released while the rank was asking
        if call is None:
            return
        self._waiting[rank] = call
        # judging costs time; as long as a rank runs and none has ended, nothing is lost by waiting
        if self.endings or not self.running:
            self._judge()

    def end(self, rank: int, ending: Ending) -> None:
        """A rank makes no calls any more."""
        if rank in self.endings:
            return
        self.endings[rank] = ending
        self._waiting.pop(rank, None)
        self._judge()

    def give_up(self, why: str) -> None:
        """Nobody can wait any longer: what is not proven stays unknown."""
        self._judge()
        if self.verdict is None:
            self.verdict = self._verdict_of("unknown", self.running, why=why)

    def complete(self) -> None:
        """Add to the verdict where ranks have come to since it was proven."""
        if self.verdict is not None:
            calls = {**self._waiting, **self.verdict.calls}
            self.verdict = self.verdict._replace(calls=calls, endings=dict(self.endings))

    @property
    def running(self) -> tuple[int, ...]:
        """Ranks that neither wait nor have ended."""
        known = set(self._waiting) | set(self.endings)
        return tuple(rank for rank in range(self.world) if rank not in known)

    # ---------------------------------------------------------------- what meets

    def _release(self, call: Call) -> Released:
        heads: dict[int, Call] = {}
        for member in call.members:
            queue = self._queues[call.group, member]
            if not queue:
                return []
            heads[member] = queue[0]
        field = differing_field(heads)
        if field:
            self._tell_mismatch(heads, field)
            return []
        for member in call.members:
            self._queues[call.group, member].popleft()
        return self._let_go(heads)

    def _meet(self, rank: int, call: Call) -> Released:
        """A send meets the first recv of its pair, and the other way round."""
        for other_rank, other in self._partners(rank, call):
            send, recv = (call, other) if call.op == "send" else (other, call)
            pair = {rank: call, other_rank: other}
            if not fits_pair(send, recv):
                field = "dtypes" if send.dtypes != recv.dtypes else "sizes"
                self._tell_mismatch(pair, field)
                return []
            return self._let_go(pair)
        return []

    def _partners(self, rank: int, call: Call) -> list[tuple[int, Call]]:
        """Open calls that this one may meet, the oldest first."""
        found = []
        for (other_rank, _), other in self._open.items():
            is_opposite = {call.op, other.op} == set(POINT_TO_POINT)
            is_same = other.group == call.group and other.tag == call.tag
            is_meant = call.peer in (None, other_rank) and other.peer in (None, rank)
            if is_opposite and is_same and is_meant and other_rank != rank:
                found.append((other_rank, other))
        return found

    def _let_go(self, calls: dict[int, Call]) -> Released:
        self.released += 1
        for rank, call in calls.items():
            del self._open[rank, call.number]
            waiting = self._waiting.get(rank)
            if waiting is not None and waiting.number == call.number:
                del self._waiting[rank]
        return [(rank, call.number) for rank, call in calls.items()]

    # ---------------------------------------------------------------- what is proven

    def _judge(self) -> None:
        """Set the verdict where something is proven, or where nobody is left to change anything."""
        if self.verdict is not None:
            return
        waits = {rank: self._missing(rank) for rank in self._waiting}
        if self._has_two_threads():
            if not self.running:
                self._settle_rest(waits)
            return
        for rank in sorted(waits):
            absent = [other for other in waits[rank] if self._is_gone(other)]
            if absent:
                self._tell_left(waits, tuple(absent))
                return
        circle = _circle(waits)
        if circle:
            self.verdict = self._verdict_of("deadlock", self._odd_ones(), waits=waits)
        elif not self.running:
            self._settle_rest(waits)

    def _has_two_threads(self) -> bool:
        """A rank of which two threads communicate may be freed by the other one."""
        return any(len(threads) > 1 for threads in self._threads.values())

    def _is_gone(self, rank: int) -> bool:
        return rank in self.endings and self.endings[rank].how != "stopped"

    def _missing(self, rank: int) -> tuple[int, ...]:
        """For whom a waiting rank waits."""
        call = self._waiting[rank]
        if call.op in POINT_TO_POINT:
            if call.peer is None:
                # any of the others may come, so none of them is missing for sure
                others = [other for other in call.members if other != rank]
                if all(self._is_gone(other) for other in others):
                    return tuple(others)
                return ()
            return (call.peer,)
        place = self._queues[call.group, rank].index(call)
        missing = []
        for member in call.members:
            if len(self._queues[call.group, member]) <= place:
                missing.append(member)
        return tuple(missing)

    def _settle_rest(self, waits: dict[int, tuple[int, ...]]) -> None:
        """Nobody runs any more, and no circle is proven."""
        failed = {rank: end for rank, end in self.endings.items() if end.how in ("failed", "died")}
        stopped = [rank for rank, end in self.endings.items() if end.how == "stopped"]
        if failed:
            self.verdict = self._verdict_of("unknown", tuple(sorted(failed)), why="failed")
        elif not self._waiting or stopped:
            # who waits for a rank that we stopped would have gone on with it
            self.verdict = self._verdict_of("agree")
        elif self._has_two_threads():
            self.verdict = self._verdict_of("unknown", why="threads", waits=waits)
        else:
            self.verdict = self._verdict_of("deadlock", tuple(sorted(waits)), waits=waits)

    def _tell_mismatch(self, calls: dict[int, Call], field: str) -> None:
        if self.verdict is None:
            stands = {**self._waiting, **calls}
            if field == "splits":
                odd = _ranks_of_splits(calls)
            else:
                sides = {rank: (call.op, getattr(call, field)) for rank, call in calls.items()}
                odd = _smaller_part(sides)
            self.verdict = self._verdict_of("mismatch", odd, field=field)._replace(calls=stands)

    def _tell_left(self, waits: dict[int, tuple[int, ...]], absent: tuple[int, ...]) -> None:
        if any(self.endings[rank].unrehearsable for rank in absent):
            self.verdict = self._verdict_of("unknown", absent, why="failed")
        else:
            self.verdict = self._verdict_of("left", absent, waits=waits)

    def _odd_ones(self) -> tuple[int, ...]:
        """The smaller part of those that stand at different calls; all where none is smaller."""
        stands = {rank: (call.op, call.group, call.place) for rank, call in self._waiting.items()}
        return _smaller_part(stands) or tuple(sorted(stands))

    def _verdict_of(
        self,
        kind: str,
        ranks: tuple[int, ...] = (),
        field: str = "",
        waits: dict[int, tuple[int, ...]] | None = None,
        why: str = "",
    ) -> Ruling:
        return Ruling(kind, ranks, dict(self._waiting), dict(self.endings), field, waits or {}, why)


def _smaller_part(stands: Mapping[int, tuple[object, ...]]) -> tuple[int, ...]:
    """Ranks that do not stand where most of them do; none where no part is the largest."""
    parts: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank in sorted(stands):
        parts[stands[rank]].append(rank)
    by_size = sorted(parts.values(), key=len, reverse=True)
    if len(by_size) < 2 or len(by_size[0]) == len(by_size[1]):
        return ()
    return tuple(sorted(rank for part in by_size[1:] for rank in part))


def _ranks_of_splits(calls: dict[int, Call]) -> tuple[int, ...]:
    """Ranks that are part of each pair whose elements differ, else of any."""
    pairs = [set(pair[:2]) for pair in unequal_pairs(calls)]
    common = set.intersection(*pairs) or set.union(*pairs)
    return tuple(sorted(common))


def _circle(waits: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Ranks of which each waits for the next, the last one for the first; empty where none is."""
    done: set[int] = set()
    for start in sorted(waits):
        path: list[int] = []
        # (rank, those it waits for that are still to be followed)
        stack = [(start, list(waits[start]))]
        path.append(start)
        while stack:
            rank, others = stack[-1]
            if not others:
                done.add(rank)
                path.pop()
                stack.pop()
                continue
            other = others.pop()
            if other in path:
                return tuple(path[path.index(other) :])
            if other in waits and other not in done:
                path.append(other)
                stack.append((other, list(waits[other])))
    return ()
