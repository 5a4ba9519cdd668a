"""DDP with uneven batches under join()."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with model.join():
    for _ in range(3 + rank):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.barrier()
values = [loss.item()]
print(f"loss {values}\n", end="", flush=True)
dist.destroy_process_group()
