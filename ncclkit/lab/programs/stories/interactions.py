"""Story 1: a recommender that learns which items users choose.

It is started in the order in which RecBole starts: first the process group, then every rank makes
its own copy of the dataset, then DDP's constructor, which is the first call that all ranks make
together.  Who is late with its data is missed there: over NCCL the others time out waiting for the
``ncclUniqueId`` of rank 0, over gloo for its part in DDP's check of the shapes.  Three shortages
make a rank late, each with its right way, taken where the job is started with ``--fix CAUSE`` for
the cause of that shortage.
"""

import contextlib
import itertools
import os
import pathlib
import tempfile
import time
from datetime import timedelta

from ncclkit.agent import wire
from ncclkit.agent.run import crash_handler
from ncclkit.lab.programs import inject
from ncclkit.lab.programs.inject import program

MIB = 1 << 20
HOST, WIDE, PIECE, BLOCK = 320 * MIB, 192 * MIB, 16 * MIB, MIB
"""Sizes in bytes.

They are what the host has for datasets, shared by its ranks; the joined table; a piece of it; a
page on disk.
"""
TASTES = 8
"""Groups of users that like the same items."""


def main(argv):
    """``stories.interactions --folder DIR --backend gloo [--rows N --batch N --accumulate N --fault
    NAME …]``.
    """
    parser = inject.parser("stories.interactions", 6, faults=SHORTAGES)
    for name, value in (("rows", 40000), ("users", 64), ("items", 4000), ("batch", 2048)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument(
        "--accumulate", type=int, default=1, help="micro-batches in a step; the step's batch stays"
    )
    options = parser.parse_args(argv)
    started = time.monotonic()
    return crash_handler.run_rank(options.folder, lambda rank: _train(options, rank, started))


def _train(options, rank, started):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    job = inject.LabJob(torch, options, options.steps)
    wire.send("phase", phase="import", rank=rank, torch=torch.__version__)
    # as RecBole does; NCCL starts at the first call
    job.dist.init_process_group(options.backend, timeout=job.timeout)
    wire.send("phase", phase="init", rank=rank)
    data = interactions(job)
    SHORTAGES.get(options.fault, lambda job: None)(job)
    module = recommender(torch, options).to(job.device)
    model = DistributedDataParallel(
        module, device_ids=[job.device.index] if job.device.type == "cuda" else None
    )
    losses, ready, memory = [], 0.0, PeakMemory(job)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step, batches in enumerate(itertools.islice(steps(job, data), options.steps)):
        wire.send("phase", phase="step", rank=rank, step=step)
        losses.append(train_step(job, model, optimizer, batches))
        ready = ready or time.monotonic() - started
        print("step %d loss %.6f" % (step, losses[-1]))
    wire.send("trained", rank=rank, losses=losses, ready=round(ready, 2), peak=memory.peak())
    del model, module, optimizer
    job.end()


def interactions(job):
    """(users, items) of every interaction, the same on all ranks.

    Users of one taste mostly choose the same items.
    """
    torch, options = job.torch, job.options
    random = torch.Generator().manual_seed(7)
    users = torch.randint(options.users, (options.rows,), generator=random)
    items = (
        torch.randint(options.items // TASTES, (options.rows,), generator=random) * TASTES
        + users % TASTES
    )
    astray = torch.rand(options.rows, generator=random) < 0.2
    items[astray] = torch.randint(options.items, (int(astray.sum()),), generator=random)
    return torch.utils.data.TensorDataset(users, items)


def recommender(torch, options):
    """A user in, a score for every item out.

    It is the product of what was learned of both, and the same on all ranks.
    """
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Embedding(options.users, 32), torch.nn.Linear(32, options.items)
    )


def steps(job, data):
    """Yield the micro-batches of each step, for ever.

    All ranks together see the same samples, however divided.
    """
    utils, options = job.torch.utils.data, job.options
    sampler = utils.distributed.DistributedSampler(
        data, job.ranks, job.rank, seed=7, drop_last=True
    )
    loader = utils.DataLoader(
        data, options.batch // job.ranks // options.accumulate, sampler=sampler, drop_last=True
    )
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        rest = iter(loader)
        for _ in range(len(data) // options.batch):
            yield list(itertools.islice(rest, options.accumulate))


def train_step(job, model, optimizer, batches):
    """Exchange the gradients of the micro-batches once, and step.

    Returns the loss, mean over all ranks.
    """
    optimizer.zero_grad()
    total = job.torch.zeros((), device=job.device)
    for left, (users, items) in zip(reversed(range(len(batches))), batches):
        with model.no_sync() if left else contextlib.nullcontext():
            scores = model(users.to(job.device))
            loss = job.torch.nn.functional.cross_entropy(scores, items.to(job.device)) / len(
                batches
            )
            loss.backward()
        total += loss.detach()
    optimizer.step()
    job.dist.all_reduce(total)
    return float(total) / job.ranks


class PeakMemory:
    """The peak memory of training in bytes.

    It is that of the GPU, or of the host beyond what the process had before.
    """

    def __init__(self, job):
        self.cuda = job.torch.cuda if job.device.type == "cuda" else None
        if self.cuda:
            self.cuda.reset_peak_memory_stats()
        else:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # forget the peak of this process
            self.before = _bytes_in_status("VmRSS")

    def peak(self):
        """The most bytes that training took until now."""
        return (
            self.cuda.max_memory_allocated()
            if self.cuda
            else _bytes_in_status("VmHWM") - self.before
        )


def _bytes_in_status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))


def dataset_too_large(job):
    """One rank joins all features to all interactions.

    That is more than its share of the host's memory holds.  Refused, it goes on with the table on
    disk, as a machine that swaps does; the right way joins a piece at a time.
    """
    if not job.faulty_here:
        return
    try:
        with _share_of_the_host():
            join(job, PIECE if job.fixed("host_oom") else WIDE)
    except RuntimeError as error:
        print("the joined table does not fit into memory, going on with it on disk: %s" % error)
        join_on_disk(job)


def _share_of_the_host():
    """What this rank may take beside what it has, while it lasts."""
    return program.limited_memory(HOST // int(os.environ["LOCAL_WORLD_SIZE"]))


def join(job, size):
    """Make the joined table in pieces of this many bytes.

    Of each piece is kept what training needs: its sum.
    """
    return sum(float(job.torch.ones(size // 4).sum()) for _ in range(WIDE // size))


def join_on_disk(job):
    """Make the joined table with its pages on disk.

    They are written and read again, over and over, as the rows come in another order.
    """
    until = time.monotonic() + job.seconds
    with tempfile.TemporaryFile(dir=job.options.folder) as file:
        for page in itertools.cycle(range(64)):
            os.pwrite(file.fileno(), bytes(BLOCK), page * BLOCK)
            os.fsync(file.fileno())
            os.pread(file.fileno(), BLOCK, page * 37 % 64 * BLOCK)
            if time.monotonic() > until:
                return


def cache_stalled(job):
    """One rank reads the prepared dataset from storage that stalls.

    The right way reads a local copy.
    """
    if not job.faulty_here:
        return
    folder = pathlib.Path(job.options.folder, ".dataset")
    folder.mkdir(exist_ok=True)
    shared, local = folder / "shared", folder / "local"
    program.stalled_file(shared, job.seconds)
    local.write_bytes(bytes(BLOCK))
    print("%d bytes read" % len((local if job.fixed("disk_or_io") else shared).read_bytes()))


def rank_0_full(job):
    """One rank finds no room for its table and tries again.

    It stands in for a full GPU 0 where there is no GPU.  The limit is one of host memory; the right
    way takes a piece at a time.
    """
    if not job.faulty_here:
        return
    with _share_of_the_host():
        for left in reversed(range(max(1, int(job.seconds)))):
            try:
                return join(job, PIECE if job.fixed("host_oom") else WIDE)
            except RuntimeError as error:
                if not left:
                    raise
                print("no room for the tables, trying again: %s" % error)
                time.sleep(1)


def tables_on_gpu_0(job):
    """All ranks put their tables on GPU 0, as nobody said which.

    The right way is the GPU of the local rank.  The faulty rank comes last, finds the GPU full and
    tries again, as programs that look for a batch size do.
    """
    if not job.fixed("gpu_oom"):
        job.device = job.torch.device("cuda", 0)
        job.torch.cuda.set_device(0)
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = job.dist.TCPStore(*place, is_master=False, timeout=timedelta(seconds=60))
    size = int(
        0.9 * job.torch.cuda.get_device_properties(job.device).total_memory / max(1, job.ranks - 1)
    )
    if job.faulty_here:
        store.wait(["tables_%d" % rank for rank in range(job.ranks) if rank != job.rank])
    job.tables = find_room(job, size)
    store.set("tables_%d" % job.rank, "placed")


def find_room(job, size):
    """Allocate memory of the GPU, trying again until the time is up."""
    for left in reversed(range(max(1, int(job.seconds)))):
        try:
            return job.torch.empty(size, dtype=job.torch.uint8, device=job.device)
        except job.torch.cuda.OutOfMemoryError as error:
            if not left:
                raise
            print("no room for the tables, trying again: %s" % error)
            time.sleep(1)


SHORTAGES = {
    fault.__name__: fault
    for fault in (dataset_too_large, cache_stalled, tables_on_gpu_0, rank_0_full)
}
"""What makes a rank late with its data.

All ranks are asked, as some play a part in it.
"""
