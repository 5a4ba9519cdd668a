"""What passes in a rehearsal and need not pass on NCCL: orders that differ, GPUs that are shared.

Kernels of two groups run on the same GPU, so torch asks for one order of their calls on all ranks.
Two calls are in another order on some ranks only where one of them is not waited for: else the
ranks would stand still here, too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .calls import Call

RECENT = 64
"""Collectives of a group that may still be in flight beside others."""
Calls = Mapping[int, Call]
"""Rank → its call of one collective."""


class TwoOrders(NamedTuple):
    """Two collectives that ranks call in different orders."""

    first: dict[int, Call]
    """Rank → that of the two which it calls first."""
    second: dict[int, Call]


class OrderWatch:
    """Compares the order in which ranks call overlapping groups, as their calls are released."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[Calls]] = defaultdict(_few_calls)

    def add_released(self, calls: Calls) -> TwoOrders | None:
        """A collective is released; returns it with one that some ranks call in another order."""
        call = next(iter(calls.values()))
        if call.backend != "nccl":
            return None
        for group, others in self._recent.items():
            if group == call.group:
                continue
            for earlier in _still_beside(calls, others):
                found = _two_orders(calls, earlier)
                if found is not None:
                    return found
        self._recent[call.group].append(calls)
        return None


def _few_calls() -> deque[Calls]:
    return deque(maxlen=RECENT)


def _still_beside(calls: Calls, others: deque[Calls]) -> Iterator[Calls]:
    """Those collectives of another group that a rank calls after one of ours, the last first."""
    for other in reversed(others):
        is_later = False
        for rank, call in other.items():
            if rank in calls and call.number > calls[rank].number:
                is_later = True
        if not is_later:
            return
        yield other


def _two_orders(ours: Calls, theirs: Calls) -> TwoOrders | None:
    """The first calls of the ranks that make both; None where their order is the same."""
    first = {}
    second = {}
    groups = set()
    for rank in ours:
        if rank not in theirs:
            continue
        early, late = ours[rank], theirs[rank]
        if early.number > late.number:
            early, late = late, early
        first[rank] = early
        second[rank] = late
        groups.add(early.group)
    if len(groups) < 2:
        return None
    return TwoOrders(first, second)


class GpuWatch:
    """Finds ranks of one host that communicate from one GPU: NCCL refuses that."""

    def __init__(self, host_ranks: int, judges: bool) -> None:
        self.found: dict[int, Call] = {}
        """Rank → its call, of the first collective in which ranks share a GPU."""
        self._host_ranks = host_ranks
        self._judges = judges

    def add_released(self, calls: Calls) -> None:
        """A collective, or a send with its recv, is released."""
        if self.found or not self._judges:
            return
        sharing: dict[tuple[int, str], list[int]] = defaultdict(list)
        for rank, call in calls.items():
            if call.gpu:
                sharing[rank // self._host_ranks, call.gpu].append(rank)
        # each with its own is the usual case
        if len(sharing) == len(calls):
            return
        for ranks in sharing.values():
            if len(ranks) > 1:
                self.found.update((rank, calls[rank]) for rank in ranks)


class SwapWatch:
    """Notes two calls that some ranks make in the other order, and that fit all the same.

    Nobody knows whether their values are two things: who adds zeros in turn does the same.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, frozenset[int]]] = {}
        """Group → the lines of its last collective, with their ranks; empty of one line."""
        self._notes: dict[frozenset[str], str] = {}

    def add_released(self, calls: Calls) -> None:
        """A collective is released."""
        first = next(iter(calls.values()))
        sides = _ranks_by_line(calls)
        before = self._last.get(first.group, {})
        self._last[first.group] = sides
        # of two ranks that take turns nothing can be told apart
        if len(calls) < 3 or len(sides) != 2:
            return
        one, other = sides
        if before == {one: sides[other], other: sides[one]}:
            self._notes.setdefault(frozenset(sides), _swap_in_words(first.op, sides))

    def notes(self) -> list[str]:
        """A sentence for each pair of lines."""
        return list(self._notes.values())


def _ranks_by_line(calls: Calls) -> dict[str, frozenset[int]]:
    ranks: dict[str, set[int]] = defaultdict(set)
    for rank, call in calls.items():
        ranks[call.place].add(rank)
    if len(ranks) < 2:
        return {}
    return {place: frozenset(members) for place, members in ranks.items()}


def _swap_in_words(op: str, sides: Mapping[str, frozenset[int]]) -> str:
    (few, ranks), (many, _) = sorted(sides.items(), key=_by_size)
    named = ", ".join(str(rank) for rank in sorted(ranks))
    return (
        "Rank %s calls %s at %s where the others call it at %s, and the other way round next to"
        " it: if these are not the same values, the results are wrong without a word."
        % (named, op, few, many)
    )


def _by_size(side: tuple[str, frozenset[int]]) -> int:
    _, ranks = side
    return len(ranks)


class ThreadWatch:
    """Notes groups that several threads of one rank use."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, str], dict[int, str]] = defaultdict(dict)

    def add_call(self, rank: int, call: Call, thread: int) -> None:
        """A rank posts a call from a thread."""
        self._places[rank, call.group].setdefault(thread, call.place)

    def notes(self) -> list[str]:
        """A sentence for each group that several threads of a rank use."""
        found = []
        for (rank, group), places in sorted(self._places.items()):
            if len(places) > 1:
                lines = " and ".join(list(places.values())[:2])
                found.append(
                    "Rank %d calls group %s from %d threads (%s): which of them comes first is"
                    " left to chance unless the script orders them."
                    % (rank, group, len(places), lines)
                )
        return found
