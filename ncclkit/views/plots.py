"""Figures of measurements: plotly, transparent, readable on light and on dark.

Each title is the conclusion.  Units: sizes in bytes of nccl-tests (KiB = 1024
bytes), bandwidth in GB/s (1e9 bytes), times in microseconds or as labelled.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

import plotly.graph_objects as go

from ncclkit.core.bandwidth import ABOVE, no_maximum
from ncclkit.core.model import Measurement, safe
from ncclkit.core.text import format_bytes, format_number, format_time

LINES, VERMILLION = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"), "#D55E00"
"""Okabe and Ito's palette: told apart by colour-blind readers, visible on white and on black."""

INK, GRID = "#7d7d7d", "rgba(128,128,128,.28)"
LEGEND = {"orientation": "h", "x": 0, "yanchor": "bottom", "xanchor": "left"}
MARKS = ("circle", "square", "diamond", "triangle-up", "x")
ABREAST, ENTRY = 2, 29
"""Names of a legend beside each other on a phone, and pixels of a row of them."""
WIDTH = 40
"""Characters of a title line that fit beside each other on a phone of 390 px."""
SMALL = 64 << 10
"""Bytes of a message up to which its time is the cost of a call and not of the link."""


def bandwidth(
    measurements: Iterable[Measurement],
    expected: float | None = None,
    words: str = "",
    summary: str = "",
) -> go.Figure:
    """Bandwidth against message size, one line per collective and run.

    Below it stands the time of a small call.  busbw is in GB/s from 0 on; algbw stands where there
    is no busbw (one rank).  `expected` is the busbw in GB/s that this topology should give, drawn
    as a line; `words` names what allows it, or says why nothing is expected; `summary` takes the
    place of the title, where the measurement alone misleads.
    """
    rows = sorted(measurements, key=lambda m: m.bytes)
    kind = "algbw"
    # algbw where a single row has no busbw: on one axis both would be compared
    if rows and all(m.busbw is not None for m in rows):
        kind = "busbw"
    limit = None
    if kind == "busbw":
        limit = expected
    groups = _groups(rows)
    small = {name: [m for m in group if m.bytes <= SMALL] for name, group in groups.items()}
    few: list[Measurement] = []
    for group in small.values():
        few += group
    # one size is a point and no curve
    few = few if len({m.bytes for m in few}) > 1 else []
    figure = _figure(summary or bandwidth_summary(rows, limit, words), rows, len(groups), few)
    for index, (name, group) in enumerate(groups.items()):
        figure.add_scatter(
            x=[m.bytes for m in group],
            y=[_speed(m, kind) for m in group],
            name=safe(name),
            legendgroup=safe(name),
            mode="lines+markers",
            **_style(index),
            customdata=[_hover(m, limit) for m in group],
            hovertemplate=(
                f"%{{customdata[0]}}<br>{kind} %{{y:.3g}} GB/s%{{customdata[3]}}"
                "<br>median %{customdata[1]}, p99 %{customdata[2]}"
            ),
        )
    # the expectation must be in the picture even where nothing comes near it
    highest = max([*(_speed(m, kind) for m in rows), limit or 0.0], default=0.0)
    figure.update_layout(yaxis={"title": {"text": f"{kind}, GB/s"}, "range": [0, 1.14 * highest]})
    if limit:
        _level(figure, limit)
    if few:
        _times(figure, small, "2")
    _wrong(figure, rows, kind)
    return figure


def latency(measurements: Iterable[Measurement]) -> go.Figure:
    """Time of one call against message size, in microseconds.

    It is the median, and of a collective alone also p99, dotted.
    """
    rows = sorted(measurements, key=lambda m: m.bytes)
    groups = _groups(rows)
    figure = _figure(latency_summary(rows), rows, len(groups) if len(groups) > 1 else 2)
    _times(figure, groups, "")
    return figure


def _times(figure: go.Figure, groups: Mapping[str, Sequence[Measurement]], panel: str) -> None:
    """Times of one call as lines of the panel.

    `panel` is ``2``, or empty for the only one; both axes are logarithmic.
    """
    kinds: tuple[str, ...] = ("median", "p99")
    # of several groups, twice as many lines say nothing
    if len(groups) > 1:
        kinds = ("median",)
    known: list[float] = []
    for index, (name, group) in enumerate(groups.items()):
        said = []
        for m in group:
            median = format_time(m.time_us)
            p99 = format_time(m.p99_us)
            said.append([format_bytes(m.bytes), median, p99])
        for label in kinds:
            times: list[float | None] = [m.time_us for m in group]
            if label == "p99":
                times = [m.p99_us for m in group]
            known += filter(None, times)
            title = safe(name)
            if len(kinds) > 1:
                title = f"{title}, {label}"
            figure.add_scatter(
                x=[m.bytes for m in group],
                y=times,
                name=title,
                legendgroup=safe(name),
                showlegend=not panel,
                mode="lines+markers",
                xaxis=f"x{panel}",
                yaxis=f"y{panel}",
                **_style(index, dotted=label == "p99"),
                customdata=said,
                hovertemplate="%{customdata[0]}<br>median %{customdata[1]}<br>p99 %{customdata[2]}",
            )
    axis: dict[str, Any] = {"type": "log", "title": {"text": "time of one call, µs"}}
    if known:
        low = math.log10(min(known))
        high = math.log10(max(known))
        # 0.15 of a decade at least, or values that are equal would have an axis without length
        room = max(0.12 * (high - low), 0.15)
        start = low - room
        end = high + room
        axis["range"] = [start, end]
        axis["tickvals"] = ticks(start, end)
    figure.update_layout({f"yaxis{panel}": axis})


def ticks(low: float, high: float) -> list[float]:
    """At most six round values between two powers of ten.

    They are decades alone, or with steps between where these are few.
    """
    decades = range(math.floor(low), math.ceil(high) + 1)
    # the finest steps first that leave at most six
    for steps in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3), (1,)):
        known = []
        for decade in decades:
            for step in steps:
                if low <= math.log10(step) + decade <= high:
                    known.append(step * 10.0**decade)
        if len(known) <= 6:
            return known
    return known[:: math.ceil(len(known) / 6)]


def bandwidth_summary(
    rows: Sequence[Measurement], expected: float | None = None, words: str = ""
) -> str:
    """The conclusion of `bandwidth` in one sentence, plain text."""
    if not rows:
        return "Nothing measured yet"
    wrong = sum(m.wrong or 0 for m in rows)
    if wrong:
        worst = max(rows, key=lambda m: m.wrong or 0)
        return (
            f"{worst.op} gave {wrong:,} wrong elements, most at {format_bytes(worst.bytes)}: do not"
            " trust these speeds"
        )
    if all(m.ranks == 1 for m in rows):
        ops = sorted({m.op for m in rows})
        if len(ops) == 1:
            work = f"{ops[0]} works"
        else:
            work = f"{len(ops)} collectives work"
        return f"{work} on one rank, where nothing travels: these times say nothing of a link"
    kind = "algbw"
    if all(m.busbw is not None for m in rows):
        kind = "busbw"
    best = max(rows, key=lambda m: _speed(m, kind))
    peak = _speed(best, kind)
    named = ""
    if len({m.run for m in rows}) > 1:
        named = f" in run {best.run}"
    reached = f"{best.op} reaches {format_number(peak)} GB/s {kind}{named}"
    if expected and kind == "busbw":
        # a row keeps the bound of its own time, which today's facts may not give any more
        bound = best.expected or expected
        if peak > ABOVE * bound:
            return f"{reached}, {no_maximum(bound, words)}"
        allowed = f"{format_number(bound)} GB/s {f'that {words} allows' if words else 'expected'}"
        return f"{reached}, {100 * peak / bound:.0f} % of the {allowed}"
    return f"{reached}; {words or 'nothing is known to compare it with'}"


def latency_summary(rows: Sequence[Measurement]) -> str:
    """The conclusion of `latency` in one sentence, plain text."""
    if not rows:
        return "Nothing measured yet"
    least = min(rows, key=lambda m: m.bytes)
    size = format_bytes(least.bytes)
    if len({m.op for m in rows}) > 1:
        alike = [m for m in rows if m.bytes == least.bytes]
        alike.sort(key=lambda m: m.time_us)
        first = alike[0]
        last = alike[-1]
        quick = f"{format_time(first.time_us)} ({first.op})"
        slow = f"{format_time(last.time_us)} ({last.op})"
        return f"A call of {size} takes {quick} to {slow}"
    median = format_time(least.time_us)
    p99 = format_time(least.p99_us)
    return f"{least.op} of {size} takes {median}; its p99 (dotted) is {p99}"


PANEL, SECOND, AXIS, LINE = 250, 150, 52, 18
"""Pixels of the first panel, of the second one, of an axis with its title, and of a line of the
second's heading."""


def _figure(
    summary: str, rows: Sequence[Measurement], entries: int, few: Sequence[Measurement] = ()
) -> go.Figure:
    """Empty panels under a title.

    One is for `rows` and one for the `few` that are small; `entries` are those of the legend.
    """
    heading = wrapped(latency_summary(few))
    drawn = PANEL + (AXIS + LINE * len(heading) + 16 + SECOND if few else 0)
    figure = frame(summary, entries, drawn)
    figure.update_layout(
        xaxis=size_axis([m.bytes for m in rows]), yaxis=Y | {"domain": [1 - PANEL / drawn, 1]}
    )
    if few:
        _second(figure, few, SECOND / drawn, "<br>".join(heading))
    if not rows:
        figure.update_layout(xaxis_visible=False, yaxis_visible=False)
    return figure


def frame(summary: str, entries: int, drawn: int, figure: go.Figure | None = None) -> go.Figure:
    """A figure under its conclusion, with room for a legend.

    The conclusion is the title; `drawn` is the pixels below these.
    """
    lines = wrapped(summary)
    above = 28 + 20 * len(lines) + (ENTRY * math.ceil(entries / ABREAST) if entries > 1 else 0)
    height = above + drawn + AXIS
    title = {
        "text": "<br>".join(lines),
        "font": {"size": 15, "weight": 600},
        "x": 0.01,
        "xanchor": "left",
        "y": 1 - 20 / height,
        "yref": "container",
        "yanchor": "top",
    }
    return (figure or go.Figure()).update_layout(
        template=template(),
        meta={"summary": summary},
        autosize=True,
        height=height,
        title=title,
        margin={"l": 70, "r": 14, "t": above, "b": AXIS},
        hovermode="closest",
        legend=LEGEND | {"y": 1.01},
        showlegend=entries > 1,
    )


def entries(names: Sequence[str]) -> int:
    """How many entries of usual length these names take in a legend.

    A long one has a row to itself on a phone.
    """
    # four characters are the mark and the gap before the next entry
    return len(names) * (ABREAST if any(len(name) > WIDTH / ABREAST - 4 for name in names) else 1)


def _second(figure: go.Figure, few: Sequence[Measurement], top: float, heading: str) -> None:
    """Add the panel of small messages; top: the part of the figure's height that it takes."""
    sizes = size_axis([m.bytes for m in few]) | {"anchor": "y2"}
    figure.update_layout(xaxis2=sizes, yaxis2=Y | {"domain": [0, top], "anchor": "x2"})
    place = {
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": top,
        "yref": "paper",
        "yanchor": "bottom",
        "yshift": 6,
    }
    font = {"size": 13, "weight": 600}
    figure.add_annotation(text=heading, align="left", showarrow=False, font=font, **place)


Y = {"exponentformat": "none", "tickformat": "~g"}


def size_axis(sizes: Sequence[int]) -> dict[str, Any]:
    """The axis of the message sizes.

    It has at most five names, the largest always among them: more overlap on a phone.
    """
    known = sorted(set(sizes))
    shown: list[int] = []
    apart = 0.0
    if known:
        apart = math.log(known[-1] / known[0]) / 6
    step = max(1, math.ceil(len(known) / 5))
    # from the largest, which must be named: it is the one that is judged
    for size in known[::-1][::step]:
        # names of neighbours would lie upon each other
        if not shown or math.log(shown[-1] / size) >= apart:
            shown.append(size)
    shown.reverse()
    return {
        "type": "log",
        "title": {"text": "message size", "standoff": 8},
        "tickvals": shown,
        "ticktext": [format_bytes(size) for size in shown],
        "tickangle": 0,
    }


def wrapped(words: str) -> list[str]:
    """Words as lines that fit beside each other on a phone, escaped."""
    return [safe(line) for line in textwrap.wrap(words, WIDTH)] or [""]


def template() -> go.layout.Template:
    """Colours only, and only here.

    The report puts its own in their place when its reader switches to dark.
    """
    axis = {
        "gridcolor": GRID,
        "linecolor": GRID,
        "tickcolor": GRID,
        "zeroline": False,
        "ticks": "outside",
    }
    clear = "rgba(0,0,0,0)"
    font = {"color": INK, "size": 12}
    return go.layout.Template(
        layout={
            "font": font,
            "paper_bgcolor": clear,
            "plot_bgcolor": clear,
            "xaxis": axis,
            "yaxis": axis,
        }
    )


def rank_style(number: int) -> dict[str, str]:
    """Colour and dash of a rank or GPU.

    They are the same in every figure of a page.
    """
    return {
        "color": LINES[number % len(LINES)],
        "dash": ("solid", "dash", "dot")[number // len(LINES) % 3],
    }


def _style(index: int, dotted: bool = False) -> dict[str, object]:
    """Line and mark of one run: told apart by colour, by mark and by dash."""
    if dotted:
        dash = "dot"
    elif index < len(LINES):
        dash = "solid"
    else:
        dash = "dash"
    line = {"color": LINES[index % len(LINES)], "width": 1.5 if dotted else 2.5, "dash": dash}
    return {
        "line": line,
        "marker": {"symbol": MARKS[index % len(MARKS)], "size": 5 if dotted else 8},
    }


def _hover(m: Measurement, expected: float | None) -> list[str]:
    ratio = ""
    if expected and m.busbw is not None:
        ratio = f", {100 * m.busbw / expected:.0f} % of expected"
    return [format_bytes(m.bytes), format_time(m.time_us), format_time(m.p99_us), ratio]


def _groups(rows: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """Rows by collective, type, ranks, backend and run.

    Names hold only that in which the groups differ.
    """
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for m in rows:
        noun = "ranks"
        if m.ranks == 1:
            noun = "rank"
        what = (m.op, m.dtype, f"{m.ranks} {noun}", m.backend, m.run)
        groups.setdefault(what, []).append(m)
    # in what all have in common nobody can tell them apart
    differ = [len(set(parts)) > 1 for parts in zip(*groups, strict=True)]
    named = {}
    for row, group in groups.items():
        parts = [part for part in compress(row, differ) if part]
        name = ", ".join(parts) or row[0]
        named[name] = group
    return named


def _speed(m: Measurement, kind: str) -> float:
    if kind == "busbw" and m.busbw is not None:
        return m.busbw
    return m.algbw


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
