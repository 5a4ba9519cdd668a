"""Nodes of a gang on this host, forked from one process that has torch: COUNT PORT SECONDS FAULT, which node 3 has."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed

from ncclkit.agent import gang

BAD = 3


def broken(fault: str) -> None:
    """Make this process the bad node."""
    own = gang._measured_group

    def wrong(torch: Any, asked: Any, order: Any) -> dict[str, Any]:
        asked.number, order["nodes"] = asked.number, list(order["nodes"])
        gang.REPEATS = 1
        full = torch.full
        torch.full = lambda *size, **how: full(*size, **how) + 1
        return own(torch, asked, order)

    def hang(*_: Any) -> None:
        time.sleep(600)

    if fault == "absent":
        os._exit(0)
    if fault == "hung":
        gang._measured_group = hang  # type: ignore[assignment]
    if fault == "stopped":
        gang._run_apart = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)  # type: ignore[assignment, return-value]
    if fault == "died":
        gang._run_apart = lambda *_: os._exit(9)
    if fault == "wrong":
        gang._measured_group = wrong
    if fault == "no torch":
        sys.modules["torch.distributed"] = None  # type: ignore[assignment]


def node(number: int, count: str, port: str, seconds: str, fault: str) -> int:
    os.environ["SLURMD_NODENAME"] = f"n{number}"
    if number == BAD:
        broken(fault)
    words = ["--nodes", count, "--number", str(number), "--master", "127.0.0.1", "--port", port]
    return gang.main([*words, "--backend", "gloo", "--seconds", seconds])


def main() -> None:
    """Fork the nodes; the first one's verdict is printed, then the exit statuses of the others that ended."""
    count, port, seconds, fault = sys.argv[1:5]
    pids = []
    for number in range(int(count)):
        pid = os.fork()
        if pid == 0:
            os._exit(node(number, count, port, seconds, fault))
        pids.append(pid)
    statuses = []
    for number, pid in enumerate(pids):
        if number == BAD and fault == "stopped":
            os.kill(pid, signal.SIGKILL)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(statuses)


if __name__ == "__main__":
    assert torch.__version__
    main()
