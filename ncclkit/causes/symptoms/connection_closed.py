"""The other side closed the connection

What it means
    Another process of the job ended or dropped its socket, and this rank noticed.  The
    operating system closes all connections of a process that dies, so this is nearly always the
    second thing that happened.  Only if all processes lived on does it speak about the network.

Whom not to believe
    The rank that prints it: it lived long enough to complain.  "A call failed possibly due to a
    network error" is NCCL's standing sentence, not a finding.  "Connection closed by localRank"
    at the very end of a run is normal, and so are the lines about the store after torchrun
    began to stop the ranks.

What to get
    The first rank that ended, over all hosts and by time: its exit status and last lines decide
    most cases.  If no process ended before: dmesg and the counters of the link (ip -s link,
    ibstat), firewall and idle limits between the two addresses of the line; then a scanner or a
    sidecar that speaks to the port.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "connection_closed"

WORDS: tuple[str, ...] = (
    r"\bConnection closed by (?!localRank|invalid user|authenticating)",
    r"\bConnection (?:was likely )?closed\b(?! by)",
    r"\bConnection reset by (?:remote )?peer\b",
    r"\bBroken pipe\b",
    r"\bncclRemoteError\b",
    r"remote process exited or there was a network error",
    r"\bEOF\b.{0,40}\bfrom (?:rank|peer)\b",
    r"\bremote error detected from rank\b",
)

SUSPECTS: Mapping[str, str] = {
    "rank_exception": "a rank ended with an error of its own, and its peers see its sockets close",
    "host_oom": "the kernel killed the peer for want of memory; it could not log its end",
    "rank_killed": "the scheduler or an operator ended the peer",
    "gpu_oom": "the peer failed to allocate on its GPU and closed its communicator",
    "network_loss": "a firewall, a proxy or a flapping link drops connections that stood",
    "wrong_interface": (
        "the connection goes to an interface whose other side does not belong to the job"
    ),
    "ib_link_error": "a link or port error made the peer give up",
    "nccl_bug": "a foreign connection or a known defect breaks NCCL's own sockets",
}
