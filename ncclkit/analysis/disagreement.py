"""What a disagreement between ranks is, and which side of it is the odd one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ncclkit.core.model import Event

CITED = 8
"""Events that one disagreement cites at most."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The first collective of one group or communicator on which its ranks disagree."""

    group: str
    """Name of the process group, or `id` of the communicator."""
    desc: str
    seq: int
    """Its number: c10d's own, or the how-manieth call on the communicator; -1 where nothing shows it."""
    what: str
    """``missing`` (the odd ranks are not in it), ``op``, ``size``, ``dtype``, or ``stuck`` (all are in it)."""
    majority: tuple[int, ...]
    odd: tuple[int, ...]
    summary: str
    evidence: tuple[Event, ...]


def sides(values: Mapping[int, Hashable], came: Mapping[int, int] | None = None) -> list[tuple[Any, list[int]]]:
    """Values with the ranks that hold them: the one of most ranks first, of equals the one of those that came further.

    values: rank → value.  came: rank → how far it came.
    """
    held: dict[Hashable, list[int]] = {}
    for rank, value in sorted(values.items()):
        held.setdefault(value, []).append(rank)
    far = came or {}
    return sorted(held.items(), key=lambda side: (-len(side[1]), -max(far.get(r, 0) for r in side[1]), side[1]))


def cited(*groups: Iterable[Event]) -> tuple[Event, ...]:
    """The first few events of each group in turn, so that every side has its word."""
    rows = [list(group)[:CITED] for group in groups]
    turns = [row[turn] for turn in range(CITED) for row in rows if turn < len(row)]
    chosen: list[Event] = []
    for event in turns:
        chosen += [event] if not any(event is held for held in chosen) else []
    return tuple(chosen[:CITED])
