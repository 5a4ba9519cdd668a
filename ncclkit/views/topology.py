"""How the GPUs and NICs of a host are joined: by which links, how wide, within which NUMA node."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ncclkit.core.case import Case
from ncclkit.core.text import format_number, host_list, plural, some, the
from ncclkit.views._base import Drawn, View
from ncclkit.views._how_to_read import by_hand
from ncclkit.views._html import Markup, code, el, fit, fold, join, table
from ncclkit.views._joined import draw
from ncclkit.views._machine import MEANS, Machine, closeness, kind, machines

SHOWN = 3
"""Kinds of machines that are drawn and described; of further ones only the hosts are named."""

MOST = 50
"""Kinds of machines in the table of those."""

REFUSALS = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "this topology does not support it",
    "NS": "it is not supported",
    "U": "nobody knows why",
}
"""What the letters of `nvidia-smi topo -p2p` mean."""

Kinds = Mapping[Machine, Sequence[str]]
"""Machines that are not alike → their hosts, the rarest first."""


def topology_view(case: Case) -> View:
    """The machines drawn, those that are alike once, the rare ones first; and every kind of link with its pairs."""
    kinds = machines(case.facts)
    if not kinds:
        return View("Nothing is known of GPUs and their links: their facts have not been read yet", Markup(""))
    *rare, usual = kinds.items()
    shown = [*rare[: SHOWN - 1], usual]
    named = {host_list(hosts) if rare else "": machine for machine, hosts in shown if machine.gpus or machine.nics}
    others = [(host_list(hosts), sentence(machine)) for machine, hosts in rare[SHOWN - 1 :]]
    body = join(
        *(_part(machine, hosts if rare else ()) for machine, hosts in shown),
        fold(
            f"{plural(len(others), 'further kind')} of machine", table(("Hosts", "How they are joined"), others[:MOST])
        ),
    )
    return Drawn(_say(kinds), draw(named) if named else None, body)


def _say(kinds: Kinds) -> str:
    """What joins the GPUs of the most common machine, behind the hosts that are not like it."""
    *rare, (usual, hosts) = kinds.items()
    if not rare:
        return sentence(usual) + (f", on each of {len(hosts):,} hosts" if len(hosts) > 1 else "")
    odd = "; ".join(f"{host_list(names)}: {sentence(machine)}" for machine, names in rare[: SHOWN - 1])
    more = f"; {plural(len(rare) - SHOWN + 1, 'further kind')} of machine" if len(rare) >= SHOWN else ""
    return f"{plural(len(kinds), 'kind')} of machine. {odd}{more}; {host_list(hosts)}: {sentence(usual)}"


def sentence(machine: Machine) -> str:
    """One machine in one sentence: what its GPUs reach each other over, and what is odd about it."""
    count = machine.count
    if count == 0:
        return "No GPU here: ranks meet in memory and over the network"
    if count is None or (count > 1 and not machine.pairs):
        named = "the GPUs" if count is None else f"its {count} GPUs"
        return f"How {named} are joined could not be read: {machine.why or 'the reason was not recorded'}"
    if count == 1:
        said = "One GPU, so there is no link between GPUs"
    else:
        said = _pairs(machine)
    return "; ".join(filter(None, (said, _refused(machine), _lost(machine), _nearest(machine))))


def _pairs(machine: Machine) -> str:
    ways = sorted(Counter(machine.pairs.values()).items(), key=lambda item: (-item[1], closeness(item[0])))
    gpus = "Both GPUs" if machine.count == 2 else f"All {machine.count} GPUs"
    if len(ways) == 1:
        return f"{gpus} reach each other over {ways[0][0]}"
    (usual, most), *others = ways
    rest = ", ".join(f"{few} over {way}" for way, few in others)
    lone = [gpu for gpu in machine.gpus if all(way != usual for pair, way in machine.pairs.items() if gpu in pair)]
    named = f" ({the('GPU', lone)})" if 0 < len(lone) < len(machine.gpus) / 2 else ""
    return f"{most} pairs of GPUs reach each other over {usual}, {rest}{named}"


def _refused(machine: Machine) -> str:
    """Pairs without P2P: what joins them is of no use, as their data goes through the memory of the host."""
    if not machine.refused:
        return ""
    words = ", ".join(REFUSALS.get(word, word) for word in sorted(set(machine.refused.values())))
    count = len(machine.refused)
    pairs = "" if count == len(machine.pairs) else f" for {plural(count, 'pair')}"
    return f"P2P is refused{pairs} ({words}), so data goes through the memory of the host"


def _lost(machine: Machine) -> str:
    weak = machine.weak()
    if not weak:
        return ""
    has = "has" if len(weak) == 1 else "have"
    counts = some({machine.nvlinks[gpu] for gpu in weak})
    return f"{the('GPU', weak)} {has} {counts} active NVLinks, not {max(machine.nvlinks.values())}"


def _nearest(machine: Machine) -> str:
    """How near the closest NIC of each GPU is."""
    ways = Counter(way for way, _ in machine.nearest().values())
    if not ways:
        return ""
    if len(ways) == 1:
        return f"{'its' if machine.count == 1 else 'every GPU finds its'} closest NIC at {next(iter(ways))}"
    return "closest NIC at " + ", ".join(f"{way} for {plural(count, 'GPU')}" for way, count in ways.items())


def _part(machine: Machine, hosts: Sequence[str]) -> Markup:
    """One machine in words: its links by kind, its parts, and the matrix as `nvidia-smi` gives it."""
    head = el("h5", f"{plural(len(hosts), 'host')}: {host_list(hosts)}") if hosts else ""
    links = table(("Link", "What it is", "Pairs of GPUs", "GPU – NIC"), _links(machine))
    parts = table(("Part", "NUMA node", "About"), _rows(machine))
    blind = (machine.count is None or machine.count > 1) and not machine.pairs
    how = el("p", "To find out: ", by_hand("gpu.topology")) if blind else ""
    whole = fold("The whole matrix", fit(_matrix(machine)))
    return join(head, how, fit(links), fold("GPUs, NICs and NUMA nodes", fit(parts)), whole)


def _links(machine: Machine) -> Iterable[tuple[object, ...]]:
    """The kinds of links, the closest first, with the pairs that they join."""
    inner: dict[str, list[str]] = defaultdict(list)
    outer: dict[str, list[str]] = defaultdict(list)
    for (one, two), way in machine.pairs.items():
        inner[way].append(f"{one} – {two}")
    for (gpu, nic), way in machine.near.items():
        outer[way].append(f"{gpu} – {nic}")
    for way in sorted(inner | outer, key=closeness):
        gpus = "all" if 1 < len(inner[way]) == len(machine.pairs) else some(inner[way])
        yield code(way), _means(way, machine), gpus or "–", some(outer[way]) or "–"


def _means(way: str, machine: Machine) -> str:
    """What a link is; of NVLinks the speed of all together, as the driver states it."""
    width = int(way[2:]) if kind(way) == "NV" and way[2:].isdigit() else 0
    if width and machine.speed:
        speed = (
            f"{width} × {format_number(machine.speed)} = {format_number(width * machine.speed)} GB/s in each direction"
        )
        return f"{MEANS['NV']}: {speed}"
    return MEANS[kind(way)]


def _rows(machine: Machine) -> Iterable[tuple[object, ...]]:
    for gpu, numa in machine.gpus.items():
        links = machine.nvlinks.get(gpu)
        about = "; ".join(
            filter(
                None, (machine.model, machine.pcie.get(gpu, ""), f"{plural(links, 'active NVLink')}" if links else "")
            )
        )
        yield f"GPU {gpu}", _node(numa), about or "–"
    for nic in machine.nics:
        yield nic.name, _node(nic.numa), nic.about or "–"
    for node, cpus in machine.cpus.items():
        yield f"NUMA node {node}", str(node), f"CPUs {cpus}"


def _node(numa: int | None) -> str:
    return "not known" if numa is None else str(numa)


def _matrix(machine: Machine) -> Markup:
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
