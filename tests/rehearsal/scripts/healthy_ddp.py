"""DDP with gradient accumulation, unused parameters and a batch norm over all ranks."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 1))
model = DistributedDataParallel(layers, find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    inputs = torch.randn(8, 16)
    if step % 2:
        with model.no_sync():
            model(inputs).square().mean().backward()
        continue
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.all_reduce(loss)
values = [loss.item()]
print(f"loss {values}\n", end="", flush=True)
dist.destroy_process_group()
