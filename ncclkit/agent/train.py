"""A small honest training job: a real model, DDP, real collectives.  Without a fault it trains and ends well."""

import argparse
import os
from datetime import timedelta

from . import blackbox, breaks, wire

FAULTS = (*breaks.BEFORE, *breaks.DURING, *breaks.TOGETHER)


class Job:
    """What a fault may touch: the process group, the data, the device."""

    def __init__(self, torch, options):
        import torch.distributed as dist

        self.torch, self.dist, self.seconds, self.steps = torch, dist, options.seconds, options.steps
        self.timeout = timedelta(seconds=options.timeout)
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local = int(os.environ["LOCAL_RANK"])
        shared = options.one_gpu and options.rank in (None, self.rank)
        self.device = torch.device("cuda", 0 if shared else local) if options.backend == "nccl" else torch.device("cpu")
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
    parser.add_argument("--rank", type=int, help="the guilty one; 1 where a fault needs one and none is named")
    parser.add_argument("--at", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--one-gpu", action="store_true", help="the guilty rank, or every rank, uses GPU 0")
    return parser.parse_args(argv)


def _train(options, rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    job, guilty = Job(torch, options), 1 if options.rank is None else options.rank
    wire.send("phase", phase="import", rank=rank, torch=torch.__version__)
    if options.fault in breaks.BEFORE and rank == guilty:
        breaks.BEFORE[options.fault](job)
    bound = {"device_id": job.device} if options.backend == "nccl" else {}
    job.dist.init_process_group(options.backend, timeout=job.timeout, **bound)
    wire.send("phase", phase="init", rank=rank)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(job.device)
    model = DistributedDataParallel(model, device_ids=[job.device.index] if job.device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(job.steps):
        wire.send("phase", phase="step", rank=rank, step=step)
        if step == options.at and options.fault in breaks.TOGETHER:
            breaks.TOGETHER[options.fault](job, guilty)
        if step == options.at and options.fault in breaks.DURING and rank == guilty:
            breaks.DURING[options.fault](job)
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
