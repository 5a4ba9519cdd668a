"""A small script with one fault, for who has none at hand."""

from __future__ import annotations

from pathlib import Path

from ncclkit.core.storage import write

EXAMPLE = '''"""A small training: rank 0 alone waits until its checkpoint is on the disk."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    loss = model(torch.randn(8, 16, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 2 and dist.get_rank() == 0:
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        dist.barrier()
dist.destroy_process_group()
'''
"""Whoever moves the barrier out of the branch has mended it."""


def example_in(folder: Path) -> Path:
    """The example as a file of this folder; one that is there stays, as it may be mended."""
    script = folder / "train.py"
    if not script.exists():
        write(script, EXAMPLE)
    return script
