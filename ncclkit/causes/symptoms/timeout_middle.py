"""A watchdog timed out later in training

What it means
    Many collectives ended well and then one did not, so devices, network and set-up have
    worked.  A line without a sequence number (old PyTorch, gloo, torchcomms) counts here too.
    Look for what changed at that time: another batch, another branch, a rank that was busy or
    gone, a connection that broke.

Whom not to believe
    The rank that prints is a victim; the silent rank, or the one at a smaller sequence number,
    matters.  "To avoid data inconsistency, we are taking the entire process down" and exit code
    -6 are follow-ups.  "Some NCCL operations have failed or timed out" says nothing about the
    data.

What to get
    The line of every rank: SeqNum, OpType and NumelIn; a rank that differs or is missing is the
    one to look at.  Flight Recorder dumps (TORCH_FR_BUFFER_SIZE=2000) or py-spy of that rank;
    then its host: dmesg for Xid and OOM, memory and load at that minute.  If all agree, the
    network or a GPU: nvidia-smi, port counters.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "timeout_middle"

WORDS: tuple[str, ...] = (
    r"\bSeqNum=\d\d",
    r"watchdog at work(?: sequence id)?: \d\d",
    r"Timeout at NCCL work: \d\d",
    r"\bWorkNCCL\(OpType=",
    r"collective operation timeout: NCCL operation timed out",
    r"\bAborting process (?:on rank \d{1,6} )?due to timeout\b",
    r"Timed out waiting \d{1,12} ?ms for (?:recv|send) operation",
)

SUSPECTS: Mapping[str, str] = {
    "rank_divergence": (
        "uneven data or a branch that depends on the rank lets one rank make other or fewer calls"
    ),
    "slow_rank": "one rank evaluates, saves or reads data beyond the timeout",
    "host_oom": "a rank swaps or a loader was killed, so its next batch never comes",
    "concurrent_comms": "calls of two communicators meet in different order on different ranks",
    "nccl_bug": "all ranks launched the same call and a known defect keeps it from ending",
    "network_loss": "a connection or link broke during the run and the data never arrives",
    "timeout_too_short": (
        "the step is healthy, but a limit of seconds or minutes is below its longest phase"
    ),
    "cpu_contention": "loaders take the cores, and one rank's batch comes too late",
}
