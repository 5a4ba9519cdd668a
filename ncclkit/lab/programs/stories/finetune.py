"""Story 3: a frozen model that learns through low-rank adapters.

A package of each host's own brings the adapters.  DDP compares the parameters of all ranks before
the first step: hosts whose releases of that package build adapters of another size fail there.  On
a host that has no such package, this says so and ends.
"""

import importlib

from ncclkit.agent import wire
from ncclkit.agent.run import crash_handler
from ncclkit.lab.programs import inject


def main(argv):
    """``stories.finetune --folder DIR --backend gloo [--steps N --timeout S --fix CAUSE]``."""
    options = inject.parser("stories.finetune", 6).parse_args(argv)
    return crash_handler.run_rank(options.folder, lambda rank: _train(options, rank))


def _train(options, rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    # of this host alone; see `ncclkit.live.launch.simulated`
    lowrank = importlib.import_module("lowrank")
    job = inject.begun(options, rank)
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        lowrank.Adapted(torch.nn.Linear(64, 256)), torch.nn.ReLU(), torch.nn.Linear(256, 1)
    )
    model = DistributedDataParallel(model.to(job.device))
    optimizer = torch.optim.SGD((one for one in model.parameters() if one.requires_grad), lr=0.01)
    for step in range(options.steps):
        wire.send("phase", phase="step", rank=rank, step=step)
        print("step %d loss %.4f" % (step, job.learn(model, optimizer)))
    del model, optimizer
    job.end()
