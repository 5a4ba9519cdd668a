"""Gradient accumulation; rank 3 accumulates more batches before it lets DDP add them up."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 1).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
accumulate = 2
if rank == 3:
    accumulate = 4
for batch in range(1, 9):
    inputs = torch.randn(8, 16, device="cuda")
    if batch % accumulate:
        with model.no_sync():
            model(inputs).square().mean().backward()
        continue
    model(inputs).square().mean().backward()  # LINE: others
    optimizer.step()
    optimizer.zero_grad()
seen = torch.tensor([float(batch)], device="cuda")
dist.all_reduce(seen)  # LINE: culprit
