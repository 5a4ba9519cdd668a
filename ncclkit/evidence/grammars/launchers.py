"""The grammar of the other launchers: mpirun, DeepSpeed, Lightning."""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule
from ncclkit.evidence.grammars.torchrun import signal_of


def _signalled(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"local_rank": None, "exitcode": None, "pid": data["_pid"], "_host": data["_host"].partition(".")[0]}


def _coded(match: re.Match[str], data: Data, line: Line) -> Data:
    return {"local_rank": None, "pid": None} | data | {"signal": signal_of(data["exitcode"]), "_pid": data.get("pid")}


RULES: tuple[Rule, ...] = (
    # mpirun noticed that process rank 3 with PID 4711 on node n2 exited on signal 9 (Killed).       (prterun noticed …)
    rule(
        "elastic.exit",
        "noticed that process rank",
        r"noticed that process rank (?P<_rank>\d+) with PID (?P<_pid>\d+) on node (?P<_host>\S+) "
        r"exited on signal (?P<signal>\d+)",
        ints="_rank _pid signal",
        make=_signalled,
    ),
    # [2026-11-21 01:02:03,456] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', '-u', 'train.py',
    # '--local_rank=3'] exits with return code = -9
    rule(
        "elastic.exit",
        "exits with return code",
        r"(?:--local_rank=(?P<local_rank>\d+)\b.{0,1500})?exits with return code = (?P<exitcode>-?\d+)",
        ints="local_rank exitcode",
        make=_coded,
    ),
    # [2026-11-21 01:02:03,456] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 4711
    rule("elastic.stop", "Killing subprocess", r"Killing subprocess (?P<pid>\d+)", ints="pid", signal=15),
    # [rank: 1] Child process with PID 4711 terminated with code 1. Forcefully terminating all other processes …
    rule(
        "elastic.exit",
        "Child process with PID",
        r"Child process with PID (?P<pid>\d+) terminated with code (?P<exitcode>-?\d+)",
        ints="pid exitcode",
        make=lambda match, data, line: _coded(match, data, line) | {"_pid": data["pid"]},
    ),
)
