"""Further ways to hang, of `tests.live.hangs`, which starts them: what a rank waits for lies outside of the job's calls.

Servers, retries, debuggers, pipes, threads, locks since a fork, the rendezvous, DTensor, checkpoints, pipelines.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import multiprocessing
import os
import pty
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from tests.live.hangs import (
    BACKEND,
    DEVICE,
    LONG,
    WIDTH,
    file_named,
    here,
    ones,
    steps,
    train_step,
    wrapped,
)

GUARD = threading.Lock()
"""A lock of the module, as loggers and caches have one."""


def late(rank: int, at_fault: int, call: Callable[[], object]) -> None:
    """Some steps; then one rank makes a call that does not return, and the others wait in the next collective."""
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == at_fault % dist.get_world_size():
        call()
    dist.all_reduce(total := ones())
    total.sum().item()


# ---------------------------------------------------------------- services


def silent_server() -> socket.socket:
    """A service that takes connections and answers nothing."""
    return socket.create_server(("127.0.0.1", 0))


def dead_port() -> int:
    """A port at which nobody listens."""
    with silent_server() as server:
        return server.getsockname()[1]


def silent_service(rank: int) -> None:
    def next_batch() -> None:
        with silent_server() as server:
            urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/batch").read()

    late(rank, 0, next_batch)


def dead_service(rank: int) -> None:
    port = dead_port()

    def connect() -> None:
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                time.sleep(1.0)

    late(rank, 1, connect)


def flag_file(rank: int) -> None:
    def wait_for_vocabulary() -> None:
        while not os.path.exists(file_named("vocabulary.json")):
            time.sleep(0.5)

    late(rank, 0, wait_for_vocabulary)


def future_never_set(rank: int) -> None:
    async def result() -> None:
        await asyncio.get_running_loop().create_future()

    late(rank, 1, lambda: asyncio.run(result()))


# ---------------------------------------------------------------- debuggers, terminals, pipes


def on_terminal() -> None:
    """Let standard input be a terminal, at which nobody types."""
    terminal, own = pty.openpty()
    os.set_inheritable(terminal, False)
    os.dup2(own, 0)


def breakpoint_left(rank: int) -> None:
    def look() -> None:
        loss = 3.0
        breakpoint()
        print(loss)

    on_terminal()
    late(rank, -1, look)


def debugger_awaited(rank: int) -> None:
    def listen() -> None:
        debugpy = import_module("debugpy")
        debugpy.listen(("127.0.0.1", dead_port()), in_process_debug_adapter=True)
        debugpy.wait_for_client()

    late(rank, 0, listen)


def traced(rank: int) -> None:
    """A debugger has stopped the process, and nobody lets it go on."""
    order = "import ctypes, os, time; ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0); time.sleep(600)"

    def meet_debugger() -> None:
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_long(-1))  # PR_SET_PTRACER, where Yama asks for it
        subprocess.Popen([sys.executable, "-c", order])
        time.sleep(LONG)

    late(rank, 1, meet_debugger)


def terminal_input(rank: int) -> None:
    on_terminal()
    late(rank, 0, lambda: input("Overwrite the checkpoint? "))


def full_pipe(rank: int) -> None:
    def log() -> None:
        child = subprocess.Popen(["sleep", str(LONG)], stdin=subprocess.PIPE)
        while True:
            child.stdin.write(b"step\n" * 1000)

    late(rank, 1, log)


def fifo(rank: int) -> None:
    if rank == 1:
        os.mkfifo(file_named("metrics"))
    late(rank, 1, lambda: open(file_named("metrics"), "w"))


# ---------------------------------------------------------------- threads


def wait_for_answer() -> None:
    with silent_server() as server, socket.create_connection(server.getsockname()) as link:
        link.recv(1)


def producer_died(rank: int) -> None:
    batches: queue.Queue[object] = queue.Queue()

    def produce() -> None:
        raise ValueError("no such shard")

    def next_batch() -> None:
        threading.Thread(target=produce, name="producer").start()
        batches.get()

    late(rank, 0, next_batch)


def thread_awaited(rank: int) -> None:
    def finish() -> None:
        uploader = threading.Thread(target=wait_for_answer, name="uploader", daemon=True)
        uploader.start()
        uploader.join()

    late(rank, 1, finish)


def thread_left(rank: int) -> None:
    """The program has ended, but for a thread that nobody told to end."""
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == dist.get_world_size() - 1:
        threading.Thread(target=wait_for_answer, name="uploader").start()
        return
    dist.all_reduce(total := ones())
    total.sum().item()


def queue_full(rank: int) -> None:
    results: queue.Queue[object] = queue.Queue(1)

    def consume() -> None:
        results.get()
        wait_for_answer()

    def hand_on() -> None:
        threading.Thread(target=consume, name="writer", daemon=True).start()
        for step in range(100):
            results.put(step)

    late(rank, 1, hand_on)


# ---------------------------------------------------------------- forks and children


class LockedData:
    """A data set that takes a lock for each item, which another thread held when the worker was forked."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, item: int) -> object:
        import torch

        with GUARD:
            return torch.ones(WIDTH)


def forked_lock(rank: int) -> None:
    import torch

    model, optimizer = wrapped()
    train_step(model, optimizer, ones(4, WIDTH))
    loader = torch.utils.data.DataLoader(LockedData(), batch_size=2, num_workers=1)
    if rank == 1:
        GUARD.acquire()
    batches = iter(loader)
    here(rank)
    for batch in batches:
        train_step(model, optimizer, batch.to(DEVICE))


def report() -> None:
    with GUARD:
        print("done")


def forked_child(rank: int) -> None:
    def evaluate() -> None:
        with GUARD:
            child = multiprocessing.get_context("fork").Process(target=report)
            child.start()
            child.join()

    late(rank, 0, evaluate)


def child_connects(rank: int) -> None:
    ask = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"

    def fetch() -> None:
        with silent_server() as server:
            subprocess.run([sys.executable, "-c", ask, str(server.getsockname()[1])])

    late(rank, 1, fetch)


def child_output_unread(rank: int) -> None:
    def convert() -> None:
        child = subprocess.Popen([sys.executable, "-c", "print('row' * 10**6)"], stdout=subprocess.PIPE)
        child.wait()

    late(rank, 1, convert)


def put_rows(rows: multiprocessing.Queue[bytes]) -> None:
    rows.put(bytes(10**6))


def unread_queue(rank: int) -> None:
    def tokenize() -> None:
        rows: multiprocessing.Queue[bytes] = multiprocessing.get_context("fork").Queue()
        child = multiprocessing.get_context("fork").Process(target=put_rows, args=(rows,))
        child.start()
        child.join()
        rows.get()

    late(rank, 0, tokenize)


def end_at_once(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def pool_worker_killed(rank: int) -> None:
    def decode() -> None:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            pool.map(end_at_once, range(4))

    late(rank, 0, decode)


def take_and_end(guard: object) -> None:
    guard.acquire()
    os._exit(1)


def semaphore_of_dead(rank: int) -> None:
    def log() -> None:
        context = multiprocessing.get_context("fork")
        guard = context.Lock()
        child = context.Process(target=take_and_end, args=(guard,))
        child.start()
        child.join()
        with guard:
            print("done")

    late(rank, 0, log)


# ---------------------------------------------------------------- locks of files


def lock_of_peer(rank: int) -> None:
    """One rank holds the lock in the collective, for which another one must have had the lock."""
    import torch.distributed as dist

    steps()
    held = open(file_named("dataset.lock"), "w")
    if rank == 0:
        fcntl.flock(held, fcntl.LOCK_EX)
    dist.barrier()
    here(rank)
    if rank == 1:
        fcntl.flock(held, fcntl.LOCK_EX)
    dist.all_reduce(total := ones())
    total.sum().item()


HOLD = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.lockf(f, 2); print('held', flush=True); time.sleep(600)"


def lock_of_other(rank: int) -> None:
    def open_cache() -> None:
        words = [sys.executable, "-c", HOLD, file_named("cache.lock")]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
            holder.stdout.readline()
            with open(file_named("cache.lock"), "w") as file:
                fcntl.lockf(file, fcntl.LOCK_EX)

    late(rank, 0, open_cache)


def soft_lock(rank: int) -> None:
    def download() -> None:
        Path(file_named("model.lock")).touch()
        with import_module("filelock").SoftFileLock(file_named("model.lock")):
            print("downloaded")

    late(rank, 1, download)


def extension_lock(rank: int) -> None:
    def load() -> None:
        from torch.utils.file_baton import FileBaton

        Path(file_named("lock")).touch()
        FileBaton(file_named("lock")).wait()

    late(rank, -1, load)


# ---------------------------------------------------------------- calls of the job


def late_rendezvous(rank: int) -> None:
    import torch.distributed as dist

    here(rank)
    if rank == 1:
        time.sleep(LONG)  # it unpacks the data set first
    dist.init_process_group(BACKEND)


def wrong_port(rank: int) -> None:
    import torch.distributed as dist

    here(rank)
    if rank == 1:
        os.environ["MASTER_PORT"] = str(dead_port())
    dist.init_process_group(BACKEND)


def key_never_set(rank: int) -> None:
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    late(rank, 1, lambda: _get_default_store().wait(["data_ready"]))
    dist.barrier()


def dtensor_on_rank_0(rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh(DEVICE.partition(":")[0], (dist.get_world_size(),))
    weight = distribute_tensor(torch.ones(WIDTH, WIDTH), mesh, [Shard(0)])
    steps()
    here(rank)
    if rank == 0:
        print(weight.full_tensor().norm().item())
    dist.barrier()


def checkpoint_of_rank_0(rank: int) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoints

    model, optimizer = wrapped()
    train_step(model, optimizer, ones(4, WIDTH))
    here(rank)
    if rank == 0:
        checkpoints.save(model.state_dict(), checkpoint_id=file_named("checkpoint"))
    dist.barrier()


def crossed_stages(rank: int) -> None:
    """Each stage of a ring wants to receive before it sends."""
    import torch.distributed as dist

    steps()
    here(rank)
    world = dist.get_world_size()
    dist.recv(activations := ones(), src=(rank - 1) % world)
    activations.sum().item()
    dist.send(activations, dst=(rank + 1) % world)


def gather_on_rank_0(rank: int) -> None:
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 0:
        metrics = [None] * dist.get_world_size()
        dist.all_gather_object(metrics, {"loss": 1.0})
    dist.barrier()


def group_on_some(rank: int) -> None:
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 0:
        dist.new_group(backend="gloo")
    dist.all_reduce(total := ones())
    total.sum().item()


def signal_handler(rank: int) -> None:
    """The scheduler's warning reaches one rank, which saves with the others; these know nothing of it."""
    import torch.distributed as dist

    signal.signal(signal.SIGUSR1, lambda number, frame: dist.barrier())
    late(rank, 1, lambda: os.kill(os.getpid(), signal.SIGUSR1))


def spinning(rank: int) -> None:
    def wait() -> None:
        while not os.path.exists(file_named("ready")):
            pass

    late(rank, -1, wait)
