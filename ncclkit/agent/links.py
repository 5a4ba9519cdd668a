"""What a ring over the GPUs of one host carries at most.

It is derived from the links that join them, and from the speeds NCCL calculates with. By it the
gate judges a node that has no baseline yet; `ncclkit.core.bandwidth` derives every other bound from
it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

NVLINK = {
    "V100": (6, 20.0),
    "A100": (12, 20.0),
    "A800": (8, 20.0),
    "H100": (18, 20.6),
    "H800": (8, 20.6),
    "H200": (18, 20.6),
    "GH200": (18, 20.6),
    "B200": (18, 40.1),
    "GB200": (18, 40.1),
}
"""Model → most links of one GPU; GB/s per link and direction with which NCCL calculates
(``src/graph/topo.h``)."""

PCIE_LANE = {1: 1.5 / 8, 2: 3.0 / 8, 3: 6.0 / 8, 4: 12.0 / 8, 5: 24.0 / 8, 6: 48.0 / 8}
"""GB/s per lane and direction that NCCL calculates with (``src/graph/topo.cc``): 12 GB/s for
generation 3 x16."""

Known = Mapping[str, Any]
"""Facts of one host: name → value; those that could not be read are missing or None."""


class NvLinks(NamedTuple):
    """The NVLinks of the GPUs in use."""

    links: dict[int, int]
    """GPU → its links towards the others."""
    speed: float | None
    """GB/s of one link and direction; None where nobody says."""
    kind: str
    """The model that NCCL's own figure is of; empty where nvidia-smi said the speed."""


class PcieLink(NamedTuple):
    """The PCIe link of one GPU."""

    speed: float
    """GB/s and direction."""
    generation: int
    width: int


def nvlink_paths(known: Known, gpus: Sequence[int]) -> dict[int, int]:
    """Each GPU's links towards the others.

    The result is empty where NVLink does not join every pair of them.
    """
    matrix = known.get("gpu.topology") or {}
    paths = {}
    for gpu in gpus:
        links = [_links(matrix, gpu, other) for other in gpus if other != gpu]
        if not all(links):
            return {}
        paths[gpu] = sum(links)
    return paths


def nvlinks(known: Known, paths: Mapping[int, int]) -> NvLinks:
    """The links of each GPU, and their speed.

    Through a switch the same links count once for every peer.
    """
    first = min(paths)
    model = str(known.get("gpu.%d.model" % first) or "")
    kind = next((name for name in NVLINK if re.search(r"\b%s\b" % name, model)), "")
    most, speed = NVLINK.get(kind, (None, known.get("gpu.%d.nvlink.speed" % first)))
    counted = {}
    for gpu, count in paths.items():
        links = known.get("gpu.%d.nvlink.links" % gpu) or most or count
        counted[gpu] = min(count, links)
    return NvLinks(counted, speed, kind)


def pcie_link(known: Known, gpu: int) -> PcieLink | None:
    """The PCIe link of a GPU; None where it could not be read."""
    # an idle GPU lowers the generation of its link, but not the width
    generation = known.get("gpu.%d.pcie.gen.max" % gpu)
    width = known.get("gpu.%d.pcie.width" % gpu)
    if generation not in PCIE_LANE or not width:
        return None
    return PcieLink(PCIE_LANE[generation] * width, int(generation), int(width))


def ring_bound(known: Known, gpus: Sequence[int]) -> tuple[float, str] | None:
    """GB/s that a ring over these GPUs carries at most, and over what.

    None where the facts do not tell.
    """
    if len(gpus) < 2 or not known.get("gpu.topology"):
        return None
    paths = nvlink_paths(known, gpus)
    if paths:
        found = nvlinks(known, paths)
        if found.speed:
            return min(found.links.values()) * found.speed, "NVLink"
        return None
    speeds = []
    for gpu in gpus:
        link = pcie_link(known, gpu)
        if link is None:
            return None  # the link that is not known may be the slowest
        speeds.append(link.speed)
    return min(speeds), "PCIe"


def _links(matrix: Mapping[str, Mapping[str, str]], one: int, two: int) -> int:
    """18 for NV18 between two GPUs, 0 for any other way."""
    match = re.fullmatch(r"NV(\d+)", matrix.get("GPU%d" % one, {}).get("GPU%d" % two, ""))
    if match:
        return int(match.group(1))
    return 0
