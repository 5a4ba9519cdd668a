"""Facts in tables: those that are known, by name and value; those that are not, by reason and way to find out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from ncclkit.core.model import Fact
from ncclkit.core.text import host_list, quantity, some
from ncclkit.views._how_to_read import by_hand
from ncclkit.views._html import Markup, code, el, join, table, value

EACH, MOST = 8, 40
"""Different values of one fact in a table, and rows of what could not be read."""

_NUMBER = re.compile(r"\.(\d+)(?=\.)")


def known_table(facts: Sequence[Fact]) -> Markup:
    """One row per name and value; hosts that agree share a row, and so do GPUs; rare values of many are counted."""
    names: dict[str, dict[str, list[Fact]]] = defaultdict(lambda: defaultdict(list))
    for fact in facts:
        names[_NUMBER.sub(".N", fact.name)][repr(fact.value)].append(fact)
    hosts = len({fact.host for fact in facts if fact.host}) > 1
    rows: list[tuple[Markup, str, object]] = []
    for name, values in names.items():
        groups = sorted(values.values(), key=len, reverse=True) if len(values) > EACH else list(values.values())
        for group in groups[:EACH]:
            shown = value(quantity(group[0].value, group[0].unit))
            rows.append((_name(name, group), _where(name, group, hosts), shown))
        if rest := groups[EACH:]:
            others = [fact for group in rest for fact in group]
            rows.append((code(name), _where(name, others, hosts), f"{len(rest):,} other values"))
    placed = any(place for _, place, _ in rows)
    head = ("Fact, and where it was read", *(("Of",) if placed else ()), "Value")
    return table(head, [(name, *((place or "–",) if placed else ()), shown) for name, place, shown in rows])


def _where(name: str, group: Sequence[Fact], hosts: bool) -> str:
    """Which hosts and which numbers (of GPUs, say) a row speaks of."""
    numbers = sorted({int(found) for fact in group for found in _NUMBER.findall(fact.name)})
    numbered = f"N = {some(numbers)}" if len(group) > 1 and name != group[0].name else ""
    return "; ".join(filter(None, (host_list(fact.host for fact in group) if hosts else "", numbered)))


def blind_table(facts: Sequence[Fact]) -> Markup:
    """Facts that could not be read, those of one reason and one way to find out together."""
    alike: dict[tuple[str, Markup], list[str]] = defaultdict(list)
    for fact in facts:
        alike[fact.why or "the reader gave no reason", by_hand(fact.name)].append(_NUMBER.sub(".N", fact.name))
    rows = [(some(dict.fromkeys(names)), why, how or "–") for (why, how), names in alike.items()]
    more = [(f"{len(rows) - MOST:,} further reasons", "–", "–")] if len(rows) > MOST else []
    return table(("Fact", "Why not", "How to find out"), [*rows[:MOST], *more])


def _name(name: str, group: Sequence[Fact]) -> Markup:
    """The name as it was given where a row holds one fact, its rank where it has one, and its source."""
    ranks = {fact.rank for fact in group if fact.rank is not None}
    said = f" rank {some(sorted(ranks))}" if ranks else ""
    return join(code(name if len(group) > 1 else group[0].name), said, el("div", group[0].source, cls="nk-path"))
