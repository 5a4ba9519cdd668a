"""Which collective each rank was in, and where the ranks disagree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

from ncclkit.analysis.once import once
from ncclkit.analysis.rank_states import rank_of
from ncclkit.core.case import Case
from ncclkit.core.model import Event

SAME_SIZE = frozenset(
    {
        "ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "ALLGATHER", "_REDUCE_SCATTER_BASE",
        "ALLREDUCE_COALESCED",
    }
)  # fmt: skip
"""Collectives, as torch's watchdog names them, to which every rank must bring the same number of elements."""
POINT_TO_POINT = frozenset({"SEND", "RECV", "RECVANYSOURCE", "COALESCED"})
"""Calls whose two sides differ by nature; they have no place in the order of the collectives."""
UNSIGNED = 1 << 62
"""Numbers from here on are torch's -1, printed without a sign: it does not know them."""
UNDECIDED = "Without a majority these dumps do not tell which of them is wrong."


@once
def groups_of(case: Case) -> dict[tuple[int, int], tuple[str, str]]:
    """(rank, sequence number) → (group, its description) of what a rank waits for.

    The line of the timeout names no group; the next one of the same watchdog does.
    """
    lines = [*case.of("c10d.timeout"), *case.of("c10d.status")]
    told = [e for e in lines if e.data.get("pg") and isinstance(e.data.get("seq"), int)]
    return {(rank_of(e), e.data["seq"]): (str(e.data["pg"]), str(e.data.get("desc") or "")) for e in told}


@once
def by_call(case: Case) -> dict[tuple[str, int], list[Event]]:
    """(group, sequence number) → the watchdog's timeouts of that collective, one per rank."""
    groups: dict[tuple[str, int], dict[int, Event]] = defaultdict(dict)
    known = groups_of(case)
    for event in case.of("c10d.timeout"):
        if isinstance(event.data.get("seq"), int):
            rank, seq = rank_of(event), event.data["seq"]
            name = event.data.get("pg") or known.get((rank, seq), ("",))[0]
            groups["" if name == "0" else str(name), seq].setdefault(rank, event)
    return {call: list(ranks.values()) for call, ranks in groups.items()}


APART = 64
"""Numbers between two calls that cannot be of one group: nobody gets through a call that others have not begun."""


def far_apart(events: Iterable[Event]) -> bool:
    """Whether the lines, which name no group, must be of several, as their sequence numbers are that far apart."""
    seqs = sorted(event.data["seq"] for event in events if isinstance(event.data.get("seq"), int))
    return any(after - before > APART for before, after in pairwise(seqs))


def op_of(event: Event) -> str:
    """The collective's name; empty where the line has none."""
    return str(event.data.get("op") or "")


def size_of(event: Event) -> int | None:
    """The number of elements that this rank brought, where it is known."""
    size = event.data.get("numel_in")
    return size if isinstance(size, int) and size < UNSIGNED else None


def differ(events: Iterable[Event], what: Callable[[Event], Any]) -> dict[Any, list[Event]]:
    """value → events, where the events disagree about `what`; empty where they agree."""
    values: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        value = what(event)
        if value not in (None, ""):
            values[value].append(event)
    return dict(values) if len(values) > 1 else {}


def exchanging(waits: Iterable[Event]) -> bool:
    """True where everybody who waits does so in a send or a receive: no collective is short of a rank."""
    ops = {op_of(event) for event in waits}
    return bool(ops) and ops <= POINT_TO_POINT


def sides(mismatch: Event) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """(those that differ, those that are right) of dumps that disagree, each as {value, ranks}.

    Without a majority nobody is right: dumps of the others may be missing.
    """
    most, odd = mismatch.data.get("majority") or {}, list(mismatch.data.get("odd") or ())
    tie = bool(odd) and len(odd[0].get("ranks", ())) >= len(most.get("ranks", ()))
    return ([*odd, most], []) if tie else (odd, [most])


def unlike_calls(op: str, sizes: Iterable[int]) -> bool:
    """True where sizes of one place are those of different calls, and not of one call with another tensor.

    A flag beside a bucket of gradients is not an odd batch; gradients and parameters, which all ranks hold in the same
    sizes, differ only where ranks are at another bucket or another layer.  A broadcast carries rank-local state.
    """
    low, high = min(sizes), max(sizes)
    return op != "BROADCAST" and (high >= FAR * max(low, 1) or low >= PARAMETERS)


FAR, PARAMETERS = 64, 1 << 20
"""Times as large, and elements, from which `unlike_calls` is true."""


def ranks_of(groups: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """All ranks of such groups."""
    return tuple(sorted(rank for group in groups for rank in group.get("ranks", ())))


def odd_ones(values: dict[Any, list[Event]]) -> tuple[int, ...]:
    """The ranks in the minority; all of them where there is none."""
    groups = sorted(values.values(), key=len)
    few = groups[:-1] if len(groups[0]) < len(groups[-1]) else groups
    return tuple(sorted(rank for group in few for e in group if (rank := rank_of(e)) >= 0))
