"""The evidence explorer: filter the events in memory, open any line in its context."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

import ipywidgets as W

from ncclkit.case import Case
from ncclkit.model import Event
from ncclkit.views._base import View, style
from ncclkit.views._html import Html, code, el, fit, fold, join, pre, table, value
from ncclkit.views._story import abnormal
from ncclkit.views._words import plural, some

ROWS = 100
"""Rows of the table at once; filters reach the others."""

AROUND = 5
REACH = 256 * 2**20
"""Bytes read of a file at most to find a line's surroundings."""

ALL = "all"


def events_view(case: Case) -> View:
    """Filters by kind, rank and text over the events of a case, each line openable in its context."""
    return EventsView(case)


def pick(events: Sequence[Event], kind: str = ALL, rank: str = ALL, words: str = "") -> list[Event]:
    """Events of one kind, one rank, with these words in their text or path (any case); `ALL` leaves a filter open."""
    wanted = words.casefold()
    fitting = (event for event in events if kind in (ALL, event.kind) and rank in (ALL, str(event.rank)))
    return [event for event in fitting if wanted in f"{event.text}\n{event.path}".casefold()]


def context(event: Event, base: Path | None = None, around: int = AROUND) -> list[tuple[int, str, bool]] | str:
    """Lines around an event as (number, text, is it the line), or a sentence why they cannot be shown.

    The file must still say at that place what the event says: one that changed
    is not shown, and neither is a device or pipe.
    """
    path = next((p for p in (Path(event.path), (base or Path()) / event.path) if event.path and p.is_file()), None)
    if path is not None and event.line < 1:
        return f"{event.path} has no lines to show; what it says stands above"
    if path is None:
        return f"{event.path or 'its source'} is not here (any more); the raw line stands above"
    first, size = max(1, event.line - around), max(1, event.text.count("\n") + 1)
    try:
        lines = list(_lines(path, first, event.line + size - 1 + around))
    except (OSError, EOFError, zlib.error) as error:
        return f"{path} cannot be read: {error}"
    shown = [(number, line, event.line <= number < event.line + size) for number, line in enumerate(lines, first)]
    said = event.text.splitlines()[0].strip() if event.text else ""
    if not any(hit and said in line for _, line, hit in shown):
        return f"{path} does not hold it at line {event.line} (changed, or too large); the raw line stands above"
    return shown


def _lines(path: Path, first: int, last: int) -> Iterator[str]:
    """Lines `first` to `last` of a plain or gzip file, within the first `REACH` bytes of its text."""
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        source: gzip.GzipFile | BufferedReader = gzip.GzipFile(fileobj=plain) if packed else plain
        for number, raw in enumerate(iter(lambda: source.readline(1 << 20), b""), 1):
            if number > last or source.tell() > REACH:
                return
            if number >= first:
                yield raw.decode("utf-8", "replace").rstrip("\r\n")[:2000]


class EventsView(View):
    """See `events_view`."""

    def __init__(self, case: Case) -> None:
        super().__init__(events_say(case.events), static_events(case.events))
        self._events, self._base = list(case.events), case.path
        self._box: W.Widget | None = None

    def widget(self) -> W.Widget:
        """Three filters, the table, and the line to open; built once for each view."""
        if self._box is None:
            self._box = self._build()
        return self._box

    def _build(self) -> W.Widget:
        wide = W.Layout(width="auto", flex="1 1 14em", max_width="30em")
        self.kind = W.Dropdown(options=_options(self._events, "kind"), description="Kind", layout=wide)
        self.rank = W.Dropdown(options=_options(self._events, "rank"), description="Rank", layout=wide)
        self.words = W.Text(description="Text", placeholder="any words of the line", layout=wide)
        self.line = W.Dropdown(description="Open", layout=W.Layout(width="auto", max_width="60em"))
        self.rows, self.around = W.HTML(), W.HTML()
        for control in (self.kind, self.rank, self.words):
            control.observe(lambda _change: self.filter(), names="value")
        self.line.observe(lambda _change: self.open(), names="value")
        self.filter()
        filters = W.Box([self.kind, self.rank, self.words], layout=W.Layout(flex_flow="row wrap"))
        return W.VBox([W.HTML(style()), filters, self.rows, self.line, self.around], layout=W.Layout(width="100%"))

    def filter(self) -> None:
        """Show what the filters pick."""
        picked = pick(self._events, self.kind.value, self.rank.value, self.words.value)
        self.rows.value = picked_html(picked)
        self.line.options = [(_where(event, number), event) for number, event in enumerate(picked[:ROWS], 1)]
        self.line.index = 0 if picked else None  # a list that was empty before selects nothing by itself

    def open(self) -> None:
        """Show the chosen line in its context."""
        self.around.value = open_html(self.line.value, self._base) if self.line.value else ""


def events_say(events: Sequence[Event]) -> str:
    """How many events, from how many ranks and files, and how many of them are abnormal."""
    if not events:
        return "No events: no log has been read yet"
    ranks = {event.rank for event in events if event.rank is not None}
    wrong = sum(abnormal(event) for event in events)
    where = f"{plural(len({e.path for e in events}), 'file')}, {plural(len(ranks), 'rank')}"
    return f"{plural(len(events), 'event')} from {where}: {f'{wrong:,} abnormal' if wrong else 'nothing abnormal'}"


def static_events(events: Sequence[Event]) -> Html:
    """Counts by kind and rank, and the abnormal lines."""
    wrong = [event for event in events if abnormal(event)]
    kinds = Counter(event.kind for event in events)
    ranks = {kind: [e.rank for e in events if e.kind == kind and e.rank is not None] for kind in kinds}
    counts = [(code(kind), f"{count:,}", some(sorted(set(ranks[kind]))) or "–") for kind, count in kinds.most_common()]
    return join(
        fold(f"Abnormal lines: {len(wrong):,}", _table(wrong), is_open=len(wrong) <= 12),
        fold("Counts by kind", table(("Kind", "Events", "Ranks"), counts), is_open=not wrong),
    )


def picked_html(picked: Sequence[Event]) -> str:
    """The table of picked events, with its own count."""
    count = el("p", f"{plural(len(picked), 'event')} picked", cls="nk-dim")
    return el("div", count, el("div", _table(picked), cls="nk-tall"), cls="nk")


def open_html(event: Event, base: Path | None) -> str:
    """One event: its raw text, its captured fields, its context in the file."""
    around = context(event, base)
    said = around if isinstance(around, str) else ""
    lines = Html("") if isinstance(around, str) else el("pre", *(_numbered(*row) for row in around), cls="nk-pre")
    data = fold("Captured fields", fit(value(dict(event.data)))) if event.data else ""
    head = el("p", el("b", event.kind), " ", _place(event))
    return el("div", head, pre(event.text), el("p", said, cls="nk-dim"), lines, data, cls="nk")


def _numbered(number: int, line: str, hit: bool) -> Html:
    return el("span", f"{'▶' if hit else ' '} {number:>6}  {line}\n", cls="nk-hit" if hit else "nk-near")


def _table(events: Sequence[Event]) -> Html:
    rows = [
        (f"{number}", code(event.kind), "–" if event.rank is None else f"{event.rank}", _place(event), _raw(event))
        for number, event in enumerate(islice(events, ROWS), 1)
    ]
    more = el("p", f"… and {len(events) - ROWS:,} more", cls="nk-dim") if len(events) > ROWS else ""
    return join(fit(table(("#", "Kind", "Rank", "Where", "Raw line"), rows)), more)


def _place(event: Event) -> Html:
    return el("span", f"{event.path}:{event.line}" if event.line else event.path, cls="nk-path")


def _raw(event: Event) -> Html:
    times = f" (× {event.count:,})" if event.count > 1 else ""
    return el("span", (event.text.splitlines() or [""])[0][:300], times, cls="nk-raw")


def _where(event: Event, number: int) -> str:
    return f"#{number}  {event.kind}  {Path(event.path).name}:{event.line}"


def _options(events: Sequence[Event], field: str) -> list[tuple[str, str]]:
    counts: Counter[Any] = Counter(getattr(event, field) for event in events)
    known = sorted((key for key in counts if key is not None), key=lambda key: (isinstance(key, str), key))
    return [(f"all ({len(events):,})", ALL), *((f"{key} ({counts[key]:,})", str(key)) for key in known)]
