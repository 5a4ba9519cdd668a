"""Rank 0 alone evaluates through DDP, whose forward sends the buffers of its batch norm."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
model = DistributedDataParallel(layers.cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _epoch in range(2):
    model.train()
    for _ in range(2):
        loss = model(torch.randn(8, 16, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            score = model(torch.randn(32, 16, device="cuda")).mean()  # LINE: culprit
        print("score", score.item())
    dist.barrier()  # LINE: others
