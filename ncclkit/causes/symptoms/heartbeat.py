"""Only heartbeat, stuck watchdog or dump signal lines

What it means
    PyTorch's monitor thread ended the process because the watchdog itself made no progress: a
    call into CUDA, NCCL or Python's lock (GIL) did not come back.  Or this rank only heard from
    another that it timed out.  With Ray, missed heartbeats mean that a node's own process is
    dead or starved.

Whom not to believe
    "Observed flight recorder dump signal from another rank" and "Received a dump signal" name a
    rank that fell earlier: read its log first.  Raising TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC hides
    the line, not the blocked call.  The thread that is stuck is not the thread that blocks it.

What to get
    The earliest line of all ranks: a watchdog timeout there makes this a follow-up.  Then the
    native stack of the process (py-spy dump --native, or gdb -p PID -batch -ex 'thread apply
    all bt'): who holds the GIL, which CUDA call waits.  Last nvidia-smi and dmesg for Xid on
    that host.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "heartbeat"

WORDS: tuple[str, ...] = (
    r"watchdog got stuck for",
    r"Heartbeat monitor timed out",
    r"monitoring thread detects no heartbeat",
    r"Received a (?:global )?dump signal (?!due to a collective timeout from this local rank)",
    r"Received a global timeout from another rank",
    r"Observed flight[ -]recorder dump signal",
    r"detecting the dump signal through",
    r"\bmissed (?:too many )?heartbeats?\b",
)

SUSPECTS: Mapping[str, str] = {
    "gil_hold": "native code keeps the GIL, so the watchdog cannot go on",
    "fork_or_init_order": "a communicator is destroyed or aborted while other ranks still need it",
    "cuda_error": "a kernel that failed or never ends blocks each CUDA call of the watchdog",
    "gpu_hardware_error": "the GPU does not answer any more and calls of the driver hang",
    "nccl_bug": "a known defect blocks an abort or the watchdog itself",
    "slow_rank": "another rank timed out while one was busy; this one only heard of it",
    "host_oom": "the host swaps or its processes were killed, so heartbeats stop",
    "rank_killed": "the other node or its process was ended from outside",
}
