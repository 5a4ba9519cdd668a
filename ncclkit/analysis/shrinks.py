"""Ranks that a program left out as it shrank a communicator (`ncclCommShrink`, NCCL 2.27+).

No line of NCCL lists them.  But each rank that stays prints its new number, and its old one as
``key``: between two that stay, as many are left out as numbers are missing.  Where all numbers
between them are missing the ranks are known by name, elsewhere only how many there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ncclkit.analysis.communicators import Communicator, Index
from ncclkit.core import text
from ncclkit.core.kinds import NcclInit
from ncclkit.core.model import Event

SHRINK = "ncclCommShrink"


@dataclass(frozen=True, slots=True)
class Shrink:
    """One communicator that was made of another without some of its ranks."""

    left_out: tuple[int, ...]
    """Global ranks that the lines name."""
    unnamed: int
    """How many more were left out."""
    size: int
    """Ranks that stay."""
    lines: tuple[Event[NcclInit], ...]
    """INIT lines of those that stay."""


class _LeftOut(NamedTuple):
    """Numbers in the old communicator that no rank has any more, and how many are not known."""

    numbers: tuple[int, ...]
    unnamed: int


def shrinks(events: Iterable[Event]) -> list[Shrink]:
    """Every shrink of a communicator whose INIT lines are there, in the order of the log."""
    known = list(events)
    index = Index(known)
    made_by_id = {made.id: made for made in index.all}
    lines: dict[str, list[Event[NcclInit]]] = defaultdict(list)
    for event in known:
        if isinstance(event.data, NcclInit) and event.data.api == SHRINK:
            named = index.of(event)
            if named is not None:
                lines[named[0].id].append(event)
    found = []
    for name, held in lines.items():
        made = made_by_id[name]
        if made.parent not in made_by_id:
            continue
        parent = made_by_id[made.parent]
        left_out = _left_out(held, made.size, parent.size)
        if left_out is not None:
            found.append(_shrink(left_out, _global_ranks(parent, index.world), made.size, held))
    return found


def left_out_in_words(events: Iterable[Event]) -> str:
    """``without rank 3 since ncclCommShrink``; "" where nobody was left out."""
    named: set[int] = set()
    unnamed = 0
    for shrink in shrinks(events):
        named.update(shrink.left_out)
        unnamed += shrink.unnamed
    words = []
    if named:
        words.append(text.ranks(sorted(named)))
    if unnamed:
        words.append(f"{text.plural(unnamed, 'rank')} that no line names")
    if not words:
        return ""
    return f"without {' and '.join(words)} since {SHRINK}"


def _shrink(
    left_out: _LeftOut, global_ranks: dict[int, int], size: int, lines: list[Event[NcclInit]]
) -> Shrink:
    named = []
    for number in left_out.numbers:
        if number in global_ranks:
            named.append(global_ranks[number])
    unnamed = left_out.unnamed + len(left_out.numbers) - len(named)
    return Shrink(tuple(named), unnamed, size, tuple(lines))


def _left_out(lines: list[Event[NcclInit]], size: int, before: int) -> _LeftOut | None:
    """Who is missing of so many ranks before; None where the lines contradict each other."""
    places = {-1: -1, size: before}
    for line in lines:
        rank, key = line.data.rank, line.data.key
        # a torn line, or two children under one name
        if rank is None or key is None or places.setdefault(rank, key) != key:
            return None
    numbers: list[int] = []
    unnamed = 0
    for (new, old), (next_new, next_old) in pairwise(sorted(places.items())):
        missing = (next_old - old) - (next_new - new)
        between = range(old + 1, next_old)
        if missing < 0:
            return None
        if missing == len(between):
            numbers.extend(between)
        else:
            unnamed += missing
    return _LeftOut(tuple(numbers), unnamed)


def _global_ranks(parent: Communicator, world: int) -> dict[int, int]:
    """{number in the old communicator: global rank}, as far as they are known."""
    known = dict(parent.ranks)
    # that of the whole job counts its ranks as the job does, and those that are gone print nothing
    if parent.size == world:
        for number in range(world):
            known.setdefault(number, number)
    return known
