"""The evidence browser: filter the events in memory, open any line in its context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import ipywidgets as W

from ncclkit.analysis.timeline import abnormal
from ncclkit.core.case import Case
from ncclkit.core.model import Event
from ncclkit.core.text import plural, some
from ncclkit.views._base import View, style
from ncclkit.views._context import AROUND, context
from ncclkit.views._html import Markup, code, common, el, fit, fold, join, place, pre, table, value
from ncclkit.views._pick import ALL, ODD, RANKS, excerpt, gather, pick

ROWS, FEW = 100, 12
"""Rows of the table at once, to which filters reach the others; and of the static face's open table."""


def events_view(case: Case) -> View:
    """Filters by kind, rank, host and text over the events of a case, each line openable in its context."""
    return EventsView(case)


class EventsView(View):
    """See `events_view`."""

    def __init__(self, case: Case) -> None:
        super().__init__(events_summary(case.events), static_events(case.events))
        self._events, self._base = list(case.events), case.path
        self._folder = common({event.path for event in self._events})
        self._box: W.Widget | None = None

    def widget(self) -> W.Widget:
        """Four filters, the table, and the line to open; built once for each view."""
        if self._box is None:
            self._box = self._build()
        return self._box

    def _build(self) -> W.Widget:
        wide = W.Layout(width="auto", flex="1 1 16em", max_width="28em")
        self.kind = W.Dropdown(options=_kinds(self._events), description="Kind", layout=wide)
        self.rank = W.Text(description="Rank", placeholder="all, or such as 5, or 0-7, 12", layout=wide)
        self.host = W.Dropdown(options=_options(self._events, "host"), description="Host", layout=wide)
        self.words = W.Text(description="Text", placeholder="any words of the line", layout=wide)
        self.line = W.Dropdown(description="Open", layout=W.Layout(width="auto", flex="1 1 20em", max_width="60em"))
        self.near = W.BoundedIntText(AROUND, min=0, max=200, description="± lines", layout=W.Layout(width="11em"))
        self.rows, self.around = W.HTML(), W.HTML()
        for control in (self.kind, self.rank, self.host, self.words):
            control.observe(lambda _change: self.filter(), names="value")
        for control in (self.line, self.near):
            control.observe(lambda _change: self.open(), names="value")
        self.filter()
        rows = (
            W.Box(parts, layout=W.Layout(flex_flow="row wrap"))
            for parts in ([self.kind, self.rank, self.host, self.words], [self.line, self.near])
        )
        filters, opened = rows
        head = W.HTML(style() + self._head())
        return W.VBox([head, filters, self.rows, opened, self.around], layout=W.Layout(width="100%"))

    def _head(self) -> Markup:
        return el("div", el("p", self.summary, cls="nk-say"), cls="nk")

    def filter(self) -> None:
        """Show what the filters pick; where that is much, equal lines share a row."""
        if self.rank.value.strip() and not RANKS.fullmatch(self.rank.value):
            self.rows.value = _notice(f"“{self.rank.value}” is not a rank; write numbers and ranges, such as 0-7, 12")
            return
        picked = pick(self._events, self.kind.value, self.rank.value or ALL, self.words.value, self.host.value)
        self.rows.value = picked_html(picked, self._folder)
        shown = [group[0] for group in _shown(picked)[:ROWS]]
        self.line.options = [(_where(event, number), event) for number, event in enumerate(shown, 1)]
        self.line.index = 0 if shown else None  # a list that was empty before selects nothing by itself

    def open(self) -> None:
        """Show the chosen line in its context."""
        self.around.value = open_html(self.line.value, self._base, self.near.value) if self.line.value else ""


def events_summary(events: Sequence[Event]) -> str:
    """How many events, from how many ranks and files, and how many of them are abnormal."""
    if not events:
        return "No events: no log has been read yet"
    ranks = {event.rank for event in events if event.rank is not None}
    wrong = sum(abnormal(event) for event in events)
    where = f"{plural(len({e.path for e in events}), 'file')}, {plural(len(ranks), 'rank')}"
    return f"{plural(len(events), 'event')} from {where}: {f'{wrong:,} abnormal' if wrong else 'nothing abnormal'}"


def static_events(events: Sequence[Event]) -> Markup:
    """Counts by kind and rank, and the abnormal lines."""
    wrong = [event for event in events if abnormal(event)]
    kinds = Counter(event.kind for event in events)
    ranks: dict[str, set[int]] = {kind: set() for kind in kinds}
    for event in events:
        ranks[event.kind].update([] if event.rank is None else [event.rank])
    counts = [(code(kind), f"{count:,}", some(sorted(ranks[kind])) or "–") for kind, count in kinds.most_common()]
    shown, folder = _shown(wrong, FEW), common({event.path for event in events})
    return join(
        fold(f"Abnormal lines: {len(wrong):,}", _table(shown, folder), is_open=len(shown) <= FEW),
        fold("Counts by kind", table(("Kind", "Events", "Ranks"), counts), is_open=not wrong),
    )


def picked_html(picked: Sequence[Event], folder: str = "") -> str:
    """The table of picked events, with its own count; paths from `folder` on."""
    shown = _shown(picked)
    alike = (
        f"; equal lines share a row, the rarest first: {plural(len(shown), 'row')}" if len(shown) < len(picked) else ""
    )
    count = el("p", f"{plural(len(picked), 'event')} picked{alike}", cls="nk-dim")
    return el("div", count, el("div", _table(shown, folder), cls="nk-tall"), cls="nk")


def open_html(event: Event, base: Path | None, near: int = AROUND) -> str:
    """One event: its raw text, its captured fields, its context in the file."""
    around = context(event, base, near)
    said = around if isinstance(around, str) else ""
    lines = Markup("") if isinstance(around, str) else el("pre", *(_numbered(*row) for row in around), cls="nk-pre")
    data = fold("Captured fields", fit(value(dict(event.data)))) if event.data else ""
    rank = "" if event.rank is None else f"rank {event.rank} "
    head = el("p", el("b", event.kind), " ", rank, place(event.path, event.line))
    raw = Markup("") if lines else pre(event.text)  # the context holds the raw line already
    return el("div", head, raw, el("p", said, cls="nk-dim") if said else "", lines, data, cls="nk")


def _notice(sentence: str) -> str:
    return el("div", el("p", sentence, cls="nk-bad", role="alert"), cls="nk")


def _shown(events: Sequence[Event], most: int = ROWS) -> list[list[Event]]:
    """Rows of a table: single events in their order while they fit, else equal ones together."""
    return [[event] for event in events] if len(events) <= most else gather(events)


def _numbered(number: int, line: str, hit: bool) -> Markup:
    return el("span", f"{'▶' if hit else ' '} {number:>6}  {line}\n", cls="nk-hit" if hit else "nk-near")


def _table(groups: Sequence[Sequence[Event]], folder: str) -> Markup:
    rows = [
        (f"{number}", code(first.kind), _speakers(group), place(first.path, first.line, folder), _raw(group))
        for number, group in enumerate(islice(groups, ROWS), 1)
        for first in group[:1]
    ]
    more = el("p", f"… and {len(groups) - ROWS:,} more", cls="nk-dim") if len(groups) > ROWS else ""
    return join(fit(table(("#", "Kind", "Rank", "Where", "Raw line"), rows, "nk-events")), more)


def _speakers(group: Sequence[Event]) -> str:
    return some(sorted({event.rank for event in group if event.rank is not None})) or "–"


def _raw(group: Sequence[Event]) -> Markup:
    count = sum(event.count for event in group)
    times = f" (× {count:,})" if count > 1 else ""
    return el("span", excerpt(group[0])[:300], times, cls="nk-raw")


def _where(event: Event, number: int) -> str:
    return f"#{number}  {event.kind}  {Path(event.path).name}:{event.line}"


def _kinds(events: Sequence[Event]) -> list[tuple[str, str]]:
    everything, *kinds = _options(events, "kind")
    wrong = sum(abnormal(event) for event in events)
    return [everything, *([(f"{ODD} ({wrong:,})", ODD)] if wrong else []), *kinds]


def _options(events: Sequence[Event], field: str) -> list[tuple[str, str]]:
    counts: Counter[Any] = Counter(getattr(event, field) for event in events)
    known = sorted(key for key in counts if key)
    return [(f"all ({len(events):,})", ALL), *((f"{key} ({counts[key]:,})", str(key)) for key in known)]
