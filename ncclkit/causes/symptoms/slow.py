"""It works, but slowly

What it means
    Nothing fails, so each connection stands; data takes a slower way than the machine has, or
    the GPUs wait for something that is not communication.  Say first which: time inside
    collectives, or between them.  Only with a number and what the hardware allows is "slow" a
    finding.

Whom not to believe
    High GPU utilisation: a rank that waits in a collective shows 100 %.  Times of collectives
    measured in the program contain the wait for the slowest rank.  Small messages never reach
    the bandwidth of the link.

What to get
    all_reduce_perf on the same hosts against the hardware's bandwidth: if it is fast, look at
    loaders and CPU, not at NCCL.  If it is slow: NCCL_DEBUG=INFO, the lines "Using network" and
    "via P2P/SHM/NET".  Then step times per rank, nvidia-smi clocks and power, load of the
    cores.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "slow"

WORDS: tuple[str, ...] = (
    r"(?<!be )(?<!be a )\b(?:really|very|too|extremely|so|terribly|painfully|much|quite"
    r"|super) slow\b",
    r"\b(?:\d{1,4}|[n2-9] ?x|many|several|two|ten) ?(?:times|x) slower\b",
    r"\b(?:slow|poor|low|bad) (?:training|bandwidth|bus ?bandwidth|busbw|throughput"
    r"|performance|communication|inter-?node|all-?reduce|nccl)\b",
    r"\b(?:training|it|job|speed|all-?reduce|communication|step)s? (?:is|runs?|goes"
    r"|becomes?|became|gets?|got) (?:\w{1,12} )?slow(?:er|ly)?\b",
    r"\b(?:bandwidth|throughput|speed|performance|busbw) (?:is|was) (?:\w{1,12} )?(?:low"
    r"|poor|bad|lower|below|far|only)\b",
    r"\bslowdown\b",
    r"\bno speed-?up\b",
)

SUSPECTS: Mapping[str, str] = {
    "ib_not_used": "NCCL fell back to plain sockets although InfiniBand is there",
    "slow_transport": (
        "inside the host the data goes through memory or the network in place of NVLink or P2P"
    ),
    "cpu_contention": "loaders or other jobs take the cores, and the GPUs wait for data",
    "ib_config": "GPU Direct, the choice of card or the traffic class is wrong",
    "disk_or_io": "the data comes from storage that is too slow",
    "gpu_clock_limit": "one GPU runs at a lower clock, and all wait for it",
    "gpu_shared": "another process takes part of a GPU",
    "cpu_binding": "ranks are bound to one core, or to cores far from their GPU",
}
