"""Drawings of ranks by plotly, without a title.

They show who logged when, which pair uses which transport, and the ring.  Every kind of mark has a
colour of Okabe and Ito's palette and a shape of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, cycle
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ncclkit.core.model import safe
from ncclkit.views.plots import GRID, INK, LEGEND, LINES, VERMILLION, rank_style, template

BLUE, GREEN, PURPLE, SKY, ORANGE = LINES
COLOURS = (BLUE, ORANGE, PURPLE, GREEN, VERMILLION, SKY)
SHAPES = "square diamond cross circle x triangle-up".split()
LINKS = tuple(zip(COLOURS, SHAPES, strict=True))
"""Colour and shape of each transport, the most frequent first."""
TITLE, ABREAST = 22, 52
"""Pixels of the line above each panel, and characters of it that fit on a phone."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One row of the timeline: a rank, or ranks that are alike."""

    name: str
    said: Mapping[int, int]
    """column → 1 where it logged, 2 where a line is abnormal."""
    extent: tuple[int, int]
    """First and last column of its own log lines."""


def log_timeline(rows: Sequence[TimelineRow], places: Sequence[float], axis: str) -> go.Figure:
    """Rank × time: one row per `TimelineRow`, top down.

    `places` are the middles of the columns, `axis` their unit.
    """
    cells = []
    for row in rows:
        cells.append([_level(row, column) for column in range(len(places))])
    names = [safe(row.name) for row in rows]
    figure = blank(height=136 + 22 * len(rows))
    shown_words = []
    for line in cells:
        shown_words.append(["" if cell is None else WORDS[cell] for cell in line])
    figure.add_heatmap(
        z=cells,
        x=list(places),
        y=names,
        zmin=0,
        zmax=2,
        # each colour twice, so that the three levels are steps and no gradient
        colorscale=[
            [0, SKY],
            [0.33, SKY],
            [0.33, BLUE],
            [0.67, BLUE],
            [0.67, VERMILLION],
            [1, VERMILLION],
        ],
        showscale=False,
        ygap=3,
        customdata=shown_words,
        hovertemplate="%{y}<br>%{x}: %{customdata}<extra></extra>",
        hoverongaps=False,
    )
    ends = [row.extent[1] for row in rows]
    figure.add_scatter(
        x=[places[end] for end in ends],
        y=names,
        mode="markers",
        marker=DIAMOND
        | {"color": [VERMILLION if row.said[row.extent[1]] == 2 else "#fff" for row in rows]},
        showlegend=False,
        hovertemplate="%{y}<br>last log line at %{x}<extra></extra>",
    )
    # a heatmap has no legend, so each of its entries is a trace without points
    figure.add_scatter(x=[None], y=[None], mode="markers", marker=DIAMOND, name="last line")
    for level, words in WORDS.items():
        look = {"symbol": "square", "size": 11, "color": (SKY, BLUE, VERMILLION)[level]}
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=look, name=words)
    figure.update_xaxes(title={"text": axis}, zeroline=False, showgrid=False)
    labels = [_label_of_row(row.name) for row in rows]
    figure.update_yaxes(
        autorange="reversed",
        type="category",
        ticks="",
        showgrid=False,
        tickvals=names,
        ticktext=labels,
    )
    return figure


def _label_of_row(name: str) -> str:
    if re.fullmatch(r"rank \d+", name):
        return coloured(name)
    return safe(name)


DIAMOND = {
    "symbol": "diamond",
    "size": 11,
    "color": "#fff",
    "line": {"color": "#000", "width": 1.5},
}
WORDS = {0: "between lines", 1: "logged", 2: "abnormal"}
"""Level of a cell → what it means."""


def _level(row: TimelineRow, column: int) -> int | None:
    if column in row.said:
        return row.said[column]
    if row.extent[0] <= column <= row.extent[1]:
        return 0
    return None


@dataclass(frozen=True, slots=True)
class RankLine:
    """How far a rank came over time."""

    rank: int
    points: Sequence[tuple[float, int]]
    """Place on the axis of time, and the last collective that it had come to by then."""
    label: str
    """What stands at its end.

    It is empty for one of several that ended alike.
    """
    behind: bool
    """Whether it ended before others of its group."""


CROSS = "✖"
PANEL = 150
"""Pixels of one panel of `panels`."""


def panels(titles: Sequence[str], axis: str, pixels: int) -> go.Figure:
    """Empty panels of so many pixels below each other over one axis.

    Each has its title on the left above it.
    """
    high = 60 + pixels * len(titles)
    figure = make_subplots(
        rows=len(titles),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=TITLE / high,
        subplot_titles=list(titles),
    )
    # plotly centres the titles of panels; these are read like lines of text
    figure.update_annotations(x=0, xanchor="left", font={"size": 11})
    figure.update_yaxes(automargin=True)
    figure.update_xaxes(title={"text": axis}, automargin=True, row=len(titles), col=1)
    margin = {"l": 8, "r": 14, "t": 34 + TITLE, "b": 30}
    figure.update_layout(
        template=template(), autosize=True, height=high, margin=margin, showlegend=False
    )
    return figure


def titled(what: str, names: Sequence[str]) -> str:
    """The title of a panel.

    It is what the panel shows, and the first of its lines in their colours.
    """
    # with its mark, and the blanks around both
    lengths = [len(name) + 4 for name in names]
    fit = _fitting(len(what), lengths)
    shown = [coloured(name, index) for index, name in enumerate(names[:fit])]
    more = ""
    if len(names) > fit:
        more = " …"
    return f"<b>{safe(what)}</b>   {'  '.join(shown)}{more}"


def _fitting(start: int, lengths: Iterable[int]) -> int:
    """How many words fit abreast behind a start of this length.

    The first always does.
    """
    widths = accumulate(lengths, initial=start)
    # the start itself is the first of the widths
    fit = sum(width <= ABREAST for width in widths) - 1
    return max(fit, 1)


def coloured(name: str, index: int = 0) -> str:
    """A name behind a mark in the colour of its line.

    The mark has another shape where colours come again.
    """
    return f"{_spot(of_name(name, index))} {safe(name)}"


def _spot(look: Mapping[str, str], mark: str = "") -> str:
    """A mark in the colour of a line.

    It has the shape that the line's dash has in a legend.
    """
    mark = mark or {"solid": "■", "dash": "◆", "dot": "●"}[look["dash"]]
    return f"<span style='color:{look['color']}'>{mark}</span>"


def of_name(name: str, index: int) -> dict[str, str]:
    """Colour and dash of a line.

    They are those of its rank or GPU, else of its place.
    """
    found = re.fullmatch(r"(?:rank|GPU) (\d{1,6})", name)
    return rank_style(int(found[1]) if found else index)


def _ranks_legend(group: str, lines: Sequence[RankLine]) -> str:
    """The title of a panel of ranks.

    It has numbers behind the marks of their lines, and a cross where one stopped first.
    """
    lengths = [len(str(line.rank)) + 3 for line in lines]
    fit = _fitting(len(group) + 8, lengths)
    known = []
    for line in lines[:fit]:
        spot = _spot(rank_style(line.rank), CROSS * line.behind)
        known.append(f"{spot} {line.rank}")
    more = ""
    if len(lines) > fit:
        more = f" and {len(lines) - fit} more"
    noun = "rank"
    if len(lines) > 1:
        noun = "ranks"
    return f"<b>{safe(group)}</b>   {noun} {' '.join(known)}{more}"


def _collectives_axis(lines: Sequence[RankLine]) -> dict[str, Any]:
    """The axis of a panel: all its collectives, with room for labels.

    It has whole numbers only.
    """
    low = min(line.points[0][1] for line in lines)
    high = max(line.points[-1][1] for line in lines)
    # labels stand at the ends of lines, so a third of the range stays free on either side
    room = max(0.3 * (high - low), 1.0)
    axis: dict[str, Any] = {
        "title": {"text": "collective"},
        # no collective has a number below 0
        "range": [max(low - room, -0.8), high + room],
        "tickformat": ",d",
    }
    # plotly would put ticks at halves, and no collective is there
    if high - low < 6:
        axis["dtick"] = 1
    else:
        axis["nticks"] = 6
    return axis


def progress(groups: Mapping[str, Sequence[RankLine]], axis: str) -> go.Figure:
    """Collective against time, a panel for each group and a line for each rank.

    It shows who stopped, and who waits where.
    """
    titles = [_ranks_legend(name, lines) for name, lines in groups.items()]
    figure = panels(titles, axis, 60 + PANEL)
    last = 0.0
    for line in chain.from_iterable(groups.values()):
        last = max(last, *(place for place, _ in line.points))
    for row, lines in enumerate(groups.values(), 1):
        # what is odd is drawn over the others
        for line in sorted(lines, key=lambda line: line.behind):
            end, _ = line.points[-1]
            # a label to the right of what ends in the right half would leave the picture
            _rank_line(figure, line, row, 2 * end > last)
        figure.update_yaxes(_collectives_axis(lines), row=row, col=1)
    figure.update_xaxes(exponentformat="none")
    figure.update_layout(margin={"t": TITLE + 6, "b": 64})
    return figure


def _rank_line(figure: go.Figure, line: RankLine, row: int, late: bool) -> None:
    """One line with a mark at its end.

    Its label stands on the side where there is room.
    """
    look = rank_style(line.rank)
    before = len(line.points) - 1
    if line.behind:
        symbol, size = "x", 12
    else:
        symbol, size = "circle", 7
    figure.add_scatter(
        x=[place for place, _ in line.points],
        y=[number for _, number in line.points],
        name=f"rank {line.rank}",
        mode="lines+markers+text",
        # a rank is at a collective until it comes to the next one, so lines are steps
        line=look | {"shape": "hv", "width": 3 if line.behind else 2},
        marker={"color": look["color"], "symbol": symbol, "size": [*[0] * before, size]},
        text=[*[""] * before, safe(line.label)],
        textposition=f"{'bottom' if line.behind else 'top'} {'left' if late else 'right'}",
        textfont={"weight": 600} if line.behind else {},
        # else a mark on the edge of its panel is cut in half
        cliponaxis=False,
        hovertemplate=f"rank {line.rank}: collective %{{y:,}} at %{{x:.4g}}<extra></extra>",
        row=row,
        col=1,
    )


def matrix(
    pairs: Mapping[str, Sequence[tuple[int, int]]], names: Sequence[str], what: str
) -> go.Figure:
    """Sender × receiver as a matrix of transports.

    `pairs` are transport → (row, column) places in `names`, the most frequent transport first.
    """
    count = len(names)
    side = min(max(count * 16, 160), 420)
    figure = blank(height=side + 110)
    size = max(4, min(13, 0.75 * side / max(count, 1)))
    most = max(map(len, pairs.values()))
    for (words, found), (colour, symbol) in zip(
        pairs.items(), _line_styles(len(pairs)), strict=True
    ):
        marker_size = size
        # few among many would drown
        if len(found) * 20 < most:
            marker_size = max(size, 11)
        figure.add_scatter(
            x=[receiver for _, receiver in found],
            y=[sender for sender, _ in found],
            mode="markers",
            name=safe(words),
            marker={"color": colour, "symbol": symbol, "size": marker_size},
            customdata=[[safe(names[sender]), safe(names[receiver])] for sender, receiver in found],
            hovertemplate="%{customdata[0]} → %{customdata[1]}<extra>" + safe(words) + "</extra>",
        )
    # some ten names fit along an axis
    shown = range(0, count, max(1, math.ceil(count / 10)))
    ticks = {
        "tickvals": list(shown),
        "ticktext": [safe(names[place]) for place in shown],
        "range": [-0.6, count - 0.4],
    }
    angle = 0
    # names of hosts are too long to stand side by side
    if what == "host":
        angle = -40
    figure.update_xaxes(title={"text": f"to {what}"}, tickangle=angle, **ticks)
    # senders from the top down, as in the other tables
    figure.update_yaxes(title={"text": f"from {what}"}, **ticks | {"range": [count - 0.4, -0.6]})
    return figure


NUMBERED = 12
"""Up to so many names each cell of a heatmap says its number."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What is odd about some cells of a heatmap."""

    name: str
    spots: Sequence[tuple[int, int]]
    """Row and column of each."""
    symbol: str = ""
    """Drawn in the middle of a cell without a number; empty frames the cell."""


def heatmap(
    cells: Sequence[Sequence[float | None]],
    names: Sequence[str],
    axes: tuple[str, str],
    unit: str,
    marks: Sequence[Mark],
) -> go.Figure:
    """Names × names with a number in each cell, where these are few.

    What is odd is framed or crossed.  `axes` are titles of the rows and of the columns; `unit` is
    that of the numbers.
    """
    count = len(names)
    side = min(max(count * 46, 150), 400)
    figure = blank(height=side + 132 + 22 * len(marks))
    words = [safe(name) for name in names]
    shown_values = []
    for row in cells:
        shown_values.append(["" if cell is None else f"{cell:.2g}" for cell in row])
    known = []
    for line in cells:
        known += [cell for cell in line if cell is not None]
    figure.add_heatmap(
        z=cells,
        colorscale="Cividis",
        # from zero, or a difference of a few percent would take all colours
        zmin=0,
        zmax=max(known, default=1.0),
        xgap=1,
        ygap=1,
        hoverongaps=False,
        showscale=count > NUMBERED,
        colorbar={"title": {"text": unit}, "thickness": 12},
        text=shown_values,
        texttemplate="%{text}" if count <= NUMBERED else None,
        textfont={"size": 12 if count <= 6 else 9},
        customdata=[[[src, dst] for dst in words] for src in words],
        hovertemplate=f"%{{customdata[0]}}, %{{customdata[1]}}: %{{z:.3g}} {unit}<extra></extra>",
    )
    for mark, colour in zip(marks, cycle((VERMILLION, SKY, PURPLE, ORANGE, GREEN)), strict=False):
        _mark(figure, mark, colour)
    _square(figure, words, axes, unit)
    return figure


def _square(figure: go.Figure, words: Sequence[str], axes: tuple[str, str], unit: str) -> None:
    """Axes of a heatmap whose cells are squares, at the upper left at any width."""
    count = len(words)
    shown = list(range(0, count, max(1, math.ceil(count / 16))))
    ticks = {
        "tickvals": shown,
        "ticktext": [words[place] for place in shown],
        "showgrid": False,
        "ticks": "",
    }
    angle = 0
    if max(map(len, words)) > 3:
        angle = -40
    columns = {
        "title": {"text": f"{axes[1]} ({unit})"},
        "tickangle": angle,
        "range": [-0.5, count - 0.5],
    }
    rows = {"title": {"text": axes[0]}, "scaleanchor": "x", "range": [count - 0.5, -0.5]}
    figure.update_xaxes(constrain="domain", constraintoward="left", **columns, **ticks)
    figure.update_yaxes(constrain="domain", constraintoward="top", **rows, **ticks)
    figure.update_layout(margin_b=60)


def _mark(figure: go.Figure, mark: Mark, colour: str) -> None:
    """Draw frames as one line around each cell, fit for any width.

    Where there is a symbol, it is drawn in the middle.
    """
    if mark.symbol:
        look = {
            "symbol": mark.symbol,
            "size": 11,
            "color": colour,
            "line": {"color": INK, "width": 1},
        }
        x = [column for _, column in mark.spots]
        y = [row for row, _ in mark.spots]
        figure.add_scatter(
            x=x, y=y, mode="markers", name=safe(mark.name), marker=look, hoverinfo="skip"
        )
        return
    # a little less than half a cell, so that frames of neighbours stay apart
    half = 0.47
    corners = ((-half, -half), (half, -half), (half, half), (-half, half), (-half, -half))
    points: list[tuple[float | None, float | None]] = []
    for row, column in mark.spots:
        for right, down in corners:
            points.append((column + right, row + down))
        # a gap, so that no line leads from one frame to the next
        points.append((None, None))
    figure.add_scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        mode="lines",
        name=safe(mark.name),
        line={"color": colour, "width": 3},
        hoverinfo="skip",
    )


def _line_styles(count: int) -> list[tuple[str, str]]:
    return [LINKS[place % len(LINKS)] for place in range(count)]


def blank(height: int) -> go.Figure:
    """A figure in our own looks with room for a legend above.

    Nothing else is in it; `height` is in pixels.
    """
    axis = {"automargin": True, "gridcolor": GRID}
    margin = {"l": 8, "r": 14, "t": 8, "b": 24}
    above = LEGEND | {"y": 1.02, "itemsizing": "constant"}
    layout = {
        "template": template(),
        "autosize": True,
        "height": height,
        "margin": margin,
        "hovermode": "closest",
    }
    return go.Figure(
        layout=layout | {"legend": above, "showlegend": True, "xaxis": axis, "yaxis": axis}
    )
