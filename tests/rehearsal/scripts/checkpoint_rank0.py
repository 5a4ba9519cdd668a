"""Rank 0 alone saves a distributed checkpoint, which all ranks must write together."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 1).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    loss = model(torch.randn(8, 16, device="cuda")).square().mean()
    loss.backward()  # LINE: others
    optimizer.step()
    optimizer.zero_grad()
    if step == 1 and rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            dcp.save({"model": model.module.state_dict()}, checkpoint_id=folder)  # LINE: culprit
