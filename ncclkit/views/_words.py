"""Numbers and names in words, for views."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from ncclkit.views import plots

MANY = 12
"""Names listed before the rest is only counted."""


def plural(count: int, noun: str) -> str:
    """``1 rank``, ``2 ranks``, ``1,024 ranks``."""
    ending = "" if count == 1 else "es" if noun.endswith(("s", "x", "ch")) else "s"
    return f"{count:,} {noun}{ending}"


def ranges(numbers: Iterable[int]) -> str:
    """``[0, 1, 2, 5]`` → ``0–2, 5``."""
    known = sorted(set(numbers))
    starts = [0, *(i for i, (a, b) in enumerate(pairwise(known), 1) if b != a + 1), len(known)]
    runs = [(known[a], known[b - 1]) for a, b in pairwise(starts) if a < b]
    return ", ".join(f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in runs)


def some(names: Iterable[Any]) -> str:
    """All names, numbers as ranges; past `MANY` the others are counted."""
    known = list(names)
    if known and all(isinstance(name, int) for name in known):
        known = ranges(known).split(", ")
    more = f" and {len(known) - MANY:,} more" if len(known) > MANY else ""
    return ", ".join(str(name) for name in known[:MANY]) + more


def the(noun: str, numbers: Iterable[int]) -> str:
    """``Rank 5``, ``Ranks 0–2, 5``: a noun that agrees with its numbers."""
    known = list(numbers)
    return f"{noun}{'s' if len(known) != 1 else ''} {some(known)}"


def quantity(value: Any, unit: str) -> Any:
    """A value with its unit for people: bytes as KiB…TiB, times scaled, -1 of something as unlimited; else as it is."""
    if unit and isinstance(value, list) and all(isinstance(item, (int, float)) for item in value):
        return f"{', '.join(str(item) for item in value)} {unit}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    scale = {"bytes": 1.0, "B": 1.0, "KiB": 2.0**10, "kB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
    times = {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
    if unit and value == -1:  # how the agent writes a limit that is not there
        return "unlimited"
    if unit in scale:
        return plots.size(value * scale[unit])
    if unit in times:
        return plots.duration(value * times[unit])
    if not unit:  # a port, a pid, a version: digits only
        return value
    return f"{value:,} {unit}" if isinstance(value, int) else f"{plots.number(value)} {unit}"
