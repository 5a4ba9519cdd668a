"""A watchdog timed out in the first collectives

What it means
    The group was set up, but one of its first nine collectives did not end: usually the first
    barrier, the check of the parameters or the first all-reduce.  Either a rank never came to
    it (it still loads, or is on another path), or all came and the GPUs or the network cannot
    carry the data.

Whom not to believe
    The rank that prints the watchdog's line is a victim; the rank that prints nothing matters.
    "To avoid data inconsistency, we are taking the entire process down", exit code -6 and
    torchrun's "root cause" are follow-ups.  The name of the operation says only which call came
    first.

What to get
    Which ranks printed the line: if one is missing, its last lines and its stack (py-spy dump).
    If all printed it for the same collective, run all_reduce_perf on the same GPUs, with and
    without NCCL_P2P_DISABLE=1.  Then the log of NCCL_DEBUG=INFO: interface, transport, and
    whether each rank reached "Init COMPLETE".
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "timeout_first"

WORDS: tuple[str, ...] = (
    r"\bSeqNum=[1-9](?!\d)",
    r"watchdog at work(?: sequence id)?: [1-9](?!\d)",
    r"Timeout at NCCL work: [1-9](?!\d)",
    r"Ranks? \d[\d, ]{0,80} failed to pass monitoredBarrier",
)

SUSPECTS: Mapping[str, str] = {
    "slow_rank": (
        "one rank still prepares data or loads the model while the others stand "
        "in the first barrier"
    ),
    "rank_divergence": "a rank takes another path at the start and makes another first call",
    "p2p_broken": "all ranks entered, but copies between the GPUs never arrive",
    "duplicate_gpu": (
        "the device was not set before the first barrier, so two ranks wait on one GPU"
    ),
    "timeout_too_short": "compilation or loading of a big model is longer than the timeout",
    "wrong_interface": (
        "communicators are made, but the first data goes to an address that nobody reaches"
    ),
    "ib_config": "the first transfer over RoCE uses a GID or card that the other side cannot reach",
    "network_loss": "a firewall or differing MTUs drop the first large packets",
}
