"""A small honest training job: a real model, DDP, real collectives.  Without a fault it trains and succeeds."""

import argparse

from ncclkit.agent import wire
from ncclkit.agent.run import crash_handler, loaded
from ncclkit.lab.programs import inject
from ncclkit.lab.programs.inject import checkpoint


def main(argv):
    """``train --folder DIR --backend gloo [--fault NAME --rank R --at STEP --seconds S --fix CAUSE]``."""
    parser = argparse.ArgumentParser(prog="train")
    inject.add_options(parser)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args(argv)
    return crash_handler.run(options.folder, lambda rank: _train(options, rank))


def _train(options, rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    job = inject.LabJob(torch, options, options.steps)
    wire.send("phase", phase="import", rank=rank, torch=torch.__version__, loaded=loaded.versions())
    job.begin()
    wire.send("phase", phase="init", rank=rank)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(job.device)
    if job.attempt and job.fixed("rank_killed"):
        checkpoint.load(job, model)
    model = DistributedDataParallel(model, device_ids=[job.device.index] if job.device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(len(job.positions), job.steps):
        wire.send("phase", phase="step", rank=rank, step=step)
        job.at(step)
        loss = train_step(job, model, optimizer)
        print("step %d loss %.4f" % (step, loss))
        checkpoint.save(job, model.module)
    del model, optimizer
    job.end()


def train_step(job, model, optimizer):
    """One step of DDP on 32 samples; also averages a metric over the ranks, as many loops do.  Returns the loss."""
    optimizer.zero_grad()
    loss = (model(job.next_batch()) ** 2).mean()
    loss.backward()
    optimizer.step()
    metric = job.torch.full((1024,), float(loss.detach()), device=job.device)
    job.dist.all_reduce(metric)
    job.synchronize()
    return float(metric[0]) / job.ranks
