"""Who waits for whom: decides whether the ranks of a script agree, without sockets and clocks.

A rank first posts a call and, where it cannot go on without it, says that it waits.  A call is
released when all members have posted calls that fit.  Six things are proven at once, whatever
other ranks do (looked for when a rank ends, and when all wait):

- *mismatch*: all members came to one collective with calls that do not fit;
- *differs*: they do not fit, and a library lets them pass, as they move as many bytes;
- *order*: ranks call two groups in different orders, which gloo allows and NCCL does not;
- *first_use*: some ranks begin a group with a batch of sends, for which NCCL needs all of them;
- *left*: a rank waits for one that has ended;
- *deadlock*: ranks wait for each other in a circle.

Where all agree, *same_gpu* says that two ranks of a host communicated from one GPU.

A rank that still runs is only waited for: it may be slow.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from .calls import (
    POINT_TO_POINT,
    Call,
    differing_field,
    differing_field_of_pair,
    passes_silently,
    unequal_pairs,
)
from .endings import Ending
from .first_uses import FirstUse, FirstUseWatch
from .hazards import GpuWatch, OrderWatch, SwapWatch, ThreadWatch
from .unmet_calls import UnmetCalls
from .waiting import WaitingRanks


class Ruling(NamedTuple):
    """What a rehearsal has shown."""

    kind: str
    """A key of `STATUS`."""
    ranks: tuple[int, ...] = ()
    """Those that stand differently from the others; all of a circle."""
    calls: dict[int, Call] = {}
    """Rank → the call at which it stands."""
    endings: dict[int, Ending] = {}
    field: str = ""
    """In what the calls of a mismatch differ."""
    waits: dict[int, tuple[int, ...]] = {}
    """Rank → for whom it waits."""
    circle: tuple[int, ...] = ()
    """Of `deadlock`: ranks of which each waits for the next, the last one for the first."""
    why: str = ""
    """Of `unknown`: why it cannot be told."""
    numbers: dict[int, int] = {}
    """Rank → the number of its collective in the group, from 1."""
    pairs: tuple[tuple[int, int, int, int], ...] = ()
    """(from, to, elements sent, expected) of splits that differ."""
    later: dict[int, Call] = {}
    """Of `order`: rank → the call that it makes after that of `calls`."""
    shared: dict[int, Call] = {}
    """Rank → its call from a GPU that another rank of its host uses, too."""
    notes: tuple[str, ...] = ()
    """What a rehearsal cannot decide, a sentence each."""


STATUS = {
    "agree": 0,
    "mismatch": 1,
    "differs": 1,
    "order": 1,
    "first_use": 1,
    "left": 1,
    "deadlock": 1,
    "same_gpu": 1,
    "unknown": 2,
}
"""Exit status by kind: all ranks agree, would go wrong, could not tell."""
SHOWN_GPUS = {
    "all": "a rank sees all GPUs of its host",
    "own": "a rank sees one GPU, which no other rank has",
    "first": "the same, and each rank is told that it is the first of its host",
    "unknown": "it depends on the launcher, which is not known",
    "any": "no matter: which GPU a rank uses is not judged",
}
"""Which GPUs a launcher shows a rank."""
Released = list[tuple[int, int]]
"""(rank, number of its call), which may now be made."""
Waits = dict[int, tuple[int, ...]]
"""Rank → for whom it waits."""


class GroupQueues:
    """Collectives of one group that its members have posted, and that are not released yet."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self._queues: dict[int, deque[Call]] = {}
        for member in members:
            self._queues[member] = deque()
        self._lacking = len(members)
        """Members that have posted nothing."""
        self._released = 0

    def add_call(self, rank: int, call: Call) -> None:
        """A member has posted a call."""
        queue = self._queues[rank]
        if not queue:
            self._lacking -= 1
        queue.append(call)

    def first_calls(self) -> dict[int, Call]:
        """Rank → its oldest call; empty as long as a member has none."""
        if self._lacking:
            return {}
        first = {}
        for member, queue in self._queues.items():
            first[member] = queue[0]
        return first

    def remove_first(self) -> None:
        """The oldest call of every member has been released."""
        self._released += 1
        for queue in self._queues.values():
            queue.popleft()
            if not queue:
                self._lacking += 1

    def number_of(self, rank: int, call: Call) -> int:
        """The place of a call that is not released among all of the group, from 1."""
        return self._released + self._queues[rank].index(call) + 1

    def members_behind(self, rank: int, call: Call) -> tuple[int, ...]:
        """Members that have not come to a call of this rank."""
        place = self._queues[rank].index(call)
        behind = []
        for member, queue in self._queues.items():
            if len(queue) <= place:
                behind.append(member)
        return tuple(behind)


class Coordinator:
    """The calls of all ranks; `verdict` is set as soon as one is proven."""

    def __init__(
        self,
        world: int,
        host_ranks: int = 0,
        shown_gpus: str = "all",
    ) -> None:
        """Begin with a job of so many ranks.

        host_ranks: those of one host; 0 for all.
        shown_gpus: a key of `SHOWN_GPUS`.
        """
        self.world = world
        self.verdict: Ruling | None = None
        self.released = 0
        """Collectives, sends and receives that all came to."""
        self.endings: dict[int, Ending] = {}
        self._groups: dict[str, GroupQueues] = {}
        self._unmet = UnmetCalls()
        self._open: dict[tuple[int, int], Call] = {}
        """(rank, number) → a call that is not released."""
        self._waits = WaitingRanks()
        self._waiting = self._waits.calls
        self._orders = OrderWatch()
        self._threads = ThreadWatch()
        self._swaps = SwapWatch()
        self._first_uses = FirstUseWatch()
        self._gpus = GpuWatch(host_ranks or world, shown_gpus in ("all", "unknown"))
        self._shown_gpus = shown_gpus

    # ---------------------------------------------------------------- what ranks say

    def post_call(
        self,
        rank: int,
        call: Call,
        thread: int = 0,
    ) -> Released:
        """A rank announces a call; returns the calls that may now be made."""
        self._threads.add_call(rank, call, thread)
        self._waits.add_thread(rank, thread)
        self._open[rank, call.number] = call
        self._first_uses.add_call(rank, call)
        if call.op in POINT_TO_POINT:
            return self._meet_partner(rank, call)
        group = self._groups.get(call.group)
        if group is None:
            group = GroupQueues(call.members)
            self._groups[call.group] = group
        group.add_call(rank, call)
        return self._release_first(group)

    def begin_wait(
        self,
        rank: int,
        number: int,
        thread: int = 0,
        alive: Iterable[int] = (),
    ) -> None:
        """A thread of a rank does not go on before its call is made.

        alive: threads of the rank that have communicated and may do so again.
        """
        call = self._open.get((rank, number))
        # it may have been released while the rank was asking, and a rank that we stopped has ended
        if call is None or rank in self.endings:
            return
        self._waits.begin_wait(rank, thread, call, alive)
        # judging costs time; as long as a rank runs and none has ended, nothing is lost by waiting
        if self.endings or self._is_silent():
            self._judge()

    def end_rank(self, rank: int, ending: Ending) -> None:
        """A rank makes no calls any more."""
        if rank in self.endings:
            return
        self.endings[rank] = ending
        self._waits.end_rank(rank)
        self._judge()

    def give_up(self, why: str) -> None:
        """Nobody can wait any longer: what is not proven stays unknown."""
        self._judge()
        if self.verdict is None:
            self._tell_unknown(why, self.running)

    def complete_verdict(self) -> None:
        """Add to the verdict where ranks have come to since it was proven."""
        if self.verdict is None:
            return
        calls = self.verdict.calls
        if self.verdict.kind != "order":
            calls = {**self._waiting, **calls}
        numbers = {}
        for rank, call in calls.items():
            if (rank, call.number) in self._open and call.op not in POINT_TO_POINT:
                numbers[rank] = self._groups[call.group].number_of(rank, call)
        pairs: tuple[tuple[int, int, int, int], ...] = ()
        if self.verdict.field == "splits":
            pairs = tuple(unequal_pairs(self.verdict.calls))
        waits = {}
        if self.verdict.waits:
            # by now more ranks wait, and some for fewer others
            for rank in self._waiting:
                waits[rank] = self._missing_ranks(rank)
        self.verdict = self.verdict._replace(
            shared=self._gpus.found,
            calls=calls,
            waits=waits,
            endings=dict(self.endings),
            numbers=numbers,
            pairs=pairs,
        )

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that wait in a call."""
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[int, ...]:
        """Ranks that neither wait nor have ended."""
        running = []
        for rank in range(self.world):
            if rank not in self._waiting and rank not in self.endings:
                running.append(rank)
        return tuple(running)

    def _is_silent(self) -> bool:
        """Whether no rank runs: whoever has ended does not wait."""
        return len(self._waiting) + len(self.endings) == self.world

    # ---------------------------------------------------------------- what meets

    def _release_first(self, group: GroupQueues) -> Released:
        calls = group.first_calls()
        if not calls:
            return []
        field = differing_field(calls)
        if field:
            self._tell_mismatch(calls, field)
            return []
        group.remove_first()
        self._compare_order(calls)
        self._gpus.add_released(calls)
        self._swaps.add_released(calls)
        return self._let_go(calls)

    def _compare_order(self, calls: dict[int, Call]) -> None:
        found = self._orders.add_released(calls)
        if found is None or self.verdict is not None:
            return
        groups = {}
        for rank, call in found.first.items():
            groups[rank] = (call.group,)
        self.verdict = Ruling(
            kind="order",
            ranks=_smaller_part(groups),
            calls=found.first,
            later=found.second,
        )

    def _meet_partner(self, rank: int, call: Call) -> Released:
        """A send meets the first recv of its pair, and the other way round."""
        found = self._unmet.take_partner(rank, call)
        if found is None:
            self._unmet.add_call(rank, call)
            return []
        other_rank, other = found
        pair = {rank: call, other_rank: other}
        field = differing_field_of_pair(call, other)
        if field:
            self._tell_mismatch(pair, field)
            return []
        self._gpus.add_released(pair)
        return self._let_go(pair)

    def _let_go(self, calls: dict[int, Call]) -> Released:
        threaded = [rank for rank in calls if self._waits.has_threads(rank)]
        found = self._first_uses.add_released(calls, threaded)
        if found is not None:
            self._tell_first_use(found, calls)
        self.released += 1
        released = []
        for rank, call in calls.items():
            del self._open[rank, call.number]
            self._waits.free_call(rank, call)
            released.append((rank, call.number))
        return released

    # ---------------------------------------------------------------- what is proven

    def _judge(self) -> None:
        """Set the verdict where something is proven, or where nobody is left to change anything."""
        if self.verdict is not None:
            return
        waits = {}
        for rank in self._waiting:
            waits[rank] = self._missing_ranks(rank)
        # a rank of which two threads communicate may be freed by the other one
        if not self._have_threads(waits):
            self._look_for_absent(waits)
            self._look_for_circle(waits)
        if self.verdict is None and self._is_silent():
            self._settle_rest(waits)

    def _have_threads(self, waits: Waits) -> bool:
        return any(self._waits.has_threads(rank) for rank in waits)

    def _is_gone(self, rank: int) -> bool:
        ending = self.endings.get(rank)
        return ending is not None and ending.how != "stopped"

    def _missing_ranks(self, rank: int) -> tuple[int, ...]:
        """For whom a waiting rank waits."""
        call = self._waiting[rank]
        if call.op not in POINT_TO_POINT:
            return self._groups[call.group].members_behind(rank, call)
        if call.peer is not None:
            return (call.peer,)
        # any of the others may come, so none of them is missing for sure
        others = []
        for other in call.members:
            if other == rank:
                continue
            if not self._is_gone(other):
                return ()
            others.append(other)
        return tuple(others)

    def _look_for_absent(self, waits: Waits) -> None:
        """Somebody waits for a rank that has ended."""
        for rank in sorted(waits):
            absent = []
            for other in waits[rank]:
                if self._is_gone(other):
                    absent.append(other)
            if absent:
                self._tell_left(waits, tuple(absent))
                return

    def _look_for_circle(self, waits: Waits) -> None:
        """Ranks wait for each other."""
        if self.verdict is not None:
            return
        circle = _circle_of(waits)
        if circle:
            knot = _knot_of(circle[0], waits)
            odd = self._odd_ones(knot)
            self._tell_deadlock(odd, waits, _shortest_circle(odd[0], waits))

    def _settle_rest(self, waits: Waits) -> None:
        """Nobody runs any more, and no circle is proven."""
        failed = []
        stopped = False
        for rank, ending in self.endings.items():
            if ending.how in ("failed", "died"):
                failed.append(rank)
            if ending.how == "stopped":
                stopped = True
        if failed:
            self._tell_unknown("failed", tuple(sorted(failed)))
        elif not self._waiting or stopped:
            # who waits for a rank that we stopped would have gone on with it
            self._tell_agreement()
        elif self._have_threads(waits):
            self._tell_unknown("threads", (), waits)
        else:
            self._tell_deadlock(tuple(sorted(waits)), waits)

    def _odd_ones(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The smaller part of ranks that stand at different calls; all where none is smaller."""
        stands: dict[int, tuple[object, ...]] = {}
        for rank in ranks:
            call = self._waiting[rank]
            stands[rank] = call.op, call.group, call.place
        return _smaller_part(stands) or ranks

    # ---------------------------------------------------------------- verdicts

    def _tell_first_use(self, found: FirstUse, calls: dict[int, Call]) -> None:
        if self.verdict is not None:
            return
        self.verdict = Ruling(
            kind="first_use",
            ranks=found.missing,
            calls={**calls, **found.begun},
            endings=dict(self.endings),
        )

    def _tell_agreement(self) -> None:
        never = self._first_uses.never_made(self.endings)
        if never is not None:
            self._tell_first_use(never, {})
            return
        shared = self._gpus.found
        kind = "agree"
        why = ""
        if shared and self._shown_gpus == "all":
            kind = "same_gpu"
        elif shared:
            # each may see another GPU as its first
            kind = "unknown"
            why = "gpus"
        self.verdict = Ruling(
            kind=kind,
            ranks=tuple(sorted(shared)),
            endings=dict(self.endings),
            why=why,
            notes=(*self._threads.notes(), *self._swaps.notes()),
        )

    def _tell_mismatch(self, calls: dict[int, Call], field: str) -> None:
        if self.verdict is not None:
            return
        kind = "mismatch"
        if passes_silently(calls, field):
            kind = "differs"
        self.verdict = Ruling(
            kind=kind,
            ranks=_odd_of_mismatch(calls, field),
            calls={**self._waiting, **calls},
            endings=dict(self.endings),
            field=field,
        )

    def _tell_left(self, waits: Waits, absent: tuple[int, ...]) -> None:
        for rank in absent:
            if self.endings[rank].unrehearsable:
                self._tell_unknown("failed", absent)
                return
        self.verdict = Ruling(
            kind="left",
            ranks=absent,
            calls=dict(self._waiting),
            endings=dict(self.endings),
            waits=waits,
        )

    def _tell_deadlock(
        self,
        ranks: tuple[int, ...],
        waits: Waits,
        circle: tuple[int, ...] = (),
    ) -> None:
        self.verdict = Ruling(
            kind="deadlock",
            ranks=ranks,
            circle=circle,
            calls=dict(self._waiting),
            endings=dict(self.endings),
            waits=waits,
        )

    def _tell_unknown(
        self,
        why: str,
        ranks: tuple[int, ...],
        waits: Waits | None = None,
    ) -> None:
        self.verdict = Ruling(
            kind="unknown",
            ranks=ranks,
            calls=dict(self._waiting),
            endings=dict(self.endings),
            waits=waits or {},
            why=why,
        )


def _odd_of_mismatch(calls: dict[int, Call], field: str) -> tuple[int, ...]:
    """Ranks whose calls differ from those of most."""
    if field == "splits":
        return _odd_of_splits(calls)
    sides = {}
    for rank, call in calls.items():
        sides[rank] = (call.op, getattr(call, field))
    return _smaller_part(sides)


def _smaller_part(stands: Mapping[int, tuple[object, ...]]) -> tuple[int, ...]:
    """Ranks that do not stand where most of them do; none where no part is the largest."""
    parts: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank in sorted(stands):
        parts[stands[rank]].append(rank)
    largest, *others = sorted(parts.values(), key=len, reverse=True)
    if not others or len(others[0]) == len(largest):
        return ()
    odd = []
    for part in others:
        odd += part
    return tuple(sorted(odd))


def _odd_of_splits(calls: dict[int, Call]) -> tuple[int, ...]:
    """Ranks that are part of each pair whose elements differ, else of any."""
    pairs = []
    for sender, receiver, _, _ in unequal_pairs(calls):
        pairs.append({sender, receiver})
    common = set.intersection(*pairs) or set.union(*pairs)
    return tuple(sorted(common))


def _knot_of(start: int, waits: Waits) -> tuple[int, ...]:
    """All ranks in a circle with this one; who only waits behind them is none of them."""
    awaited_by: dict[int, list[int]] = defaultdict(list)
    for rank, others in waits.items():
        for other in others:
            awaited_by[other].append(rank)
    ahead = _reached_from(start, waits)
    behind = _reached_from(start, awaited_by)
    return tuple(sorted(ahead & behind))


def _reached_from(start: int, leads_to: Mapping[int, Iterable[int]]) -> set[int]:
    """Ranks to which a way leads, step by step."""
    reached = {start}
    to_follow = [start]
    while to_follow:
        rank = to_follow.pop()
        for other in leads_to.get(rank, ()):
            if other not in reached:
                reached.add(other)
                to_follow.append(other)
    return reached


def _shortest_circle(start: int, waits: Waits) -> tuple[int, ...]:
    """The fewest ranks of which each waits for the next, from this one back to it."""
    paths: deque[tuple[int, ...]] = deque([(start,)])
    seen: set[int] = set()
    while paths:
        path = paths.popleft()
        for other in waits.get(path[-1], ()):
            if other == start:
                return path
            if other not in seen:
                seen.add(other)
                paths.append((*path, other))
    return ()


def _circle_of(waits: Waits) -> tuple[int, ...]:
    """Ranks of which each waits for the next, the last one for the first; empty where none is."""
    done: set[int] = set()
    for start in sorted(waits):
        circle = _circle_from(start, waits, done)
        if circle:
            return circle
    return ()


def _circle_from(
    start: int,
    waits: Waits,
    done: set[int],
) -> tuple[int, ...]:
    """The circle that a rank leads into; `done` are those that lead into none."""
    path: list[int] = []
    # rank → those it waits for that are still to be followed
    follow: list[Iterator[int]] = []
    rank: int | None = start
    while rank is not None:
        if rank in path:
            return tuple(path[path.index(rank) :])
        if rank in waits and rank not in done:
            path.append(rank)
            follow.append(iter(waits[rank]))
        rank = None
        while path and rank is None:
            rank = next(follow[-1], None)
            if rank is None:
                done.add(path.pop())
                follow.pop()
    return ()
