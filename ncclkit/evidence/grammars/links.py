"""What NCCL's IB transport says of one link while a job runs: slow and unanswered sends, speeds.

It reads NCCL 2.30.7 to 2.32, whose lines are INFO of the subsystem NET.
"""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule

NANOSECONDS = ("age", "took", "threshold", "usual", "worst")
"""Fields that NCCL gives in nanoseconds, and that are kept in seconds."""
ADDRESS = r"(?P<peer>[^\s|<>]{1,80})<\d{1,5}>"
DEVICE = r"dev=(?P<device>[\w.-]{1,60}) port=(?P<port>\d{1,4})"


def _in_seconds(match: re.Match[str], data: Data, line: Line) -> Data:
    for name in NANOSECONDS:
        if data.get(name) is not None:
            data[name] = round(data[name] / 1e9, 6)
    gid = data.pop("gid", None)
    return data | {"is_roce": bool(gid and gid.strip(":0"))}


def _as_texts(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"before": match["before"], "after": match["after"]}


RULES: tuple[Rule, ...] = (
    # NET/IB: WQE stall (no CQE): peer=10.0.0.2<43211> | local: qpn=812 dev=mlx5_3 port=1 lid=0 \
    #   localGid=fe80::1 | remote: qpn=900 port=1 lid=0 remoteGid=fe80::2 | \
    #   stall_thr=1000000000ns age=12345678901ns inflight=3
    rule(
        "nccl.link",
        "WQE stall",
        rf"WQE stall \(no CQE\): peer={ADDRESS} \| local: qpn=(?P<queue>\d{{1,9}}) {DEVICE}"
        r"(?: lid=\d{1,9})?(?: localGid=(?P<gid>[\da-fA-F:.]*))? .{0,400}?"
        r"stall_thr=(?P<threshold>\d+)ns age=(?P<age>\d+)ns",
        make=_in_seconds,
        what="stall",
    ),
    # NET/IB: WQE slow: peer=10.0.0.2<43211> | local: qpn=812 dev=mlx5_3 port=1 lid=0 \
    #   localGid=fe80::1 | remote: qpn=900 port=1 lid=0 remoteGid=fe80::2 | thr=1000000ns \
    #   delta=5000000ns mean=9000ns stddev=2ns p50=8000ns p90=9ns p99=9ns p99.9=9ns max=5000000ns \
    #   count=77 | t_post=1ns t_poll=2ns
    rule(
        "nccl.link",
        "WQE slow",
        rf"WQE slow: peer={ADDRESS} \| local: qpn=(?P<queue>\d{{1,9}}) {DEVICE}"
        r"(?: lid=\d{1,9})?(?: localGid=(?P<gid>[\da-fA-F:.]*))? .{0,400}?"
        r"thr=(?P<threshold>\d+)ns delta=(?P<took>\d+)ns(?: mean=(?P<usual>\d+)ns)?",
        make=_in_seconds,
        what="slow",
    ),
    # NET/IB: WQE latency summary [send peer=10.0.0.2<43211> dev=mlx5_3 qpn=812 port=1]: n=900 \
    #   slow=3 thr=1000000ns | post-to-poll ns: mean=9000 std=2 p50=8000 p90=9 p99=9 p99.9=9 \
    #   max=5000000
    rule(
        "nccl.link",
        "WQE latency summary",
        rf"WQE latency summary \[(?:send|recv) peer={ADDRESS} dev=(?P<device>[\w.-]{{1,60}})"
        r" qpn=(?P<queue>\d{1,9}) port=(?P<port>\d{1,4})\]: n=(?P<count>\d+) slow=(?P<slow>\d+)"
        r" thr=(?P<threshold>\d+)ns .{0,80}?p50=(?P<usual>\d+) .{0,120}?max=(?P<worst>\d+)",
        make=_in_seconds,
        what="summary",
    ),
    # NET/IB : mlx5_3:1 GID refreshed: idx 3 -> 5, gid ::ffff:10.0.0.2 -> ::ffff:10.0.0.9
    rule(
        "nccl.link",
        " GID refreshed",
        r"NET/IB : (?P<device>[\w.-]{1,60}):(?P<port>\d{1,4}) GID refreshed: idx -?\d+ -> -?\d+,"
        r" gid (?P<before>\S{1,80}) -> (?P<after>\S{1,80})",
        make=_as_texts,
        what="gid",
    ),
    # NET/IB : mlx5_3:1 speed change detected: 400000 -> 100000 Mbps
    rule(
        "nccl.link",
        "speed change detected",
        r"NET/IB : (?P<device>[\w.-]{1,60}):(?P<port>\d{1,4}) speed change detected:"
        r" (?P<before>\d{1,9}) -> (?P<after>\w{1,20}) ?Mbps",
        make=_as_texts,
        what="speed",
    ),
)
"""Rules of NCCL's INFO lines on links, which its grammar takes in."""
