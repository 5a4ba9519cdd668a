"""The grammar of the other launchers: mpirun, DeepSpeed, Lightning."""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule
from ncclkit.evidence.grammars.torchrun import signal_of


def _signalled(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"pid": data["_pid"], "_host": data["_host"].partition(".")[0]}


def _coded(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"signal": signal_of(data["exitcode"]), "_pid": data["pid"]}


def _signal_only(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """Of a container: whose rank it was nobody says, and an ordinary exit code tells less than what was printed."""
    return _coded(match, data, line) if signal_of(data["exitcode"]) else None


RULES: tuple[Rule, ...] = (
    # mpirun noticed that process rank 3 with PID 4711 on node n2 exited on signal 9 (Killed).       (prterun noticed …)
    rule(
        "elastic.exit",
        "noticed that process rank",
        r"noticed that process rank (?P<_rank>\d+) with PID (?P<_pid>\d+) on node (?P<_host>\S+) "
        r"exited on signal (?P<signal>\d+)",
        make=_signalled,
    ),
    # [2026-11-21 01:02:03,456] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', '-u', 'train.py',
    # '--local_rank=3'] exits with return code = -9
    rule(
        "elastic.exit",
        "exits with return code",
        r"(?:--local_rank=(?P<local_rank>\d+)\b.{0,1500})?exits with return code = (?P<exitcode>-?\d+)",
        make=_coded,
    ),
    #       Exit Code:    137 (kubectl describe)       Exited with exit code 137.       exited with code 139 (compose)
    *(
        rule(
            "elastic.exit",
            anchor,
            r"(?:Exit Code:\s{1,9}|[Ee]xited with (?:exit )?code:? )(?P<exitcode>\d{1,3})\b",
            make=_signal_only,
        )
        for anchor in ("Exit Code: ", "xited with ")
    ),
    # An attempt has been made to start a new process before the
    # current process has finished its bootstrapping phase.
    rule(
        "system.error",
        "its bootstrapping phase",
        r"(?P<message>.*current process has finished its bootstrapping phase.*)",
        what="start_method",
    ),
    # [n1:01873] [ 1] /usr/lib/x86_64-linux-gnu/libnccl.so.2(+0x5a1c3)[0x7f6c5d3a81c3]
    #  1  /usr/lib/x86_64-linux-gnu/libnccl.so.2(ncclGroupEnd+0x1a2) [0x7f23]      (UCX, behind "==== backtrace (tid")
    rule(
        "system.error",
        "libnccl.so",
        r"(?P<message>(?:\] \[ ?[0-5]\]|^ {0,4}[0-5]) {1,4}\S*libnccl\.so\S*\(.*)",
        what="nccl_frame",
    ),
    # MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD
    # with errorcode 1.
    rule("elastic.exit", "MPI_ABORT was invoked", r"MPI_ABORT was invoked on rank (?P<_rank>\d+)", exitcode=1),
    # [2026-11-21 01:02:03,456] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 4711
    rule("elastic.stop", "Killing subprocess", r"Killing subprocess (?P<pid>\d+)", signal=15),
    # [rank: 1] Child process with PID 4711 terminated with code 1. Forcefully terminating all other processes …
    rule(
        "elastic.exit",
        "Child process with PID",
        r"Child process with PID (?P<pid>\d+) terminated with code (?P<exitcode>-?\d+)",
        make=_coded,
    ),
)
