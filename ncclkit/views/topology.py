"""How the GPUs and NICs of a host are joined: by which links, how wide, within which NUMA node."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import plotly.graph_objects as go

from ncclkit.agent.digits import whole_number
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, safe
from ncclkit.core.text import format_number, host_list, numbered, plural, some
from ncclkit.views._base import Drawn, View
from ncclkit.views._draw import BLUE, GREEN, ORANGE, PURPLE, SKY, blank
from ncclkit.views._html import Markup, code, el, fit, fold, join, table
from ncclkit.views.facts import SHOWN, by_hand, further_kinds, kinds_summary
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

    And every kind of link with its pairs.
    """
    kinds = machines(case.facts)
    if not kinds:
        return View(
            "Nothing is known of GPUs and their links: their facts have not been read yet",
            Markup(""),
        )
    alike = [(hosts, sentence(machine)) for machine, hosts in kinds.items()]
    *rare, usual = kinds.items()
    shown = [*rare[: SHOWN - 1], usual]
    named = {
        host_list(hosts) if rare else "": machine
        for machine, hosts in shown
        if machine.gpus or machine.nics
    }
    parts = (_part(machine, hosts if rare else ()) for machine, hosts in shown)
    body = join(*parts, further_kinds(alike, "machine", "How they are joined"))
    return Drawn(kinds_summary(alike, "machine"), draw(named) if named else None, body)


def sentence(machine: MachineLinks) -> str:
    """One machine in one sentence.

    What its GPUs reach each other over, and what is odd about it.
    """
    count = machine.count
    if count == 0:
        return "No GPU here: ranks meet in memory and over the network"
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
        said = _pairs(machine)
    return "; ".join(filter(None, (said, _refused(machine), _lost(machine), _nearest(machine))))


def _pairs(machine: MachineLinks) -> str:
    links = sorted(
        Counter(machine.pairs.values()).items(), key=lambda item: (-item[1], closeness(item[0]))
    )
    if machine.count == 2:
        gpus = "Both GPUs"
    else:
        gpus = f"All {machine.count} GPUs"
    if len(links) == 1:
        return f"{gpus} reach each other over {links[0][0]}"
    (usual, most), *others = links
    rest = ", ".join(f"{few} over {link}" for link, few in others)
    lone = [
        gpu
        for gpu in machine.gpus
        if all(link != usual for pair, link in machine.pairs.items() if gpu in pair)
    ]
    named = ""
    if 0 < len(lone) < len(machine.gpus) / 2:
        named = f" ({numbered('GPU', lone)})"
    return f"{most} pairs of GPUs reach each other over {usual}, {rest}{named}"


def _refused(machine: MachineLinks) -> str:
    """Pairs without P2P: what joins them is of no use, as their data goes through the memory of the
    host.
    """
    if not machine.refused:
        return ""
    words = ", ".join(REFUSALS.get(word, word) for word in sorted(set(machine.refused.values())))
    count = len(machine.refused)
    if count == len(machine.pairs):
        pairs = ""
    else:
        pairs = f" for {plural(count, 'pair')}"
    return f"P2P is refused{pairs} ({words}), so data goes through the memory of the host"


def _lost(machine: MachineLinks) -> str:
    weak = machine.weak()
    if not weak:
        return ""
    has = "have"
    if len(weak) == 1:
        has = "has"
    counts = some({machine.nvlinks[gpu] for gpu in weak})
    return (
        f"{numbered('GPU', weak)} {has} {counts} active NVLinks, not"
        f" {max(machine.nvlinks.values())}"
    )


def _nearest(machine: MachineLinks) -> str:
    """How near the closest NIC of each GPU is."""
    links = Counter(link for link, _ in machine.nearest().values())
    if not links:
        return ""
    if len(links) == 1:
        return (
            f"{'its' if machine.count == 1 else 'every GPU finds its'} closest NIC at"
            f" {next(iter(links))}"
        )
    return "closest NIC at " + ", ".join(
        f"{link} for {plural(count, 'GPU')}" for link, count in links.items()
    )


def _part(machine: MachineLinks, hosts: Sequence[str]) -> Markup:
    """One machine in words.

    Its links by kind, its parts, and the matrix as `nvidia-smi` gives it.
    """
    head = ""
    if hosts:
        head = el("h5", f"{plural(len(hosts), 'host')}: {host_list(hosts)}")
    links = table(("Link", "What it is", "Pairs of GPUs", "GPU – NIC"), _links(machine))
    parts = table(("Part", "NUMA node", "About"), _rows(machine))
    blind = (machine.count is None or machine.count > 1) and not machine.pairs
    how = ""
    if blind:
        how = el("p", "To find out: ", by_hand("gpu.topology"))
    whole = fold("The whole matrix", fit(_matrix(machine)))
    return join(head, how, fit(links), fold("GPUs, NICs and NUMA nodes", fit(parts)), whole)


def _links(machine: MachineLinks) -> Iterable[tuple[object, ...]]:
    """The kinds of links, the closest first, with the pairs that they join."""
    inner: dict[str, list[str]] = defaultdict(list)
    outer: dict[str, list[str]] = defaultdict(list)
    for (one, two), link in machine.pairs.items():
        inner[link].append(f"{one} – {two}")
    for (gpu, nic), link in machine.near.items():
        outer[link].append(f"{gpu} – {nic}")
    for link in sorted(inner | outer, key=closeness):
        if 1 < len(inner[link]) == len(machine.pairs):
            gpus = "all"
        else:
            gpus = some(inner[link])
        yield code(link), _means(link, machine), gpus or "–", some(outer[link]) or "–"


def _means(link: str, machine: MachineLinks) -> str:
    """What a link is; of NVLinks the speed of all together, as the driver states it."""
    width = 0
    if kind(link) == "NV":
        width = whole_number(link[2:]) or 0
    if width and machine.speed:
        speed = (
            f"{width} × {format_number(machine.speed)} = {format_number(width * machine.speed)}"
            " GB/s in each direction"
        )
        return f"{MEANS['NV']}: {speed}"
    return MEANS[kind(link)]


def _rows(machine: MachineLinks) -> Iterable[tuple[object, ...]]:
    for gpu, numa in machine.gpus.items():
        links = machine.nvlinks.get(gpu)
        about = "; ".join(
            filter(
                None,
                (
                    machine.model,
                    machine.pcie.get(gpu, ""),
                    f"{plural(links, 'active NVLink')}" if links else "",
                ),
            )
        )
        yield f"GPU {gpu}", _node(numa), about or "–"
    for nic in machine.nics:
        yield nic.name, _node(nic.numa), nic.about or "–"
    for node, cpus in machine.cpus.items():
        yield f"NUMA node {node}", str(node), f"CPUs {cpus}"


def _node(numa: int | None) -> str:
    if numa is None:
        return "not known"
    return str(numa)


def _matrix(machine: MachineLinks) -> Markup:
    """GPU × (GPU, NIC); empty where there is no matrix."""
    if not machine.pairs and not machine.near:
        return Markup("")
    names = [nic.name for nic in machine.nics if any(name == nic.name for _, name in machine.near)]
    head = ("", *(f"GPU {gpu}" for gpu in machine.gpus), *names)
    rows = [
        (
            el("b", f"GPU {one}"),
            *(machine.link(one, two) for two in machine.gpus),
            *(machine.near.get((one, name), "–") for name in names),
        )
        for one in machine.gpus
    ]
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
"""Colour, dash and width of each kind of link; bonded NVLinks are the wider the more they are."""

GAP = 0.5
"""Columns between two NUMA nodes."""
LOW, NICS, GPUS, BUS, ARCS = -0.95, 0.0, 1.2, 1.75, 1.0
"""Heights in a machine: lower edge, the two rows, the bus over the GPUs; and how far arcs rise
above that."""
UNIT = 84
"""Pixels of one unit of height."""
NODE_BOX = "rgba(128,128,128,.12)"

T = TypeVar("T")
Point = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class MachineLayout:
    """A machine with a place for each of its parts; `base` is where it begins in the figure."""

    machine: MachineLinks
    name: str
    base: float
    gpus: Mapping[int, float]
    nics: Mapping[str, float]
    boxes: Mapping[int | None, tuple[float, float]]


def draw(named: Mapping[str, MachineLinks]) -> go.Figure:
    """Machines one above the other, the first on top; a name that is empty is not written."""
    placed: list[MachineLayout] = []
    top = 0.0
    for name, machine in reversed([*named.items()]):
        placed.append(_place(machine, name, top - _height_without_nics(machine)))
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


def _height(machine: MachineLinks) -> float:
    return (
        BUS
        - LOW
        + (ARCS if len(set(machine.pairs.values())) > 1 else 0)
        + 0.65
        - _height_without_nics(machine)
    )


def _height_without_nics(machine: MachineLinks) -> float:
    """Height that a machine without NICs below its GPUs does not need."""
    if machine.nics:
        return 0.0
    return GPUS - NICS


def _place(machine: MachineLinks, name: str, base: float) -> MachineLayout:
    """Columns from left to right, NUMA node by NUMA node.

    A NIC stands below the GPU that is closest to it.
    """
    closest = machine.nearest()
    homes = {nic.name: _home(nic, machine, closest) for nic in machine.nics}
    nodes = sorted(
        {*machine.gpus.values(), *homes.values()}, key=lambda node: (node is None, node or 0)
    )
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
    return MachineLayout(machine, name, base, gpus, nics, boxes)


def _home(
    nic: Nic, machine: MachineLinks, closest: Mapping[int, tuple[str, list[str]]]
) -> int | None:
    """The NUMA node of a NIC.

    Its own word, else that of a GPU which reaches it without leaving the node.
    """
    if nic.numa is not None:
        return nic.numa
    inside = (
        gpu for gpu, (link, names) in closest.items() if nic.name in names and kind(link) != "SYS"
    )
    return next((machine.gpus[gpu] for gpu in inside), None)


def _under(nic: str, gpus: Sequence[int], machine: MachineLinks) -> tuple[int, int]:
    """Place of the GPU that a NIC is closest to, so that few lines cross."""
    near = [
        (closeness(machine.near[gpu, nic]), place)
        for place, gpu in enumerate(gpus)
        if (gpu, nic) in machine.near
    ]
    if near:
        return 0, min(near)[1]
    return 1, 0


def _spread(names: Sequence[T], left: float, width: int) -> dict[T, float]:
    return {name: left + width * (place + 0.5) / len(names) for place, name in enumerate(names)}


def _boxes(figure: go.Figure, placed: MachineLayout) -> None:
    """NUMA nodes as areas with their names, and the machine's own name over them."""
    for node, (left, right) in placed.boxes.items():
        low = placed.base + NICS + _height_without_nics(placed.machine) - 0.5
        high = placed.base + GPUS + 0.38
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
        _write(
            figure,
            0,
            placed.base
            + _height_without_nics(placed.machine)
            + _height(placed.machine)
            + LOW
            - 0.25,
            f"<b>{safe(placed.name)}</b>",
            size=13,
        )


def _write(figure: go.Figure, x: float, y: float, words: str, size: int = 11) -> None:
    figure.add_annotation(
        x=x, y=y, text=words, showarrow=False, xanchor="left", font={"size": size}
    )


def _draw_links(figure: go.Figure, placed: Sequence[MachineLayout]) -> None:
    """One trace for each kind of link, the closest first, as a legend wants it."""
    lines: dict[str, list[Point]] = defaultdict(list)
    for each in placed:
        for link, points in (*_bus(each), *_down(each), *_between(each)):
            lines[link] += [*((x, y + each.base) for x, y in points), (None, None)]
    for link in sorted(lines, key=closeness):
        colour, dash, width = STROKES[kind(link)]
        number = 0
        if kind(link) == "NV":
            number = int(link[2:])
        figure.add_scatter(
            x=[x for x, _ in lines[link]],
            y=[y for _, y in lines[link]],
            mode="lines",
            name=safe(link),
            line={
                "color": colour,
                "dash": dash,
                "width": min(2.2 * math.sqrt(number), 8) if number else width,
            },
            hoverinfo="skip",
        )


Drawing = Iterator[tuple[str, Sequence[tuple[float, float]]]]


def _bus(placed: MachineLayout) -> Drawing:
    """The link that most pairs of GPUs have as one bus over them, every other pair as an arc of its
    own.
    """
    counts = Counter(placed.machine.pairs.values())
    usual = max(counts, key=lambda link: (counts[link], closeness(link)), default="")
    on = sorted(
        {
            placed.gpus[gpu]
            for pair, link in placed.machine.pairs.items()
            if link == usual
            for gpu in pair
        }
    )
    for x in on:
        yield usual, [(x, GPUS), (x, BUS)]
    if on:
        yield usual, [(on[0], BUS), (on[-1], BUS)]
    widest = max(placed.gpus.values(), default=1.0)
    for (one, two), link in placed.machine.pairs.items():
        if link != usual:
            yield link, _arc(placed.gpus[one], placed.gpus[two], widest)


def _arc(left: float, right: float, widest: float) -> list[tuple[float, float]]:
    """Half an ellipse over the GPUs; higher the further they stand apart."""
    middle = (left + right) / 2
    half = (right - left) / 2
    rise = (BUS - GPUS) + ARCS * (right - left) / widest
    steps = [math.pi * step / 16 for step in range(17)]
    return [(middle - half * math.cos(step), GPUS + rise * math.sin(step)) for step in steps]


def _down(placed: MachineLayout) -> Drawing:
    """Each GPU to its closest NICs; where several are equally close, to the two below it."""
    for gpu, (link, names) in placed.machine.nearest().items():
        x = placed.gpus[gpu]
        for nic in sorted(names, key=lambda nic: abs(placed.nics[nic] - x))[:2]:
            yield link, [(x, GPUS), (placed.nics[nic], NICS)]


def _between(placed: MachineLayout) -> Drawing:
    """What joins the NUMA nodes themselves."""
    edges = list(placed.boxes.values())
    for (_, end), (start, _) in zip(edges, edges[1:], strict=False):
        yield "SYS", [(end, (NICS + GPUS) / 2), (start, (NICS + GPUS) / 2)]


def _parts(figure: go.Figure, placed: Sequence[MachineLayout]) -> None:
    """GPUs as squares, NICs as circles with the number of their name.

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
            row.append((x, each.base + GPUS, str(gpu), f"GPU {gpu} {each.machine.model}"))
        for nic in each.machine.nics:
            if nic.works:
                row = nic_up
            else:
                row = nic_down
            row.append(
                (each.nics[nic.name], each.base + NICS, _digits(nic), f"{nic.name} {nic.about}")
            )
    size = max(
        12, min(30, 420 // max(1, max(max(len(each.gpus), len(each.nics)) for each in placed)))
    )
    for (name, symbol, edge), marks in shapes.items():
        _marks(figure, marks, name, symbol, edge, size)


def _digits(nic: Nic) -> str:
    """``mlx5_10`` → ``10``: what fits into a mark."""
    return nic.name[len(nic.name.rstrip("0123456789")) :]


def _marks(
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


MEANS = {
    "NV": "NVLinks, bonded",
    "PIX": "one PCIe bridge (switch) at most",
    "PXB": "several PCIe bridges (switches), but no host bridge",
    "PHB": "PCIe and a host bridge: through the CPU",
    "NODE": "PCIe and several host bridges of one NUMA node",
    "SYS": "PCIe and the link between NUMA nodes or sockets: the longest way",
    "?": "a link that this version of ncclkit does not know",
}
"""Kinds of links as `nvidia-smi topo -m` names them (its legend says what they are), the closest
first."""

MOST_GPUS = 64
"""GPUs that a count alone can claim; a torn number must not fill the memory."""

_GPU = re.compile(
    r"gpu\.(\d{1,3})\.(model|numa|nvlink\.links|nvlink\.speed|pcie\.gen\.max|pcie\.width\.max)"
)
_P2P = ("gpu.p2p.read", "gpu.p2p.write")
_ONCE = ("gpu.count", "gpu.topology", "gpu.topology.nics", "net.rdma", "cpu.numa", *_P2P)


@dataclass(frozen=True, slots=True)
class Nic:
    """An RDMA port, or a NIC that only `nvidia-smi` lists."""

    name: str
    numa: int | None
    about: str = ""
    works: bool = True
    """False where its port says that it is not active."""


@dataclass(frozen=True, slots=True)
class MachineLinks:
    """The parts of one host and what joins them."""

    count: int | None
    """GPUs; None where nothing could count them."""
    gpus: Mapping[int, int | None]
    """GPU → NUMA node, None where it is not known."""
    nics: tuple[Nic, ...]
    pairs: Mapping[tuple[int, int], str]
    """(GPU, higher GPU) → link."""
    near: Mapping[tuple[int, str], str]
    """(GPU, NIC) → link."""
    refused: Mapping[tuple[int, int], str]
    """(GPU, higher GPU) → why they may not read or write each other's memory, in the letters of
    nvidia-smi."""
    nvlinks: Mapping[int, int]
    """GPU → active NVLinks."""
    pcie: Mapping[int, str]
    """GPU → the PCIe that GPU and slot are made for."""
    cpus: Mapping[str, str]
    """NUMA node → list of CPUs."""
    model: str
    speed: float | None
    """GB/s of one NVLink, one direction; of the slowest where they differ."""
    why: str
    """Why the links are not known."""

    def __hash__(self) -> int:
        return hash(repr(self))

    def link(self, one: int, two: int) -> str:
        """The link between two GPUs; a dash to itself, and where it is not known."""
        return self.pairs.get((min(one, two), max(one, two)), "–")

    def weak(self) -> list[int]:
        """GPUs with fewer active NVLinks than the best of this host."""
        most = max(self.nvlinks.values(), default=0)
        return [gpu for gpu, links in self.nvlinks.items() if links < most]

    def nearest(self) -> dict[int, tuple[str, list[str]]]:
        """GPU → its best link to any NIC, and the NICs that it leads to."""
        best: dict[int, tuple[str, list[str]]] = {}
        for (gpu, nic), link in sorted(self.near.items(), key=lambda item: closeness(item[1])):
            if best.setdefault(gpu, (link, []))[0] == link:
                best[gpu][1].append(nic)
        return best


Kinds = Mapping[MachineLinks, Sequence[str]]
"""Machines that are not alike → their hosts, the rarest first."""


def kind(link: str) -> str:
    """``NV18`` → ``NV``; what is none of nvidia-smi's names is ``?``."""
    if re.fullmatch(r"NV\d+", link):
        found = "NV"
    else:
        found = link
    if found in MEANS:
        return found
    return "?"


def closeness(link: str) -> tuple[int, int]:
    """Sorts links, the closest and widest first."""
    number = re.search(r"\d+", link)
    return list(MEANS).index(kind(link)), -int(number.group()) if number else 0


def machines(facts: Iterable[Fact]) -> dict[MachineLinks, list[str]]:
    """Machines that are not alike → their hosts, the rarest first.

    A host without facts has no machine.
    """
    hosts: dict[str, dict[str, Fact]] = defaultdict(dict)
    for fact in facts:
        if fact.name in _ONCE or _GPU.fullmatch(fact.name):
            hosts[fact.host][fact.name] = fact
    alike: dict[MachineLinks, list[str]] = defaultdict(list)
    for host, known in hosts.items():
        if "gpu.count" in known or "gpu.topology" in known:
            alike[_machine(known)].append(host or "a host without a name")
    return dict(sorted(alike.items(), key=lambda item: len(item[1])))


def _machine(known: Mapping[str, Fact]) -> MachineLinks:
    values = {name: fact.value for name, fact in known.items()}
    matrix = {row: _map(cells) for row, cells in _map(values.get("gpu.topology")).items()}
    each: dict[str, dict[int, Any]] = defaultdict(dict)
    for name, value in values.items():
        found = _GPU.fullmatch(name)
        if found:
            each[found[2]][int(found[1])] = value
    count = _count(values.get("gpu.count"))
    listed = {int(name[3:]) for name in matrix if re.fullmatch(r"GPU\d{1,3}", name)}
    gpus = sorted(listed.union(range(min(count or 0, MOST_GPUS)), *each.values()))
    cpus = _map(values.get("cpu.numa"))
    # whatever is in the host is on its one node
    only = None
    if len(cpus) == 1:
        only = _count(next(iter(cpus)))
    nodes = {gpu: _count(each["numa"].get(gpu)) for gpu in gpus}
    ports = values.get("net.rdma")
    near = _gpu_to_nic(gpus, matrix, _map(values.get("gpu.topology.nics")))
    speeds = [
        speed
        for speed in each["nvlink.speed"].values()
        if isinstance(speed, (int, float)) and speed > 0
    ]
    links = {gpu: _count(number) for gpu, number in sorted(each["nvlink.links"].items())}
    pair_links = {}
    for a in gpus:
        for b in gpus:
            if a < b:
                pair_links[a, b] = matrix.get(f"GPU{a}", {}).get(f"GPU{b}")
    return MachineLinks(
        count=count if count is not None else len(gpus) or None,
        gpus={gpu: only if node is None else node for gpu, node in nodes.items()},
        nics=_nics(ports if isinstance(ports, list) else [], (nic for _, nic in near), only),
        pairs={pair: str(link) for pair, link in pair_links.items() if link},
        near=near,
        refused=_refusals([_map(values.get(name)) for name in _P2P], list(pair_links)),
        nvlinks={gpu: number for gpu, number in links.items() if number is not None},
        pcie=_pcie(each["pcie.gen.max"], each["pcie.width.max"]),
        cpus={str(node): str(numbers) for node, numbers in cpus.items()},
        model=next((str(model) for model in each["model"].values() if model), ""),
        speed=min(speeds, default=None),
        why=known["gpu.topology"].why if "gpu.topology" in known else "",
    )


def _refusals(
    answers: Iterable[Mapping[str, Any]], pairs: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], str]:
    """Pairs of which a direction has another answer than OK."""
    found: dict[tuple[int, int], str] = {}
    for answer in answers:
        for a, b in pairs:
            said = [
                _map(answer.get(f"GPU{one}")).get(f"GPU{two}", "OK")
                for one, two in ((a, b), (b, a))
            ]
            why = next((str(word) for word in said if word != "OK"), "")
            if why:
                found[a, b] = why
    return found


def _pcie(gens: Mapping[int, Any], widths: Mapping[int, Any]) -> dict[int, str]:
    known = {gpu: (_count(gens.get(gpu)), _count(width)) for gpu, width in sorted(widths.items())}
    return {gpu: f"PCIe gen {gen} x{width}" for gpu, (gen, width) in known.items() if gen and width}


def _gpu_to_nic(
    gpus: Iterable[int], matrix: Mapping[str, Any], names: Mapping[str, Any]
) -> dict[tuple[int, str], str]:
    """The part of the matrix between GPUs and NICs, by the devices' own names."""
    found: dict[tuple[int, str], str] = {}
    for gpu in gpus:
        for column, link in matrix.get(f"GPU{gpu}", {}).items():
            if not column.startswith("GPU"):
                found[gpu, str(names.get(column, column))] = str(link)
    return found


def _nics(ports: Iterable[Any], listed: Iterable[str], only: int | None) -> tuple[Nic, ...]:
    """One NIC for each RDMA device, which works if one of its ports does, and those that only the
    matrix lists.
    """
    nics: dict[str, Nic] = {}
    for port in map(_map, ports):
        name = str(port.get("device", "?"))
        state = str(port.get("state") or "")
        rate = ""
        if port.get("rate"):
            rate = f"{port['rate']} Gb/s"
        about = " ".join(filter(None, (str(port.get("link_layer") or ""), rate, state)))
        works = state in ("ACTIVE", "")
        held = nics.get(name)
        if held:
            about = f"{held.about}; {about}"
            works = works or held.works
        node = _count(port.get("numa"))
        nics[name] = Nic(name, only if node is None else node, about, works)
    return (
        *nics.values(),
        *(Nic(name, only) for name in dict.fromkeys(listed) if name not in nics),
    )


def _map(value: Any) -> Mapping[str, Any]:
    """A mapping; empty for what is none.

    Facts of other hosts come from files that anybody may have written.
    """
    if isinstance(value, dict):
        return value
    return {}


def _count(value: Any) -> int | None:
    """A whole number of at least 0, None for anything else."""
    if isinstance(value, (int, str)) and re.fullmatch(r"\d{1,6}", str(value)):
        return int(value)
    return None
