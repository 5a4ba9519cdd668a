"""A small honest training job.

It has a real model, DDP, and real collectives.  Without a fault it trains and succeeds.
"""

from ncclkit.agent import wire
from ncclkit.agent.run import crash_handler
from ncclkit.lab.programs import inject
from ncclkit.lab.programs.inject import checkpoint


def main(argv):
    """``train --folder DIR --backend gloo [--fault NAME --rank R --at STEP --seconds S --fix
    CAUSE]``.
    """
    options = inject.parser("train", 6).parse_args(argv)
    return crash_handler.run_rank(options.folder, lambda rank: _train(options, rank))


def _train(options, rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    job = inject.begun(options, rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
    ).to(job.device)
    if job.attempt and job.fixed("rank_killed"):
        checkpoint.load(job, model)
    model = DistributedDataParallel(
        model, device_ids=[job.device.index] if job.device.type == "cuda" else None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(len(job.positions), job.steps):
        wire.send("phase", phase="step", rank=rank, step=step)
        job.before_step(step)
        print("step %d loss %.4f" % (step, job.learn(model, optimizer)))
        checkpoint.save(job, model.module)
    del model, optimizer
    job.end()
