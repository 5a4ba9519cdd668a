"""Servers in the layout of vLLM: a front end that takes connections, its engine, and workers that carry no RANK.

``python servers.py NAME LAYOUT`` is the front end of one; `start` begins it.  `LAYOUT` is ``spawn``, or ``ray`` where the
workers are actors.  Idle ones have answered a request and wait for the next; the others look alike, and no request can
reach them, or one of them is not done.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.live import ray_actors  # noqa: E402

IDLE = ("each_has_a_queue", "first_hands_on", "shared_memory", "threads_and_sockets")
"""How the engine reaches its workers, or the front end its engine; all of them have nothing to do."""
NOT_IDLE = {
    "front_died": "their engine, has ended",
    "engine_died": "has ended, so no request can reach it",
    "worker_died": "has lost what it started",
    "one_behind": "rank 1 waits for something else than a request",
    "answer_lost": "for which they wait",
    "front_sleeps": "waits for no request, but is at servers.py",
}
"""Name → what is said of it instead."""
WORKERS = {"worker_died": 3}
"""Name → workers; 2 of others."""
READY = 150.0
"""Seconds in which a server has answered its first request."""
DIE_WITH_PARENT = 1


def folder() -> Path:
    return Path(os.environ["SERVERS"])


def note(name: str, pid: int = 0) -> None:
    """Say that a process has come so far, and which one it is: this one where none is given."""
    path = folder() / f"{name}.part"
    path.write_text(str(pid or os.getpid()))
    path.rename(folder() / name)


@contextmanager
def start(name: str, layout: str = "spawn") -> Iterator[dict[str, int]]:
    """Begin a server, and wait until it has answered a request: {front, engine, worker.0, worker.1: process}."""
    ours = ("TORCH", "NCCL", "SLURM", "GLOO", "RANK", "WORLD", "LOCAL", "MASTER", "RAY")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    with tempfile.TemporaryDirectory() as place, open(os.path.join(place, "output"), "w") as out:
        more = {"SERVERS": place, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
        if layout == "ray":
            more |= ray_actors.variables()
        words = [sys.executable, __file__, name, layout]
        front = subprocess.Popen(
            words, env=clean | more, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            patience = ray_actors.READY if layout == "ray" else READY
            yield _wait_until_ready(Path(place), front, name, patience)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(front.pid, signal.SIGKILL)
            front.wait()


def _wait_until_ready(place: Path, front: subprocess.Popen[bytes], name: str, patience: float) -> dict[str, int]:
    names = ("front", "engine", *(f"worker.{number}" for number in range(WORKERS.get(name, 2))), "answered")
    until = time.monotonic() + patience
    while not all((place / one).exists() for one in names):
        if time.monotonic() > until or front.poll() is not None:
            raise RuntimeError(f"{name} did not begin: {(place / 'output').read_text()[-3000:]}")
        time.sleep(0.1)
    found = {one: int((place / one).read_text()) for one in names}
    killed = {"front_died": "front", "engine_died": "engine", "worker_died": "worker.1"}.get(name)
    if killed is not None:
        os.kill(found[killed], signal.SIGKILL)
        if killed == "front":
            front.wait()
    time.sleep(1.0)
    return found


# ---------------------------------------------------------------- the front end


def main(name: str, layout: str) -> None:
    """Start the engine, take connections, and hand one request on."""
    context = multiprocessing.get_context("spawn")
    requests: Any = context.Queue()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = 0
        if name == "threads_and_sockets":
            port = free_port()
        engine = context.Process(target=engine_main, args=(name, requests, port, layout))
        engine.start()
        note("front")
        hand_on(requests, port)
        if name == "front_sleeps":
            time.sleep(600)
        asyncio.run(serve(listener))


def hand_on(requests: Any, port: int) -> None:
    if not port:
        requests.put("request")
        return
    import zmq

    out = zmq.Context.instance().socket(zmq.PUSH)
    out.connect(f"tcp://127.0.0.1:{port}")
    out.send_string("request")


async def serve(listener: socket.socket) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), sock=listener)
    async with server:
        await server.serve_forever()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


# ---------------------------------------------------------------- the engine


def engine_main(name: str, requests: Any, port: int, layout: str) -> None:
    """Hand each request to all workers, and wait for an answer of each."""
    count = WORKERS.get(name, 2)
    if layout == "ray":
        workers: Any = ray_actors.ActorWorkers(name, count, free_port(), folder())
        for rank, pid in enumerate(workers.pids):
            note(f"worker.{rank}", pid)
    else:
        workers = SpawnedWorkers(name, count, free_port())
    note("engine")
    if port:
        requests = in_thread(port)
    while True:
        requests.get()
        workers.hand_on()
        if name == "one_behind":
            note("answered")
        workers.take_answers()
        note("answered")
        if name == "answer_lost":
            workers.take_answers()


class SpawnedWorkers:
    """Workers that multiprocessing starts, each with a queue of requests."""

    def __init__(self, name: str, count: int, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.answers: Any = context.Queue()
        self.inputs: list[Any] = [context.Queue() for _ in range(count)]
        self.shared: Any = context.RawValue("i", 0)
        for rank in range(count):
            told = (name, rank, count, port, self.inputs[rank], self.answers, self.shared)
            context.Process(target=worker_main, args=told).start()

    def hand_on(self) -> None:
        """Tell all of a request."""
        self.shared.value += 1
        for one in self.inputs:
            one.put("request")

    def take_answers(self) -> None:
        """Wait for the answer of each."""
        for _ in self.inputs:
            self.answers.get()


def in_thread(port: int) -> queue.Queue[str]:
    """Requests that a thread takes from a socket, as vLLM's engine has it."""
    import zmq

    found: queue.Queue[str] = queue.Queue()

    def take() -> None:
        source = zmq.Context.instance().socket(zmq.PULL)
        source.bind(f"tcp://127.0.0.1:{port}")
        while True:
            found.put(source.recv_string())

    threading.Thread(target=take, daemon=True).start()
    return found


# ---------------------------------------------------------------- the workers


def worker_main(
    name: str, rank: int, workers: int, store: int, requests: Any, answers: Any, shared: Any
) -> None:
    """Join the others, and work on each request with them."""
    if name not in ("front_died", "engine_died"):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{store}", rank=rank, world_size=workers)
    note(f"worker.{rank}")
    if name == "shared_memory":
        from tests.live.shm_broadcast import SharedQueue

        requests = SharedQueue(shared)
    work: Any = torch.ones(8)
    follows = name == "first_hands_on" and rank > 0
    is_leader = name == "first_hands_on" and rank == 0
    exchanges = name != "one_behind" or rank == 1
    while True:
        if follows:
            dist.broadcast(work, src=0)
        else:
            requests.get()
        if is_leader:
            dist.broadcast(work, src=0)
        if exchanges:
            dist.all_reduce(work)
        answers.put(rank)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    main(sys.argv[1], sys.argv[2])
