"""How the GPUs and NICs of each host are joined, by its facts.

It tells also which hosts are alike.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclkit.core.model import Fact

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
    """(GPU, higher GPU) → why they may not use each other's memory.

    The reason why they may not read or write it is in the letters of nvidia-smi.
    """
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
        # mappings cannot be hashed, and equal machines are written alike
        return hash(repr(self))

    def link_between(self, one: int, two: int) -> str:
        """The link between two GPUs; a dash to itself, and where it is not known."""
        return self.pairs.get((min(one, two), max(one, two)), "–")

    def weak(self) -> list[int]:
        """GPUs with fewer active NVLinks than the best of this host."""
        most = max(self.nvlinks.values(), default=0)
        return [gpu for gpu, links in self.nvlinks.items() if links < most]

    def nearest(self) -> dict[int, tuple[str, list[str]]]:
        """GPU → its best link to any NIC, and the NICs that it leads to."""
        best: dict[int, tuple[str, list[str]]] = {}
        closest_first = sorted(self.near.items(), key=lambda item: link_closeness(item[1]))
        for (gpu, nic), link in closest_first:
            best_link, nics = best.setdefault(gpu, (link, []))
            if link == best_link:
                nics.append(nic)
        return best


Kinds = Mapping[MachineLinks, Sequence[str]]
"""Machines that are not alike → their hosts, the rarest first."""


def link_kind(link: str) -> str:
    """``NV18`` → ``NV``; what is none of nvidia-smi's names is ``?``."""
    if re.fullmatch(r"NV\d+", link):
        return "NV"
    if link in MEANS:
        return link
    return "?"


def link_closeness(link: str) -> tuple[int, int]:
    """Sorts links, the closest and widest first."""
    number = re.search(r"\d+", link)
    width = 0
    if number:
        width = int(number.group())
    return list(MEANS).index(link_kind(link)), -width


def different_machines(facts: Iterable[Fact]) -> dict[MachineLinks, list[str]]:
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
            machine = _machine_of(known)
            alike[machine].append(host or "a host without a name")
    return dict(sorted(alike.items(), key=lambda item: len(item[1])))


def _machine_of(known: Mapping[str, Fact]) -> MachineLinks:
    """The machine of one host, from its facts by name."""
    values = {name: fact.value for name, fact in known.items()}
    matrix = _matrix_of(values.get("gpu.topology"))
    each = _values_by_gpu(values)
    count = _count(values.get("gpu.count"))
    gpus = _numbers_of_gpus(matrix, count, each)
    cpus = _mapping(values.get("cpu.numa"))
    # whatever is in a host with one NUMA node is on that
    only = None
    if len(cpus) == 1:
        only = _count(next(iter(cpus)))
    near = _gpu_to_nic(gpus, matrix, _mapping(values.get("gpu.topology.nics")))
    pair_links = _links_between_gpus(gpus, matrix)
    refusals = [_mapping(values.get(name)) for name in _P2P]
    why_unknown = ""
    if "gpu.topology" in known:
        why_unknown = known["gpu.topology"].why
    if count is None:
        count = len(gpus) or None
    link_of_pair = {}
    for pair, link in pair_links.items():
        if link:
            link_of_pair[pair] = str(link)
    return MachineLinks(
        count=count,
        gpus=_nodes_of_gpus(gpus, each["numa"], only),
        nics=_nics_of(values.get("net.rdma"), (nic for _, nic in near), only),
        pairs=link_of_pair,
        near=near,
        refused=_refused_pairs(refusals, list(pair_links)),
        nvlinks=_active_nvlinks(each["nvlink.links"]),
        pcie=_pcie_words(each["pcie.gen.max"], each["pcie.width.max"]),
        cpus={str(node): str(numbers) for node, numbers in cpus.items()},
        model=next((str(model) for model in each["model"].values() if model), ""),
        speed=_slowest_nvlink(each["nvlink.speed"].values()),
        why=why_unknown,
    )


def _matrix_of(value: Any) -> dict[str, Mapping[str, Any]]:
    """Row → column → link, as `nvidia-smi topo -m` prints them."""
    rows = _mapping(value)
    return {row: _mapping(cells) for row, cells in rows.items()}


def _values_by_gpu(values: Mapping[str, Any]) -> dict[str, dict[int, Any]]:
    """Fact of a GPU, such as ``numa`` → number of the GPU → value."""
    each: dict[str, dict[int, Any]] = defaultdict(dict)
    for name, value in values.items():
        found = _GPU.fullmatch(name)
        if found:
            number = int(found[1])
            each[found[2]][number] = value
    return each


def _numbers_of_gpus(
    matrix: Mapping[str, Any],
    count: int | None,
    each: Mapping[str, Mapping[int, Any]],
) -> list[int]:
    """Every GPU that the matrix lists, the count claims or a fact is of."""
    listed = set()
    for name in matrix:
        if re.fullmatch(r"GPU\d{1,3}", name):
            listed.add(int(name[3:]))
    claimed = range(min(count or 0, MOST_GPUS))
    return sorted(listed.union(claimed, *each.values()))


def _nodes_of_gpus(
    gpus: Iterable[int], numa: Mapping[int, Any], only: int | None
) -> dict[int, int | None]:
    nodes: dict[int, int | None] = {}
    for gpu in gpus:
        node = _count(numa.get(gpu))
        if node is None:
            node = only
        nodes[gpu] = node
    return nodes


def _links_between_gpus(
    gpus: Sequence[int], matrix: Mapping[str, Mapping[str, Any]]
) -> dict[tuple[int, int], Any]:
    """(GPU, higher GPU) → link; None where the matrix has no cell."""
    found = {}
    for low in gpus:
        row = matrix.get(f"GPU{low}", {})
        for high in gpus:
            if low < high:
                found[low, high] = row.get(f"GPU{high}")
    return found


def _active_nvlinks(counts: Mapping[int, Any]) -> dict[int, int]:
    known = {}
    for gpu, said in sorted(counts.items()):
        number = _count(said)
        if number is not None:
            known[gpu] = number
    return known


def _slowest_nvlink(speeds: Iterable[Any]) -> float | None:
    known = []
    for speed in speeds:
        if isinstance(speed, (int, float)) and speed > 0:
            known.append(speed)
    return min(known, default=None)


def _refused_pairs(
    answers: Iterable[Mapping[str, Any]], pairs: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], str]:
    """Pairs of which a direction has another answer than OK."""
    found: dict[tuple[int, int], str] = {}
    for answer in answers:
        for low, high in pairs:
            there = _mapping(answer.get(f"GPU{low}")).get(f"GPU{high}", "OK")
            back = _mapping(answer.get(f"GPU{high}")).get(f"GPU{low}", "OK")
            refused = []
            for word in (there, back):
                if word != "OK":
                    refused.append(str(word))
            if refused and refused[0]:
                found[low, high] = refused[0]
    return found


def _pcie_words(gens: Mapping[int, Any], widths: Mapping[int, Any]) -> dict[int, str]:
    """GPU → ``PCIe gen 5 x16``, where both are known."""
    found = {}
    for gpu, said in sorted(widths.items()):
        generation = _count(gens.get(gpu))
        width = _count(said)
        if generation and width:
            found[gpu] = f"PCIe gen {generation} x{width}"
    return found


def _gpu_to_nic(
    gpus: Iterable[int], matrix: Mapping[str, Any], names: Mapping[str, Any]
) -> dict[tuple[int, str], str]:
    """The part of the matrix between GPUs and NICs, by the devices' own names."""
    found: dict[tuple[int, str], str] = {}
    for gpu in gpus:
        row = matrix.get(f"GPU{gpu}", {})
        for column, link in row.items():
            if not column.startswith("GPU"):
                device = str(names.get(column, column))
                found[gpu, device] = str(link)
    return found


def _nics_of(ports: Any, listed: Iterable[str], only: int | None) -> tuple[Nic, ...]:
    """One NIC for each RDMA device, and those that only the matrix lists.

    A device works if one of its ports does.
    """
    nics: dict[str, Nic] = {}
    if not isinstance(ports, list):
        ports = []
    for port in map(_mapping, ports):
        nic = _nic_of(port, only)
        held = nics.get(nic.name)
        if held:
            about = f"{held.about}; {nic.about}"
            nic = Nic(nic.name, nic.numa, about, nic.works or held.works)
        nics[nic.name] = nic
    for name in listed:
        nics.setdefault(name, Nic(name, only))
    return tuple(nics.values())


def _nic_of(port: Mapping[str, Any], only: int | None) -> Nic:
    """A NIC as one of its ports tells it."""
    state = str(port.get("state") or "")
    rate = ""
    if port.get("rate"):
        rate = f"{port['rate']} Gb/s"
    layer = str(port.get("link_layer") or "")
    about = " ".join(filter(None, (layer, rate, state)))
    node = _count(port.get("numa"))
    if node is None:
        node = only
    # a port that says no state is not known to be down
    works = state in ("ACTIVE", "")
    return Nic(str(port.get("device", "?")), node, about, works)


def _mapping(value: Any) -> Mapping[str, Any]:
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
