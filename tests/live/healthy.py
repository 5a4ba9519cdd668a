"""Jobs that nothing is wrong with, each of which has its own pace: ``python healthy.py NAME`` is one rank of it.

`start` begins one as `tests.live.hangs` does.  A look at any of them, at any moment, must accuse nobody.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import itertools
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.live import hangs  # noqa: E402
from tests.live.hangs import DEVICE, WIDTH, here, ones, package, train_step, wrapped  # noqa: E402

PROGRAMS = {
    "ddp_loop": "torch",
    "fsdp2": "torch",
    "tensor_parallel": "torch",
    "pipeline": "torch",
    "gradient_accumulation": "torch",
    "uneven_compute": "torch",
    "long_steps": "torch",
    "evaluation_on_rank_0": "torch",
    "checkpoint_on_rank_0": "torch",
    "slow_loader": "torch",
    "several_groups": "torch",
    "idle_server": "torch",
    "http_server": "torch",
    "batching_server": "torch",
    "child_each_round": "torch",
    "fed_by_a_thread": "torch",
    "fed_by_a_pipe": "torch",
    "turns_at_a_lock": "torch",
    "waits_for_a_file": "torch",
    "asyncio_server": "torch",
    "spinning_wait": "torch",
    "accelerate_loop": "accelerate",
    "transformers_trainer": "transformers",
    "lightning_trainer": "Lightning",
}
"""Name → the framework that it needs."""
ALONE = 5.0
"""Seconds that rank 0 spends on something of its own, again and again."""


def programs() -> list[str]:
    """The names of those whose framework is installed."""
    return [name for name, framework in PROGRAMS.items() if package(framework) != ""]


@contextmanager
def start(name: str, ranks: int = 3, backend: str = "gloo") -> Iterator[dict[int, subprocess.Popen[str]]]:
    """Begin a job, and wait until its ranks are at their steps; ends it at last."""
    with hangs.start(name, ranks, backend, program=__file__) as job:
        yield job


def ended() -> bool:
    """Whether a job has run long enough; by rounds, which all ranks count alike, where `ROUNDS` says how many."""
    if not ROUNDS:
        return time.monotonic() > BEGUN + LONG
    done = next(_ROUND)
    if os.environ["RANK"] == "0":
        print(f"step {done}/{ROUNDS}", flush=True)
    return done >= ROUNDS


BEGUN, LONG = time.monotonic(), 3600.0
"""Seconds that a job lasts at most, should nobody end it."""
ROUNDS = int(os.environ.get("HEALTHY_ROUNDS", "0"))
"""Rounds of its loop after which a job ends by itself; 0: it goes on until it is ended."""
_ROUND = itertools.count()


def main(name: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if hangs.BACKEND == "nccl":
        torch.cuda.set_device(DEVICE)
    if PROGRAMS[name] == "torch":
        dist.init_process_group(hangs.BACKEND)
    globals()[name](int(os.environ["RANK"]))
    if ROUNDS and dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder in which the ranks of a job leave what they have to say to who began it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def begin(rank: int) -> None:
    """Say that the steps begin, once all ranks are there."""
    import torch.distributed as dist

    dist.barrier()
    here(rank)


def ddp_loop(rank: int) -> None:
    model, optimizer = wrapped()
    begin(rank)
    while not ended():
        train_step(model, optimizer, ones(4, WIDTH))


def fsdp2(rank: int) -> None:
    import torch
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)).to(DEVICE)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begin(rank)
    while not ended():
        train_step(model, optimizer, ones(4, WIDTH))


def tensor_parallel(rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    world = dist.get_world_size()
    mesh = init_device_mesh(DEVICE.partition(":")[0], (world,))
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * world), torch.nn.Linear(4 * world, WIDTH)).to(DEVICE)
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    begin(rank)
    while not ended():
        model(ones(2, WIDTH)).sum().backward()


def pipeline(rank: int) -> None:
    """Stages that hand on a batch each; the first one takes its time."""
    import torch.distributed as dist

    last = dist.get_world_size() - 1
    begin(rank)
    while not ended():
        batch = ones(4, WIDTH)
        if rank > 0:
            dist.recv(batch, src=rank - 1)
        work(0.3 if rank == 0 else 0.05)
        if rank < last:
            dist.send(batch, dst=rank + 1)


def work(seconds: float) -> None:
    """Compute for so long."""
    import torch

    until, square = time.monotonic() + seconds, torch.ones(100, 100, device=DEVICE)
    while time.monotonic() < until:
        square = square @ square / 100
        square.sum().item()


def gradient_accumulation(rank: int) -> None:
    model, optimizer = wrapped()
    begin(rank)
    while not ended():
        with model.no_sync():
            for _ in range(8):
                work(0.1)
                model(ones(4, WIDTH)).sum().backward()
        train_step(model, optimizer, ones(4, WIDTH))


def uneven_compute(rank: int) -> None:
    """The last rank computes ten times as long as the others, who wait for it."""
    model, optimizer = wrapped()
    begin(rank)
    while not ended():
        work(0.5 if hangs.is_last(rank) else 0.05)
        train_step(model, optimizer, ones(4, WIDTH))


def long_steps(rank: int) -> None:
    """A collective every few seconds, for which all ranks but one wait nearly as long."""
    model, optimizer = wrapped()
    begin(rank)
    while not ended():
        work(4.0 if rank == 1 else 0.2)
        train_step(model, optimizer, ones(4, WIDTH))


def evaluation_on_rank_0(rank: int) -> None:
    """Rank 0 evaluates alone, and the others wait at a barrier."""
    import torch.distributed as dist

    model, optimizer = wrapped()
    begin(rank)
    while not ended():
        for _ in range(20):
            train_step(model, optimizer, ones(4, WIDTH))
        if rank == 0:
            work(ALONE)
        dist.barrier()


def checkpoint_on_rank_0(rank: int) -> None:
    """Rank 0 writes a file and waits for it, and the others wait at a barrier."""
    import torch.distributed as dist

    model, optimizer = wrapped()
    begin(rank)
    while not ended():
        for _ in range(20):
            train_step(model, optimizer, ones(4, WIDTH))
        if rank == 0:
            save(hangs.file_named("checkpoint.pt"))
        dist.barrier()


def save(path: str) -> None:
    """A slow file system."""
    until = time.monotonic() + ALONE
    with open(path, "wb") as out:
        while time.monotonic() < until:
            out.write(bytes(1 << 16))
            out.flush()
            os.fsync(out.fileno())
            time.sleep(0.2)


class SlowData:
    """A data set whose items take a while, and some of which take long."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, item: int) -> object:
        import torch

        time.sleep(2.0 if item % 16 == 15 else 0.1)
        return torch.ones(WIDTH)


def slow_loader(rank: int) -> None:
    import torch

    model, optimizer = wrapped()
    begin(rank)
    for batch in torch.utils.data.DataLoader(SlowData(), batch_size=2, num_workers=1):
        train_step(model, optimizer, batch.to(DEVICE))
        if ended():
            break


def several_groups(rank: int) -> None:
    """Two groups with steps of their own, and one of all ranks."""
    import torch.distributed as dist

    world = dist.get_world_size()
    pairs = [dist.new_group([0, 1]), dist.new_group(list(range(1, world)))]
    begin(rank)
    while not ended():
        if rank < 2:
            dist.all_reduce(ones(WIDTH), group=pairs[0])
        work(0.2)
        if rank > 0:
            dist.all_reduce(ones(WIDTH), group=pairs[1])
        dist.all_reduce(ones(WIDTH))


def idle_server(rank: int) -> None:
    """Rank 0 waits for a request, which does not come, and the others for what it hands on."""
    import torch.distributed as dist

    begin(rank)
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.accept()
    dist.broadcast(ones(WIDTH), src=0)


def http_server(rank: int) -> None:
    """Rank 0 answers requests that come when they like; all ranks compute each answer together."""
    import torch
    import torch.distributed as dist

    begin(rank)
    if rank > 0:
        # Between two requests these wait in a broadcast, for as long as nobody asks.
        request = torch.zeros(1, device=DEVICE)
        while True:
            dist.broadcast(request, src=0)
            if request.item() < 0:
                return
            answer_together(rank)
    with HTTPServer(("127.0.0.1", 0), Generate) as server:
        print(f"Serving on http://127.0.0.1:{server.server_port} (press Ctrl+C to quit)", flush=True)
        threading.Thread(target=ask_now_and_then, args=(server.server_port,), daemon=True).start()
        while not ended():
            server.handle_request()
        dist.broadcast(-torch.ones(1, device=DEVICE), src=0)
    print("Shutting down: all requests are answered", flush=True)


class Generate(BaseHTTPRequestHandler):
    """Each request is handed to all ranks, and answered with what they computed."""

    def do_GET(self) -> None:
        import torch
        import torch.distributed as dist

        dist.broadcast(torch.ones(1, device=DEVICE), src=0)
        answer = f"{answer_together(0):.1f}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def answer_together(rank: int) -> float:
    """Part of each layer on each rank, and their sum after it."""
    import torch.distributed as dist

    part = ones(4, WIDTH)
    for _ in range(4):
        work(0.02)
        dist.all_reduce(part)
        part /= dist.get_world_size()
    return float(part.sum().item())


def ask_now_and_then(port: int) -> None:
    """A client of its own: some requests at once, and then none for seconds."""
    for count in itertools.count():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/generate?n={count}", timeout=60) as answer:
            answer.read()
        if count % 5 == 4:
            time.sleep(2.0)


def batching_server(rank: int) -> None:
    """Rank 0 hands a schedule to all ranks at each step, an empty one while no request waits."""
    import torch.distributed as dist

    begin(rank)
    for step in itertools.count():
        waiting = step % 7 if step % 40 < 30 else 0
        schedule = [{"requests": waiting, "last": rank == 0 and ended()}]
        dist.broadcast_object_list(schedule, src=0)
        if schedule[0]["last"]:
            break
        if schedule[0]["requests"]:
            answer_together(rank)
        else:
            time.sleep(0.1)
        if rank == 0 and step % 10 == 9:
            print(f"Avg generation throughput: {40 * waiting:.1f} tokens/s, Running: {waiting} reqs", flush=True)


def rounds_with(rank: int, alone: Callable[[], object]) -> None:
    """Steps of all ranks; after some of them rank 0 does something of its own, and the others wait for it."""
    model, optimizer = wrapped()
    begin(rank)
    while not ended():
        for _ in range(20):
            train_step(model, optimizer, ones(4, WIDTH))
        if rank == 0:
            alone()


def child_each_round(rank: int) -> None:
    """Rank 0 starts a program that validates, and waits for it."""
    rounds_with(rank, lambda: subprocess.run(["sleep", "2"]))


def fed_by_a_thread(rank: int) -> None:
    """Batches come through a queue of a thread, which takes its time."""
    batches: queue.Queue[float] = queue.Queue(2)

    def feed() -> None:
        while True:
            time.sleep(0.7)
            batches.put(1.0)

    threading.Thread(target=feed, name="feeder", daemon=True).start()
    model, optimizer = wrapped()
    begin(rank)
    while not ended():
        train_step(model, optimizer, ones(4, WIDTH) * batches.get())


def fed_by_a_pipe(rank: int) -> None:
    """Batches come through a pipe of another program."""
    feed = "import time\nwhile True: time.sleep(0.7); print(1.0, flush=True)"
    model, optimizer = wrapped()
    with subprocess.Popen([sys.executable, "-S", "-c", feed], stdout=subprocess.PIPE) as feeder:
        begin(rank)
        while not ended():
            train_step(model, optimizer, ones(4, WIDTH) * float(feeder.stdout.readline()))
        feeder.kill()


def turns_at_a_lock(rank: int) -> None:
    """Each rank in turn holds the lock of a cache for a while."""
    model, optimizer = wrapped()
    begin(rank)
    with open(hangs.file_named("cache.lock"), "w") as file:
        while not ended():
            train_step(model, optimizer, ones(4, WIDTH))
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(0.8)
            fcntl.flock(file, fcntl.LOCK_UN)


def waits_for_a_file(rank: int) -> None:
    """Rank 0 polls for a file, which another program makes after some seconds."""

    def poll() -> None:
        path = hangs.file_named("metrics")
        with subprocess.Popen(["sh", "-c", 'sleep 2; touch "$0"', path]):
            while not os.path.exists(path):
                time.sleep(0.2)
        os.unlink(path)

    rounds_with(rank, poll)


def asyncio_server(rank: int) -> None:
    """Rank 0 waits in an event loop for a request, which does not come."""
    import torch.distributed as dist

    async def serve() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            await server.serve_forever()

    begin(rank)
    if rank == 0:
        asyncio.run(serve())
    dist.broadcast(ones(WIDTH), src=0)


def spinning_wait(rank: int) -> None:
    """Each rank polls whether its collective is done, and so takes all of a core, as NCCL and MPI do."""
    import torch.distributed as dist

    begin(rank)
    while not ended():
        work(1.0 if rank == 0 else 0.1)
        call = dist.all_reduce(ones(WIDTH), async_op=True)
        while not call.is_completed():
            pass


def accelerate_loop(rank: int) -> None:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=hangs.BACKEND == "gloo", gradient_accumulation_steps=2)
    model = torch.nn.Linear(WIDTH, WIDTH)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    begin(rank)
    while not ended():
        with accelerator.accumulate(model):
            loss = model(ones(4, WIDTH)).sum()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.gather(loss.detach().reshape(1)).mean().item()


def transformers_trainer(rank: int) -> None:
    import transformers

    class Begun(transformers.TrainerCallback):
        def on_step_end(self, arguments: object, state: object, control: object, **more: object) -> None:
            if state.global_step == 5:
                here(rank)

    hangs.transformers_train(Begun(), steps=ROUNDS or 10**7)


def lightning_trainer(rank: int) -> None:
    class Begun(hangs.lightning_().Callback):
        def on_train_batch_end(self, trainer: object, module: object, *more: object) -> None:
            if trainer.global_step == 5:
                here(rank)

    hangs.trainer(rank, Begun(), steps=ROUNDS or 10**7)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no job outlives the test that began it
    main(sys.argv[1])
