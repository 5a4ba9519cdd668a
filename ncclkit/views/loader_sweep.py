"""Data-loader workers against time: what a step takes with more and more of them, and who waits meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ncclkit.core.case import Case
from ncclkit.core.text import format_time, plural
from ncclkit.lab.course.loader_sweep import LoaderSweep, measured
from ncclkit.views import plots
from ncclkit.views._base import Drawn, View
from ncclkit.views._html import Markup, el, fit, join, table

HEAD = (
    "Workers per rank",
    "Ahead",
    "Step",
    "First batch",
    "Wait for data",
    "Wait for ranks",
    "In the queue for a core",
    "Preempted",
)
CURVES = (("step_ms", "step"), ("data_ms", "wait for data"), ("others_ms", "wait for other ranks"))
"""Measured, and its name in the legend."""


def loader_sweep_view(case: Case) -> View:
    """Step time, waits and the queue for the cores, for each choice of workers that the last sweep measured."""
    found = measured(case)
    if found is None:
        return View("Nothing was measured yet; loader_sweep(case) trains once for each choice of workers", Markup(""))
    body = join(
        fit(table(HEAD, [_row(row) for row in found.rows], "nk-numbers")),
        el("p", f"Measured: {found.knee.words} The rule, workers x ranks <= cores: {found.rule.words}", cls="nk-dim"),
    )
    return Drawn(_summary(found), _figure(found), body)


def _summary(found: LoaderSweep) -> str:
    knee, most = int(found.knee.value), max(found.rows, key=lambda row: row["workers"])
    best = next(row for row in found.rows if row["workers"] == knee)
    on = f"{plural(found.ranks, 'rank')} on {plural(found.cores, 'core')}"
    if most["workers"] == knee:
        return f"{on}: {plural(knee, 'worker')} per rank are not yet too many, a step takes {best['step_ms']:.0f} ms"
    rest = f"{most['workers']:.0f} make a step of {best['step_ms']:.0f} ms take {most['step_ms']:.0f} ms"
    first = f"and the first batch come after {most['first_ms']:.0f} ms instead of {best['first_ms']:.0f} ms"
    return f"{on}: {plural(knee, 'worker')} per rank are enough; {rest}, {first}"


def _row(row: Mapping[str, float]) -> tuple[object, ...]:
    times = (format_time(1e3 * row[name]) for name in ("step_ms", "first_ms", "data_ms", "others_ms"))
    ahead = f"{row['prefetch']:.0f}" if row["prefetch"] else "–"
    return f"{row['workers']:.0f}", ahead, *times, f"{row['queue']:.1f}", f"{row['preempted']:.0f} /s"


def _figure(found: LoaderSweep) -> go.Figure:
    """Three rows over the same choices: the step and its waits, the first batch, the queue."""
    names = [_name(row, found) for row in found.rows]
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.44, 0.28, 0.28])
    for index, (field, name) in enumerate(CURVES):
        _line(figure, names, [row[field] for row in found.rows], name, index, 1)
    _line(figure, names, [row["first_ms"] for row in found.rows], "first batch", 3, 2)
    _line(figure, names, [row["queue"] for row in found.rows], "processes in the queue", 4, 3)
    for place, title in enumerate(("step, ms", "first, ms", "queue"), 1):
        figure.update_yaxes(title={"text": title}, rangemode="tozero", automargin=True, row=place, col=1)
    figure.update_xaxes(type="category", automargin=True)
    figure.update_xaxes(title={"text": "workers per rank"}, row=3, col=1)
    figure.add_vline(
        x=next(at for at, row in enumerate(found.rows) if row["workers"] == found.knee.value),
        line={"color": plots.VERMILLION, "width": 1.5, "dash": "dot"},
        annotation={"text": "knee", "font": {"color": plots.VERMILLION, "size": 11}},
    )
    figure.update_layout(
        template=plots.template(),
        autosize=True,
        height=500,
        margin={"l": 8, "r": 14, "t": 40, "b": 40},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    )
    return figure


def _line(figure: go.Figure, names: list[str], values: list[float], name: str, index: int, place: int) -> None:
    figure.add_scatter(
        x=names,
        y=values,
        name=name,
        mode="lines+markers",
        showlegend=place == 1,
        line={"color": plots.LINES[index], "width": 2},
        marker={"symbol": plots.MARKS[index], "size": 8},
        hovertemplate=f"{name}: %{{y:.4g}} with %{{x}} workers<extra></extra>",
        row=place,
        col=1,
    )


def _name(row: Mapping[str, float], found: LoaderSweep) -> str:
    """``8``; ``8, 4 ahead`` where another choice has as many workers."""
    alike = [other for other in found.rows if other["workers"] == row["workers"]]
    ahead = f", {row['prefetch']:.0f} ahead" if len(alike) > 1 and alike[0] is not row else ""
    return f"{row['workers']:.0f}{ahead}"
