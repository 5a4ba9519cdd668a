"""A small honest training job (a real model, DDP, real collectives), and the ways in which the lab breaks it.

Each fault changes one rank at one step; without a fault the job trains and ends well.
"""

import argparse
import os
import signal
import time

from . import blackbox, wire


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


def other_size(job):
    """This rank reduces a tensor of another size than the others do."""
    job.dist.all_reduce(job.torch.ones(2048, device=job.device))
    job.synchronize()


def other_op(job):
    """This rank calls all_gather where the others call all_reduce."""
    own = job.torch.ones(1024, device=job.device)
    job.dist.all_gather([job.torch.empty_like(own) for _ in range(job.ranks)], own)
    job.synchronize()


FAULTS = {fault.__name__: fault for fault in (rank_late, rank_raises, rank_killed, segfault, other_size, other_op)}


class Job:
    """What a fault may touch: the process group, the data, the device."""

    def __init__(self, torch, options):
        import torch.distributed as dist

        self.torch, self.dist, self.seconds = torch, dist, options.seconds
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local = int(os.environ["LOCAL_RANK"])
        self.device = (
            torch.device("cuda", 0 if options.one_gpu else local) if options.backend == "nccl" else torch.device("cpu")
        )
        if options.backend == "nccl":
            torch.cuda.set_device(self.device)
        self.data = torch.randn(256, 64, generator=torch.Generator().manual_seed(self.rank))

    def synchronize(self):
        """Wait for the device, as reading the loss does in a real training loop."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)


def main(argv):
    """``train --folder DIR --backend gloo [--fault NAME --rank R --at STEP --seconds S]``."""
    options = _options(argv)
    return blackbox.fly(options.folder, lambda rank: _train(options, rank))


def _options(argv):
    parser = argparse.ArgumentParser(prog="train")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--backend", choices=("nccl", "gloo"), required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--fault", choices=sorted(FAULTS))
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--at", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--one-gpu", action="store_true")
    return parser.parse_args(argv)


def _train(options, rank):
    from datetime import timedelta

    import torch
    from torch.nn.parallel import DistributedDataParallel

    job = Job(torch, options)
    wire.send("phase", phase="import", rank=rank, torch=torch.__version__)
    bound = {"device_id": job.device} if options.backend == "nccl" else {}
    job.dist.init_process_group(options.backend, timeout=timedelta(seconds=options.timeout), **bound)
    wire.send("phase", phase="init", rank=rank)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(job.device)
    model = DistributedDataParallel(model, device_ids=[job.device.index] if job.device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(options.steps):
        wire.send("phase", phase="step", rank=rank, step=step)
        if options.fault and rank == options.rank and step == options.at:
            FAULTS[options.fault](job)
        loss = train_step(job, model, optimizer, step)
        print("step %d loss %.4f" % (step, loss))
    job.dist.destroy_process_group()


def train_step(job, model, optimizer, step):
    """One step of DDP on 32 samples; also averages a metric over the ranks, as many loops do.  Returns the loss."""
    batch = job.data[step * 32 % 224 :][:32].to(job.device)
    optimizer.zero_grad()
    loss = (model(batch) ** 2).mean()
    loss.backward()
    optimizer.step()
    metric = job.torch.full((1024,), float(loss.detach()), device=job.device)
    job.dist.all_reduce(metric)
    job.synchronize()
    return float(metric[0]) / job.ranks
