"""The grammar of what ProcessGroupNCCL says about itself: heartbeat monitor, dumps, advice.  torch 2.1 to 2.15."""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule


def _monitor(match: re.Match[str], data: Data, line: Line) -> Data:
    rank = re.search(r"from rank:? (\d{1,9})\b", match["message"])
    return data | {"from_rank": int(rank[1]) if rank else None}


def said(what: str, anchor: str, pattern: str, kind: str = "c10d.monitor") -> Rule:
    """A sentence of the monitor; `pattern` is what the message begins with."""
    make = _monitor if kind == "c10d.monitor" else None
    return rule(kind, anchor, rf"(?P<message>{pattern}.*)", make=make, what=what)


RULES: tuple[Rule, ...] = (
    # ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.
    rule(
        "c10d.monitor",
        "watchdog got stuck",
        r"(?P<message>watchdog got stuck for (?P<seconds>\d+) seconds.*)",
        make=_monitor,
        what="stuck",
    ),
    # Heartbeat monitor timed out! Process will be terminated after dumping debug info. (2.3, 2.4)
    said("stuck", "Heartbeat monitor timed out", "Heartbeat monitor timed out"),
    # NCCL monitoring thread detects no heartbeat from watchdog (2.2)
    said("stuck", "detects no heartbeat", ".{0,200}detects no heartbeat"),
    # Could not acquire GIL within 300 ms on exit, possible GIL induced hang
    said("gil", "Could not acquire GIL", "Could not acquire GIL"),
    # Received a dump signal due to a collective timeout from rank 3 and we will try our best to dump the debug info.
    # Received a global dump signal from rank 3 (2.4)         Observed flight recorder dump signal from another rank
    # Broadcasting flight-recorder dump signal (2.5)          First PG on this rank detecting the dump signal (2.4)
    said("dump", "dump signal", "(?:Received a|Observed|Broadcasting|First PG).{0,200}dump signal"),
    # Received a global timeout from another rank and will start to dump the debug info. (2.3)
    said("dump", "Received a global timeout", "Received a global timeout"),
    # First PG on this rank to signal dumping. (2.3)
    said("dump", "to signal dumping", "First PG on this rank to signal dumping"),
    # Broadcasting signal exception_dump to other ranks via TCPStore. (2.7)
    said("dump", "signal exception_dump", "Broadcasting signal exception_dump"),
    # remote error detected from rank: 3 (2.7)
    said("remote_error", "remote error detected", "remote error detected from rank"),
    # Terminating the process after attempting to dump debug info, due to …
    said("terminate", "Terminating the process after", "Terminating the process after"),
    # To avoid data inconsistency, we are taking the entire process down.
    said("terminate", "taking the entire process down", "To avoid (?:data inconsistency|this inconsistency)"),
    # NCCL watchdog thread terminated with exception: … (2.1)   Process group watchdog thread terminated with exception
    said("terminate", "watchdog thread terminated with", ".{0,200}watchdog thread terminated with exception"),
    # Future for ProcessGroup abort timed out after 600000 ms
    said("abort", "ProcessGroup abort timed out", "Future for ProcessGroup abort timed out"),
    # [TC][rank=3][name=default_pg] Aborting process on rank 3 due to timeout - timeout watchdog detected operation
    # timeout (2.15)
    said("terminate", "Aborting process on rank", "Aborting process on rank"),
    # Stack trace of the failed collective not found, potentially because FlightRecorder is disabled.
    rule("c10d.recorder", "FlightRecorder is disabled", r"FlightRecorder is disabled", what="off", file=""),
    # ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1
    rule("c10d.recorder", "preparing to dump debug info", r"preparing to dump debug info", what="begun", file=""),
    # ProcessGroupNCCL dumping nccl trace to /tmp/nccl_trace_rank_3 (2.4)
    rule("c10d.recorder", "dumping nccl trace to", r"dumping nccl trace to (?P<file>\S+)", what="begun"),
    # Flight Recorder trace successfully dumped. (2.8)
    rule("c10d.recorder", "trace successfully dumped", r"trace successfully dumped", what="written", file=""),
    # Finished writing NCCLPG debug info to /tmp/nccl_trace_rank_3
    rule("c10d.recorder", "Finished writing ", r"Finished writing \w* ?debug info to (?P<file>\S+)", what="written"),
    # Error opening file for writing NCCLPG debug info: /tmp/nccl_trace_rank_3
    rule("c10d.recorder", "Error opening file for writing", r"debug info: (?P<file>\S+)", what="failed"),
    # An unbatched P2P op (send/recv) was called on this ProcessGroup with size 4. (2.9)
    said("unbatched_p2p", "unbatched P2P op", "An unbatched P2P op", "c10d.hint"),
    # process group has NOT been destroyed before we destruct ProcessGroupNCCL (2.4, 2.5)
    said("not_destroyed", "has NOT been destroyed", "process group has NOT been destroyed", "c10d.hint"),
    # destroy_process_group() was not called before program exit, which can leak resources (2.6)
    said("not_destroyed", "destroy_process_group() was not", "destroy_process_group.. was not called", "c10d.hint"),
    # … failed (store unavailable, not absent key). Cannot detect remote dump signals (2.14)
    said("store_gone", "store unavailable, not absent", "store unavailable, not absent", "c10d.hint"),
    # Starting store with 4096 workers but somaxconn is 128.
    said("somaxconn", "but somaxconn is", r"Starting store with \d+ workers but somaxconn", "c10d.hint"),
    # [c10d] The hostname of the client socket cannot be retrieved. err=-3
    said("reverse_dns", "The hostname of the client socket", "The hostname of the client socket cannot", "c10d.hint"),
    # Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0
    said("reached_barrier", "successfully reached monitored", r"Rank \d+ successfully reached", "c10d.hint"),
)
"""The rules of `c10d` take these in."""
