"""A cluster of Ray on this host alone, whose actors are the workers of `engines` and `servers`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.live.shm_broadcast import FileCounter, SharedQueue
from tests.packaging.project import ROOT

VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "150"}
"""Variables of a cluster on a host that is full."""
BEGINS = 4
"""Times that a cluster is begun: Ray gives each of them 30 s, which are too few on such a host."""
READY = 400.0
"""Seconds in which a cluster and its actors have begun on such a host."""
ENDS = 30.0
"""Seconds in which a driver ends its cluster."""


def variables() -> dict[str, str]:
    """What the environment of a driver needs, beside Ray, for its actors to find these modules."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**VARIABLES, "PYTHONPATH": path}


def begin_cluster(actors: int) -> ModuleType:
    """Ray, with a cluster in which so many actors fit; it ends with this process."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    # an import by name, as nothing of the kit needs it
    ray = import_module("ray")
    for left in reversed(range(BEGINS)):
        try:
            ray.init(num_cpus=actors, include_dashboard=False, logging_level="ERROR")
            break
        # Ray raises just that
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise
            ray.shutdown()
    return ray


def end_driver(driver: subprocess.Popen[Any]) -> None:
    """Let a driver end its cluster; what is left of its session is killed."""
    driver.terminate()
    with suppress(subprocess.TimeoutExpired):
        driver.wait(ENDS)
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


class Rank:
    """An actor whose one task is all that its rank does."""

    def run(self, rank: int, run: Callable[..., object], told: tuple[object, ...]) -> None:
        run(rank, *told)


def run_as_actors(ranks: int, run: Callable[..., object], *told: object) -> None:
    """Each rank as an actor, begun in another order than that of the ranks."""
    ray = begin_cluster(ranks)
    actor: Any = ray.remote(num_cpus=1)(Rank)
    ray.get([actor.remote().run.remote(rank, run, told) for rank in reversed(range(ranks))])


class Worker:
    """An actor that works on requests with the others."""

    def join(self, rank: int, workers: int, port: int) -> int:
        """Join the others; returns the process."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=workers)
        self.work: Any = torch.ones(8)
        return os.getpid()

    def answer(self) -> None:
        import torch.distributed as dist

        dist.all_reduce(self.work)

    def hand_on_and_answer(self) -> None:
        import torch.distributed as dist

        dist.broadcast(self.work, src=0)
        self.answer()

    def follow(self) -> None:
        """Answer whatever the first worker hands on."""
        while True:
            self.hand_on_and_answer()

    def read_shared(self, requests: Path, answers: Path) -> None:
        """Answer what stands in a queue in shared memory."""
        queue = SharedQueue(FileCounter(requests))
        answered = FileCounter(answers)
        while True:
            queue.get()
            self.answer()
            answered.value += 1


class ActorWorkers:
    """The workers of a server as actors of Ray; a request is a task of theirs, or they wait for it in a task."""

    def __init__(self, name: str, count: int, port: int, place: Path) -> None:
        self.ray = begin_cluster(count)
        actor: Any = self.ray.remote(num_cpus=1)(Worker)
        actors = [actor.remote() for _ in range(count)]
        joined = [one.join.remote(rank, count, port) for rank, one in enumerate(actors)]
        self.pids: list[int] = self.ray.get(joined)
        # without its handle an actor ends
        self.actors = actors
        self.tasks: list[Any] = [one.answer for one in actors]
        self.asked: list[Any] = []
        self.shared = FileCounter(place / "requests")
        self.answers: list[SharedQueue] = []
        if name == "first_hands_on":
            self.tasks = [actors[0].hand_on_and_answer]
            for one in actors[1:]:
                one.follow.remote()
        elif name == "shared_memory":
            self.tasks = []
            for rank, one in enumerate(actors):
                answers = place / f"answers.{rank}"
                self.answers.append(SharedQueue(FileCounter(answers)))
                one.read_shared.remote(place / "requests", answers)

    def hand_on(self) -> None:
        """Tell of a request those that do not hear of it from others."""
        self.shared.value += 1
        self.asked = [task.remote() for task in self.tasks]

    def take_answers(self) -> None:
        """Wait for the answer of each."""
        self.ray.get(self.asked)
        for one in self.answers:
            one.get()
