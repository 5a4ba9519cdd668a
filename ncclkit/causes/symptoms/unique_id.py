"""A rank waits for NCCL's unique id and does not get it

What it means
    Rank 0 of a group creates its NCCL communicator first and puts its id into the store; the
    others read it there.  A rank that waits for the id has started well: rank 0 of the group
    did not come to its first collective, or its process is gone.  Nothing has gone over NCCL's
    network yet.

Whom not to believe
    The rank that prints the line is healthy, and so is the store if the error is "Socket
    Timeout".  "Connection reset by peer" in its place says that the process of the store,
    usually rank 0, has ended.  A longer timeout first only delays the same line: learn what
    rank 0 did.

What to get
    First the last lines of rank 0 and its exit status: an error, signal 9, or an ordinary phase
    such as a data set.  Then memory and swap of rank 0's host
    (`free -h; swapon --show; dmesg -T | grep -i oom`) and nvidia-smi there: is GPU 0 full?  If
    rank 0 is alive: its stack (py-spy dump) at the time of the wait.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "unique_id"

WORDS: tuple[str, ...] = (
    r"retrieving ncclUniqueId",
    r"\bbroadcastUniqueNCCLID\b",
    r"\bncclUniqueId\b.{0,120}\b(?:time[d -]?out|timeout|got error|wait)",
    r"wait timeout after .{0,40}keys: .{0,80}(?:ncclUniqueId|/nccl)",
)

SUSPECTS: Mapping[str, str] = {
    "slow_rank": (
        "rank 0 prepares data, loads or imports, and reaches its first collective after the timeout"
    ),
    "host_oom": "rank 0 swaps or was killed while it loaded data, so it never wrote the id",
    "rank_exception": "rank 0 ended with an error before it created the communicator",
    "gpu_oom": "rank 0 fails or stalls because GPU 0 is full",
    "rank_divergence": (
        "only some ranks call the collective, so rank 0 of this group never enters it"
    ),
    "disk_or_io": "rank 0 reads its data or its modules from storage that stalls",
    "timeout_too_short": "rank 0's work is legitimate, but longer than the timeout of the store",
    "store_unreachable": "the connection to the store breaks on the way, so the id cannot be read",
}
