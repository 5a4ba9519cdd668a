"""Early stopping on which all ranks agree, after an evaluation of rank 0 without DDP."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
model = DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(rank)
for epoch in range(6):
    model.train()
    for _ in range(2):
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    stop = torch.zeros(1)
    if rank == 0:
        model.eval()
        with torch.no_grad():
            score = model.module(torch.randn(32, 16)).square().mean()
        stop[0] = float(score < 0.05 or epoch == 3)
    dist.broadcast(stop, src=0)
    if stop.item():
        break
values = [loss.item(), epoch]
print(f"loss {values}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
