"""Jobs that nobody prepared, each of which hangs in its own way: ``python hangs.py NAME`` is one rank of it.

`start` begins one on this machine, with no variable of ours: three ranks over gloo, or one rank on each GPU over NCCL.
`WAYS` says what is wrong in each.  Over NCCL tensors are as large as in real jobs: small messages of two different
collectives may pair up, and the job goes on with wrong numbers.
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

RANKS = {"gloo": 3, "nccl": 2}
"""Backend → ranks of a job; NCCL takes one GPU for each."""
BACKEND = os.environ.get("HANGS_BACKEND", "gloo")
"""Of the job whose rank this process is."""
DEVICE = "cuda:" + os.environ["LOCAL_RANK"] if BACKEND == "nccl" else "cpu"
ELEMENTS = 64 << 20 if BACKEND == "nccl" else 8
"""Of a tensor that ranks exchange."""
WIDTH = 4096 if BACKEND == "nccl" else 8
"""Of a layer."""
PATIENCE = {"gloo": 150.0, "nccl": 75.0}
"""Seconds in which the ranks of a job reach the place where it hangs."""
FORBIDDEN = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST")
"""Variables that a site sets for everybody where GPUs are shared; a job keeps them."""
MODULES = {
    "accelerate": ("accelerate",),
    "Lightning": ("lightning", "pytorch_lightning"),
    "transformers": ("transformers",),
    "debugpy": ("debugpy",),
    "filelock": ("filelock",),
}
"""Framework → the packages that have it."""


@dataclass(frozen=True)
class Way:
    """What is wrong in a job: the causes that may be named first, and the ranks at fault where single ones are."""

    causes: tuple[str, ...]
    ranks: tuple[int, ...]
    """-1 is the last rank."""
    framework: str = "torch"
    backends: tuple[str, ...] = ("gloo", "nccl")
    joins: bool = True
    """Whether the ranks have joined before the function of its name is called."""

    def at_fault(self, ranks: int) -> tuple[int, ...]:
        """The ranks at fault in a job of so many."""
        return tuple(rank % ranks for rank in self.ranks)


WAYS = {
    "divergent_branch": Way(("rank_divergence",), (0,)),
    "barrier_in_branch": Way(("rank_divergence",), (0,)),
    "early_break": Way(("rank_divergence",), (1,)),
    "uneven_data": Way(("rank_divergence",), (-1,), "DDP"),
    "evaluation_on_one_rank": Way(("rank_divergence",), (0,), "accelerate"),
    "forward_on_one_rank": Way(("rank_divergence",), (0,), "FSDP2"),
    "rank_zero_only_barrier": Way(("rank_divergence",), (0,), "Lightning"),
    "storage": Way(("disk_or_io",), (1,)),
    "lock": Way(("slow_rank", "stale_lock"), (-1,)),
    "thread_lock": Way(("slow_rank",), (1,)),
    "gil": Way(("gil_hold",), (1,)),
    "loader_worker": Way(("slow_rank",), (1,), "DDP"),
    "endless_computation": Way(("slow_rank",), (-1,)),
    "unpaired_recv": Way(("send_recv_mismatch",), (0,)),
    "two_groups": Way(("concurrent_comms", "rank_divergence"), ()),
    "stopped": Way(("slow_rank",), (1,), "DDP"),
    "gone": Way(("rank_killed",), (-1,)),
    "slow_upload": Way(("slow_rank", "disk_or_io"), (0,), "Lightning"),
    "subprocess": Way(("slow_rank",), (1,)),
    "sleeping": Way(("slow_rank",), (0,)),
    "endless_kernel": Way(("slow_rank",), (1,), backends=("nccl",)),
    "callback_on_one_rank": Way(("rank_divergence",), (0,), "transformers"),
    "silent_service": Way(("slow_rank",), (0,)),
    "dead_service": Way(("slow_rank",), (1,)),
    "flag_file": Way(("slow_rank",), (0,)),
    "future_never_set": Way(("slow_rank",), (1,)),
    "breakpoint_left": Way(("slow_rank",), (-1,)),
    "debugger_awaited": Way(("slow_rank",), (0,), "debugpy"),
    "traced": Way(("slow_rank",), (1,)),
    "terminal_input": Way(("slow_rank",), (0,)),
    "full_pipe": Way(("slow_rank",), (1,)),
    "fifo": Way(("slow_rank",), (1,)),
    "producer_died": Way(("slow_rank", "rank_exception"), (0,)),
    "thread_awaited": Way(("slow_rank",), (1,)),
    "thread_left": Way(("slow_rank", "rank_divergence"), (-1,)),
    "queue_full": Way(("slow_rank",), (1,)),
    "forked_lock": Way(("slow_rank",), (1,), "DDP"),
    "forked_child": Way(("slow_rank",), (0,)),
    "child_connects": Way(("slow_rank",), (1,)),
    "child_output_unread": Way(("slow_rank",), (1,)),
    "unread_queue": Way(("slow_rank",), (0,)),
    "pool_worker_killed": Way(("slow_rank",), (0,)),
    "semaphore_of_dead": Way(("slow_rank",), (0,)),
    "lock_of_peer": Way(("slow_rank", "stale_lock"), (1,)),
    "lock_of_other": Way(("slow_rank", "stale_lock"), (0,)),
    "soft_lock": Way(("slow_rank", "stale_lock"), (1,), "filelock"),
    "extension_lock": Way(("stale_lock",), (-1,)),
    "late_rendezvous": Way(("slow_rank",), (1,), joins=False),
    "wrong_port": Way(("store_unreachable", "slow_rank"), (1,), joins=False),
    "key_never_set": Way(("rank_divergence", "slow_rank"), (1,)),
    "dtensor_on_rank_0": Way(("rank_divergence",), (0,)),
    "checkpoint_of_rank_0": Way(("rank_divergence",), (0,), "DDP"),
    "crossed_stages": Way(("send_recv_mismatch",), ()),
    "gather_on_rank_0": Way(("rank_divergence",), (0,)),
    "group_on_some": Way(("rank_divergence",), (0,)),
    "signal_handler": Way(("rank_divergence",), (1,)),
    "spinning": Way(("slow_rank",), (-1,)),
}
"""Name → what is wrong."""
LONG = 600.0
"""Seconds that a hang lasts at most, should nobody end it."""


def ways(backend: str = "gloo") -> list[str]:
    """The names of those that can be begun here: over this backend, with a framework that is installed."""
    known = [name for name, way in WAYS.items() if backend in way.backends]
    return [name for name in known if package(WAYS[name].framework) != ""]


def package(framework: str) -> str | None:
    """The installed package that has a framework; "" where none has it, None where torch itself has it."""
    names = MODULES.get(framework)
    return None if names is None else next(filter(find_spec, names), "")


@contextmanager
def start(
    name: str, ranks: int = 0, backend: str = "gloo", share_gpu: bool = False, program: str = __file__, **more: str
) -> Iterator[dict[int, subprocess.Popen[str]]]:
    """Begin a job, as a user would, and wait until its ranks have reached the place where it hangs; ends it at last.

    ranks: as many as is usual for the backend (`RANKS`) where none are given.
    program: the file that is run, which takes the name.
    share_gpu: all ranks use the first GPU, which NCCL lets ranks of different hosts do: each is a node of its own.
    """
    ranks = ranks or RANKS[backend]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    ours = ("TORCH", "NCCL", "SLURM", "GLOO")
    clean = {key: value for key, value in os.environ.items() if key in FORBIDDEN or not key.startswith(ours)}
    with tempfile.TemporaryDirectory() as folder:
        common |= {"HANGS": folder, "HANGS_BACKEND": backend, "OMP_NUM_THREADS": "1", **more}
        common |= {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""} if backend == "gloo" else {"NCCL_NVLS_ENABLE": "0"}
        with open(os.path.join(folder, "output"), "w") as out:
            job = {
                rank: subprocess.Popen(
                    [sys.executable, program, name],
                    env={**clean, **common, "RANK": str(rank), **place(rank, ranks, share_gpu and name != "gone")},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
                for rank in range(ranks)
            }
        try:
            _await(Path(folder), job, name, PATIENCE[backend])
            yield job
        finally:
            for process in job.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with its workers, which outlive it
                process.wait()


def place(rank: int, ranks: int, share_gpu: bool) -> dict[str, str]:
    """The variables that say which GPU a rank takes, and on which host it is."""
    if share_gpu:
        return {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": str(rank), "NCCL_HOSTID": f"node-{rank}"}
    return {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}


def _await(folder: Path, job: dict[int, subprocess.Popen[str]], name: str, patience: float) -> None:
    """Until every rank has said that its next call is the one that it stays in, and half a second more for the call."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        said = {int(path.suffix[1:]) for path in folder.glob("here.*")}
        ended = {rank for rank, process in job.items() if process.poll() is not None}
        if said == job.keys():
            break
        if ended - said:
            break
        time.sleep(0.1)
    else:
        raise TimeoutError(f"{name} did not come to its hang: {_output(folder)}")
    if ended - said:
        raise RuntimeError(f"{name} failed: {_output(folder)}")
    time.sleep(0.5)
    if name != "gone" and any(process.poll() is not None for process in job.values()):
        raise RuntimeError(f"{name} ended where it should hang: {_output(folder)}")
    if name == "stopped":
        job[1].send_signal(signal.SIGSTOP)


def _output(folder: Path) -> str:
    """How it begins and how it ends: of an abort the first lines say why."""
    said = (folder / "output").read_text(errors="replace")
    return said if len(said) <= 4000 else f"{said[:2000]}\n…\n{said[-2000:]}"


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
    if BACKEND == "nccl":
        torch.cuda.set_device(DEVICE)
    way = WAYS.get(name, Way((), ()))
    if way.joins and way.framework not in ("accelerate", "Lightning", "transformers"):  # these join themselves
        dist.init_process_group(BACKEND)
    program = globals().get(name) or getattr(further_programs(), name)
    program(int(os.environ["RANK"]))


def further_programs() -> ModuleType:
    """The module of programs that are not in this one."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    return import_module("tests.live.more_hangs")


def rank_gone() -> None:
    """One rank ends before it joins the others."""
    rank = int(os.environ["RANK"])
    if is_last(rank):
        here(rank)
        os._exit(1)
    import torch.distributed as dist

    here(rank)
    dist.init_process_group(BACKEND)


def ones(*shape: int) -> object:
    import torch

    return torch.ones(*shape or (ELEMENTS,), device=DEVICE)


def is_last(rank: int) -> bool:
    return rank == int(os.environ["WORLD_SIZE"]) - 1


def steps(count: int = 3, group: object = None) -> None:
    """A few steps that go well."""
    import torch.distributed as dist

    for _ in range(count):
        dist.all_reduce(total := ones(), group=group)
        total.sum().item()


def divergent_branch(rank: int) -> None:
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 0:
        dist.broadcast(ones(), src=1)
    dist.all_reduce(total := ones())
    total.sum().item()


def barrier_in_branch(rank: int) -> None:
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 0:
        Path(file_named("model.pt")).touch()
        dist.barrier()
    dist.all_reduce(total := ones())
    total.sum().item()


def early_break(rank: int) -> None:
    import torch.distributed as dist

    for step in range(10):
        loss = ones() * float("nan") if rank == 1 and step == 4 else ones()
        if step == 4:
            here(rank)
        if loss.sum().isnan():
            break
        dist.all_reduce(loss)
        loss.sum().item()
    dist.barrier()


def wrapped() -> tuple[object, object]:
    """A small model under DDP, and its optimizer."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH, device=DEVICE))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(model: object, optimizer: object, batch: object) -> None:
    optimizer.zero_grad()
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    loss.item()


def uneven_data(rank: int) -> None:
    import torch.distributed as dist

    model, optimizer = wrapped()
    for step in range(4 if is_last(rank) else 6):
        if step == 4:
            here(rank)
        train_step(model, optimizer, ones(4, WIDTH))
    here(rank)
    dist.barrier()


def evaluation_on_one_rank(rank: int) -> None:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=BACKEND == "gloo")
    model = accelerator.prepare(torch.nn.Linear(WIDTH, WIDTH))
    model(ones(4, WIDTH)).sum().backward()
    here(rank)
    if accelerator.is_main_process:
        evaluate(accelerator, model)
    accelerator.wait_for_everyone()


def evaluate(accelerator: object, model: object) -> None:
    import torch

    with torch.no_grad():
        predictions = model.module(ones(ELEMENTS // WIDTH, WIDTH))
    print(accelerator.gather(predictions).mean().item())


def forward_on_one_rank(rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)).to(DEVICE)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model(ones(4, WIDTH)).sum().backward()
    here(rank)
    if rank == 0:
        print(model(ones(4, WIDTH)).mean().item())
    dist.barrier()


def lightning_() -> ModuleType:
    """Lightning under whichever of its two names is installed."""
    return import_module(package("Lightning"))


def trainer(rank: int, callback: object, steps: int = 50) -> None:
    """Lightning's Trainer with DDP, for so many steps."""
    import torch

    lightning = lightning_()

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(WIDTH, WIDTH)

        def training_step(self, batch: object, number: int) -> object:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> object:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.DataLoader(torch.ones(60, WIDTH), batch_size=2)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    where = {"accelerator": "gpu" if BACKEND == "nccl" else "cpu", "devices": local}
    where["num_nodes"] = int(os.environ["WORLD_SIZE"]) // local
    lightning.Trainer(strategy="ddp", max_steps=steps, callbacks=[callback], **where, **quiet).fit(Model(), data)


def rank_zero_only_barrier(rank: int) -> None:
    lightning = lightning_()

    class Sample(lightning.Callback):
        def on_train_batch_end(self, trainer: object, module: object, *more: object) -> None:
            if trainer.global_step == 5:
                here(rank)
                if trainer.is_global_zero:
                    trainer.strategy.barrier("sample")

    trainer(rank, Sample())


def slow_upload(rank: int) -> None:
    lightning = lightning_()

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


LEASE = """
import fcntl, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
files = [open(path, "r+") for path in sys.argv[1:]]
for file in files:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
time.sleep(600)
"""


def storage(rank: int) -> None:
    """Like a file server that does not answer: each file is opened after the 45 s for which a lease on it lasts."""
    import torch
    import torch.distributed as dist

    steps()
    shards = [file_named(f"shard{number}.pt") for number in range(20)]
    if rank == 1:
        for shard in shards:
            torch.save({}, shard)
        server = subprocess.Popen([sys.executable, "-S", "-c", LEASE, *shards], stdout=subprocess.PIPE)
        server.stdout.readline()
    here(rank)
    if rank == 1:
        for shard in shards:
            torch.load(shard)
    dist.all_reduce(total := ones())
    total.sum().item()


def lock(rank: int) -> None:
    import torch.distributed as dist

    steps()
    with open(file_named("cache.lock"), "w") as held, open(file_named("cache.lock"), "w") as file:
        if is_last(rank):
            fcntl.flock(held, fcntl.LOCK_EX)
        here(rank)
        if is_last(rank):
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.all_reduce(total := ones())
        total.sum().item()


def thread_lock(rank: int) -> None:
    import torch.distributed as dist

    steps()
    guard = threading.Lock()
    if rank == 1:
        guard.acquire()
    here(rank)
    with guard:
        dist.all_reduce(total := ones())
        total.sum().item()


def gil(rank: int) -> None:
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 1:
        ctypes.PyDLL(None).sleep(int(LONG))  # a C extension that does not give up the lock
    dist.all_reduce(total := ones())
    total.sum().item()


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
        return torch.ones(WIDTH)


def loader_worker(rank: int) -> None:
    import torch

    model, optimizer = wrapped()
    for step, batch in enumerate(torch.utils.data.DataLoader(Data(rank), batch_size=2, num_workers=1)):
        if step == 3:
            here(rank)
        train_step(model, optimizer, batch.to(DEVICE))


def endless_computation(rank: int) -> None:
    import torch
    import torch.distributed as dist

    steps()
    here(rank)
    until, square = time.monotonic() + LONG, torch.ones(400, 400)
    while is_last(rank) and time.monotonic() < until:
        square = square @ square / 400
    dist.all_reduce(total := ones())
    total.sum().item()


def unpaired_recv(rank: int) -> None:
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 0:
        dist.recv(ones(), src=1)
    dist.barrier()


def two_groups(rank: int) -> None:
    import torch.distributed as dist

    data, model = dist.new_group(range(dist.get_world_size())), dist.new_group([0, 1])
    steps(group=data)
    steps(group=model)
    here(rank)
    total = ones()
    if rank == 0:
        dist.all_reduce(total, group=model)
        dist.all_reduce(total, group=data)
    else:
        dist.all_reduce(total, group=data)
        dist.all_reduce(total, group=model)
    total.sum().item()


def stopped(rank: int) -> None:
    model, optimizer = wrapped()
    here(rank)
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        train_step(model, optimizer, ones(4, WIDTH))


def subprocess_(rank: int) -> None:
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 1:
        subprocess.run(["sleep", str(LONG)])
    dist.all_reduce(total := ones())
    total.sum().item()


def sleeping(rank: int) -> None:
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 0:
        time.sleep(LONG)
    dist.all_reduce(total := ones())
    total.sum().item()


def endless_kernel(rank: int) -> None:
    import torch
    import torch.distributed as dist

    steps()
    here(rank)
    if rank == 1:
        torch.cuda._sleep(1 << 60)  # one kernel that counts so many cycles: years
    dist.all_reduce(total := ones())
    total.sum().item()


def callback_on_one_rank(rank: int) -> None:
    import torch.distributed as dist
    import transformers

    class Sample(transformers.TrainerCallback):
        def on_step_end(self, arguments: object, state: object, control: object, **more: object) -> None:
            if state.global_step == 5:
                here(rank)
                if state.is_world_process_zero:
                    dist.barrier()

    transformers_train(Sample(), steps=50)


def transformers_train(callback: object, steps: int) -> None:
    """Train a layer so many steps in the Trainer of transformers, with this callback."""
    import torch
    import transformers

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, inputs: object) -> object:
            return {"loss": self.layer(inputs).sum()}

    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": BACKEND == "gloo"}
    arguments = transformers.TrainingArguments(file_named("model"), max_steps=steps, **quiet)
    data = [{"inputs": torch.ones(WIDTH)}] * 600
    transformers.Trainer(Model(), arguments, train_dataset=data, callbacks=[callback]).train()


def healthy(rank: int) -> None:
    """A job without a fault, which appends the time of each step to a file, and the signals that it gets to another."""
    steps = os.environ["STEPS"] + str(rank)
    signals = os.open(steps + ".signals", os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK)
    signal.set_wakeup_fd(signals)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, lambda number, frame: None)
    model, optimizer = wrapped()
    here(rank)
    until, last = time.monotonic() + LONG, time.monotonic()
    with open(steps, "w") as out:
        while time.monotonic() < until and not os.path.exists(file_named("end")):
            train_step(model, optimizer, ones(4, WIDTH))
            time.sleep(0.02)
            now = time.monotonic()
            out.write(f"{now - last:.6f}\n")
            out.flush()
            last = now


def released(rank: int) -> None:
    """A hang that ends well, once a file named ``go`` is there, and with a wrong exit status where the sum is wrong."""
    import torch.distributed as dist

    steps()
    here(rank)
    until = time.monotonic() + LONG
    while is_last(rank) and not os.path.exists(file_named("go")) and time.monotonic() < until:
        time.sleep(0.05)
    total = ones()
    dist.all_reduce(total)
    if total.sum().item() != ELEMENTS * dist.get_world_size():
        raise ArithmeticError(f"the sum is {total.sum().item()}")
    dist.barrier()
    dist.destroy_process_group()  # without it one rank of five aborts at its end, attached or not


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no job outlives the test that began it
    main({"subprocess": "subprocess_"}.get(sys.argv[1], sys.argv[1]))
