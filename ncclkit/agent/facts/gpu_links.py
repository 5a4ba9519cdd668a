"""How the GPUs are joined: topology, peer-to-peer capabilities, NVLinks, the CPUs and NUMA node beside each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Union

from .fact import Fact, attempt, known, unread
from .machine import Answer, Machine, Unread

TOPOLOGY = ["nvidia-smi", "topo", "-m"]
LINKS = ["nvidia-smi", "nvlink", "-s"]
CAPABILITIES = {"read": "r", "write": "w", "nvlink": "n", "atomics": "a", "pcie": "p"}
PEERS = {name: ["nvidia-smi", "topo", "-p2p", letter] for name, letter in CAPABILITIES.items()}
"""What one GPU can do with another's memory, each a matrix of its own."""

Said = Union[Answer, Unread]
"""What a command answered, or why it did not."""

Matrix = dict[str, dict[str, str]]


def out(said: Said) -> str:
    """The output of a command; raises the error that kept it from answering."""
    if isinstance(said, Unread):
        raise said
    return said.out


def facts(said: Mapping[str, Said]) -> Iterator[Fact]:
    """``gpu.topology…`` and ``gpu.p2p.…`` out of {command: what it said}; a command that was not run is absent."""
    source = " ".join(TOPOLOGY)
    told = said[source]
    yield attempt("gpu.topology", lambda: matrix(out(told)), source=source)
    nics = re.compile(r"^\s*(NIC\d+):\s*(\S+)", re.M)
    yield attempt("gpu.topology.nics", lambda: dict(nics.findall(out(told))), source=source)
    for name, argv in PEERS.items():
        source = " ".join(argv)
        answer = said.get(source, Unread("there is no second GPU"))
        yield attempt("gpu.p2p." + name, partial(_peers, answer), source=source)


def _peers(answer: Said) -> Matrix:
    return matrix(out(answer))


def matrix(text: str) -> Matrix:
    """``nvidia-smi topo`` as {row: {column: "NV18" | "PIX" | "OK" | …}}, without the diagonal; raises Unread."""
    lines = _plain(text)
    device = re.compile(r"(?:GPU|NIC)\d+$|mlx\d+_\d+$")
    header = next((line.split() for line in lines if re.match(r"\s+GPU0\b", line)), [])
    columns = [name for name in header if device.match(name)]
    rows = {}
    for line in lines:
        cells = line.split()
        if columns and cells and device.match(cells[0]) and len(cells) > len(columns):
            rows[cells[0]] = {to: how for to, how in zip(columns, cells[1:]) if how != "X"}
    if not rows:
        raise Unread("nvidia-smi topo shows no matrix: %s" % (text.strip().splitlines() or ["nothing"])[0])
    return rows


def _plain(text: str) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]


def topology_of(machine: Machine, index: int, bus: str, topology: Said) -> Iterator[Fact]:
    """``gpu.<index>.numa`` and ``.cpus``: what the kernel says is nearest to the PCI address `bus`."""
    # nvidia-smi writes an eight-digit PCI domain, the kernel a four-digit one
    folder = "/sys/bus/pci/devices/" + re.sub(r"^0000(?=[0-9a-f]{4}:)", "", bus.lower())
    yield attempt("gpu.%d.numa" % index, lambda: _numa(machine, folder + "/numa_node"), source=folder + "/numa_node")
    source = folder + "/local_cpulist, nvidia-smi topo -m"
    yield attempt("gpu.%d.cpus" % index, lambda: _cpus(machine, folder, index, topology), source=source)


def _numa(machine: Machine, file: str) -> int:
    node = int(machine.read(file))
    if node < 0:
        raise Unread("the kernel assigns no NUMA node to this GPU")
    return node


def _cpus(machine: Machine, folder: str, index: int, topology: Said) -> str:
    """The CPUs near a GPU as a kernel list such as ``0-47,96-143``."""
    try:
        near = machine.read(folder + "/local_cpulist").strip()
    except Unread:
        near = ""
    return near or affinity(out(topology))["GPU%d" % index]


def affinity(text: str) -> dict[str, str]:
    """The column "CPU Affinity" of ``nvidia-smi topo -m``: its cells are parted by tabs and may be empty."""
    rows = [line.split("\t") for line in _plain(text)]
    header = next((row for row in rows if "CPU Affinity" in row), [])
    if not header:
        raise Unread("nvidia-smi topo -m has no column CPU Affinity")
    column = header.index("CPU Affinity")
    return {row[0].strip(): row[column].strip() for row in rows if len(row) > column and row[0].startswith("GPU")}


def nvlinks(answer: Said) -> dict[int, list[float | None]] | Unread:
    """GB/s of each NVLink of each GPU, None for an inactive one; or why it could not be read."""
    if isinstance(answer, Unread):
        return answer
    blocks = re.split(r"^GPU (\d+):", answer.out, flags=re.M)
    if answer.code and len(blocks) < 2:  # a machine without NVLinks says nothing, and ends well
        said = (answer.out + answer.err).strip().splitlines() or ["nothing"]
        return Unread("%s ended with status %d and said: %s" % (" ".join(LINKS), answer.code, said[0][:300]))
    link = re.compile(r"Link \d+: (?:([\d.]+) GB/s|<inactive>)")
    pairs = zip(blocks[1::2], blocks[2::2])
    return {int(index): [float(rate) if rate else None for rate in link.findall(body)] for index, body in pairs}


def nvlink(index: int, links: dict[int, list[float | None]] | Unread) -> Iterator[Fact]:
    """``gpu.<index>.nvlink.…``: how many are active, how fast, and each one."""
    source, name = " ".join(LINKS), "gpu.%d.nvlink." % index
    if isinstance(links, Unread):
        for key, unit in (("links", ""), ("speed", "GB/s"), ("speeds", "GB/s")):
            yield unread(name + key, links, unit, source)
        return
    speeds = links.get(index, [])
    active = [speed for speed in speeds if speed is not None]
    yield known(name + "links", len(active), source=source)
    none = "no active NVLink"
    yield known(name + "speed", min(active), "GB/s", source) if active else unread(name + "speed", none, "GB/s", source)
    yield known(name + "speeds", speeds, "GB/s", source)
