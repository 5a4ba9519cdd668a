"""Facts by theme, as a person reads them.

It tells which belong together, and their values in few words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from ncclkit.core.model import Fact
from ncclkit.core.text import plural, quantity, ranges, some

THEMES = {
    "GPUs": ("gpu",),
    "Network": ("net",),
    "Limits and isolation": ("limits", "host.container", "host.iommu", "host.acs"),
    "CPU and memory": ("cpu", "memory"),
    "Storage": ("storage",),
    "Software": ("software", "host"),
    "Environment variables": ("env",),
    "Scheduler": ("scheduler",),
    "Other": ("",),
}
"""Cards in their order, each with the beginnings of the fact names that belong to it; the longest
one holds."""

NUMBER = re.compile(r"\.(\d+)(?=\.)")
"""The number of a GPU, say, in a fact's name."""


@cache  # a thousand hosts have the same few hundred names
def theme(name: str) -> str:
    """The theme of a fact."""
    starts = {}
    for title, firsts in THEMES.items():
        for first in firsts:
            # from the most special to the most general, so `host.container` is no fact of the
            # software
            starts[first] = title
    parts = name.split(".")
    return next(
        starts[head] for n in range(len(parts), -1, -1) if (head := ".".join(parts[:n])) in starts
    )


def by_theme(facts: Iterable[Fact]) -> dict[str, list[Fact]]:
    """Theme → its facts, in the order of `THEMES`.

    Themes without a fact are left out.
    """
    held: dict[str, list[Fact]] = {title: [] for title in THEMES}
    for fact in facts:
        held[theme(fact.name)].append(fact)
    filled_themes = {}
    for title, found in held.items():
        if found:
            filled_themes[title] = found
    return filled_themes


NAMED_BY = ("name", "device", "account")
"""What may name a row of a table."""


def _name_of_row(item: Any) -> Any:
    """What a row of a list is called; a plain item is its own name."""
    if not isinstance(item, dict):
        return item
    for key in NAMED_BY:
        if item.get(key):
            return item[key]
    return ""


def brief(value: Any, unit: str = "") -> str:
    """A value in one line with its unit.

    It is such as ``8 MiB``, ``unlimited`` or ``yes``; of lists the names; "" for a table.
    """
    shown = quantity(value, unit)
    if isinstance(shown, list):
        names = []
        for item in shown:
            name = _name_of_row(item)
            # 0 is a name, such as that of a GPU
            if name != "":
                names.append(str(name))
        if shown and not names:
            return plural(len(shown), "row")
        return some(dict.fromkeys(names)) or "none"
    if isinstance(shown, dict):
        return ""
    if isinstance(shown, bool):
        return "yes" if shown else "no"
    return str(shown)


def numbers_in(facts: Iterable[Fact]) -> list[int]:
    """The numbers that stand in the names of facts, such as those of GPUs, sorted."""
    numbers: set[int] = set()
    for fact in facts:
        numbers.update(map(int, NUMBER.findall(fact.name)))
    return sorted(numbers)


def known_rows(facts: Sequence[Fact]) -> list[tuple[str, str]]:
    """Name and value of each fact that could be read.

    GPUs whose values are equal share a row.
    """
    alike: dict[tuple[str, str], list[Fact]] = defaultdict(list)
    for fact in facts:
        if fact.value is not None:
            # by value as well: eight equal GPUs take one row, and the odd one its own
            alike[NUMBER.sub(".N", fact.name), _line_of_fact(fact)].append(fact)
    rows = []
    for (name, value), group in alike.items():
        numbers = numbers_in(group)
        if len(group) == 1:
            name, numbers = group[0].name, []
        rows.append((name, f"{value} (N = {ranges(numbers)})" if numbers else value))
    return rows


def unread_rows(facts: Sequence[Fact]) -> list[tuple[str, str]]:
    """Names of the facts that could not be read, and the reason.

    Those of one reason stand together.
    """
    alike: dict[str, list[str]] = defaultdict(list)
    for fact in facts:
        if fact.value is None:
            alike[fact.why or "the reader gave no reason"].append(NUMBER.sub(".N", fact.name))
    return [(some(dict.fromkeys(names)), why) for why, names in alike.items()]


def _line_of_fact(fact: Fact) -> str:
    if isinstance(fact.value, Mapping):
        flat = not any(isinstance(inner, (Mapping, list)) for inner in fact.value.values())
        if flat:
            return some(f"{key} {inner}" for key, inner in fact.value.items())
        return plural(len(fact.value), "row")
    return brief(fact.value, fact.unit)
