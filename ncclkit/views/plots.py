"""Figures of measurements: plotly, transparent, readable on light and on dark.

Each title is the conclusion.  Units: sizes in bytes of nccl-tests (KiB = 1024
bytes), bandwidth in GB/s (1e9 bytes), times in microseconds or as labelled.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

import plotly.graph_objects as go

from ncclkit.core.model import Measurement, safe
from ncclkit.core.text import format_bytes, format_number, format_time

LINES, VERMILLION = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"), "#D55E00"
"""Okabe and Ito's palette: told apart by colour-blind readers, visible on white and on black."""

INK, GRID = "#7d7d7d", "rgba(128,128,128,.28)"
LEGEND = {"orientation": "h", "x": 0, "yanchor": "bottom", "xanchor": "left"}
MARKS = ("circle", "square", "diamond", "triangle-up", "x")
ABREAST = 3
"""Names of a legend beside each other on a phone."""
WIDTH = 40
"""Characters of a title line that fit beside each other on a phone of 390 px."""


def bandwidth(
    measurements: Iterable[Measurement],
    expected: float | None = None,
    words: str = "",
    derived: str = "",
    summary: str = "",
) -> go.Figure:
    """Bandwidth against message size, one line per collective and run.

    busbw in GB/s; algbw where there is no busbw (one rank).  `expected` is the
    busbw in GB/s that this topology should give, drawn as a line; `words`
    continues the title after "84 % of", or says why nothing is expected;
    `derived` stands under the figure and says where `expected` comes from;
    `summary` takes the place of the title, where the measurement alone misleads.
    """
    rows = sorted(measurements, key=lambda m: m.bytes)
    kind = "busbw" if rows and all(m.busbw is not None for m in rows) else "algbw"
    limit = expected if kind == "busbw" else None
    figure = _figure(summary or bandwidth_summary(rows, limit, words), rows, f"{kind}, GB/s", derived)
    for index, (name, group) in enumerate(_groups(rows).items()):
        figure.add_scatter(
            x=[m.bytes for m in group],
            y=[_speed(m, kind) for m in group],
            name=safe(name),
            mode="lines+markers",
            **_look(index),
            customdata=[_hover(m, limit) for m in group],
            hovertemplate=f"%{{customdata[0]}}<br>{kind} %{{y:.3g}} GB/s%{{customdata[3]}}"
            "<br>median %{customdata[1]}, p99 %{customdata[2]}",
        )
    _wrong(figure, rows, kind)
    _scale(figure, [_speed(m, kind) for m in rows], limit)
    if limit:
        _level(figure, limit)
    return figure


def latency(measurements: Iterable[Measurement]) -> go.Figure:
    """Time of one call against message size, in microseconds: median, and of a collective alone p99, dotted."""
    rows = sorted(measurements, key=lambda m: m.bytes)
    groups, labels = _groups(rows), ("median", "p99")
    kinds = labels[: 1 if len(groups) > 1 else 2]  # of several, twice as many lines say nothing
    figure = _figure(latency_summary(rows), rows, "time of one call, µs", entries=len(kinds) * len(groups))
    for index, (name, group) in enumerate(groups.items()):
        for label in kinds:
            times = [m.time_us if label == "median" else m.p99_us for m in group]
            figure.add_scatter(
                x=[m.bytes for m in group],
                y=times,
                name=f"{safe(name)}, {label}" if len(kinds) > 1 else safe(name),
                mode="lines+markers",
                **_look(index, dotted=label == "p99"),
                customdata=[[format_bytes(m.bytes), *map(format_time, (m.time_us, m.p99_us))] for m in group],
                hovertemplate="%{customdata[0]}<br>median %{customdata[1]}<br>p99 %{customdata[2]}",
            )
    drawn = [time for m in rows for time in (m.time_us, m.p99_us)[: len(kinds)] if time is not None]
    _scale(figure, drawn)
    return figure


def bandwidth_summary(rows: Sequence[Measurement], expected: float | None = None, words: str = "") -> str:
    """The conclusion of `bandwidth` in one sentence, plain text."""
    if not rows:
        return "Nothing measured yet"
    if wrong := sum(m.wrong or 0 for m in rows):
        worst = max(rows, key=lambda m: m.wrong or 0)
        return (
            f"{worst.op} gave {wrong:,} wrong elements, most at {format_bytes(worst.bytes)}: do not trust these speeds"
        )
    if all(m.ranks == 1 for m in rows):
        ops = sorted({m.op for m in rows})
        work = f"{ops[0]} works" if len(ops) == 1 else f"{len(ops)} collectives work"
        return f"{work} on one rank, where nothing travels: these times say nothing of a link"
    kind = "busbw" if all(m.busbw is not None for m in rows) else "algbw"
    best = max(rows, key=lambda m: _speed(m, kind))
    peak = _speed(best, kind)
    named = f" in run {best.run}" if len({m.run for m in rows}) > 1 else ""
    if expected and kind == "busbw":
        share = f"{100 * peak / (best.expected or expected):.0f} % of {words or 'what is expected'}"
        return f"{best.op} reaches {format_number(peak)} GB/s{named}, {share}"
    return (
        f"{best.op} reaches {format_number(peak)} GB/s {kind}{named}; {words or 'nothing is known to compare it with'}"
    )


def latency_summary(rows: Sequence[Measurement]) -> str:
    """The conclusion of `latency` in one sentence, plain text."""
    if not rows:
        return "Nothing measured yet"
    least = min(rows, key=lambda m: m.bytes)
    alike = sorted((m for m in rows if m.bytes == least.bytes), key=lambda m: m.time_us)
    if len({m.op for m in rows}) > 1:
        quick, slow = (f"{format_time(m.time_us)} ({m.op})" for m in (alike[0], alike[-1]))
        return f"A call of {format_bytes(least.bytes)} takes {quick} to {slow}"
    median, p99 = format_time(least.time_us), format_time(least.p99_us)
    return f"{least.op} of {format_bytes(least.bytes)} takes {median}; its p99 is {p99}"


def _figure(summary: str, rows: Sequence[Measurement], y_title: str, note: str = "", entries: int = 0) -> go.Figure:
    """An empty figure; entries: of the legend, where there are others than one for each group."""
    lines, below = textwrap.wrap(summary, WIDTH) or [""], textwrap.wrap(note, WIDTH + 8)
    small = [f'<span style="font-size:11px">{safe(line)}</span>' for line in below]
    sizes = _ticks([m.bytes for m in rows])
    entries = entries or len(_groups(rows))
    above = 22 * math.ceil(entries / ABREAST) if entries > 1 else 0
    axis, height = {"type": "log", "automargin": True}, 330 + 20 * len(lines) + 16 * len(below) + above
    figure = go.Figure(
        layout={
            "template": template(),
            "meta": {"summary": summary},
            "autosize": True,
            "height": height,
            "title": {
                "text": "<br>".join(safe(line) for line in lines),
                "font": {"size": 15, "weight": 600},
                "x": 0.01,
                "xanchor": "left",
                "y": 1 - 20 / height,
                "yref": "container",
                "yanchor": "top",
            },
            "margin": {"l": 8, "r": 14, "t": 28 + 20 * len(lines) + above, "b": 8},
            "hovermode": "closest",
            "legend": LEGEND | {"y": 1.01},
            "showlegend": entries > 1,
            "xaxis": axis
            | {
                "tickvals": sizes,
                "ticktext": [format_bytes(s) for s in sizes],
                "tickangle": 0,
                "title": {"text": "<br>".join(["message size", *small])},
            },
            "yaxis": axis | {"title": {"text": y_title}, "exponentformat": "none", "tickformat": "~g"},
        }
    )
    if not rows:
        figure.update_layout(xaxis_visible=False, yaxis_visible=False)
    return figure


def template() -> go.layout.Template:
    """Colours only, and only here: the report puts its own in their place when its reader switches to dark."""
    axis = {"gridcolor": GRID, "linecolor": GRID, "tickcolor": GRID, "zeroline": False, "ticks": "outside"}
    clear = "rgba(0,0,0,0)"
    font = {"color": INK, "size": 12}
    return go.layout.Template(
        layout={"font": font, "paper_bgcolor": clear, "plot_bgcolor": clear, "xaxis": axis, "yaxis": axis}
    )


def _look(index: int, dotted: bool = False) -> dict[str, object]:
    """Line and mark of one run: told apart by colour, by mark and by dash."""
    dash = "dot" if dotted else "solid" if index < len(LINES) else "dash"
    line = {"color": LINES[index % len(LINES)], "width": 1.5 if dotted else 2.5, "dash": dash}
    return {"line": line, "marker": {"symbol": MARKS[index % len(MARKS)], "size": 5 if dotted else 8}}


def _hover(m: Measurement, expected: float | None) -> list[str]:
    ratio = f", {100 * m.busbw / expected:.0f} % of expected" if expected and m.busbw is not None else ""
    return [format_bytes(m.bytes), format_time(m.time_us), format_time(m.p99_us), ratio]


def _ticks(sizes: Sequence[int]) -> list[int]:
    """At most five of the sizes, the largest always among them: more labels overlap on a phone."""
    known = sorted(set(sizes))
    return known[::-1][:: max(1, math.ceil(len(known) / 5))][::-1]


def _groups(rows: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """Rows by collective, type, ranks, backend and run; names hold only that in which the groups differ."""
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for m in rows:
        what = (m.op, m.dtype, f"{m.ranks} rank{'s' if m.ranks != 1 else ''}", m.backend, m.run)
        groups.setdefault(what, []).append(m)
    differ = [len(set(parts)) > 1 for parts in zip(*groups, strict=True)]
    return {
        ", ".join(part for part, shown in zip(what, differ, strict=True) if shown and part) or what[0]: group
        for what, group in groups.items()
    }


def _speed(m: Measurement, kind: str) -> float:
    return m.busbw if kind == "busbw" and m.busbw is not None else m.algbw


def _wrong(figure: go.Figure, rows: Sequence[Measurement], kind: str) -> None:
    bad = [m for m in rows if m.wrong]
    if bad:
        figure.add_scatter(
            x=[m.bytes for m in bad],
            y=[_speed(m, kind) for m in bad],
            name="wrong result",
            mode="markers+text",
            text=["wrong"] * len(bad),
            textposition="bottom center",
            textfont={"color": VERMILLION},
            showlegend=False,
            marker={"symbol": "x-open", "size": 15, "color": VERMILLION, "line": {"width": 3}},
            customdata=[[m.wrong] for m in bad],
            hovertemplate="%{customdata[0]:,} wrong elements",
        )


def _scale(figure: go.Figure, drawn: Sequence[float], limit: float | None = None) -> None:
    """Room for the limit's label, which plotly does not count, and ticks by decade, or closer where there are few."""
    known = [value for value in (*drawn, limit) if value and value > 0]
    if known:
        low, high = math.log10(min(known)), math.log10(max(known))
        span = max(high - low, 0.5)
        figure.update_yaxes(range=[low - 0.06 * span, high + 0.14 * span], dtick=1 if span > 2 else "D2")


def _level(figure: go.Figure, limit: float) -> None:
    figure.add_shape(
        type="line",
        xref="paper",
        x0=0,
        x1=1,
        y0=limit,
        y1=limit,
        line={"color": VERMILLION, "width": 2, "dash": "dash"},
        label={
            "text": f"expected: at most {format_number(limit)} GB/s",
            "textposition": "start",
            "yanchor": "bottom",
            "font": {"color": VERMILLION, "size": 13},
        },
    )
