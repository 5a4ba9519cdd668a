"""The evidence browser: what was read, and what was not.

Events are filtered in memory, and any line is opened in its context.  Filters and groups are
`analysis.event_search`, the lines around one `evidence.line_context`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import ipywidgets as W

from ncclkit.analysis.event_search import (
    ABNORMAL,
    ALL,
    excerpt,
    group_alike,
    is_rank_list,
    select_events,
)
from ncclkit.analysis.timeline import abnormal
from ncclkit.core.case import Case
from ncclkit.core.event_list import known_ranks
from ncclkit.core.model import Event, fields_of
from ncclkit.core.text import format_bytes, plural, some
from ncclkit.evidence.line_context import AROUND, read_context
from ncclkit.views._base import View, style
from ncclkit.views._html import (
    Markup,
    badge,
    code,
    common,
    el,
    fit,
    fold,
    join,
    left_out,
    location,
    pre,
    table,
    value,
)
from ncclkit.views._missing import NoData

ROWS, FEW = 100, 12
"""Rows of the table at once, to which filters reach the others; and of the static face's open
table."""


class EventsView(View):
    """Filters by kind, rank, host and text over the events of a case.

    Each line can be opened in its context.
    """

    is_drawn_again = False

    def __init__(self, case: Case) -> None:
        super().__init__(events_summary(case.events), static_events(case.events))
        self._events = list(case.events)
        self._base = case.path
        self._folder = common({event.path for event in self._events})
        self._box: W.Widget | None = None

    def static(self) -> Markup:
        """Counts and lines; of no event only why there is none."""
        if self._events:
            return super().static()
        return NoData("every line", "no line was understood", self.summary).static()

    def widget(self) -> W.Widget:
        """Four filters, the table, and the line to open; built once for each view."""
        if self._box is None:
            self._box = self._build()
        return self._box

    def _build(self) -> W.Widget:
        wide = W.Layout(width="auto", flex="1 1 16em", max_width="28em")
        self.kind = W.Dropdown(options=_kinds(self._events), description="Kind", layout=wide)
        ranks = "all, or such as 5, or 0-7, 12"
        self.rank = W.Text(description="Rank", placeholder=ranks, layout=wide)
        hosts = _options(self._events, "host")
        self.host = W.Dropdown(options=hosts, description="Host", layout=wide)
        self.words = W.Text(description="Text", placeholder="any words of the line", layout=wide)
        wider = W.Layout(width="auto", flex="1 1 20em", max_width="60em")
        self.line = W.Dropdown(description="Open", layout=wider)
        self.near = W.BoundedIntText(
            AROUND, min=0, max=200, description="± lines", layout=W.Layout(width="11em")
        )
        self.rows = W.HTML()
        self.around = W.HTML()
        for control in (self.kind, self.rank, self.host, self.words):
            control.observe(lambda _change: self.filter(), names="value")
        for control in (self.line, self.near):
            control.observe(lambda _change: self.open(), names="value")
        self.filter()
        wrapped = W.Layout(flex_flow="row wrap")
        filters = W.Box([self.kind, self.rank, self.host, self.words], layout=wrapped)
        opened = W.Box([self.line, self.near], layout=wrapped)
        head = W.HTML(style() + self._head())
        parts = [head, filters, self.rows, opened, self.around]
        return W.VBox(parts, layout=W.Layout(width="100%"))

    def _head(self) -> Markup:
        return el("div", el("p", self.summary, cls="nk-say"), cls="nk")

    def filter(self) -> None:
        """Show what the filters pick.

        Where that is much, equal lines share a row.
        """
        if self.rank.value.strip() and not is_rank_list(self.rank.value):
            self.rows.value = _notice(
                f"“{self.rank.value}” is not a rank; write numbers and ranges, such as 0-7, 12"
            )
            return
        picked = select_events(
            self._events, self.kind.value, self.rank.value or ALL, self.words.value, self.host.value
        )
        self.rows.value = picked_html(picked, self._folder)
        shown = [group[0] for group in _shown(picked)[:ROWS]]
        rows = []
        for number, event in enumerate(shown, 1):
            rows.append((_where(event, number), event))
        self.line.options = rows
        # a list that was empty before selects nothing by itself
        if shown:
            self.line.index = 0
        else:
            self.line.index = None

    def open(self) -> None:
        """Show the chosen line in its context."""
        if self.line.value:
            self.around.value = open_html(self.line.value, self._base, self.near.value)
        else:
            self.around.value = ""


def events_summary(events: Sequence[Event]) -> str:
    """How many events there are, and how many of them are abnormal.

    It tells from how many ranks and files.
    """
    if not events:
        return "No events: no log has been read yet"
    ranks = known_ranks(events)
    wrong = sum(abnormal(event) for event in events)
    where = f"{plural(len({e.path for e in events}), 'file')}, {plural(len(ranks), 'rank')}"
    return (
        f"{plural(len(events), 'event')} from {where}:"
        f" {f'{wrong:,} abnormal' if wrong else 'nothing abnormal'}"
    )


def static_events(events: Sequence[Event]) -> Markup:
    """Counts by kind and rank, and the abnormal lines."""
    wrong = [event for event in events if abnormal(event)]
    kinds = Counter(event.kind for event in events)
    ranks: dict[str, set[int]] = {kind: set() for kind in kinds}
    for event in events:
        if event.rank is not None:
            ranks[event.kind].add(event.rank)
    counts = []
    for kind, count in kinds.most_common():
        which = some(sorted(ranks[kind]))
        counts.append((code(kind), f"{count:,}", which or "–"))
    lines_once = _one_of_each_line(wrong)
    shown = _shown(lines_once, FEW)
    folder = common({event.path for event in events})
    title = f"Abnormal lines: {len(lines_once):,}"
    # the count above is of events
    if len(lines_once) < len(wrong):
        title += f", read as {plural(len(wrong), 'event')}"
    lines = fold(title, _table(shown, folder), is_open=len(shown) <= FEW)
    by_kind = table(("Kind", "Events", "Ranks"), counts)
    return join(lines, fold("Counts by kind", by_kind, is_open=not wrong))


def _one_of_each_line(events: Iterable[Event]) -> list[Event]:
    """The first of the events that one line of a file gave; others have no line of their own."""
    first_of: dict[tuple[str, int, str], Event] = {}
    for event in events:
        first_of.setdefault((event.path, event.line, excerpt(event)), event)
    return [*first_of.values()]


def picked_html(picked: Sequence[Event], folder: str = "") -> str:
    """The table of picked events, with its own count.

    Paths are shown from `folder` on.
    """
    shown = _shown(picked)
    alike = ""
    if len(shown) < len(picked):
        alike = f"; equal lines share a row, the rarest first: {plural(len(shown), 'row')}"
    count = el("p", f"{plural(len(picked), 'event')} picked{alike}", cls="nk-dim")
    return el("div", count, el("div", _table(shown, folder), cls="nk-tall"), cls="nk")


def open_html(event: Event, base: Path | None, near: int = AROUND) -> str:
    """One event: its raw text, its captured fields, its context in the file."""
    around = read_context(event, base, near)
    said = ""
    lines = Markup("")
    if isinstance(around, str):
        said = around
    else:
        lines = el("pre", *(_numbered(*row) for row in around), cls="nk-pre")
    captured = {}
    for name, told in fields_of(event).items():
        if told is not None:
            captured[name] = told
    data = ""
    if captured:
        data = fold("Captured fields", fit(value(captured)))
    rank = ""
    if event.rank is not None:
        rank = f"rank {event.rank} "
    head = el("p", el("b", event.kind), " ", rank, location(event.path, event.line))
    # the context holds the raw line already
    if lines:
        raw = Markup("")
    else:
        raw = pre(event.text)
    return el("div", head, raw, el("p", said, cls="nk-dim") if said else "", lines, data, cls="nk")


def _notice(sentence: str) -> str:
    return el("div", el("p", sentence, cls="nk-bad", role="alert"), cls="nk")


def _shown(events: Sequence[Event], most: int = ROWS) -> list[list[Event]]:
    """Rows of a table: single events in their order while they fit.

    Else equal ones stand together.
    """
    if len(events) <= most:
        return [[event] for event in events]
    return group_alike(events)


def _numbered(number: int, line: str, hit: bool) -> Markup:
    return el(
        "span", f"{'▶' if hit else ' '} {number:>6}  {line}\n", cls="nk-hit" if hit else "nk-near"
    )


def _table(groups: Sequence[Sequence[Event]], folder: str) -> Markup:
    rows = []
    for number, group in enumerate(islice(groups, ROWS), 1):
        for first in group[:1]:
            rows.append(
                (
                    f"{number}",
                    code(first.kind),
                    _speakers(group),
                    location(first.path, first.line, folder),
                    _raw(group),
                )
            )
    head = ("#", "Kind", "Rank", "Where", "Raw line")
    return join(fit(table(head, rows, "nk-events")), left_out(len(groups) - ROWS))


def _speakers(group: Sequence[Event]) -> str:
    return some(sorted(known_ranks(group))) or "–"


def _raw(group: Sequence[Event]) -> Markup:
    count = sum(event.count for event in group)
    times = ""
    if count > 1:
        times = f" (× {count:,})"
    # a line may be megabytes long
    return el("span", excerpt(group[0])[:300], times, cls="nk-raw")


def _where(event: Event, number: int) -> str:
    return f"#{number}  {event.kind}  {Path(event.path).name}:{event.line}"


def _kinds(events: Sequence[Event]) -> list[tuple[str, str]]:
    everything, *kinds = _options(events, "kind")
    wrong = sum(abnormal(event) for event in events)
    offered = [everything]
    if wrong:
        offered.append((f"{ABNORMAL} ({wrong:,})", ABNORMAL))
    return offered + kinds


def _options(events: Sequence[Event], field: str) -> list[tuple[str, str]]:
    counts: Counter[Any] = Counter(getattr(event, field) for event in events)
    known = sorted(key for key in counts if key)
    offered = [(f"all ({len(events):,})", ALL)]
    for key in known:
        offered.append((f"{key} ({counts[key]:,})", str(key)))
    return offered


UNUSED_KINDS = {
    "binary": "binary of no known kind",
    "unknown": "not what it looks like",
    "empty": "empty",
}
"""Kinds of ``inputs.json`` that were not used, and why."""
SINGLE = 12
"""Up to here each file has a row of its own; beyond, files of one kind share one."""

Row = Mapping[str, Any]


def inputs_view(case: Case) -> View:
    """The files of a case by kind, with sizes, lines, events and ranks.

    It tells also what could not be used, and why.
    """
    problems = [str(problem) for problem in case.about.get("problems", ())]
    unused = [row for row in case.inputs if row.get("kind") in UNUSED_KINDS]
    unknown = [row for row in case.inputs if _no_known_line(row)]
    folder = common(row.get("path", "") for row in case.inputs)
    body = join(
        el("p", "All in ", location(folder)) if folder else "",
        fold(
            f"Not read, or only in part: {len(problems):,}",
            _list(problems),
            is_open=len(problems) <= SINGLE,
        ),
        fit(
            table(
                ("Kind", "Files", "Size", "Lines", "Events", "Unknown errors", "Ranks"),
                _rows(case.inputs, folder),
            )
        ),
        (
            fold(f"Every file: {len(case.inputs):,}", _files(case.inputs, folder))
            if len(case.inputs) > SINGLE
            else ""
        ),
    )
    return View(_summary(case.inputs, unused, unknown, problems), body)


def _no_known_line(row: Row) -> bool:
    """A text in which no line is known."""
    return row.get("kind") == "log" and not row.get("events")


def _summary(
    rows: Sequence[Row], unused: Sequence[Row], unknown: Sequence[Row], problems: Sequence[str]
) -> str:
    if not rows:
        return "Nothing has been read yet"
    read = len(rows) - len(unused)
    size = format_bytes(sum(row.get("bytes") or 0 for row in rows))
    events = plural(sum(row.get("events") or 0 for row in rows), "event")
    counts = (
        (len(unused), "{} could not be used", "file"),
        (len(problems), "{} could not be read, or only in part", "thing"),
        (len(unknown), "in {} no line is known", "log"),
        (_sum(rows, "errors"), "{} of no known kind", "error line"),
    )
    counted = []
    for count, words, noun in counts:
        if count:
            counted.append(words.format(plural(count, noun)))
    left = "; ".join(counted)
    return f"{plural(read, 'file')} of {size} gave {events}; {left or 'everything was understood'}"


def _rows(rows: Sequence[Row], folder: str) -> list[tuple[object, ...]]:
    """One row per file where there are few, else one per kind.

    What was of no use comes first.
    """
    groups: dict[Any, list[Row]] = {}
    for row in sorted(
        rows, key=lambda row: (row.get("kind") not in UNUSED_KINDS, not _no_known_line(row))
    ):
        if len(rows) <= SINGLE:
            key = row.get("path")
        else:
            key = row.get("kind"), _no_known_line(row)
        groups.setdefault(key, []).append(row)
    return [_row(group, folder) for group in groups.values()]


def _row(group: Sequence[Row], folder: str) -> tuple[object, ...]:
    kind = str(group[0].get("kind", ""))
    ranks = set()
    for row in group:
        for rank in row.get("ranks") or ():
            ranks.add(rank)
    if _no_known_line(group[0]):
        known = badge("▲", "no known line", "possible")
    else:
        known = code(kind)
    if kind in UNUSED_KINDS:
        mark = badge("▲", UNUSED_KINDS[kind], "likely")
    else:
        mark = known
    first = location(group[0].get("path", ""), base=folder)
    if len(group) == 1:
        files = first
    else:
        files = join(plural(len(group), "file"), el("div", first))
    return (
        mark,
        files,
        format_bytes(_sum(group, "bytes")),
        f"{lines:,}" if (lines := _sum(group, "lines")) else "–",
        f"{_sum(group, 'events'):,}",
        f"{_sum(group, 'errors') or '–'}",
        some(sorted(ranks)) or "–",
    )


def _sum(rows: Iterable[Row], key: str) -> int:
    return sum(row.get(key) or 0 for row in rows)


def _files(rows: Sequence[Row], folder: str) -> Markup:
    """Name, kind and size of every file, small enough for thousands."""
    lines = []
    for row in rows:
        size = format_bytes(row.get("bytes") or 0)
        path = str(row.get("path", "")).removeprefix(f"{folder}/")
        lines.append(f"{row.get('kind', ''):10} {size:>10}  {path}\n")
    return el("pre", *lines, cls="nk-pre")


def _list(problems: Sequence[str]) -> Markup:
    if problems:
        return el("ul", *(el("li", problem) for problem in problems))
    return Markup("")
