"""Functions that ranks call, of `test_function.py`."""

import os
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel


def step_of_all(rounds: int = 1) -> None:
    dist.init_process_group("nccl")
    total = torch.ones(4, device="cuda")
    for _ in range(rounds):
        dist.all_reduce(total)
    assert total[0] == dist.get_world_size() ** rounds


def step_of_some() -> None:
    dist.init_process_group("nccl")
    total = torch.ones(4, device="cuda")
    if dist.get_rank() == 1:
        dist.barrier()
    dist.all_reduce(total)


def train_two_models(crossed: bool) -> None:
    """As a GAN does; with `crossed` rank 1 trains the other model first."""
    dist.init_process_group("nccl")
    models = [DistributedDataParallel(torch.nn.Linear(4, 4).cuda()) for _ in range(2)]
    if crossed and dist.get_rank() == 1:
        models.reverse()
    for model in models:
        model(torch.ones(2, 4, device="cuda")).sum().backward()


def use_two_groups(crossed: bool) -> None:
    """Calls without a wait between them; with `crossed` rank 1 makes them in another order."""
    dist.init_process_group("nccl")
    groups = [dist.new_group(), dist.new_group()]
    if crossed and dist.get_rank() == 1:
        groups.reverse()
    works = []
    for group in groups:
        total = torch.ones(4, device="cuda")
        works.append(dist.all_reduce(total, group=group, async_op=True))
    for work in works:
        work.wait()


def begin_with_batch(some: bool, bound: bool = False) -> None:
    """Ranks 0 and 1 exchange by a batch; unless `some` alone do, all have met before."""
    rank = int(os.environ["RANK"])
    options = {"device_id": torch.device("cuda", rank)} if bound else {}
    dist.init_process_group("nccl", **options)
    torch.cuda.set_device(rank)
    value = torch.ones(4, device="cuda")
    if not some:
        dist.barrier()
    if rank < 2:
        operation = dist.isend if rank == 0 else dist.irecv
        for work in dist.batch_isend_irecv([dist.P2POp(operation, value, 1 - rank)]):
            work.wait()
    # a group of gloo, for which no communicator of NCCL is made
    dist.barrier(dist.new_group(backend="gloo"))
    dist.barrier()


def cross_mesh() -> None:
    """Each rank begins with another group of its mesh than its neighbours."""
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    first = "tp" if dist.get_rank() in (0, 3) else "dp"
    dist.all_reduce(torch.ones(4, device="cuda"), group=mesh.get_group(first))


def make_group_of_some(local: bool) -> None:
    """Rank 0 alone makes a group, as it may with `local` synchronization."""
    dist.init_process_group("nccl")
    if dist.get_rank() == 0:
        dist.new_group([0], use_local_synchronization=local)
    dist.barrier()


def save_in_thread(stays: str, crossed: bool) -> None:
    """A thread saves and then `stays` for more; with `crossed` rank 1 goes on in another group."""
    dist.init_process_group("gloo")
    groups = [dist.new_group(), dist.new_group()]
    saving = dist.new_group()
    if stays == "executor":
        ThreadPoolExecutor(1).submit(dist.barrier, saving).result()
    else:
        _save_from_queue(saving)
    if crossed and dist.get_rank() == 1:
        groups.reverse()
    for group in groups:
        dist.barrier(group)


def _save_from_queue(group: dist.ProcessGroup) -> None:
    tasks: queue.Queue[dist.ProcessGroup] = queue.Queue()

    def save_each() -> None:
        while True:
            dist.barrier(tasks.get())
            tasks.task_done()

    threading.Thread(target=save_each, daemon=True).start()
    tasks.put(group)
    tasks.join()


def save_beside(waits: bool) -> None:
    """An executor's thread saves twice; with `waits` rank 1 makes it wait for ever.

    The main thread asks for the result, as of an asynchronous checkpoint.
    """
    dist.init_process_group("gloo")
    groups = [dist.new_group(), dist.new_group()]
    if waits and dist.get_rank() == 1:
        groups.reverse()

    def save() -> None:
        for group in groups:
            dist.barrier(group)

    ThreadPoolExecutor(1).submit(save).result()
    dist.barrier()


def save_late(seconds: float) -> None:
    """The thread of rank 1 saves last, when its script has ended and others wait for it."""
    dist.init_process_group("gloo")
    saving = dist.new_group()

    def save() -> None:
        time.sleep(seconds * dist.get_rank())
        dist.barrier(saving)
        dist.barrier(saving)

    threading.Thread(target=save).start()


def begin_twice() -> None:
    """All ranks end their groups and make them anew, by a store that asks no name server."""
    for _ in range(2):
        dist.init_process_group("gloo", "env://")
        total = torch.ones(1)
        dist.all_reduce(total, group=dist.new_group())
        assert total.item() == dist.get_world_size()
        store = dist.distributed_c10d._get_default_store()
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        assert isinstance(store, dist.FileStore)
        # a script may still ask the store of its launcher
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        dist.TCPStore(*place, is_master=False).set("rank", str(dist.get_rank()))
        dist.barrier()
        dist.destroy_process_group()


def call_by_copies(ranks: int) -> None:
    """Every call as on a GPU that ranks share: all tensors are said to lie there."""
    rehearsed = dist.init_process_group.__globals__
    rehearsed["RankState"].shares_gpu = True
    staged = rehearsed["StagedGloo"].__init__.__globals__
    staged["lies_on_gpu"] = lambda tensor: True
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    own = torch.full((ranks,), float(rank))
    total = own.clone()
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    assert total[0] == sum(range(ranks)) / ranks
    parts = [torch.zeros(ranks) for _ in range(ranks)]
    dist.all_gather(parts, own)
    assert [part[0].item() for part in parts] == list(range(ranks))
    whole = torch.zeros(ranks * ranks)
    dist.all_gather_into_tensor(whole, own)
    assert whole[-1] == ranks - 1
    # its output is a part of its input
    dist.reduce_scatter_tensor(whole[rank * ranks : (rank + 1) * ranks], whole.clone())
    assert whole[rank * ranks] == rank * ranks
    taken = torch.zeros(ranks)
    dist.all_to_all_single(taken, own)
    assert taken.tolist() == list(range(ranks))
    lists = [torch.zeros(1) for _ in range(ranks)]
    dist.all_to_all(lists, list(own.split(1)))
    assert lists[-1].item() == ranks - 1
    _call_to_one_by_copies(rank, ranks)


def _call_to_one_by_copies(rank: int, ranks: int) -> None:
    value = torch.full((2,), float(rank))
    dist.broadcast(value, src=1)
    assert value[0] == 1
    gathered = [torch.zeros(2) for _ in range(ranks)] if rank == 0 else None
    dist.gather(value + rank, gathered, dst=0)
    if gathered:
        assert gathered[-1][0] == ranks
    dist.scatter(value, gathered, src=0)
    assert value[0] == rank + 1
    dist.reduce(value, dst=0)
    if rank == 0:
        assert value[0] == ranks * (ranks + 1) / 2
        dist.send(value, 1)
    elif rank == 1:
        given = torch.zeros(2)
        dist.recv(given, 0)
        assert given[0] == ranks * (ranks + 1) / 2
    objects = [None] * ranks
    dist.all_gather_object(objects, rank)
    assert objects == list(range(ranks))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    model(torch.ones(1, 4) * rank).sum().backward()
    assert model.module.weight.grad[0, 0] == sum(range(ranks)) / ranks


class Trainer:
    """A class whose methods are rehearsed."""

    def __init__(self, model: object) -> None:
        self.model = model

    def train_step(self) -> None:
        """A step of a model that ranks cannot be given."""


def yield_steps() -> Iterator[int]:
    """A generator, which does nothing when it is called."""
    yield 1
