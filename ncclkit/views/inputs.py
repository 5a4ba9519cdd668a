"""What was read, and what was not: one row for each kind of file, the ones that were not understood first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ncclkit.core.case import Case
from ncclkit.core.text import format_bytes, plural, some
from ncclkit.views._base import View
from ncclkit.views._html import Markup, badge, code, common, el, fit, fold, join, place, table

BLIND = {"binary": "binary of no known kind", "unknown": "not what it looks like", "empty": "empty"}
"""Kinds of ``inputs.json`` that were not used, and why."""
SINGLE = 12
"""Up to here each file has a row of its own; beyond, files of one kind share one."""

Row = Mapping[str, Any]


def inputs_view(case: Case) -> View:
    """The files of a case by kind, with sizes, lines, events and ranks; what could not be used, and why."""
    problems = [str(problem) for problem in case.about.get("problems", ())]
    blind = [row for row in case.inputs if row.get("kind") in BLIND]
    mute = [row for row in case.inputs if _mute(row)]
    folder = common(row.get("path", "") for row in case.inputs)
    body = join(
        el("p", "All in ", place(folder)) if folder else "",
        fold(f"Not read, or only in part: {len(problems):,}", _list(problems), is_open=len(problems) <= SINGLE),
        fit(table(("Kind", "Files", "Size", "Lines", "Events", "Unknown errors", "Ranks"), _rows(case.inputs, folder))),
        fold(f"Every file: {len(case.inputs):,}", _files(case.inputs, folder)) if len(case.inputs) > SINGLE else "",
    )
    return View(_summary(case.inputs, blind, mute, problems), body)


def _mute(row: Row) -> bool:
    """A text in which no line is known."""
    return row.get("kind") == "log" and not row.get("events")


def _summary(rows: Sequence[Row], blind: Sequence[Row], mute: Sequence[Row], problems: Sequence[str]) -> str:
    if not rows:
        return "Nothing has been read yet"
    read = len(rows) - len(blind)
    size = format_bytes(sum(row.get("bytes") or 0 for row in rows))
    events = plural(sum(row.get("events") or 0 for row in rows), "event")
    counts = (
        (len(blind), "{} could not be used", "file"),
        (len(problems), "{} could not be read, or only in part", "thing"),
        (len(mute), "in {} no line is known", "log"),
        (_sum(rows, "errors"), "{} of no known kind", "error line"),
    )
    left = "; ".join(words.format(plural(count, noun)) for count, words, noun in counts if count)
    return f"{plural(read, 'file')} of {size} gave {events}; {left or 'everything was understood'}"


def _rows(rows: Sequence[Row], folder: str) -> list[tuple[object, ...]]:
    """One row per file where there are few, else one per kind; what was of no use comes first."""
    groups: dict[Any, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.get("kind") not in BLIND, not _mute(row))):
        key = row.get("path") if len(rows) <= SINGLE else (row.get("kind"), _mute(row))
        groups.setdefault(key, []).append(row)
    return [_row(group, folder) for group in groups.values()]


def _row(group: Sequence[Row], folder: str) -> tuple[object, ...]:
    kind = str(group[0].get("kind", ""))
    ranks = {rank for row in group for rank in row.get("ranks") or ()}
    known = badge("▲", "no known line", "possible") if _mute(group[0]) else code(kind)
    mark = badge("▲", BLIND[kind], "likely") if kind in BLIND else known
    first = place(group[0].get("path", ""), base=folder)
    files = first if len(group) == 1 else join(plural(len(group), "file"), el("div", first))
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
    lines = (
        f"{row.get('kind', ''):10} {format_bytes(row.get('bytes') or 0):>10}  {path.removeprefix(f'{folder}/')}\n"
        for row in rows
        for path in [str(row.get("path", ""))]
    )
    return el("pre", *lines, cls="nk-pre")


def _list(problems: Sequence[str]) -> Markup:
    return el("ul", *(el("li", problem) for problem in problems)) if problems else Markup("")
