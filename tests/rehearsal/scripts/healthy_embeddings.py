"""Embedding rows travel by uneven all_to_all, their gradients back, the dense part by DDP."""

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
table = torch.nn.Embedding(100, 8)
dense = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizers = [torch.optim.SGD(table.parameters(), 0.1), torch.optim.Adam(dense.parameters())]
for step in range(4):
    wanted = [2 + (rank + owner + step) % 3 for owner in range(world)]
    asked = torch.randint(0, 100, (sum(wanted),))
    given = torch.zeros(world, dtype=torch.int64)
    dist.all_to_all_single(given, torch.tensor(wanted))
    given = given.tolist()
    keys = torch.zeros(sum(given), dtype=torch.int64)
    dist.all_to_all_single(keys, asked, given, wanted)
    rows = all_to_all_single(torch.empty(sum(wanted), 8), table(keys), wanted, given)
    loss = (dense(rows) - 1).square().mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
values = [loss.item(), table.weight.norm().item()]
print(f"loss {values}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
