"""Who waits for whom in which group, and which of two calls each rank makes first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclkit.core import text

OUTSIDE = "world"
"""The group of calls that all ranks make outside of any group: `init_process_group`."""
DEFAULT = "default_pg"
"""What torch calls the group of all ranks."""
SHOWN = 8
"""Lines of a circle that are shown."""
Ranks = tuple[int, ...]
Record = Mapping[str, Any]
"""Plain values, as the file of a verdict holds them."""
ShortenPlace = Callable[[str], str]
"""Makes of file:line what a reader is shown."""


@dataclass(frozen=True, slots=True)
class RankWait:
    """A rank that waits for others."""

    rank: int
    waits_for: Ranks
    """Ranks; empty where any of the others may come."""
    op: str
    """What it calls."""
    group: str
    """The group, by the name that the script gave where it gave one; empty outside of any."""
    members: Ranks
    place: str
    """file:line of the program."""

    @property
    def sentence(self) -> str:
        """For whom it waits, in which group, at which line."""
        awaited = "any rank"
        if self.waits_for:
            awaited = text.ranks(self.waits_for)
        within = ""
        if self.group:
            members = text.ranks(self.members)
            within = f" in {self.group} ({members})"
        call = f"{self.op} at {self.place}"
        return f"rank {self.rank} waits for {awaited}{within}: {call}"


@dataclass(frozen=True, slots=True)
class CallOrder:
    """Ranks that make two calls in one order."""

    ranks: Ranks
    first: str
    """The call that they make first, with its group and line."""
    later: str


def read_waits(answer: Record, shorten: ShortenPlace) -> tuple[RankWait, ...]:
    """Of every rank that waits, for whom."""
    calls = answer["calls"]
    waits = []
    for rank in sorted(answer["waits"], key=int):
        if rank not in calls:
            continue
        call = calls[rank]
        others = answer["waits"][rank]
        wait = RankWait(
            rank=int(rank),
            waits_for=tuple(others),
            op=call["op"],
            group=_group_name(call),
            members=tuple(call["members"]),
            place=shorten(call["place"]),
        )
        waits.append(wait)
    return tuple(waits)


def _group_name(call: Record) -> str:
    group = call["group"]
    if group == OUTSIDE:
        return ""
    desc = call["group_desc"]
    if desc == DEFAULT:
        return "the default group"
    return f"group {desc or group}"


def circle_of(
    waits: Sequence[RankWait],
    circle: Sequence[int],
) -> tuple[RankWait, ...]:
    """The waits of a circle of ranks, each for the next one."""
    by_rank = {}
    for wait in waits:
        by_rank[wait.rank] = wait
    found = []
    for rank in circle:
        # a rank that was freed since waits no more
        if rank not in by_rank:
            continue
        wait = by_rank[rank]
        found.append(wait)
    return tuple(found)


def circle_lines(circle: Sequence[RankWait]) -> list[str]:
    """A line for each wait of a circle; of a long one the first and the last."""
    lines = []
    for wait in circle:
        lines.append(wait.sentence)
    left_out = len(lines) - SHOWN
    if left_out <= 0:
        return lines
    between = text.plural(left_out, "rank")
    last = lines[-1]
    del lines[SHOWN - 1 :]
    lines.append(f"… {between} more, each of which waits for the next")
    lines.append(last)
    return lines


def read_orders(answer: Record, shorten: ShortenPlace) -> tuple[CallOrder, ...]:
    """Which of two calls ranks make first; the fewest ranks first."""
    calls = answer["calls"]
    together: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, later in answer["later"].items():
        if rank not in calls:
            continue
        first_words = _words_of(calls[rank], shorten)
        later_words = _words_of(later, shorten)
        together[first_words, later_words].append(int(rank))
    orders = []
    for words, ranks in together.items():
        first_words, later_words = words
        order = CallOrder(
            ranks=tuple(sorted(ranks)),
            first=first_words,
            later=later_words,
        )
        orders.append(order)
    orders.sort(key=_count_of_ranks)
    return tuple(orders)


def _words_of(call: Record, shorten: ShortenPlace) -> str:
    """A call with its group and its line."""
    group = _group_name(call)
    place = shorten(call["place"])
    return f"{call['op']} in {group} at {place}"


def _count_of_ranks(order: CallOrder) -> int:
    return len(order.ranks)


def order_lines(orders: Sequence[CallOrder]) -> list[str]:
    """A line for each order."""
    lines = []
    for order in orders:
        named = text.ranks(order.ranks)
        lines.append(f"{named}: {order.first}, then {order.later}")
    return lines
