"""The ways in which the lab breaks a job: each changes one rank, before the process group or at one step.

The job is the small training of `train`, or the live test itself.  The functions below are what the diagnosis has to
find in stacks and tracebacks, so they fail as user code does.  None reaches beyond its own process.
"""

import os
import signal
import time
from datetime import timedelta


class Job:
    """What a fault may touch: the process group, the data, the device, how many steps there are."""

    def __init__(self, torch, options, steps):
        import torch.distributed as dist

        self.torch, self.dist, self.steps, self.options = torch, dist, steps, options
        self.seconds, self.timeout = options.seconds, timedelta(seconds=options.timeout)
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.guilty = 1 if options.rank is None else options.rank
        local = int(os.environ["LOCAL_RANK"])
        shared = options.one_gpu and options.rank in (None, self.rank)
        self.device = torch.device("cuda", 0 if shared else local) if options.backend == "nccl" else torch.device("cpu")
        if options.backend == "nccl":
            torch.cuda.set_device(self.device)  # before anything else touches CUDA
        self.data = torch.randn(256, 64, generator=torch.Generator().manual_seed(self.rank))

    def begin(self):
        """Make the process group; a fault that comes before that is done first."""
        if self.options.fault in BEFORE and self.rank == self.guilty:
            BEFORE[self.options.fault](self)
        bound = {"device_id": self.device} if self.options.backend == "nccl" else {}
        self.dist.init_process_group(self.options.backend, timeout=self.timeout, **bound)

    def at(self, step):
        """Do what is wrong at this step, if anything is."""
        if step != self.options.at:
            return
        if self.options.fault in TOGETHER:
            TOGETHER[self.options.fault](self, self.guilty)
        if self.options.fault in DURING and self.rank == self.guilty:
            DURING[self.options.fault](self)

    def mended(self, cause):
        """Whether the job shall do the right thing where its bug is of this cause; a wrong diagnosis mends nothing."""
        return self.options.mend == cause

    def synchronize(self):
        """Wait for the device, as reading the loss does in a real training loop."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)


def add_options(parser):
    """The options that say how a job is broken, and what every job needs."""
    parser.add_argument("--folder", required=True)
    parser.add_argument("--backend", choices=("nccl", "gloo"), required=True)
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--fault", choices=sorted((*BEFORE, *DURING, *TOGETHER)))
    parser.add_argument("--rank", type=int, help="the guilty one; 1 where a fault needs one and none is named")
    parser.add_argument("--at", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--mend", metavar="CAUSE", help="do it right where the bug is of this cause (see causes.md)")
    parser.add_argument("--one-gpu", action="store_true", help="the guilty rank, or every rank, uses GPU 0")


def skip_batches(dataset, seconds):
    """Replay a dataset without training on it, as a naive resume does, for this long."""
    until, skipped = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        dataset[skipped % len(dataset)].sum()
        skipped += 1
    return skipped


def preprocess(batch):
    """Fails as user code does: on data that only one rank has."""
    if batch.shape[0] > 0:
        raise ValueError("sample 1207 has 0 frames after trimming; every sample needs at least one")
    return batch


def rank_late(job):
    """This rank replays data while the others wait in all_reduce."""
    skip_batches(job.data, job.seconds)


def rank_raises(job):
    """This rank meets a sample that its preprocessing rejects."""
    preprocess(job.data[:8])


def rank_killed(job):
    """This rank is killed from outside (SIGKILL), as by an OOM killer or a scheduler."""
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(job):
    """This rank reads address 0 in native code."""
    import ctypes

    ctypes.string_at(0)


def gil_held(job):
    """This rank sits in native code that keeps Python's global lock and lets no signal interrupt it."""
    import ctypes

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
    ctypes.PyDLL(None).sleep(int(job.seconds))


def other_size(job):
    """This rank reduces a tensor of another size than the others do."""
    job.dist.all_reduce(job.torch.ones(2048, device=job.device))
    job.synchronize()


def other_dtype(job):
    """This rank reduces a tensor of another type than the others do."""
    job.dist.all_reduce(job.torch.ones(1024, device=job.device, dtype=job.torch.float64))
    job.synchronize()


def other_op(job):
    """This rank calls all_gather where the others call all_reduce."""
    own = job.torch.ones(1024, device=job.device)
    job.dist.all_gather([job.torch.empty_like(own) for _ in range(job.ranks)], own)
    job.synchronize()


def unpaired_recv(job):
    """This rank waits for a message of its neighbour that the neighbour never sends."""
    job.dist.recv(job.torch.empty(1024, device=job.device), src=(job.rank + 1) % job.ranks)
    job.synchronize()


def cuda_assert(job):
    """This rank looks up a class that does not exist, in a kernel."""
    labels = job.torch.full((32,), 99, device=job.device)
    job.torch.nn.functional.cross_entropy(job.torch.zeros(32, 10, device=job.device), labels)
    job.synchronize()


def gpu_memory_full(job):
    """This rank asks for more memory than its GPU has."""
    job.torch.empty(1 << 46, dtype=job.torch.uint8, device=job.device)


def exchange_uneven(job, guilty):
    """All ranks: an all_to_all for which the guilty rank was told other split sizes than the rest."""
    take = [256] * job.ranks
    if job.rank == guilty:
        # NCCL waits for what never comes and drops what is too much; gloo refuses the latter and ignores the former
        take[(guilty + 1) % job.ranks] = 512 if job.device.type == "cuda" else 128
    received = job.torch.empty(sum(take), device=job.device)
    job.dist.all_to_all_single(received, job.torch.ones(256 * job.ranks, device=job.device), take, [256] * job.ranks)
    job.synchronize()


def groups_swapped(job, guilty):
    """All ranks: two groups of the same ranks are used one after the other, by the guilty rank in the other order."""
    ranks, limit = list(range(job.ranks)), job.timeout
    one, two = (job.dist.new_group(ranks, timeout=limit, group_desc=name) for name in ("experts", "data"))
    for group in (two, one) if job.rank == guilty else (one, two):
        job.dist.all_reduce(job.torch.ones(1024, device=job.device), group=group)
        job.synchronize()


def uneven_data(job):
    """This rank's data ends before the others' does."""
    job.steps //= 2


def few_files(job):
    """This rank may open only a few files more than it has open."""
    import resource

    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 3, used + 3))


def little_memory(job):
    """This rank may use little more host memory than it already does, and loads a dataset that needs more."""
    import resource

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limit = used + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    job.data = job.torch.empty(512 << 20, dtype=job.torch.uint8).fill_(1)


def world_larger(job):
    """This rank was told that the job has one rank more than it has."""
    os.environ["WORLD_SIZE"] = str(job.ranks + 1)


def flood(job):
    """This rank prints 100 MB."""
    for _ in range(1000):
        print(("a line that nobody reads " * 4096)[:100_000])


def mute(job):
    """This rank closes its standard output and its standard error."""
    os.close(1)
    os.close(2)


BEFORE = {fault.__name__: fault for fault in (uneven_data, few_files, little_memory, world_larger)}
"""Faults of one rank before the process group is made."""

DURING = {
    fault.__name__: fault
    for fault in (
        rank_late, rank_raises, rank_killed, segfault, gil_held, other_size, other_dtype, other_op, unpaired_recv,
        cuda_assert, gpu_memory_full, flood, mute,
    )
}  # fmt: skip
"""Faults of one rank at one step."""

TOGETHER = {fault.__name__: fault for fault in (exchange_uneven, groups_swapped)}
"""Calls of all ranks at one step, in which the guilty one differs."""
