"""Machines drawn: GPUs above NICs in their NUMA nodes, links by kind and width.  Plotly, without a title."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import plotly.graph_objects as go

from ncclkit.core.model import safe
from ncclkit.views._draw import BLUE, GREEN, ORANGE, PURPLE, SKY, blank
from ncclkit.views._machine import Machine, Nic, closeness, kind
from ncclkit.views.plots import INK, VERMILLION

STROKES = {
    "NV": (BLUE, "solid", 4.0),
    "PIX": (GREEN, "solid", 4.0),
    "PXB": (SKY, "dash", 3.5),
    "PHB": (ORANGE, "dashdot", 3.0),
    "NODE": (PURPLE, "dash", 2.5),
    "SYS": (VERMILLION, "dot", 2.0),
    "?": (INK, "longdash", 2.0),
}
"""Colour, dash and width of each kind of link; bonded NVLinks are the wider the more they are."""

GAP = 0.5
"""Columns between two NUMA nodes."""
LOW, NICS, GPUS, BUS, ARCS = -0.95, 0.0, 1.2, 1.75, 1.0
"""Heights in a machine: lower edge, the two rows, the bus over the GPUs; and how far arcs rise above that."""
UNIT = 84
"""Pixels of one unit of height."""
NODE_BOX = "rgba(128,128,128,.12)"

T = TypeVar("T")
Point = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Placed:
    """A machine with a place for each of its parts; `base` is where it begins in the figure."""

    machine: Machine
    name: str
    base: float
    gpus: Mapping[int, float]
    nics: Mapping[str, float]
    boxes: Mapping[int | None, tuple[float, float]]


def draw(named: Mapping[str, Machine]) -> go.Figure:
    """Machines one above the other, the first on top; a name that is empty is not written."""
    placed: list[Placed] = []
    top = 0.0
    for name, machine in reversed([*named.items()]):
        placed.append(_place(machine, name, top - _sunk(machine)))
        top += _height(machine)
    figure = blank(height=round(UNIT * top) + 60)
    width = max(end for each in placed for _, end in each.boxes.values())
    for each in placed:
        _boxes(figure, each)
    _draw_links(figure, placed)
    _parts(figure, placed)
    figure.update_layout(legend_itemsizing="trace")  # widths of lines tell something
    figure.update_xaxes(visible=False, range=[-0.1, width + 0.1])
    figure.update_yaxes(visible=False, range=[LOW, LOW + top])
    return figure


def _height(machine: Machine) -> float:
    return BUS - LOW + (ARCS if len(set(machine.pairs.values())) > 1 else 0) + 0.65 - _sunk(machine)


def _sunk(machine: Machine) -> float:
    """What is saved where there are no NICs below the GPUs."""
    return 0.0 if machine.nics else GPUS - NICS


def _place(machine: Machine, name: str, base: float) -> Placed:
    """Columns from left to right, NUMA node by NUMA node; a NIC stands below the GPU that is closest to it."""
    closest = machine.nearest()
    homes = {nic.name: _home(nic, machine, closest) for nic in machine.nics}
    nodes = sorted({*machine.gpus.values(), *homes.values()}, key=lambda node: (node is None, node or 0))
    gpus: dict[int, float] = {}
    nics: dict[str, float] = {}
    boxes: dict[int | None, tuple[float, float]] = {}
    left = 0.0
    for node in nodes:
        upper = [gpu for gpu, home in machine.gpus.items() if home == node]
        lower = [nic for nic, home in homes.items() if home == node]
        lower.sort(key=lambda nic: _under(nic, upper, machine))
        width = max(len(upper), len(lower), 1)
        boxes[node] = (left, left + width)
        gpus.update(_spread(upper, left, width))
        nics.update(_spread(lower, left, width))
        left += width + GAP
    return Placed(machine, name, base, gpus, nics, boxes)


def _home(nic: Nic, machine: Machine, closest: Mapping[int, tuple[str, list[str]]]) -> int | None:
    """The NUMA node of a NIC: its own word, else that of a GPU which reaches it without leaving the node."""
    if nic.numa is not None:
        return nic.numa
    inside = (gpu for gpu, (way, names) in closest.items() if nic.name in names and kind(way) != "SYS")
    return next((machine.gpus[gpu] for gpu in inside), None)


def _under(nic: str, gpus: Sequence[int], machine: Machine) -> tuple[int, int]:
    """Place of the GPU that a NIC is closest to, so that few lines cross."""
    ways = [(closeness(machine.near[gpu, nic]), place) for place, gpu in enumerate(gpus) if (gpu, nic) in machine.near]
    return (0, min(ways)[1]) if ways else (1, 0)


def _spread(names: Sequence[T], left: float, width: int) -> dict[T, float]:
    return {name: left + width * (place + 0.5) / len(names) for place, name in enumerate(names)}


def _boxes(figure: go.Figure, placed: Placed) -> None:
    """NUMA nodes as areas with their names, and the machine's own name over them."""
    for node, (left, right) in placed.boxes.items():
        low, high = placed.base + NICS + _sunk(placed.machine) - 0.5, placed.base + GPUS + 0.38
        figure.add_shape(
            type="rect", x0=left, x1=right, y0=low, y1=high, fillcolor=NODE_BOX, line={"width": 0}, layer="below"
        )
        words = "NUMA node not known" if node is None else f"NUMA node {node}"
        _write(figure, left + 0.08, low - 0.17, words)
    if placed.name:
        _write(
            figure,
            0,
            placed.base + _sunk(placed.machine) + _height(placed.machine) + LOW - 0.25,
            f"<b>{safe(placed.name)}</b>",
            size=13,
        )


def _write(figure: go.Figure, x: float, y: float, words: str, size: int = 11) -> None:
    figure.add_annotation(x=x, y=y, text=words, showarrow=False, xanchor="left", font={"size": size})


def _draw_links(figure: go.Figure, placed: Sequence[Placed]) -> None:
    """One trace for each kind of link, the closest first, as a legend wants it."""
    lines: dict[str, list[Point]] = defaultdict(list)
    for each in placed:
        for way, points in (*_bus(each), *_down(each), *_between(each)):
            lines[way] += [*((x, y + each.base) for x, y in points), (None, None)]
    for way in sorted(lines, key=closeness):
        colour, dash, width = STROKES[kind(way)]
        number = int(way[2:]) if kind(way) == "NV" else 0
        figure.add_scatter(
            x=[x for x, _ in lines[way]],
            y=[y for _, y in lines[way]],
            mode="lines",
            name=safe(way),
            line={"color": colour, "dash": dash, "width": min(2.2 * math.sqrt(number), 8) if number else width},
            hoverinfo="skip",
        )


Drawing = Iterator[tuple[str, Sequence[tuple[float, float]]]]


def _bus(placed: Placed) -> Drawing:
    """The link that most pairs of GPUs have as one bus over them, every other pair as an arc of its own."""
    ways = Counter(placed.machine.pairs.values())
    usual = max(ways, key=lambda way: (ways[way], closeness(way)), default="")
    on = sorted({placed.gpus[gpu] for pair, way in placed.machine.pairs.items() if way == usual for gpu in pair})
    yield from ((usual, [(x, GPUS), (x, BUS)]) for x in on)
    if on:
        yield usual, [(on[0], BUS), (on[-1], BUS)]
    widest = max(placed.gpus.values(), default=1.0)
    for (one, two), way in placed.machine.pairs.items():
        if way != usual:
            yield way, _arc(placed.gpus[one], placed.gpus[two], widest)


def _arc(left: float, right: float, widest: float) -> list[tuple[float, float]]:
    """Half an ellipse over the GPUs; higher the further they stand apart."""
    middle, half = (left + right) / 2, (right - left) / 2
    rise = (BUS - GPUS) + ARCS * (right - left) / widest
    steps = [math.pi * step / 16 for step in range(17)]
    return [(middle - half * math.cos(step), GPUS + rise * math.sin(step)) for step in steps]


def _down(placed: Placed) -> Drawing:
    """Each GPU to its closest NICs; where several are equally close, to the two below it."""
    for gpu, (way, names) in placed.machine.nearest().items():
        x = placed.gpus[gpu]
        for nic in sorted(names, key=lambda nic: abs(placed.nics[nic] - x))[:2]:
            yield way, [(x, GPUS), (placed.nics[nic], NICS)]


def _between(placed: Placed) -> Drawing:
    """What joins the NUMA nodes themselves."""
    edges = list(placed.boxes.values())
    for (_, end), (start, _) in zip(edges, edges[1:], strict=False):
        yield "SYS", [(end, (NICS + GPUS) / 2), (start, (NICS + GPUS) / 2)]


def _parts(figure: go.Figure, placed: Sequence[Placed]) -> None:
    """GPUs as squares, NICs as circles with the number of their name; parts that are not whole have another shape."""
    shapes: dict[tuple[str, str, str], list[tuple[float, float, str, str]]] = {
        ("GPU", "square", INK): [],
        ("GPU with fewer NVLinks", "hexagon", VERMILLION): [],
        ("NIC", "circle", INK): [],
        ("NIC, not active", "diamond", VERMILLION): [],
    }
    gpu_whole, gpu_weak, nic_up, nic_down = shapes.values()
    for each in placed:
        for gpu, x in each.gpus.items():
            row = gpu_weak if gpu in each.machine.weak() else gpu_whole
            row.append((x, each.base + GPUS, str(gpu), f"GPU {gpu} {each.machine.model}"))
        for nic in each.machine.nics:
            row = nic_up if nic.works else nic_down
            row.append((each.nics[nic.name], each.base + NICS, _digits(nic), f"{nic.name} {nic.about}"))
    size = max(12, min(30, 420 // max(1, max(max(len(each.gpus), len(each.nics)) for each in placed))))
    for (name, symbol, edge), marks in shapes.items():
        _marks(figure, marks, name, symbol, edge, size)


def _digits(nic: Nic) -> str:
    """``mlx5_10`` → ``10``: what fits into a mark."""
    return nic.name[len(nic.name.rstrip("0123456789")) :]


def _marks(
    figure: go.Figure, marks: Sequence[tuple[float, float, str, str]], name: str, symbol: str, edge: str, size: int
) -> None:
    if not marks:
        return
    figure.add_scatter(
        x=[x for x, _, _, _ in marks],
        y=[y for _, y, _, _ in marks],
        mode="markers+text",
        name=name,
        text=[safe(label) for _, _, label, _ in marks],
        textfont={"color": "#000", "size": 12},
        customdata=[safe(about) for _, _, _, about in marks],
        hovertemplate="%{customdata}<extra></extra>",
        marker={"symbol": symbol, "size": size, "color": "#fff", "line": {"color": edge, "width": 2}},
    )
