"""Starts from a checkpoint side by side: what each rank read once more, and the time to the first step."""

from __future__ import annotations

import plotly.graph_objects as go

from ncclkit.core.case import Case
from ncclkit.core.model import safe
from ncclkit.core.text import format_time
from ncclkit.lab.course import resume_analysis
from ncclkit.lab.course.resume_analysis import Resume, Start
from ncclkit.views import _draw, plots
from ncclkit.views._base import Drawn, View
from ncclkit.views._html import Markup, badge, el, fit, join, table

HEAD = ("Start", "Rank", "Read again", "All of it", "First step after", "Reads a batch", "A step")
UNEVEN = 3.0
"""A rank that needs so many times as long for its batch as the middle one sets the pace of all."""


def resume_view(case: Case) -> View:
    """One row per rank of every start from a checkpoint, in the case and in its trials."""
    found = resume_analysis.resumes(case)
    if not found:
        return View("No run of this case was resumed from a checkpoint", Markup(""))
    rows = [row for number, run in enumerate(found, 1) for row in _rows(run, number)]
    body = join(fit(table(HEAD, rows, "nk-numbers")), el("p", f"{_pace(found)} {_by(found)}", cls="nk-dim"))
    summary = "; ".join(dict.fromkeys(_summary(run) for run in found))
    return Drawn(f"First step after the resume: {summary}", _figure(found), body)


def _how(run: Resume) -> str:
    return "data read again" if any(start.of for start in run.starts) else "loaders' state restored"


def _summary(run: Resume) -> str:
    case = f"limit {run.limit:g} s, {_how(run)}"
    if run.first is not None:
        return f"{case}: after {_seconds(run.first)}"
    return f"{case}: never, as rank {run.last.rank} needs {_seconds(run.last.whole)} for that"


def _rows(run: Resume, number: int) -> list[tuple[object, ...]]:
    return [
        (
            f"{number}. {_how(run)}, limit {run.limit:g} s",
            start.rank,
            f"{start.read:,} of {start.of:,}" if start.of else "nothing",
            _seconds(start.whole) if start.of else "–",
            badge("✕", "never", "state-failed") if start.first is None else _seconds(start.first),
            _seconds(start.batch),
            _seconds(start.step),
        )
        for start in run.starts
    ]


def _pace(found: tuple[Resume, ...]) -> str:
    """Load balance in training: one rank that reads slowly makes every step slow, on all ranks."""
    for run in found:
        reading = sorted((start for start in run.starts if start.batch is not None), key=lambda start: start.batch or 0)
        if not reading:
            continue
        slow, middle = reading[-1], reading[(len(reading) - 1) // 2]
        if len(reading) > 1 and (slow.batch or 0) > UNEVEN * (middle.batch or 0):
            return f"In training, {_balance(slow, middle)}."
        return "In training, all ranks read their batches equally fast."
    return "No run came far enough to tell how evenly the ranks are loaded."


def _balance(slow: Start, middle: Start) -> str:
    return (
        f"rank {slow.rank} reads a batch in {_seconds(slow.batch)} and rank {middle.rank} in {_seconds(middle.batch)}: "
        f"every step takes {_seconds(slow.step)} on all ranks, as the others wait for it"
    )


def _by(found: tuple[Resume, ...]) -> str:
    version = found[0].lightning
    return f"Trained with Lightning Fabric {version}." if version else "Trained with plain torch; Lightning is missing."


def _seconds(seconds: float | None) -> str:
    return format_time(None if seconds is None else 1e6 * seconds)


def _figure(found: tuple[Resume, ...]) -> go.Figure:
    """One bar per start: the time to the first step, or what the slowest rank would have needed."""
    longest = [run.last.whole if run.first is None else run.first for run in found]
    figure = _draw.blank(height=110 + 46 * len(found))
    for came, name, colour in (
        (True, "first step done after", plots.LINES[0]),
        (False, "never: the replay alone needs", plots.VERMILLION),
    ):
        runs = [(number, run) for number, run in enumerate(found, 1) if (run.first is not None) == came]
        times = [longest[number - 1] for number, _ in runs]
        figure.add_bar(
            x=times,
            y=[f"{number}. {safe(_how(run))}<br>limit {run.limit:g} s" for number, run in runs],
            name=name,
            orientation="h",
            marker={"color": colour, "pattern": {"shape": "" if came else "/"}},
            text=[_seconds(time) for time in times],
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"{name} %{{text}}<extra></extra>",
        )
    figure.update_xaxes(title={"text": "seconds since the start"}, range=[0, 1.2 * max(longest)])
    figure.update_yaxes(autorange="reversed", automargin=True, categoryorder="category ascending", showgrid=False)
    return figure
