"""ZeroRedundancyOptimizer, whose state all ranks collect for rank 0."""

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layers = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)])
model = DistributedDataParallel(layers)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)
torch.manual_seed(rank)
for _ in range(3):
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
optimizer.consolidate_state_dict(to=0)
count = 0
if rank == 0:
    count = len(optimizer.state_dict()["state"])
values = [loss.item(), count]
print(f"loss {values}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
