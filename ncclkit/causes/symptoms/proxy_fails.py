"""NCCL's proxy or its service thread fails

What it means
    Each rank has a proxy thread that sets up connections and moves the data over the network
    for the GPUs of its host.  It failed to accept, read or carry out a request of a local rank.
    The request's sender may have ended, may have run into a limit, or the two disagree about
    who is on this host.

Whom not to believe
    "Could not receive type from localRank" and "Socket recv failed" say only that the other end
    is gone or never sent.  "[Service thread] Connection closed by localRank" as INFO at the end
    of a run is normal.  A known bug in a newer release is a guess until the versions and the
    text fit.

What to get
    Which rank spoke first, and whether its peer had ended before (exit status, error, memory of
    the GPU).  `ulimit -n` and the number of open descriptors (`ls /proc/PID/fd | wc -l`) at
    that time; `df -h /dev/shm`.  The device of each rank, and whether every send has its
    receive.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "proxy_fails"

WORDS: tuple[str, ...] = (
    r"\[(?:Proxy )?Service(?: thread| \d{1,6})?\] (?:Accept failed|Could not|Failed|Error"
    r"|Unknown)",
    r"\bCould not receive type from localRank\b",
    r"\bproxy\.cc:\d{1,5} NCCL (?:WARN|ATTN)\b",
    r"\bSocket recv failed while polling\b",
    r"\bProxy Call to rank \d{1,6} failed\b",
    r"\bncclProxy\w{1,30} call .{0,60}failed\b",
)

SUSPECTS: Mapping[str, str] = {
    "gpu_oom": "the peer failed to allocate its buffers, so its request broke off",
    "fd_limit": "no descriptor is left to accept a further connection",
    "shm_too_small": "the proxy cannot make its shared memory segment",
    "fork_or_init_order": (
        "a communicator was used after fork, or aborted while its proxy was at work"
    ),
    "duplicate_gpu": "ranks use a wrong device, so the local ranks do not fit the communicator",
    "send_recv_mismatch": "unpaired sends and receives leave connections half made",
    "ib_config": "the proxy's connect over InfiniBand or RoCE fails",
    "rank_exception": "the local rank that asked has ended with its own error",
}
