"""The grammar of NCCL's own log, 2.4 to 2.32."""

from __future__ import annotations

import re

from ncclkit.agent.digits import is_whole
from ncclkit.evidence.grammars import links
from ncclkit.evidence.grammars.families import INFO_FAMILIES, classify
from ncclkit.evidence.grammars.grammar import (
    Data,
    Line,
    Rule,
    parse_float,
    parse_int,
    rule,
    up_to_first,
)

ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")


def _ring(match: re.Match[str], data: Data, line: Line) -> Data:
    """The ring of a line, as far as it is whole.

    NCCL cuts long lines with dots, and the number before them may be cut as well.
    """
    order = [int(rank) for rank in re.findall(r"\d{1,7}", match["order"])]
    cut = bool(match["cut"])
    return {"channel": data["channel"], "order": order[:-1] if cut else order, "whole": not cut}


def _neighbours(match: re.Match[str], data: Data, line: Line) -> Data:
    return {
        "channel": data["channel"],
        "order": [data["left"], data["rank"], data["right"]],
        "whole": False,
    }


def _known_ranks(numbers: str) -> list[int]:
    return [int(rank) for rank in numbers.split("/") if rank != "-1"]


def _trees(match: re.Match[str], data: Data, line: Line) -> Data | None:
    said = re.findall(
        r"\[(\d{1,4})\] (-?\d{1,7}(?:/-?\d{1,7}){0,8})->(\d{1,7})->(-?\d{1,7})", match["said"]
    )
    trees = [
        {
            "channel": int(channel),
            "children": _known_ranks(below),
            "rank": int(rank),
            "parent": next(iter(_known_ranks(up)), None),
        }
        for channel, below, rank, up in said
    ]
    if trees:
        return {"algo": "NVLS_TREE" if match["nvls"] else "TREE", "trees": trees}
    return None


def _tree(match: re.Match[str], data: Data, line: Line) -> Data:
    below = _known_ranks(match["below"])
    up = next(iter(_known_ranks(match["up"])), None)
    tree = {"channel": data["channel"], "children": below, "rank": data["rank"], "parent": up}
    return {"algo": "TREE", "trees": [tree]}


def _affinity(match: re.Match[str], data: Data, line: Line) -> Data:
    """How many CPUs a mask or a list names.

    A mask is such as ``ff,ffffffff`` (up to 2.27), a list such as ``0-31,64`` (since 2.28).
    """
    mask = data["mask"].rstrip(".")
    return data | {
        "mask": mask,
        "cpus": _cpus_of_list(mask) if match[0].startswith("nccl") else _cpus_of_mask(mask),
    }


def _cpus_of_mask(mask: str) -> int | None:
    words = re.fullmatch(r"[0-9a-f]{1,8}(?:,[0-9a-f]{8}){0,200}", mask)
    if words:
        return bin(int(mask.replace(",", ""), 16)).count("1")
    return None


def _cpus_of_list(mask: str) -> int | None:
    runs = [re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", run) for run in mask.split(",")]
    if all(runs):
        return sum(int(run[2] or run[1]) - int(run[1]) + 1 for run in runs if run)
    return None


def _sockets(match: re.Match[str], data: Data, line: Line) -> Data:
    return {"devices": re.findall(r"\[\d{1,4}\]([^\s<]{1,200})<\d{1,5}>", match[0])}


def _tuning(match: re.Match[str], data: Data, line: Line) -> Data:
    """One form for all versions.

    Ids of algorithm and protocol (up to 2.23) become names.
    """
    low = data.pop("low")
    high = data.pop("high")
    named = {}
    for name, table in ("algo", ALGORITHMS), ("proto", PROTOCOLS):
        named[name] = (
            table[int(data[name])]
            if is_whole(data[name]) and int(data[name]) < len(table)
            else data[name]
        )
    if low is None or high is None:
        channels = None
    else:
        channels = high - low + 1
    return (
        data
        | named
        | {
            "op": data["op"] or "",
            "channels": channels,
            "time": parse_float(data["time"]),
        }
    )


def _special(match: re.Match[str], data: Data, line: Line) -> Data:
    said = data.pop("said")
    channels = re.search(r"nchannels (\d{1,4})", said, re.IGNORECASE)
    return data | {
        "proto": said.removeprefix("Kernel ").split(" ")[0],
        "channels": parse_int(channels[1]) if channels else None,
    }


PLAN: tuple[Rule, ...] = (
    # Channel 00/08 :    0   1   2   3   4   5   6   7        Channel 01/16 :    0   7   6   5 ...
    rule(
        "nccl.ring",
        "Channel ",
        r"Channel (?P<channel>\d+)/\d+ : *(?P<order>\d+(?: +\d+)*) {0,9}(?P<cut>\.{2,3})?\s{0,80}$",
        make=_ring,
    ),
    # Ring 00 : 3 -> 0 -> 1
    rule(
        "nccl.ring",
        "Ring ",
        r"Ring (?P<channel>\d+) : (?P<left>\d+) -> (?P<rank>\d+) -> (?P<right>\d+)\s{0,80}$",
        make=_neighbours,
    ),
    # Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1
    # Trees [0] 1/-1/-1->0->-1|-1->0->1/-1/-1 (2.10)
    # NVLS Trees : [0] 1/-1/-1->0->-1
    rule("nccl.tree", "Trees ", r"(?P<nvls>NVLS )?Trees :? ?(?P<said>\[.*)", make=_trees),
    # Tree 0 : -1 -> 0 -> 1/2/-1
    rule(
        "nccl.tree",
        "Tree ",
        r"NCCL INFO Tree (?P<channel>\d+) : (?P<up>-?\d+) -> (?P<rank>\d+) ->"
        r" (?P<below>-?\d+(?:/-?\d+){0,3})\s{0,80}$",
        make=_tree,
    ),
    # Bootstrap timings total 0.014 (create 0.000, send 0.000, recv 0.011, ring 0.001, delay 0.000)
    rule("nccl.timing", "Bootstrap timings", r"Bootstrap timings total [\d.]+", what="bootstrap"),
    # Connected all rings, use ring PXN 0 GDR 1      Connected all trees      Connected NVLS tree
    # Connected CollNet
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
    # ncclTopoGetCpuAffinity: Affinity for GPU 3 is 0-31,64-95. (GPU affinity = 0-31,64-95 ; CPU \
    #   affinity = 0-127).
    rule(
        "nccl.affinity",
        "ncclTopoGetCpuAffinity",
        r"ncclTopoGetCpuAffinity: .{0,40}?GPU (?P<gpu>\d+) (?:is|to) (?P<mask>[\d,-]+)",
        make=_affinity,
    ),
    # NET/Socket : Using [0]ens7:10.0.0.1<0> [1]ib0:10.1.0.1<0>
    rule("nccl.socket_devices", "NET/Socket : Using [", r"NET/Socket : Using \[.*", make=_sockets),
    # AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7} (2.24+)
    # AllReduce: 4194304 Bytes -> Algo 1 proto 2 time 123.4 (2.23)
    # 4194304 Bytes -> Algo 1 proto 2 time 123.4
    rule(
        "nccl.tuning",
        " Bytes -> Algo ",
        r"(?:(?P<op>\w{1,60}): )?(?P<bytes>\d{1,18}) Bytes -> Algo (?P<algo>\w+) proto"
        r" (?P<proto>\w+)"
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
"""Rules of lines in which NCCL tells its plan: rings, trees, channels; part of `INFO`."""


# [2026-11-21 00:28:00] node-1:7186:7190 [3] misc/socket.cc:49 (func) NCCL WARN text
# node-1:7186:7190 [3] NCCL INFO text
_PLACE = (
    r"(?:(?<![^\s:\[\]()<>])(?P<host>[^\s:\[\]()<>]{1,255}) ?:(?P<pid>\d{1,10}):-?\d{1,20} )?(?:\["
    r"(?P<dev>-?\d{1,4})\] )?"
    r"(?:(?<!\S)(?P<file>[\w./-]{1,200}\.\w{1,4}):(?P<line>\d{0,7}) ?(?:\((?P<func>[^()]{1,200}"
    r"(?:\([^()]{0,200}\)[^()]{0,200})?)\) )?)?"
)
"""Host, process, device and source line in front of the level."""
ENVELOPE = re.compile(_PLACE + r"NCCL WARN (?P<message>.*)$")
# [2026-11-26 19:22:09] node-1:7186:7190 [0] misc/param.cc:100 (ncclLoadParam) NCCL ATTN text
ATTENTION = re.compile(_PLACE + r"NCCL ATTN (?P<message>.*)$")
"""The level between WARN and INFO, since 2.32."""
HEAD = re.compile(
    r"(?<![^\s:\[\]()<>])([^\s:\[\]()<>]{1,255}) ?:(\d{1,10}):-?\d{1,20} (?:.{0,400}?NCCL"
    r" (?:INFO|WARN|ATTN|CALL|TRACE) |\[\d{1,4}\] INFO )"
)

CLOCK = re.compile(
    r"(?<![^\s\[(\"])(?:\d{4}-\d\d-\d\dT)?\d{1,2}:[0-5]\d:[0-5]\d(?:[.,:]\d{1,9})?(?:Z"
    r"|[+-]\d\d:?\d\d)?(?![\w:.-])"
)
"""A wrapper's time of day, which has the form of ``host:pid:thread``."""


def _init(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """What stands behind the bus id of a communicator, which changed often.

    It is the commId, or parent, colour and key of a child.
    """
    rest = data.pop("rest")
    if data["rank"] is None or data["nranks"] is None:
        return None  # numbers that cannot be meant: a torn line
    said = dict(
        re.findall(r"\b(commId|parent|color|key|splitCount|childCount) (-?\w+|\(nil\))", rest)
    )
    return data | {
        "phase": "start" if data["phase"] == "START" else "done",
        "comm_id": said.get("commId"),
        "parent": said.get("parent"),
        "color": parse_int(said.get("color")),
        "key": parse_int(said.get("key")),
    }


def _destroy(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {
        "how": data["how"].lower(),
        "phase": "start" if data["phase"] == "START" else "done",
    }


TRUE = 1
"""Of two bits of a health mask: 0 is not supported, 2 is false."""
FLAGS = {2: "route recovery", 4: "an unhealthy route", 6: "recovery of a timed-out access"}
"""Bit of a health mask → what is under way or wrong where it is true."""
CONFIGURATIONS = {
    2: "a wrong system GUID",
    3: "a wrong chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "GPU firmware that does not fit",
    7: "a wrong location",
    8: "a GPU in an invalid state",
}
"""Bits 8 to 11 of a health mask → what is wrong; 0 is not supported, 1 is none."""


def _fabric(match: re.Match[str], data: Data, line: Line) -> Data:
    """The health of a GPU's fabric, in fields of two and four bits (NVML's nvml.h)."""
    mask = int(data.pop("mask"), 16)
    troubles = [words for bit, words in FLAGS.items() if mask >> bit & 3 == TRUE]
    wrong = CONFIGURATIONS.get(mask >> 8 & 15)
    if wrong:
        troubles.append(wrong)
    return data | {"degraded": mask & 3 == TRUE, "troubles": troubles}


def _bootstrap(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"interface": data["interface"].strip(), "address": data["address"].strip()}


def _devices(match: re.Match[str], data: Data, line: Line) -> Data:
    return {"devices": re.findall(r"\[\d+\]\s*([^\s;,\[]+)", match[0])}


def _channel(match: re.Match[str], data: Data, line: Line) -> Data | None:
    said = match["said"].strip()
    if None in (parse_int(match["src"]), parse_int(match["dst"]), parse_int(match["channel"])):
        return None  # a torn line
    if "shared memory" in said:
        via = "SHM"
    else:
        via = said.split("/")[0]
    proxy = re.search(r"^NET/[^/]+/\d{1,4}\((\d{1,7})\)", said)
    return {
        "src": parse_int(match["src"]),
        "dst": parse_int(match["dst"]),
        "transport": re.sub(r"\(\d+\)|/GDRDMA.*|/Shared", "", said),
        "via": via,
        "gdr": "/GDRDMA" in said,
        "pxn": int(proxy[1]) if proxy else None,
        "channels": [parse_int(match["channel"])],
    }


def _operation(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"last": int(match["last"], 16)}


# NCCL version 2.28.9+cuda13.0
VERSION = rule(
    "nccl.version",
    "NCCL version ",
    r"^(?:.*\s)?NCCL version (?P<version>\d+\.\d+\.\d+)\+cuda(?P<cuda>[\d.]+)",
)

INFO: tuple[Rule, ...] = (
    VERSION,
    *links.RULES,
    # ncclCommInitRank comm 0x55d rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 5d000 commId 0x9a - \
    #   Init START
    # ncclCommSplit comm 0x55d rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 parent 0x44a color \
    #   1 key 0- Init COMPLETE
    rule(
        "nccl.init",
        "- Init ",
        r"(?:\b(?P<api>nccl\w{1,60}) )?comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks"
        r" (?P<nranks>\d+) "
        r"cudaDev (?P<cuda_dev>\d+)(?: nvmlDev (?P<nvml_dev>\d+))? busId"
        r" (?P<bus>\w+)(?P<rest>.{0,200}?)"
        r"- Init (?P<phase>START|COMPLETE)",
        make=_init,
    ),
    # comm 0x55d rank 0 nranks 8 cudaDev 0 busId 1000 - Destroy COMPLETE
    # comm 0x55d rank 0 nranks 8 cudaDev 0 busId 1000 - Abort COMPLETE       … - Abort START (2.28+)
    # comm 0x55d rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1000 - Revoke COMPLETE, result 0 (2.28+)
    # comm 0x55d rank 0 nRanks 8 cudaDev 0 busId 1000 commId 0x9a - Revoke START       (2.31+)
    *(
        rule(
            "nccl.destroy",
            anchor,
            r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) n[rR]anks \d+ .{0,200}?-"
            r" (?P<how>Destroy|Abort|Revoke) "
            r"(?P<phase>START|COMPLETE)(?:, result (?P<result>\d+))?",
            make=_destroy,
        )
        for anchor in ("- Destroy COMPLETE", "- Abort ", "- Revoke ")
    ),
    # MNNVL busId 0x1b000 fabric UUID 5d1.77a cliqueId 0x7ffe state 3 healthMask 0x5aa
    rule(
        "nccl.fabric",
        "healthMask",
        r"MNNVL busId (?P<bus>0x[0-9a-f]{1,16}) .{0,200}?state (?P<state>\d{1,3}) healthMask"
        r" (?P<mask>0x[0-9a-f]{1,8})\b",
        make=_fabric,
    ),
    # NCCL_SOCKET_IFNAME set by environment to eth0.
    rule(
        "nccl.env",
        "set by environment to",
        r"(?P<name>[A-Z][A-Z0-9_]{1,99}) set by environment to (?P<value>.*?)\.?\s{0,80}$",
    ),
    # NCCL_SOCKET_IFNAME set to eth2
    rule(
        "nccl.env",
        "NCCL INFO NCCL_",
        r"NCCL INFO (?P<name>NCCL_[A-Z0-9_]+) set to (?P<value>\S+)\s{0,80}$",
    ),
    # Bootstrap : Using eth0:10.0.0.1<0>
    # Bootstrap: Using [0]ens5:172.18.1.169<0> [1]veth7:fe80::1%veth7<0>
    *(
        rule(
            "nccl.bootstrap",
            anchor,
            r"Bootstrap ?: Using (?:\[0\])?(?P<interface>[^:\s]+):(?P<address>[^\s<]+)(?:<\d+>)?",
            make=_bootstrap,
        )
        for anchor in ("Bootstrap : Using", "Bootstrap: Using")
    ),
    # Using network Socket      Using network AWS Libfabric
    # (what follows was written into the same line by others)
    rule(
        "nccl.network",
        "Using network",
        r"Using network (?P<name>AWS Libfabric|Socket|[\w.-]{1,40})",
    ),
    # NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
    # NET/IB : No device found.
    # (a line that was cut after "Using" says nothing of devices)
    rule("nccl.ib_devices", "NET/IB : Using", r"NET/IB : Using ?\[\d.*?(?:;|$)", make=_devices),
    rule("nccl.ib_devices", "NET/IB : No device", r"NET/IB : No device found", make=_devices),
    # Channel 00/0 : 6[6] -> 5[5] via P2P/IPC/read
    # Channel 01 : 1[1e0] -> 0[1e0] [receive] via NET/IB/0/GDRDMA
    # Ring 00 : 2[3d000] -> 3[3e000] via direct shared memory
    rule(
        "nccl.channel",
        "] via ",
        r"(?:Channel|Ring) (?P<channel>\d+)(?:/\d+)? : (?P<src>\d+)\[\w+\] -> (?P<dst>\d+)\[\w+\]"
        r"(?: \[(?P<way>send|receive)\])? via (?P<said>.+)",
        make=_channel,
    ),
    # AllReduce: opCount 1f sendbuff 0x7f recvbuff 0x7f count 1024 datatype 7 op 0 root 0 comm \
    #   0x55 [nranks=2] stream 0x5
    rule(
        "nccl.op",
        ": opCount ",
        r"(?P<op>\w{1,60}): opCount (?P<last>[0-9a-f]{1,16}) .{0,200}? count (?P<count>\d+)"
        r" datatype (?P<dtype>\d+) "
        r"op \d+ "
        r"root (?P<root>\d+) comm (?P<comm>0x[0-9a-f]+)(?: \[nranks=(?P<nranks>\d+)\])?",
        make=_operation,
    ),
    # include/shm.h:41 -> 2        enhcompat.cu:30 -> 1        ras/ras.cpp:12 (rasInit) -> 2
    # misc/socket.cc:474 -> 6       group.cc:75 -> 1 [Async thread]
    # init.cc:185 (ncclGetUniqueId) -> 5 (Operation not permitted)
    *(
        rule(
            "nccl.trace",
            anchor,
            r"NCCL INFO (?P<file>[\w./-]{1,200}\.(?:cc|h|cpp|cu)):(?P<line>\d+)"
            r" (?:\((?P<func>[^()]{1,200})\) )?"
            r"-> (?P<code>\d+)(?: \((?P<errno>[^)]+)\))?",
        )
        for anchor in (".cc:", ".h:", ".cpp:", ".cu:")
    ),
    # [Service thread] Connection closed by localRank 2
    rule(
        "nccl.peer_closed",
        "closed by localRank",
        r"Connection closed by localRank (?P<local_rank>\d+)",
    ),
    *PLAN,
    *(
        rule(
            "nccl.info",
            anchor,
            up_to_first("NCCL (?:INFO|WARN) ") + rf"(?P<message>.*(?:{pattern}).*)",
            family=family,
        )
        for family, anchor, pattern in INFO_FAMILIES
    ),
)
"""Rules of lines that hold ``NCCL INFO``."""


def _warn(match: re.Match[str], data: Data, line: Line) -> Data:
    found: Data = {
        "file": match["file"] or "",
        "line": parse_int(match["line"]),
        "func": match["func"] or "",
        "dev": parse_int(match["dev"]),
        "message": match["message"].strip(),
    }
    return found | classify(match["message"], match["file"] or "")


def _bare(match: re.Match[str], data: Data, line: Line) -> Data | None:
    message = str(data["message"]).strip()
    return {"file": "", "line": None, "func": "", "dev": None, "message": message} | classify(
        message
    )


OLD = (
    r"^(?:.{0,200}?\s)??(?:(?P<host>[^\s:\[\]()<>]{1,255}):(?P<pid>\d{1,10}):\d{1,20}"
    r" )?\[(?P<dev>\d{1,4})\] "
)
"""The envelope of NCCL 2.0 to 2.3, which does not name NCCL."""


def _placed(match: re.Match[str], data: Data, line: Line) -> Data:
    line.host, line.pid = match["host"] or line.host, parse_int(match["pid"]) or line.pid
    return {
        name: data[name]
        for name in ("interface", "address", "name", "code", "errno", "file", "line", "func")
        if name in data
    }


def _old(match: re.Match[str], data: Data, line: Line) -> Data:
    message = match["message"].strip()
    found: Data = {
        "file": match["file"],
        "line": parse_int(match["line"]),
        "func": "",
        "dev": parse_int(match["dev"]),
    }
    line.host, line.pid = match["host"] or line.host, parse_int(match["pid"]) or line.pid
    return found | {"message": message} | classify(message, match["file"])


RAISED = r"^(?:[\w.]{1,80}(?:Error|Exception)(?:\(\w{1,60}\))?: )?"
"""A type of an exception before a warning that it repeats."""

OTHER: tuple[Rule, ...] = (
    # [0] transport/net_ib.cu:734 WARN NET/IB : Got completion with error 12, opcode 1, len 3, \
    #   vendor err 129
    # n1:12:13 [3] include/shm.h:40 WARN Unable to allocate shared memory
    # [1] init.cc:311 WARN Cuda failure 'x'
    *(
        rule(
            "nccl.warn",
            anchor,
            rf"{OLD}(?P<file>[\w./-]{{1,200}}\.(?:cu|cc|h)):(?P<line>\d+) WARN (?P<message>.*)",
            make=_old,
        )
        for anchor in (".cu:", ".h:", ".cc:")
    ),
    # [0] INFO init.cu:200 -> 1
    rule(
        "nccl.trace",
        ".cu:",
        OLD + r"INFO (?P<file>[\w./-]{1,200}\.cu):(?P<line>\d+) -> (?P<code>\d+)",
        make=_placed,
    ),
    # n1:12:13 [0] INFO Using internal Network Socket
    # n1:12:13 [0] INFO NET : Using interface ib0:10.1.0.1<0>
    rule(
        "nccl.network",
        "Using internal Network",
        OLD + r"INFO Using internal Network (?P<name>Socket|IB)",
        make=_placed,
    ),
    rule(
        "nccl.bootstrap",
        "Using interface ",
        OLD + r"INFO NET(?:/\w+)? : Using interface (?P<interface>[^:\s]+):(?P<address>[^\s<]+)",
        make=_placed,
    ),
    # vLLM is using nccl==2.20.5
    rule("nccl.version", "is using nccl==", r"is using nccl==(?P<version>\d+\.\d+\.\d+)"),
    # node-1:7186:7190 [3] transport/shm.cc:590 NCCL WARN Error while creating shared memory \
    #   segment /dev/shm/nccl-Ab (size 9637888)
    rule("nccl.warn", "NCCL WARN", ENVELOPE.pattern, make=_warn),
    # [2026-11-26 19:22:09] node-1:27142:27142 [0] misc/param.cc:100 (ncclLoadParam) NCCL ATTN \
    #   Invalid value abc for NCCL_SOCKET_RCVBUF, using default -1.
    rule("nccl.attn", "NCCL ATTN", ATTENTION.pattern, make=_warn),
    VERSION,
    # Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5d000
    # (what torch repeats of a warning, where a launcher or a log library tore it from its envelope)
    rule(
        "nccl.warn",
        "Duplicate GPU detected",
        rf"{RAISED}(?P<message>Duplicate GPU detected : rank \d{{1,7}}"
        r" and rank \d{1,7} both on CUDA device \w{1,20})\s*$",
        make=_bare,
    ),
    # Cuda failure 802 'system not yet initialized'        Cuda failure 802
    rule(
        "nccl.warn",
        "Cuda failure ",
        rf"{RAISED}(?P<message>Cuda failure (?:\d{{1,4}}\b ?)?(?:'[^']{{3,200}}')?)\s*$",
        make=_bare,
    ),
    # ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor \
    #   AF_INET6(10)
    rule(
        "nccl.warn",
        "is neither AF_INET",
        r"^(?!.*NCCL WARN)(?P<message>.*is neither AF_INET.*)",
        make=_bare,
    ),
    # WARN NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument
    rule("nccl.warn", " WARN NET/", r"^(?!.*NCCL WARN).*\bWARN (?P<message>NET/.*)", make=_bare),
    rule("nccl.warn", "WARN NET/", r"^WARN (?P<message>NET/.*)", make=_bare),
    # ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 \
    #   hw_synd 0/0)   (UCX)
    rule(
        "nccl.warn",
        "retry count exceeded",
        r"^(?!.*NCCL WARN)(?P<message>.*retry count exceeded on .*)",
        make=_bare,
    ),
)
"""Rules of all other lines."""


def place(line: Line) -> None:
    """Take host and pid from NCCL's own envelope, where the line has one."""
    match = HEAD.search(line.text)
    if match and is_whole(match[1][-2:]):  # rare enough to look twice
        match = HEAD.search(CLOCK.sub(" ", line.text))
    if match:
        line.host, line.pid = match[1], int(match[2])
