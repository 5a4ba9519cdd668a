"""The grammar of NCCL's own log, 2.4 to 2.30."""

from __future__ import annotations

import re

from ncclkit.evidence.grammars import topology
from ncclkit.evidence.grammars.families import INFO_FAMILIES, classify
from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule, whole

# [2026-11-21 00:28:00] node-1:7186:7190 [3] misc/socket.cc:49 (func) NCCL WARN text      node-1:7186:7190 [3] NCCL
# INFO text
ENVELOPE = re.compile(
    r"(?:(?<![^\s:\[\]()<>])(?P<host>[^\s:\[\]()<>]{1,255}) ?:(?P<pid>\d{1,10}):-?\d{1,20} )?(?:\["
    r"(?P<dev>-?\d{1,4})\] )?"
    r"(?:(?<!\S)(?P<file>[\w./-]{1,200}\.\w{1,4}):(?P<line>\d{0,7}) ?(?:\((?P<func>[^()]{1,200}"
    r"(?:\([^()]{0,200}\)[^()]{0,200})?)\) )?)?"
    r"NCCL WARN (?P<message>.*)$"
)
HEAD = re.compile(
    r"(?<![^\s:\[\]()<>])([^\s:\[\]()<>]{1,255}) ?:(\d{1,10}):-?\d{1,20} .{0,400}?NCCL (?:INFO|WARN|CALL|TRACE) "
)

CLOCK = re.compile(
    r"(?<![^\s\[(\"])(?:\d{4}-\d\d-\d\dT)?\d{1,2}:[0-5]\d:[0-5]\d(?:[.,:]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?![\w:.-])"
)
"""A wrapper's time of day, which has the form of ``host:pid:thread``."""


def _init(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """What stands behind the bus id changed often: commId, or parent, colour and key of a child."""
    rest = data.pop("rest")
    if data["rank"] is None or data["nranks"] is None:
        return None  # numbers that cannot be meant: a torn line
    said = dict(re.findall(r"\b(commId|parent|color|key|splitCount|childCount) (-?\w+|\(nil\))", rest))
    return data | {
        "phase": "start" if data["phase"] == "START" else "done",
        "comm_id": said.get("commId"),
        "parent": said.get("parent"),
        "color": whole(said.get("color")),
        "key": whole(said.get("key")),
    }


def _destroy(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"how": data["how"].lower(), "phase": "start" if data["phase"] == "START" else "done"}


def _bootstrap(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"interface": data["interface"].strip(), "address": data["address"].strip()}


def _devices(match: re.Match[str], data: Data, line: Line) -> Data:
    return {"devices": re.findall(r"\[\d+\]\s*([^\s;,\[]+)", match[0])}


def _channel(match: re.Match[str], data: Data, line: Line) -> Data | None:
    said = match["said"].strip()
    if None in (whole(match["src"]), whole(match["dst"]), whole(match["channel"])):
        return None  # a torn line
    via = "SHM" if "shared memory" in said else said.split("/")[0]
    proxy = re.search(r"^NET/[^/]+/\d{1,4}\((\d{1,7})\)", said)
    return {
        "src": whole(match["src"]),
        "dst": whole(match["dst"]),
        "transport": re.sub(r"\(\d+\)|/GDRDMA.*|/Shared", "", said),
        "via": via,
        "gdr": "/GDRDMA" in said,
        "pxn": int(proxy[1]) if proxy else None,
        "channels": [whole(match["channel"])],
    }


def _operation(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"last": int(match["last"], 16)}


# NCCL version 2.28.9+cuda13.0
VERSION = rule(
    "nccl.version", "NCCL version ", r"^(?:.*\s)?NCCL version (?P<version>\d+\.\d+\.\d+)\+cuda(?P<cuda>[\d.]+)"
)

INFO: tuple[Rule, ...] = (
    VERSION,
    # ncclCommInitRank comm 0x55d rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 5d000 commId 0x9a - Init START
    # ncclCommSplit comm 0x55d rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 parent 0x44a color 1 key 0- Init COMPLETE
    rule(
        "nccl.init",
        "- Init ",
        r"(?:(?P<api>nccl\w+) )?comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks (?P<nranks>\d+) "
        r"cudaDev (?P<cuda_dev>\d+)(?: nvmlDev (?P<nvml_dev>\d+))? busId (?P<bus>\w+)(?P<rest>.{0,200}?)"
        r"- Init (?P<phase>START|COMPLETE)",
        make=_init,
    ),
    # comm 0x55d rank 0 nranks 8 cudaDev 0 busId 1000 - Destroy COMPLETE
    # comm 0x55d rank 0 nranks 8 cudaDev 0 busId 1000 - Abort COMPLETE       … - Abort START (2.28+)
    # comm 0x55d rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1000 - Revoke COMPLETE, result 0 (2.28+)
    *(
        rule(
            "nccl.destroy",
            anchor,
            r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks \d+ .{0,200}?- (?P<how>Destroy|Abort|Revoke) "
            r"(?P<phase>START|COMPLETE)(?:, result (?P<result>\d+))?",
            make=_destroy,
        )
        for anchor in ("- Destroy COMPLETE", "- Abort ", "- Revoke ")
    ),
    # NCCL_SOCKET_IFNAME set by environment to eth0.
    rule(
        "nccl.env",
        "set by environment to",
        r"(?P<name>[A-Z][A-Z0-9_]{1,99}) set by environment to (?P<value>.*?)\.?\s*$",
    ),
    # NCCL_SOCKET_IFNAME set to eth2
    rule("nccl.env", "NCCL INFO NCCL_", r"NCCL INFO (?P<name>NCCL_[A-Z0-9_]+) set to (?P<value>\S+)\s*$"),
    # Bootstrap : Using eth0:10.0.0.1<0>      Bootstrap: Using [0]ens5:172.18.1.169<0> [1]veth7:fe80::1%veth7<0>
    *(
        rule(
            "nccl.bootstrap",
            anchor,
            r"Bootstrap ?: Using (?:\[0\])?(?P<interface>[^:\s]+):(?P<address>[^\s<]+)(?:<\d+>)?",
            make=_bootstrap,
        )
        for anchor in ("Bootstrap : Using", "Bootstrap: Using")
    ),
    # Using network Socket
    rule("nccl.network", "Using network", r"Using network (?P<name>.+?)\s*$"),
    # NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>      NET/IB : No device found.
    rule("nccl.ib_devices", "NET/IB : Using", r"NET/IB : Using .*?(?:;|$)", make=_devices),
    rule("nccl.ib_devices", "NET/IB : No device", r"NET/IB : No device found", make=_devices),
    # Channel 00/0 : 6[6] -> 5[5] via P2P/IPC/read     Channel 01 : 1[1e0] -> 0[1e0] [receive] via NET/IB/0/GDRDMA
    # Ring 00 : 2[3d000] -> 3[3e000] via direct shared memory
    rule(
        "nccl.channel",
        "] via ",
        r"(?:Channel|Ring) (?P<channel>\d+)(?:/\d+)? : (?P<src>\d+)\[\w+\] -> (?P<dst>\d+)\[\w+\]"
        r"(?: \[(?P<way>send|receive)\])? via (?P<said>.+)",
        make=_channel,
    ),
    # AllReduce: opCount 1f sendbuff 0x7f recvbuff 0x7f count 1024 datatype 7 op 0 root 0 comm 0x55 [nranks=2] stream
    # 0x5
    rule(
        "nccl.op",
        ": opCount ",
        r"(?P<op>\w{1,60}): opCount (?P<last>[0-9a-f]{1,16}) .*? count (?P<count>\d+) datatype (?P<dtype>\d+) op \d+ "
        r"root (?P<root>\d+) comm (?P<comm>0x[0-9a-f]+)(?: \[nranks=(?P<nranks>\d+)\])?",
        make=_operation,
    ),
    # include/shm.h:41 -> 2        enhcompat.cu:30 -> 1        ras/ras.cpp:12 (rasInit) -> 2
    # misc/socket.cc:474 -> 6       group.cc:75 -> 1 [Async thread]       init.cc:185 (ncclGetUniqueId) -> 5 (Operation
    # not permitted)
    *(
        rule(
            "nccl.trace",
            anchor,
            r"NCCL INFO (?P<file>[\w./-]{1,200}\.(?:cc|h|cpp|cu)):(?P<line>\d+) (?:\((?P<func>[^()]{1,200})\) )?"
            r"-> (?P<code>\d+)(?: \((?P<errno>[^)]+)\))?",
        )
        for anchor in (".cc:", ".h:", ".cpp:", ".cu:")
    ),
    # [Service thread] Connection closed by localRank 2
    rule("nccl.peer_closed", "closed by localRank", r"Connection closed by localRank (?P<local_rank>\d+)"),
    *topology.RULES,
    *(
        rule("nccl.info", anchor, rf"NCCL (?:INFO|WARN) (?P<message>.*(?:{pattern}).*)", family=family)
        for family, anchor, pattern in INFO_FAMILIES
    ),
)
"""Rules of lines that hold ``NCCL INFO``."""


def _warn(match: re.Match[str], data: Data, line: Line) -> Data:
    found: Data = {
        "file": match["file"] or "",
        "line": whole(match["line"]),
        "func": match["func"] or "",
        "dev": whole(match["dev"]),
        "message": match["message"].strip(),
    }
    return found | classify(match["message"], match["file"] or "")


def _bare(match: re.Match[str], data: Data, line: Line) -> Data | None:
    message = str(data["message"]).strip()
    return {"file": "", "line": None, "func": "", "dev": None, "message": message} | classify(message)


OTHER: tuple[Rule, ...] = (
    # vLLM is using nccl==2.20.5
    rule("nccl.version", "is using nccl==", r"is using nccl==(?P<version>\d+\.\d+\.\d+)"),
    # node-1:7186:7190 [3] transport/shm.cc:590 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ab
    # (size 9637888)
    rule("nccl.warn", "NCCL WARN", ENVELOPE.pattern, make=_warn),
    VERSION,
    # ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)
    rule("nccl.warn", "is neither AF_INET", r"^(?!.*NCCL WARN)(?P<message>.*is neither AF_INET.*)", make=_bare),
    # WARN NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument
    rule("nccl.warn", " WARN NET/", r"^(?!.*NCCL WARN).*\bWARN (?P<message>NET/.*)", make=_bare),
    rule("nccl.warn", "WARN NET/", r"^WARN (?P<message>NET/.*)", make=_bare),
    # ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)   (UCX)
    rule("nccl.warn", "retry count exceeded", r"^(?!.*NCCL WARN)(?P<message>.*retry count exceeded on .*)", make=_bare),
)
"""Rules of all other lines."""


def place(line: Line) -> None:
    """Take host and pid from NCCL's own envelope, where the line has one."""
    match = HEAD.search(line.text)
    if match and match[1][-2:].isdigit():  # rare enough to look twice
        match = HEAD.search(CLOCK.sub(" ", line.text))
    if match:
        line.host, line.pid = match[1], int(match[2])
