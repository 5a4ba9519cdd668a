"""One rank of a job of `hangs` that dies of it: ``python dying.py NAME`` under torchrun.

Its calls time out after ``HANGS_TIMEOUT`` seconds.  Over gloo each rank writes its Flight Recorder to ``HANGS/dumps``
before that, as NCCL's watchdog does unasked at a timeout: gloo has no watchdog.  So a rank that has ended leaves none,
nor does one in which no thread runs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.live import hangs  # noqa: E402

TIMEOUT = float(os.environ.get("HANGS_TIMEOUT", "20"))
"""Seconds for which a call waits."""


def main(name: str) -> None:
    """Run the rank, with what makes it die."""
    if name != "gone":
        shorten_timeouts(hangs.WAYS[name].framework)
    watch_hang(name)
    hangs.main({"subprocess": "subprocess_"}.get(name, name))


def shorten_timeouts(framework: str) -> None:
    """Let every process group have the short timeout, as its script would ask for."""
    import torch.distributed as dist
    from torch.distributed import constants, distributed_c10d

    short = timedelta(seconds=TIMEOUT)
    for module in (constants, distributed_c10d):
        module.default_pg_timeout = module.default_pg_nccl_timeout = short
    if framework != "transformers":
        return
    original = dist.init_process_group

    def init_process_group(*arguments: object, **more: object) -> None:
        original(*arguments, **{**more, "timeout": short})

    dist.init_process_group = init_process_group


def watch_hang(name: str) -> None:
    """From the moment on at which the rank says that its next call is the last: stop it, and write its dump."""
    original = hangs.here
    begun = []

    def here(rank: int) -> None:
        original(rank)
        if begun:
            return
        begun.append(rank)
        if name == "stopped" and rank == 1:
            later(0.5, os.kill, os.getpid(), signal.SIGSTOP)
        if name != "gone" and hangs.BACKEND == "gloo":
            later(TIMEOUT / 4, write_dump, rank)

    hangs.here = here


def later(seconds: float, action: object, *arguments: object) -> None:
    timer = threading.Timer(seconds, action, arguments)
    timer.daemon = True
    timer.start()


def write_dump(rank: int) -> None:
    """What the Flight Recorder of this rank holds, where torch's watchdog would put it."""
    from torch._C import _distributed_c10d as c10d

    folder = Path(hangs.file_named("dumps"))
    folder.mkdir(exist_ok=True)
    partial = folder / f".{rank}"
    partial.write_bytes(c10d._dump_fr_trace())
    partial.rename(folder / f"nccl_trace_rank_{rank}")


if __name__ == "__main__":
    main(sys.argv[1])
