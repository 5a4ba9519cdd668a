"""How the GPUs and NICs of a host are joined.

It shows by which links, how wide, and within which NUMA node.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import plotly.graph_objects as go

from ncclkit.agent.digits import whole_number
from ncclkit.analysis.machine_links import (
    MEANS,
    MachineLinks,
    Nic,
    different_machines,
    link_closeness,
    link_kind,
)
from ncclkit.core.case import Case
from ncclkit.core.model import safe
from ncclkit.core.text import format_number, host_list, numbered, plural, some
from ncclkit.views._base import Drawn, View
from ncclkit.views._draw import BLUE, GREEN, ORANGE, PURPLE, SKY, blank
from ncclkit.views._html import Markup, code, el, fit, fold, join, table
from ncclkit.views._missing import NoData
from ncclkit.views.facts import SHOWN, how_to_find_out, further_kinds, kinds_summary
from ncclkit.views.plots import INK, VERMILLION

REFUSALS = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "this topology does not support it",
    "NS": "it is not supported",
    "U": "nvidia-smi does not know why",
}
"""What the letters of `nvidia-smi topo -p2p` mean."""


def topology_view(case: Case) -> View:
    """The machines drawn, those that are alike once, the rare ones first.

    With them stands every kind of link with its pairs.
    """
    kinds = different_machines(case.facts)
    if not kinds:
        return NoData("GPUs and their links", "their facts have not been read yet")
    alike = [(hosts, machine_sentence(machine)) for machine, hosts in kinds.items()]
    *rare, usual = kinds.items()
    named: dict[str, MachineLinks] = {}
    parts = []
    # the usual machine last, as the rare ones are to be looked at
    for machine, hosts in [*rare[: SHOWN - 1], usual]:
        # where all are alike there is no need to say which hosts these are
        if not rare:
            hosts = []
        parts.append(_machine_part(machine, hosts))
        # a host without GPUs and NICs has nothing to draw
        if machine.gpus or machine.nics:
            named[host_list(hosts)] = machine
    figure = None
    if named:
        figure = draw_machines(named)
    body = join(*parts, further_kinds(alike, "machine", "How they are joined"))
    return Drawn(kinds_summary(alike, "machine"), figure, body)


def machine_sentence(machine: MachineLinks) -> str:
    """One machine in one sentence.

    It says what its GPUs reach each other over, and what is odd about it.
    """
    count = machine.count
    if count == 0:
        return "No GPU here: ranks meet in memory and over the network"
    # one GPU has no pair, and that is no fault of the reading
    if count is None or (count > 1 and not machine.pairs):
        if count is None:
            named = "the GPUs"
        else:
            named = f"its {count} GPUs"
        return (
            f"How {named} are joined could not be read:"
            f" {machine.why or 'the reason was not recorded'}"
        )
    if count == 1:
        said = "One GPU, so there is no link between GPUs"
    else:
        said = _links_of_pairs(machine)
    odd = (_refused_pairs(machine), _lost_nvlinks(machine), _closest_nics(machine))
    return "; ".join(filter(None, (said, *odd)))


def _links_of_pairs(machine: MachineLinks) -> str:
    counts = Counter(machine.pairs.values())
    links = sorted(counts.items(), key=lambda item: (-item[1], link_closeness(item[0])))
    if machine.count == 2:
        gpus = "Both GPUs"
    else:
        gpus = f"All {machine.count} GPUs"
    if len(links) == 1:
        return f"{gpus} reach each other over {links[0][0]}"
    (usual, most), *others = links
    rest = ", ".join(f"{few} over {link}" for link, few in others)
    joined: set[int] = set()
    for pair, link in machine.pairs.items():
        if link == usual:
            joined.update(pair)
    lone = [gpu for gpu in machine.gpus if gpu not in joined]
    # few that have none of the usual links are at fault; of many nobody can say who is odd
    named = ""
    if 0 < len(lone) < len(machine.gpus) / 2:
        named = f" ({numbered('GPU', lone)})"
    return f"{most} pairs of GPUs reach each other over {usual}, {rest}{named}"


def _refused_pairs(machine: MachineLinks) -> str:
    """Pairs without P2P.

    What joins them is of no use, as their data goes through the memory of the host.
    """
    if not machine.refused:
        return ""
    letters = sorted(set(machine.refused.values()))
    words = ", ".join(REFUSALS.get(letter, letter) for letter in letters)
    count = len(machine.refused)
    if count == len(machine.pairs):
        pairs = ""
    else:
        pairs = f" for {plural(count, 'pair')}"
    return f"P2P is refused{pairs} ({words}), so data goes through the memory of the host"


def _lost_nvlinks(machine: MachineLinks) -> str:
    weak = machine.weak()
    if not weak:
        return ""
    has = "have"
    if len(weak) == 1:
        has = "has"
    counts = some({machine.nvlinks[gpu] for gpu in weak})
    most = max(machine.nvlinks.values())
    return f"{numbered('GPU', weak)} {has} {counts} active NVLinks, not {most}"


def _closest_nics(machine: MachineLinks) -> str:
    """How near the closest NIC of each GPU is."""
    links = Counter(link for link, _ in machine.nearest().values())
    if not links:
        return ""
    if len(links) == 1:
        (only,) = links
        whose = "every GPU finds its"
        if machine.count == 1:
            whose = "its"
        return f"{whose} closest NIC at {only}"
    shares = [f"{link} for {plural(count, 'GPU')}" for link, count in links.items()]
    return f"closest NIC at {', '.join(shares)}"


def _machine_part(machine: MachineLinks, hosts: Sequence[str]) -> Markup:
    """One machine in words.

    It tells its links by kind, its parts, and the matrix as `nvidia-smi` gives it.
    """
    head = ""
    if hosts:
        head = el("h5", f"{plural(len(hosts), 'host')}: {host_list(hosts)}")
    links = table(("Link", "What it is", "Pairs of GPUs", "GPU – NIC"), _link_rows(machine))
    parts = table(("Part", "NUMA node", "About"), _part_rows(machine))
    blind = (machine.count is None or machine.count > 1) and not machine.pairs
    how = ""
    if blind:
        how = el("p", "To find out: ", how_to_find_out("gpu.topology"))
    details = fold("GPUs, NICs and NUMA nodes", fit(parts))
    whole = fold("The whole matrix", fit(_whole_matrix(machine)))
    return join(head, how, fit(links), details, whole)


def _link_rows(machine: MachineLinks) -> Iterable[tuple[object, ...]]:
    """The kinds of links, the closest first, with the pairs that they join."""
    inner: dict[str, list[str]] = defaultdict(list)
    outer: dict[str, list[str]] = defaultdict(list)
    for (one, two), link in machine.pairs.items():
        inner[link].append(f"{one} – {two}")
    for (gpu, nic), link in machine.near.items():
        outer[link].append(f"{gpu} – {nic}")
    for link in sorted(inner | outer, key=link_closeness):
        if 1 < len(inner[link]) == len(machine.pairs):
            gpus = "all"
        else:
            gpus = some(inner[link])
        nics = some(outer[link])
        yield code(link), _meaning_of(link, machine), gpus or "–", nics or "–"


def _meaning_of(link: str, machine: MachineLinks) -> str:
    """What a link is.

    Of NVLinks it tells the speed of all together, as the driver states it.
    """
    width = 0
    if link_kind(link) == "NV":
        # the digits of NV18 are the links of a pair
        width = whole_number(link[2:]) or 0
    if width and machine.speed:
        each = format_number(machine.speed)
        whole = format_number(width * machine.speed)
        return f"{MEANS['NV']}: {width} × {each} = {whole} GB/s in each direction"
    return MEANS[link_kind(link)]


def _part_rows(machine: MachineLinks) -> Iterable[tuple[object, ...]]:
    for gpu, numa in machine.gpus.items():
        count = machine.nvlinks.get(gpu)
        links = ""
        if count:
            links = plural(count, "active NVLink")
        known = (machine.model, machine.pcie.get(gpu, ""), links)
        about = "; ".join(filter(None, known))
        yield f"GPU {gpu}", _node_words(numa), about or "–"
    for nic in machine.nics:
        yield nic.name, _node_words(nic.numa), nic.about or "–"
    for node, cpus in machine.cpus.items():
        yield f"NUMA node {node}", str(node), f"CPUs {cpus}"


def _node_words(numa: int | None) -> str:
    if numa is None:
        return "not known"
    return str(numa)


def _whole_matrix(machine: MachineLinks) -> Markup:
    """GPU × (GPU, NIC); empty where there is no matrix."""
    if not machine.pairs and not machine.near:
        return Markup("")
    # a NIC of sysfs that nvidia-smi does not list has no column in its matrix
    listed = {name for _, name in machine.near}
    names = []
    for nic in machine.nics:
        if nic.name in listed:
            names.append(nic.name)
    head = ["", *(f"GPU {gpu}" for gpu in machine.gpus), *names]
    rows = []
    for one in machine.gpus:
        to_gpus = [machine.link_between(one, two) for two in machine.gpus]
        to_nics = [machine.near.get((one, name), "–") for name in names]
        rows.append((el("b", f"GPU {one}"), *to_gpus, *to_nics))
    return table(head, rows, "nk-numbers")


STROKES = {
    "NV": (BLUE, "solid", 4.0),
    "PIX": (GREEN, "solid", 4.0),
    "PXB": (SKY, "dash", 3.5),
    "PHB": (ORANGE, "dashdot", 3.0),
    "NODE": (PURPLE, "dash", 2.5),
    "SYS": (VERMILLION, "dot", 2.0),
    "?": (INK, "longdash", 2.0),
}
"""Colour, dash and width of each kind of link.

Bonded NVLinks are the wider the more they are.
"""

GAP = 0.5
"""Columns between two NUMA nodes."""
LOW = -0.95
"""Lower edge of a machine; all heights are in it."""
NICS = 0.0
GPUS = 1.2
BUS = 1.75
"""Height of the bus over the GPUs."""
ARCS = 1.0
"""How far arcs rise above the bus."""
TITLE = 0.65
"""Room for the name of a machine."""
UNIT = 84
"""Pixels of one unit of height."""
NODE_BOX = "rgba(128,128,128,.12)"

Device = TypeVar("Device")
Point = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class MachineLayout:
    """A machine with a place for each of its parts.

    `base` is where it begins in the figure.
    """

    machine: MachineLinks
    name: str
    base: float
    gpus: Mapping[int, float]
    nics: Mapping[str, float]
    boxes: Mapping[int | None, tuple[float, float]]

    @property
    def width(self) -> float:
        """Where its last NUMA node ends."""
        return max(end for _, end in self.boxes.values())


def draw_machines(named: Mapping[str, MachineLinks]) -> go.Figure:
    """Machines one above the other, the first on top.

    A name that is empty is not written.
    """
    placed: list[MachineLayout] = []
    top = 0.0
    # from the bottom up, as heights grow upwards in a figure
    for name, machine in reversed([*named.items()]):
        base = top - _height_without_nics(machine)
        placed.append(_layout_of(machine, name, base))
        top += _height(machine)
    figure = blank(height=round(UNIT * top) + 60)
    width = max(each.width for each in placed)
    for each in placed:
        _draw_nodes(figure, each)
    _draw_links(figure, placed)
    _draw_parts(figure, placed)
    figure.update_layout(legend_itemsizing="trace")  # widths of lines tell something
    figure.update_xaxes(visible=False, range=[-0.1, width + 0.1])
    figure.update_yaxes(visible=False, range=[LOW, LOW + top])
    return figure


def _height(machine: MachineLinks) -> float:
    arcs = 0.0
    # where all pairs have the same link, the bus says it
    if len(set(machine.pairs.values())) > 1:
        arcs = ARCS
    return BUS - LOW + arcs + TITLE - _height_without_nics(machine)


def _height_without_nics(machine: MachineLinks) -> float:
    """Height that a machine without NICs below its GPUs does not need."""
    if machine.nics:
        return 0.0
    return GPUS - NICS


def _layout_of(machine: MachineLinks, name: str, base: float) -> MachineLayout:
    """Columns from left to right, NUMA node by NUMA node.

    A NIC stands below the GPU that is closest to it.
    """
    closest = machine.nearest()
    homes: dict[str, int | None] = {}
    for nic in machine.nics:
        homes[nic.name] = _home_of(nic, machine, closest)
    present = {*machine.gpus.values(), *homes.values()}
    # what has no known node stands last
    nodes = sorted(present, key=lambda node: (node is None, node or 0))
    gpus: dict[int, float] = {}
    nics: dict[str, float] = {}
    boxes: dict[int | None, tuple[float, float]] = {}
    left = 0.0
    for node in nodes:
        upper = _at_home(machine.gpus, node)
        lower = _at_home(homes, node)
        lower.sort(key=lambda nic: _place_below(nic, upper, machine))
        # a node with NICs alone still takes a column
        width = max(len(upper), len(lower), 1)
        boxes[node] = (left, left + width)
        gpus.update(_spread(upper, left, width))
        nics.update(_spread(lower, left, width))
        left += width + GAP
    return MachineLayout(machine, name, base, gpus, nics, boxes)


def _at_home(homes: Mapping[Device, int | None], node: int | None) -> list[Device]:
    """The devices of one NUMA node."""
    found = []
    for device, home in homes.items():
        if home == node:
            found.append(device)
    return found


def _home_of(
    nic: Nic, machine: MachineLinks, closest: Mapping[int, tuple[str, list[str]]]
) -> int | None:
    """The NUMA node of a NIC.

    It is by its own word, else that of a GPU which reaches it without leaving the node.
    """
    if nic.numa is not None:
        return nic.numa
    for gpu, (link, names) in closest.items():
        # across SYS a NIC is near no GPU, whatever is called closest
        if nic.name in names and link_kind(link) != "SYS":
            return machine.gpus[gpu]
    return None


def _place_below(nic: str, gpus: Sequence[int], machine: MachineLinks) -> tuple[int, int]:
    """Place of the GPU that a NIC is closest to, so that few lines cross."""
    near = []
    for place, gpu in enumerate(gpus):
        link = machine.near.get((gpu, nic))
        if link is not None:
            near.append((link_closeness(link), place))
    if near:
        _, place = min(near)
        return 0, place
    return 1, 0


def _spread(names: Sequence[Device], left: float, width: int) -> dict[Device, float]:
    if not names:
        return {}
    step = width / len(names)
    return {name: left + step * (place + 0.5) for place, name in enumerate(names)}


def _draw_nodes(figure: go.Figure, placed: MachineLayout) -> None:
    """NUMA nodes as areas with their names, and the machine's own name over them."""
    floor = placed.base + _height_without_nics(placed.machine)
    low = floor + NICS - 0.5
    high = placed.base + GPUS + 0.38
    for node, (left, right) in placed.boxes.items():
        figure.add_shape(
            type="rect",
            x0=left,
            x1=right,
            y0=low,
            y1=high,
            fillcolor=NODE_BOX,
            line={"width": 0},
            layer="below",
        )
        if node is None:
            words = "NUMA node not known"
        else:
            words = f"NUMA node {node}"
        _write(figure, left + 0.08, low - 0.17, words)
    if placed.name:
        upper_edge = floor + _height(placed.machine) + LOW
        _write(figure, 0, upper_edge - 0.25, f"<b>{safe(placed.name)}</b>", size=13)


def _write(figure: go.Figure, x: float, y: float, words: str, size: int = 11) -> None:
    figure.add_annotation(
        x=x,
        y=y,
        text=words,
        showarrow=False,
        xanchor="left",
        font={"size": size},
    )


def _draw_links(figure: go.Figure, placed: Sequence[MachineLayout]) -> None:
    """One trace for each kind of link, the closest first, as a legend wants it."""
    lines: dict[str, list[Point]] = defaultdict(list)
    for each in placed:
        for link, points in (*_links_of_gpus(each), *_links_to_nics(each), *_links_of_nodes(each)):
            for x, y in points:
                lines[link].append((x, y + each.base))
            # a gap, so that the next line does not begin where this one ends
            lines[link].append((None, None))
    for link in sorted(lines, key=link_closeness):
        colour, dash, width = STROKES[link_kind(link)]
        if link_kind(link) == "NV":
            count = int(link[2:])
            # the width grows slower than the count: 18 links are not nine times as wide as 2
            if count:
                width = min(2.2 * math.sqrt(count), 8)
        figure.add_scatter(
            x=[x for x, _ in lines[link]],
            y=[y for _, y in lines[link]],
            mode="lines",
            name=safe(link),
            line={"color": colour, "dash": dash, "width": width},
            hoverinfo="skip",
        )


Drawing = Iterator[tuple[str, Sequence[tuple[float, float]]]]


def _links_of_gpus(placed: MachineLayout) -> Drawing:
    """Draw the link that most pairs of GPUs have as one bus over them.

    Every other pair has an arc of its own.
    """
    pairs = placed.machine.pairs
    counts = Counter(pairs.values())
    usual = max(counts, key=lambda link: (counts[link], link_closeness(link)), default="")
    places: set[float] = set()
    for pair, link in pairs.items():
        if link == usual:
            places.update(placed.gpus[gpu] for gpu in pair)
    on_bus = sorted(places)
    for x in on_bus:
        yield usual, [(x, GPUS), (x, BUS)]
    if on_bus:
        yield usual, [(on_bus[0], BUS), (on_bus[-1], BUS)]
    widest = max(placed.gpus.values(), default=1.0)
    for (one, two), link in pairs.items():
        if link != usual:
            yield link, _arc_between(placed.gpus[one], placed.gpus[two], widest)


def _arc_between(left: float, right: float, widest: float) -> list[tuple[float, float]]:
    """Half an ellipse over the GPUs.

    It is higher the further they stand apart.
    """
    middle = (left + right) / 2
    half = (right - left) / 2
    rise = (BUS - GPUS) + ARCS * (right - left) / widest
    points = []
    for step in range(17):
        angle = math.pi * step / 16
        x = middle - half * math.cos(angle)
        y = GPUS + rise * math.sin(angle)
        points.append((x, y))
    return points


def _links_to_nics(placed: MachineLayout) -> Drawing:
    """Draw each GPU to its closest NICs.

    Where several are equally close, it is the two below it.
    """
    for gpu, (link, names) in placed.machine.nearest().items():
        x = placed.gpus[gpu]
        places = [placed.nics[nic] for nic in names]
        places.sort(key=lambda place: abs(place - x))
        # lines to all of them would hide the rest
        for place in places[:2]:
            yield link, [(x, GPUS), (place, NICS)]


def _links_of_nodes(placed: MachineLayout) -> Drawing:
    """What joins the NUMA nodes themselves."""
    edges = list(placed.boxes.values())
    middle = (NICS + GPUS) / 2
    for (_, end), (start, _) in zip(edges, edges[1:], strict=False):
        yield "SYS", [(end, middle), (start, middle)]


def _draw_parts(figure: go.Figure, placed: Sequence[MachineLayout]) -> None:
    """Draw GPUs as squares, NICs as circles with the number of their name.

    Parts that are not whole have another shape.
    """
    shapes: dict[tuple[str, str, str], list[tuple[float, float, str, str]]] = {
        ("GPU", "square", INK): [],
        ("GPU with fewer NVLinks", "hexagon", VERMILLION): [],
        ("NIC", "circle", INK): [],
        ("NIC, not active", "diamond", VERMILLION): [],
    }
    gpu_whole, gpu_weak, nic_up, nic_down = shapes.values()
    for each in placed:
        for gpu, x in each.gpus.items():
            if gpu in each.machine.weak():
                row = gpu_weak
            else:
                row = gpu_whole
            about = f"GPU {gpu} {each.machine.model}"
            row.append((x, each.base + GPUS, str(gpu), about))
        for nic in each.machine.nics:
            if nic.works:
                row = nic_up
            else:
                row = nic_down
            x = each.nics[nic.name]
            about = f"{nic.name} {nic.about}"
            row.append((x, each.base + NICS, _digits_of(nic), about))
    longest = max(max(len(each.gpus), len(each.nics)) for each in placed)
    # marks of a full row must not touch each other
    fitting = 420 // max(1, longest)
    size = max(12, min(30, fitting))
    for (name, symbol, edge), marks in shapes.items():
        _draw_marks(figure, marks, name, symbol, edge, size)


def _digits_of(nic: Nic) -> str:
    """``mlx5_10`` → ``10``: what fits into a mark."""
    stem = nic.name.rstrip("0123456789")
    return nic.name[len(stem) :]


def _draw_marks(
    figure: go.Figure,
    marks: Sequence[tuple[float, float, str, str]],
    name: str,
    symbol: str,
    edge: str,
    size: int,
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
        marker={
            "symbol": symbol,
            "size": size,
            "color": "#fff",
            "line": {"color": edge, "width": 2},
        },
    )
