"""The grammar of what NCCL says about its plan: rings, trees, channels, NICs, CPUs, how long the start took."""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, decimal, rule, whole

PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet direct"}
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")


def _ring(match: re.Match[str], data: Data, line: Line) -> Data:
    """The whole cycle; NCCL cuts long lines with dots, and the number before them may be cut as well."""
    order, cut = [int(rank) for rank in re.findall(r"\d{1,7}", match["order"])], bool(match["cut"])
    return {"channel": data["channel"], "order": order[:-1] if cut else order, "whole": not cut}


def _neighbours(match: re.Match[str], data: Data, line: Line) -> Data:
    return {"channel": data["channel"], "order": [data["left"], data["rank"], data["right"]], "whole": False}


def _known(numbers: str) -> list[int]:
    return [int(rank) for rank in numbers.split("/") if rank != "-1"]


def _trees(match: re.Match[str], data: Data, line: Line) -> Data | None:
    said = re.findall(r"\[(\d{1,4})\] (-?\d{1,7}(?:/-?\d{1,7}){0,8})->(\d{1,7})->(-?\d{1,7})", match["said"])
    trees = [
        {"channel": int(channel), "children": _known(below), "rank": int(rank), "parent": next(iter(_known(up)), None)}
        for channel, below, rank, up in said
    ]
    return {"algo": "NVLS_TREE" if match["nvls"] else "TREE", "trees": trees} if trees else None


def _tree(match: re.Match[str], data: Data, line: Line) -> Data:
    below, up = _known(match["below"]), next(iter(_known(match["up"])), None)
    tree = {"channel": data["channel"], "children": below, "rank": data["rank"], "parent": up}
    return {"algo": "TREE", "trees": [tree]}


def _graph(match: re.Match[str], data: Data, line: Line) -> Data:
    numbers = {"bw_intra": decimal(data["bw_intra"]), "bw_inter": decimal(data["bw_inter"])}
    return data | numbers | {"pattern": PATTERNS.get(data["pattern"], str(data["pattern"]))}


def _timing(match: re.Match[str], data: Data, line: Line) -> Data:
    parts = {name: float(value) for name, value in re.findall(r"(\w+) (\d{1,9}\.\d{1,9})", data.pop("parts") or "")}
    return data | {"total": decimal(data["total"]), "parts": parts}


def _affinity(match: re.Match[str], data: Data, line: Line) -> Data:
    """How many CPUs a mask (``ff,ffffffff``, up to 2.27) or a list (``0-31,64``, since 2.28) names."""
    mask = data["mask"].rstrip(".")
    return data | {"mask": mask, "cpus": _listed(mask) if match[0].startswith("nccl") else _masked(mask)}


def _masked(mask: str) -> int | None:
    words = re.fullmatch(r"[0-9a-f]{1,8}(?:,[0-9a-f]{8}){0,200}", mask)
    return bin(int(mask.replace(",", ""), 16)).count("1") if words else None


def _listed(mask: str) -> int | None:
    runs = [re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", run) for run in mask.split(",")]
    return sum(int(run[2] or run[1]) - int(run[1]) + 1 for run in runs if run) if all(runs) else None


def _sockets(match: re.Match[str], data: Data, line: Line) -> Data:
    return {"devices": re.findall(r"\[\d{1,4}\]([^\s<]{1,200})<\d{1,5}>", match[0])}


def _tuning(match: re.Match[str], data: Data, line: Line) -> Data:
    """One form for all versions: ids of algorithm and protocol (up to 2.23) become names."""
    low, high = data.pop("low"), data.pop("high")
    named = {
        name: table[int(data[name])] if data[name].isdigit() and int(data[name]) < len(table) else data[name]
        for name, table in (("algo", ALGORITHMS), ("proto", PROTOCOLS))
    }
    channels = None if low is None or high is None else high - low + 1
    return data | named | {"op": data["op"] or "", "channels": channels, "time": decimal(data["time"])}


def _special(match: re.Match[str], data: Data, line: Line) -> Data:
    said = data.pop("said")
    channels = re.search(r"nchannels (\d{1,4})", said, re.IGNORECASE)
    return data | {
        "proto": said.removeprefix("Kernel ").split(" ")[0],
        "channels": whole(channels[1]) if channels else None,
    }


def _gdr(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"enabled": data["enabled"] == "Enabled"}


RULES: tuple[Rule, ...] = (
    # Channel 00/08 :    0   1   2   3   4   5   6   7        Channel 01/16 :    0   7   6   5 ...
    rule(
        "nccl.ring",
        "Channel ",
        r"Channel (?P<channel>\d+)/\d+ : *(?P<order>\d[\d ]*) ?(?P<cut>\.{2,3})?\s*$",
        make=_ring,
    ),
    # Ring 00 : 3 -> 0 -> 1
    rule(
        "nccl.ring",
        "Ring ",
        r"Ring (?P<channel>\d+) : (?P<left>\d+) -> (?P<rank>\d+) -> (?P<right>\d+)\s*$",
        make=_neighbours,
    ),
    # Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1        Trees [0] 1/-1/-1->0->-1|-1->0->1/-1/-1 (2.10)
    # NVLS Trees : [0] 1/-1/-1->0->-1
    rule("nccl.tree", "Trees ", r"(?P<nvls>NVLS )?Trees :? ?(?P<said>\[.*)", make=_trees),
    # Tree 0 : -1 -> 0 -> 1/2/-1
    rule(
        "nccl.tree",
        "Tree ",
        r"NCCL INFO Tree (?P<channel>\d+) : (?P<up>-?\d+) -> (?P<rank>\d+) -> (?P<below>-?\d+(?:/-?\d+){0,3})\s*$",
        make=_tree,
    ),
    # Pattern 4, crossNic 0, nChannels 16, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1
    rule(
        "nccl.graph",
        ", crossNic ",
        r"Pattern (?P<pattern>\d+), crossNic (?P<cross_nic>\d+), nChannels (?P<channels>\d+), "
        r"(?:bw|speed) (?P<bw_intra>[\d.]+)/(?P<bw_inter>[\d.]+), type (?P<type_intra>\w+)/(?P<type_inter>\w+)",
        make=_graph,
    ),
    # 16 coll channels, 0 collnet channels, 16 nvls channels, 24 p2p channels, 24 p2p channels per peer
    # 2 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
    rule(
        "nccl.channels",
        " coll channels, ",
        r"(?P<coll>\d{1,6}) coll channels, (?:(?P<collnet>\d+) collnet channels, )?(?:(?P<nvls>\d+) nvls channels, )?"
        r"(?P<p2p>\d+) p2p channels(?:, (?P<per_peer>\d+) p2p channels per peer)?",
    ),
    # comm 0x55d rank 3 nRanks 16 nNodes 2 localRanks 8 localRank 3 MNNVL 0
    rule(
        "nccl.layout",
        " nNodes ",
        r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nRanks (?P<nranks>\d+) nNodes (?P<nodes>\d+) "
        r"localRanks (?P<local_ranks>\d+) localRank (?P<local_rank>\d+)(?: MNNVL (?P<mnnvl>\d+))?",
    ),
    # Init timings - ncclCommInitRank: rank 0 nranks 8 total 1.25 (kernels 0.20, alloc 0.10, bootstrap 0.30, rest 0.01)
    # Init timings: rank 0 nranks 8 total 1.25 (kernels 0.20, bootstrap 0.30, allgathers 0.00, topo 0.02)
    rule(
        "nccl.timing",
        "Init timings",
        r"Init timings(?: - (?P<api>\w+))?: rank \d+ nranks \d+ total (?P<total>[\d.]+)(?: \((?P<parts>[^()]*)\))?",
        make=_timing,
        what="init",
    ),
    # Bootstrap timings total 0.014 (create 0.000, send 0.000, recv 0.011, ring 0.001, delay 0.000)
    rule(
        "nccl.timing",
        "Bootstrap timings",
        r"Bootstrap timings total (?P<total>[\d.]+)(?: \((?P<parts>[^()]*)\))?",
        make=_timing,
        what="bootstrap",
    ),
    # Connected all rings, use ring PXN 0 GDR 1      Connected all trees      Connected NVLS tree      Connected CollNet
    rule(
        "nccl.connected",
        "Connected ",
        r"NCCL INFO Connected (?:all |binomial )?(?P<what>rings|trees|NVLS tree|CollNet)"
        r"(?:, use ring PXN (?P<pxn>\d) GDR (?P<gdr>\d))?",
    ),
    # Setting affinity for GPU 3 to ffff,0000ffff (up to 2.27)
    rule(
        "nccl.affinity",
        "Setting affinity for GPU",
        r"Setting affinity for GPU (?P<gpu>\d+) to (?P<mask>\S+)",
        make=_affinity,
    ),
    # ncclTopoGetCpuAffinity: Affinity for GPU 3 is 0-31,64-95. (GPU affinity = 0-31,64-95 ; CPU affinity = 0-127).
    rule(
        "nccl.affinity",
        "ncclTopoGetCpuAffinity",
        r"ncclTopoGetCpuAffinity: .{0,40}?GPU (?P<gpu>\d+) (?:is|to) (?P<mask>[\d,-]+)",
        make=_affinity,
    ),
    # NET/IB: [0] mlx5_0:uverbs0:1/RoCE provider=mlx5 speed=400000 context=0x55 pciPath=/sys/…/0000:17:00.0 ar=1
    rule(
        "nccl.nic",
        "NET/IB: [",
        r"NET/IB: \[(?P<index>\d+)\] (?P<name>[^\s:]+):(?:[^\s:]+:)?(?P<port>\d+)/(?P<link>\w+) "
        r"provider=(?P<provider>\S+) speed=(?P<speed>\d+)(?:.{0,80}? pciPath=(?P<pci>\S+))?",
        devices=1,
    ),
    # NET/IB : Made virtual device [0] name=mlx5_0+mlx5_1 speed=800000 ndevs=2
    rule(
        "nccl.nic",
        "Made virtual device",
        r"Made virtual device \[(?P<index>\d+)\] name=(?P<name>\S+) speed=(?P<speed>\d+) ndevs=(?P<devices>\d+)",
    ),
    # NET/Socket : Using [0]ens7:10.0.0.1<0> [1]ib0:10.1.0.1<0>
    rule("nccl.socket_devices", "NET/Socket : Using [", r"NET/Socket : Using \[.*", make=_sockets),
    # GPU Direct RDMA Disabled for GPU 5 / HCA 0 (distance 7 > 5), read 0 mode Default
    rule(
        "nccl.gdr",
        "GPU Direct RDMA ",
        r"GPU Direct RDMA (?P<enabled>Enabled|Disabled) for GPU (?P<gpu>\w+) / HCA (?P<hca>\w+)"
        r"(?: \(distance (?P<distance>\w+) (?:<=|>) (?P<limit>\w+)\))?",
        make=_gdr,
    ),
    # NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'
    rule(
        "nccl.gdr",
        "GPU Direct RDMA ",
        r"GPU Direct RDMA (?P<enabled>Enabled|Disabled) for HCA (?P<hca>\w+) '(?P<name>[^']*)'",
        make=_gdr,
    ),
    # MNNVL busId 0x1b000 fabric UUID 1234.5678 cliqueId 0x7 state 3 healthMask 0x0
    rule(
        "nccl.fabric",
        "fabric UUID ",
        r"MNNVL busId (?:0x)?(?P<bus>\w+) fabric UUID (?P<uuid>\S+) cliqueId (?P<clique>\S+) state (?P<state>\d+)"
        r"(?: healthMask (?P<health>\S+))?",
    ),
    # cudaDriverVersion 12080
    rule("nccl.driver", "cudaDriverVersion ", r"NCCL INFO cudaDriverVersion (?P<version>\d+)"),
    # AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7} (2.24+)
    # AllReduce: 4194304 Bytes -> Algo 1 proto 2 time 123.4 (2.23)       4194304 Bytes -> Algo 1 proto 2 time 123.4
    rule(
        "nccl.tuning",
        " Bytes -> Algo ",
        r"(?:(?P<op>\w{1,60}): )?(?P<bytes>\d{1,18}) Bytes -> Algo (?P<algo>\w+) proto (?P<proto>\w+)"
        r"(?: time (?P<time>[\d.]+))?(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?",
        make=_tuning,
    ),
    # AllReduce [Symmetric]: 4194304 Bytes -> Kernel AllReduce_RSxLD_AGxST nchannels 16 nthreads 512
    rule(
        "nccl.tuning",
        " [Symmetric]: ",
        r"(?P<op>\w{1,60}) \[(?P<algo>Symmetric)\]: (?P<bytes>\d{1,18}) Bytes -> (?P<said>\S.*)",
        make=_special,
    ),
    # AllGather [Copy Engine]: 4194304 Bytes -> cudaMemcpy…
    rule(
        "nccl.tuning",
        " [Copy Engine]: ",
        r"(?P<op>\w{1,60}) \[(?P<algo>Copy Engine)\]: (?P<bytes>\d{1,18}) Bytes -> (?P<said>\S.*)",
        make=_special,
    ),
)
"""Rules of lines that hold ``NCCL INFO``."""
