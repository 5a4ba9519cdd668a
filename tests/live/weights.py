"""A trainer that hands its weights to the workers of an engine, in one group, as verl and OpenRLHF do.

``python weights.py NAME`` is the driver: it starts the trainer and the engine, and that its workers, over gloo; none of
them carries a RANK.  The trainer is rank 0 of the group, the workers follow.  `start` begins one.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HUNG = {
    "trainer_absent": ((0,), "broadcast"),
    "workers_absent": ((1, 2), "broadcast"),
    "one_worker_absent": ((2,), "broadcast"),
}
"""Name → who has not entered the call, and the call."""
HEALTHY = ("sync_loop", "waits_for_rollouts")
WORLD = 3
READY = 150.0
LONG = 600.0
DIE_WITH_PARENT = 1


def here(rank: int) -> None:
    Path(os.environ["WEIGHTS"], f"here.{rank}").write_text(str(os.getpid()))


@contextmanager
def start(name: str) -> Iterator[tuple[int, dict[int, int]]]:
    """Begin a job, and wait until its processes are where it hangs or goes on: (driver, {rank: process})."""
    ours = ("TORCH", "NCCL", "SLURM", "GLOO", "RANK", "WORLD", "LOCAL", "MASTER")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    with tempfile.TemporaryDirectory() as place, open(os.path.join(place, "output"), "w") as out:
        more = {"WEIGHTS": place, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
        words = [sys.executable, __file__, name]
        driver = subprocess.Popen(
            words, env=clean | more, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            paths = [Path(place, f"here.{rank}") for rank in range(WORLD)]
            until = time.monotonic() + READY
            while not all(path.exists() for path in paths):
                if time.monotonic() > until or driver.poll() is not None:
                    raise RuntimeError(f"{name} did not begin: {Path(place, 'output').read_text()[-3000:]}")
                time.sleep(0.1)
            time.sleep(1.0)
            yield driver.pid, {rank: int(path.read_text()) for rank, path in enumerate(paths)}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def main(name: str) -> None:
    """The driver: tells both sides when weights are handed on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    for_trainer: Any = context.Queue()
    for_engine: Any = context.Queue()
    done: Any = context.Queue()
    for target, told in ((trainer_main, for_trainer), (engine_main, for_engine)):
        context.Process(target=target, args=(name, port, told, done)).start()
    for step in itertools.count():
        last = step == 3 and name in HUNG
        if not (last and name == "trainer_absent"):
            for_trainer.put("update")
        if not (last and name == "workers_absent"):
            for_engine.put("update")
        for _ in range(WORLD):
            done.get()
        if name == "waits_for_rollouts" and step == 3:
            time.sleep(LONG)


def trainer_main(name: str, port: int, orders: Any, done: Any) -> None:
    import torch.distributed as dist

    weights = join(0, port)
    for step in itertools.count():
        train(0.3)
        if step == 3 and name == "trainer_absent":
            here(0)
            time.sleep(LONG)
        orders.get()
        if step == 3:
            here(0)
        dist.broadcast(weights, src=0)
        done.put(0)


def train(seconds: float) -> None:
    import torch

    until, square = time.monotonic() + seconds, torch.ones(100, 100)
    while time.monotonic() < until:
        square = square @ square / 100


def engine_main(name: str, port: int, orders: Any, done: Any) -> None:
    context = multiprocessing.get_context("spawn")
    inputs: list[Any] = [context.Queue() for _ in range(1, WORLD)]
    for number, one in enumerate(inputs):
        context.Process(target=worker_main, args=(name, number + 1, port, one, done)).start()
    while True:
        order = orders.get()
        for one in inputs:
            one.put(order)


def worker_main(name: str, rank: int, port: int, orders: Any, done: Any) -> None:
    import torch.distributed as dist

    weights = join(rank, port)
    for step in itertools.count():
        if step == 3:
            here(rank)
        orders.get()
        if step == 3 and name == "one_worker_absent" and rank == WORLD - 1:
            time.sleep(LONG)
        dist.broadcast(weights, src=0)
        done.put(rank)


def join(rank: int, port: int) -> Any:
    """Join the group; returns the weights."""
    import torch
    import torch.distributed as dist

    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    return torch.ones(64)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    main(sys.argv[1])
