"""Jobs that nobody prepared, each of which hangs in its own way over gloo: ``python hangs.py NAME`` is one rank of it.

`start` begins one, with three ranks on this machine and no variable of ours; `WAYS` says what is wrong in each.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RANKS = 3


@dataclass(frozen=True)
class Way:
    """What is wrong in a job: the causes that may be named first, and the ranks at fault where single ones are."""

    causes: tuple[str, ...]
    ranks: tuple[int, ...]
    framework: str = "torch"


WAYS = {
    "divergent_branch": Way(("rank_divergence",), (0,)),
    "barrier_in_branch": Way(("rank_divergence",), (0,)),
    "early_break": Way(("rank_divergence",), (1,)),
    "uneven_data": Way(("rank_divergence",), (2,), "DDP"),
    "evaluation_on_one_rank": Way(("rank_divergence",), (0,), "accelerate"),
    "forward_on_one_rank": Way(("rank_divergence",), (0,), "FSDP2"),
    "rank_zero_only_barrier": Way(("rank_divergence",), (0,), "Lightning"),
    "storage": Way(("disk_or_io",), (1,)),
    "lock": Way(("slow_rank", "stale_lock"), (2,)),
    "thread_lock": Way(("slow_rank",), (1,)),
    "gil": Way(("gil_hold",), (1,)),
    "loader_worker": Way(("slow_rank",), (1,), "DDP"),
    "endless_computation": Way(("slow_rank",), (2,)),
    "unpaired_recv": Way(("send_recv_mismatch",), (0,)),
    "two_groups": Way(("concurrent_comms", "rank_divergence"), ()),
    "stopped": Way(("slow_rank",), (1,), "DDP"),
    "gone": Way(("rank_killed",), (2,)),
    "slow_upload": Way(("slow_rank", "disk_or_io"), (0,), "Lightning"),
    "subprocess": Way(("slow_rank",), (1,)),
    "sleeping": Way(("slow_rank",), (0,)),
}
"""Name → what is wrong."""
LONG = 600.0
"""Seconds that a hang lasts at most, should nobody end it."""


@contextmanager
def start(name: str, ranks: int = RANKS, **more: str) -> Iterator[dict[int, subprocess.Popen[str]]]:
    """Begin a job, as a user would, and wait until its ranks have reached the place where it hangs; ends it at last."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TORCH", "NCCL", "SLURM", "GLOO"))}
    with tempfile.TemporaryDirectory() as folder:
        common |= {"HANGS": folder, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **more}
        with open(os.path.join(folder, "output"), "w") as out:
            job = {
                rank: subprocess.Popen(
                    [sys.executable, __file__, name],
                    env={**clean, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                for rank in range(ranks)
            }
        try:
            _await(Path(folder), job, name)
            yield job
        finally:
            for process in job.values():
                process.kill()
                process.wait()


def _await(folder: Path, job: dict[int, subprocess.Popen[str]], name: str) -> None:
    """Until every rank has said that its next call is the one that it stays in, and half a second more for the call."""
    until = time.monotonic() + 150
    while time.monotonic() < until:
        said = {int(path.suffix[1:]) for path in folder.glob("here.*")}
        ended = {rank for rank, process in job.items() if process.poll() is not None}
        if said == job.keys():
            break
        if ended - said:
            break
        time.sleep(0.1)
    else:
        raise TimeoutError(f"{name} did not come to its hang: {(folder / 'output').read_text()[-2000:]}")
    if ended - said:
        raise RuntimeError(f"{name} failed: {(folder / 'output').read_text()[-2000:]}")
    time.sleep(0.5)
    if name == "stopped":
        job[1].send_signal(signal.SIGSTOP)


def here(rank: int) -> None:
    """Say that the next call is the one that this rank stays in."""
    Path(os.environ["HANGS"], f"here.{rank}").touch()


def file_named(name: str) -> str:
    return os.path.join(os.environ["HANGS"], name)


def main(name: str) -> None:
    if name == "gone":
        return rank_gone()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if name not in ("evaluation_on_one_rank", "rank_zero_only_barrier", "slow_upload"):
        dist.init_process_group("gloo")
    globals()[name](int(os.environ["RANK"]))


def rank_gone() -> None:
    """One rank ends before it joins the others."""
    rank = int(os.environ["RANK"])
    if rank == 2:
        here(rank)
        os._exit(1)
    import torch.distributed as dist

    here(rank)
    dist.init_process_group("gloo")


def steps(count: int = 3) -> None:
    """A few steps that go well."""
    import torch
    import torch.distributed as dist

    for _ in range(count):
        dist.all_reduce(torch.ones(8))


def divergent_branch(rank: int) -> None:
    import torch
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 0:
        dist.broadcast(torch.ones(8), src=1)
    dist.all_reduce(torch.ones(8))


def barrier_in_branch(rank: int) -> None:
    import torch
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 0:
        Path(file_named("model.pt")).touch()
        dist.barrier()
    dist.all_reduce(torch.ones(8))


def early_break(rank: int) -> None:
    import torch
    import torch.distributed as dist

    for step in range(10):
        loss = torch.tensor(float("nan")) if rank == 1 and step == 4 else torch.tensor(1.0)
        if step == 4:
            here(rank)
        if loss.isnan():
            break
        dist.all_reduce(loss)
    dist.barrier()


def wrapped() -> tuple[object, object]:
    """A small model under DDP, and its optimizer."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(model: object, optimizer: object) -> None:
    import torch

    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()


def uneven_data(rank: int) -> None:
    import torch.distributed as dist

    model, optimizer = wrapped()
    for step in range(6 if rank != 2 else 4):
        if step == 4:
            here(rank)
        train_step(model, optimizer)
    here(rank)
    dist.barrier()


def evaluation_on_one_rank(rank: int) -> None:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(8, 8))
    model(torch.ones(4, 8)).sum().backward()
    here(rank)
    if accelerator.is_main_process:
        evaluate(accelerator, model)
    accelerator.wait_for_everyone()


def evaluate(accelerator: object, model: object) -> None:
    import torch

    with torch.no_grad():
        loss = model.module(torch.ones(4, 8)).sum()
    accelerator.gather(loss)


def forward_on_one_rank(rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model(torch.ones(4, 8)).sum().backward()
    here(rank)
    if rank == 0:
        print(model(torch.ones(4, 8)).mean())
    dist.barrier()


def trainer(rank: int, callback: object) -> None:
    """Lightning's Trainer with DDP, for a few steps."""
    import lightning
    import torch

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def training_step(self, batch: object, number: int) -> object:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> object:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.DataLoader(torch.ones(60, 8), batch_size=2)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    lightning.Trainer(
        accelerator="cpu", devices=RANKS, strategy="ddp", max_steps=50, callbacks=[callback], **quiet
    ).fit(Model(), data)


def rank_zero_only_barrier(rank: int) -> None:
    import lightning

    class Sample(lightning.Callback):
        def on_train_batch_end(self, trainer: object, module: object, *more: object) -> None:
            if trainer.global_step == 5:
                here(rank)
                if trainer.is_global_zero:
                    trainer.strategy.barrier("sample")

    trainer(rank, Sample())


def slow_upload(rank: int) -> None:
    import lightning

    class Upload(lightning.Callback):
        def on_train_batch_end(self, trainer: object, module: object, *more: object) -> None:
            if trainer.global_step == 5:
                here(rank)
                if trainer.is_global_zero:
                    upload(b"model" * 10_000_000)

    trainer(rank, Upload())


def upload(content: bytes) -> None:
    """Send to a server that takes nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as link:
        link.sendall(content)


def storage(rank: int) -> None:
    import torch
    import torch.distributed as dist

    steps()
    if rank == 1:
        os.mkfifo(file_named("checkpoint.pt"))
    here(rank)
    if rank == 1:
        torch.load(file_named("checkpoint.pt"))  # like a file server that does not answer
    dist.all_reduce(torch.ones(8))


def lock(rank: int) -> None:
    import torch
    import torch.distributed as dist

    steps()
    with open(file_named("cache.lock"), "w") as held, open(file_named("cache.lock"), "w") as file:
        if rank == 2:
            fcntl.flock(held, fcntl.LOCK_EX)
        here(rank)
        if rank == 2:
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.all_reduce(torch.ones(8))


def thread_lock(rank: int) -> None:
    import torch
    import torch.distributed as dist

    steps()
    guard = threading.Lock()
    if rank == 1:
        guard.acquire()
    here(rank)
    with guard:
        dist.all_reduce(torch.ones(8))


def gil(rank: int) -> None:
    import torch
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 1:
        ctypes.PyDLL(None).sleep(int(LONG))  # a C extension that does not give up the lock
    dist.all_reduce(torch.ones(8))


class Data:
    """A data set of which one rank's worker never gets an item."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 100

    def __getitem__(self, item: int) -> object:
        import torch

        if self.rank == 1 and item == 8:
            time.sleep(LONG)
        return torch.ones(8)


def loader_worker(rank: int) -> None:
    import torch

    model, optimizer = wrapped()
    for step, batch in enumerate(torch.utils.data.DataLoader(Data(rank), batch_size=2, num_workers=1)):
        if step == 3:
            here(rank)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def endless_computation(rank: int) -> None:
    import torch
    import torch.distributed as dist

    steps()
    here(rank)
    until, square = time.monotonic() + LONG, torch.ones(400, 400)
    while rank == 2 and time.monotonic() < until:
        square = square @ square / 400
    dist.all_reduce(torch.ones(8))


def unpaired_recv(rank: int) -> None:
    import torch
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 0:
        dist.recv(torch.ones(8), src=1)
    dist.barrier()


def two_groups(rank: int) -> None:
    import torch
    import torch.distributed as dist

    data, model = dist.new_group([0, 1, 2]), dist.new_group([0, 1])
    steps()
    here(rank)
    if rank == 0:
        dist.all_reduce(torch.ones(8), group=model)
        dist.all_reduce(torch.ones(8), group=data)
    else:
        dist.all_reduce(torch.ones(8), group=data)
        dist.all_reduce(torch.ones(8), group=model)


def stopped(rank: int) -> None:
    model, optimizer = wrapped()
    here(rank)
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        train_step(model, optimizer)


def subprocess_(rank: int) -> None:
    import torch
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 1:
        subprocess.run(["sleep", str(LONG)])
    dist.all_reduce(torch.ones(8))


def sleeping(rank: int) -> None:
    import torch
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 0:
        time.sleep(LONG)
    dist.all_reduce(torch.ones(8))


def healthy(rank: int) -> None:
    """A job without a fault, which appends the time of each step to a file."""
    model, optimizer = wrapped()
    here(rank)
    until, last = time.monotonic() + LONG, time.monotonic()
    with open(os.environ.get("STEPS", os.devnull) + str(rank), "w") as out:
        while time.monotonic() < until and not os.path.exists(file_named("end")):
            train_step(model, optimizer)
            time.sleep(0.02)
            now = time.monotonic()
            out.write(f"{now - last:.6f}\n")
            out.flush()
            last = now


if __name__ == "__main__":
    main({"subprocess": "subprocess_"}.get(sys.argv[1], sys.argv[1]))
