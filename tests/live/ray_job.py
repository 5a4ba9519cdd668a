"""Actors of Ray that make calls together over gloo: ``python ray_job.py NAME`` is their driver.

They carry no RANK.  NAME is ``hangs`` (one is in its own code), ``works`` or ``idle`` (none has a task).
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

ACTORS = 3
LATE = 1
"""Who does not come."""
READY = 180.0
LONG = 600.0
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "150"}
"""Variables of a cluster on a host that is full."""
DIE_WITH_PARENT = 1


@contextmanager
def start(name: str) -> Iterator[dict[int, int]]:
    """Begin a cluster of this host alone, and wait until its actors are where they stay: {rank: process}."""
    ours = ("TORCH", "NCCL", "SLURM", "GLOO", "RANK", "WORLD", "LOCAL", "MASTER", "RAY")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    with tempfile.TemporaryDirectory() as place, open(os.path.join(place, "output"), "w") as out:
        more = {"ACTORS": place, "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", **RAY}
        words = [sys.executable, __file__, name]
        driver = subprocess.Popen(
            words, env=clean | more, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            paths = [Path(place, f"here.{rank}") for rank in range(ACTORS)]
            until = time.monotonic() + READY
            while not all(path.exists() for path in paths):
                if time.monotonic() > until or driver.poll() is not None:
                    raise RuntimeError(f"{name} did not begin: {Path(place, 'output').read_text()[-3000:]}")
                time.sleep(0.1)
            time.sleep(2.0)
            yield {rank: int(path.read_text()) for rank, path in enumerate(paths)}
        finally:
            _end(driver)


def _end(driver: subprocess.Popen[bytes]) -> None:
    """Let the driver end its cluster; what is left of its session is killed."""
    driver.terminate()
    with suppress(subprocess.TimeoutExpired):
        driver.wait(30.0)
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def main(name: str) -> None:
    # an import by name, as nothing of the kit needs it
    ray = import_module("ray")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = os.environ["ACTORS"]
    ray.init(num_cpus=ACTORS, include_dashboard=False, logging_level="ERROR")

    class WorkerDict:
        def __init__(self, rank: int) -> None:
            import torch.distributed as dist

            self.rank = rank
            dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ACTORS)

        def say_here(self) -> None:
            Path(place, f"here.{self.rank}").write_text(str(os.getpid()))

        def step(self, count: int) -> None:
            import torch
            import torch.distributed as dist

            rank = self.rank
            for _ in range(count):
                dist.all_reduce(torch.ones(8))
            self.say_here()
            if name == "hangs" and rank == LATE:
                time.sleep(LONG)
            while name != "idle":
                dist.all_reduce(torch.ones(8))
                time.sleep(0.05)

    actor = ray.remote(num_cpus=1)(WorkerDict)
    actors = [actor.remote(rank) for rank in range(ACTORS)]
    ray.get([one.step.remote(3) for one in actors])
    time.sleep(LONG)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGTERM)
    main(sys.argv[1])
