"""Who only suffers: exceptions that report another rank's failure, not their own."""

from __future__ import annotations

import re

TYPES = re.compile(
    r"(?:DistBackendError|DistNetworkError|DistStoreError|ChildFailedError|SignalException|BrokenPipeError"
    r"|ConnectionResetError"
    r"|ConnectionAbortedError|EOFError|KeyboardInterrupt|ProcessRaisedException"
    r"|ProcessExitedException|ActorDiedError|RayActorError"
    r"|WorkerCrashedError|NodeDiedError|TrainingFailedError|RayTaskError|TuneError|HorovodInternalError|EngineDeadError"
    r"|BrokenProcessPool|CalledProcessError)$"
)
TEXT = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|[Ww]atchdog|Timed out waiting \d+ ?ms for"
    r"|monitoredBarrier|Socket Timeout|(?:Read|Write) error .{0,80}Connection timed out"
    r"|NCCL communicator was aborted|remote process exited|Failed to recv, got 0 bytes|Connection was likely closed"
    r"|wait timeout after"
    r"|RPC call to \w+ timed out|Horovod has been shut ?down|[Bb]ackground loop has errored|Engine loop has died"
    r"|Worker failed with error .{0,400}check the stack trace above|WorkerProc initialization failed"
    r"|scheduler is dead|Pin memory thread exited unexpectedly|returned non-zero exit status"
    r"|collective operation timeout|waiting for clients|in store based barrier|NCCL operation timed out"
    r"|DataLoader worker \(pid.*(?:exited unexpectedly|killed by signal)"
)
OWN = re.compile(
    r"unhandled cuda error|invalid usage|invalid argument|internal error|unhandled system error|Duplicate GPU"
    r"|EADDRINUSE|ddress already in use"
    r"|uda failure|out of memory|use_libuv was requested"
)


def is_victim(kind: str, message: str) -> bool:
    """True when an exception only reports that another rank, or the connection to it, failed."""
    if TEXT.search(message):
        return True
    return bool(TYPES.search(kind)) and not (kind.endswith("Error") and OWN.search(message))
