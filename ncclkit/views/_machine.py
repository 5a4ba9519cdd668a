"""A host's GPUs, NICs and the links between them, gathered from its facts; hosts that are built alike are equal."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
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
"""Kinds of links as `nvidia-smi topo -m` names them (its legend says what they are), the closest first."""

MOST_GPUS = 64
"""GPUs that a count alone can claim; a torn number must not fill the memory."""

_GPU = re.compile(r"gpu\.(\d{1,3})\.(model|numa|nvlink\.links|nvlink\.speed|pcie\.gen\.max|pcie\.width\.max)")
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
class Machine:
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
    """(GPU, higher GPU) → why they may not read or write each other's memory, in the letters of nvidia-smi."""
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
        for (gpu, nic), way in sorted(self.near.items(), key=lambda item: closeness(item[1])):
            if best.setdefault(gpu, (way, []))[0] == way:
                best[gpu][1].append(nic)
        return best


def kind(link: str) -> str:
    """``NV18`` → ``NV``; what is none of nvidia-smi's names is ``?``."""
    found = "NV" if re.fullmatch(r"NV\d+", link) else link
    return found if found in MEANS else "?"


def closeness(link: str) -> tuple[int, int]:
    """Sorts links, the closest and widest first."""
    number = re.search(r"\d+", link)
    return list(MEANS).index(kind(link)), -int(number.group()) if number else 0


def machines(facts: Iterable[Fact]) -> dict[Machine, list[str]]:
    """Machines that are not alike → their hosts, the rarest first; a host without facts has no machine."""
    hosts: dict[str, dict[str, Fact]] = defaultdict(dict)
    for fact in facts:
        if fact.name in _ONCE or _GPU.fullmatch(fact.name):
            hosts[fact.host][fact.name] = fact
    alike: dict[Machine, list[str]] = defaultdict(list)
    for host, known in hosts.items():
        if "gpu.count" in known or "gpu.topology" in known:
            alike[_machine(known)].append(host or "a host without a name")
    return dict(sorted(alike.items(), key=lambda item: len(item[1])))


def _machine(known: Mapping[str, Fact]) -> Machine:
    values = {name: fact.value for name, fact in known.items()}
    matrix = {row: _map(cells) for row, cells in _map(values.get("gpu.topology")).items()}
    each: dict[str, dict[int, Any]] = defaultdict(dict)
    for name, value in values.items():
        if found := _GPU.fullmatch(name):
            each[found[2]][int(found[1])] = value
    count = _whole(values.get("gpu.count"))
    listed = {int(name[3:]) for name in matrix if re.fullmatch(r"GPU\d{1,3}", name)}
    gpus = sorted(listed.union(range(min(count or 0, MOST_GPUS)), *each.values()))
    cpus = _map(values.get("cpu.numa"))
    only = _whole(next(iter(cpus))) if len(cpus) == 1 else None  # whatever is in the host is on its one node
    nodes = {gpu: _whole(each["numa"].get(gpu)) for gpu in gpus}
    ports = values.get("net.rdma")
    near = _near(gpus, matrix, _map(values.get("gpu.topology.nics")))
    speeds = [speed for speed in each["nvlink.speed"].values() if isinstance(speed, (int, float)) and speed > 0]
    links = {gpu: _whole(number) for gpu, number in sorted(each["nvlink.links"].items())}
    ways = {(a, b): matrix.get(f"GPU{a}", {}).get(f"GPU{b}") for a in gpus for b in gpus if a < b}
    return Machine(
        count=count if count is not None else len(gpus) or None,
        gpus={gpu: only if node is None else node for gpu, node in nodes.items()},
        nics=_nics(ports if isinstance(ports, list) else [], (nic for _, nic in near), only),
        pairs={pair: str(way) for pair, way in ways.items() if way},
        near=near,
        refused=_refusals([_map(values.get(name)) for name in _P2P], list(ways)),
        nvlinks={gpu: number for gpu, number in links.items() if number is not None},
        pcie=_pcie(each["pcie.gen.max"], each["pcie.width.max"]),
        cpus={str(node): str(numbers) for node, numbers in cpus.items()},
        model=next((str(model) for model in each["model"].values() if model), ""),
        speed=min(speeds, default=None),
        why=known["gpu.topology"].why if "gpu.topology" in known else "",
    )


def _refusals(answers: Iterable[Mapping[str, Any]], pairs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Pairs of which a direction has another answer than OK."""
    found: dict[tuple[int, int], str] = {}
    for answer in answers:
        for a, b in pairs:
            said = [_map(answer.get(f"GPU{one}")).get(f"GPU{two}", "OK") for one, two in ((a, b), (b, a))]
            if why := next((str(word) for word in said if word != "OK"), ""):
                found[a, b] = why
    return found


def _pcie(gens: Mapping[int, Any], widths: Mapping[int, Any]) -> dict[int, str]:
    known = {gpu: (_whole(gens.get(gpu)), _whole(width)) for gpu, width in sorted(widths.items())}
    return {gpu: f"PCIe gen {gen} x{width}" for gpu, (gen, width) in known.items() if gen and width}


def _near(gpus: Iterable[int], matrix: Mapping[str, Any], names: Mapping[str, Any]) -> dict[tuple[int, str], str]:
    """The part of the matrix between GPUs and NICs, by the devices' own names."""
    return {
        (gpu, str(names.get(column, column))): str(way)
        for gpu in gpus
        for column, way in matrix.get(f"GPU{gpu}", {}).items()
        if not column.startswith("GPU")
    }


def _nics(ports: Iterable[Any], listed: Iterable[str], only: int | None) -> tuple[Nic, ...]:
    """One NIC for each RDMA device, which works if one of its ports does, and those that only the matrix lists."""
    nics: dict[str, Nic] = {}
    for port in map(_map, ports):
        name, state = str(port.get("device", "?")), str(port.get("state") or "")
        rate = f"{port['rate']} Gb/s" if port.get("rate") else ""
        about = " ".join(filter(None, (str(port.get("link_layer") or ""), rate, state)))
        works = state in ("ACTIVE", "")
        if held := nics.get(name):
            about, works = f"{held.about}; {about}", works or held.works
        node = _whole(port.get("numa"))
        nics[name] = Nic(name, only if node is None else node, about, works)
    return (*nics.values(), *(Nic(name, only) for name in dict.fromkeys(listed) if name not in nics))


def _map(value: Any) -> Mapping[str, Any]:
    """A mapping; empty for what is none: facts of other hosts come from files that anybody may have written."""
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    """A whole number of at least 0, None for anything else."""
    return int(value) if isinstance(value, (int, str)) and re.fullmatch(r"\d{1,6}", str(value)) else None
