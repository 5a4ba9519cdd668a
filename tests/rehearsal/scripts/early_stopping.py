"""Early stopping by each rank's own loss; rank 1 has easy data and stops before the others."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 1).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.01)
scale = 1.0
if rank == 1:
    scale = 0.0
for epoch in range(4):
    inputs = scale * torch.randn(8, 16, device="cuda")
    loss = (model(inputs) - scale).square().mean()
    loss.backward()  # LINE: others
    optimizer.step()
    optimizer.zero_grad()
    if loss.item() < 0.1 and epoch == 1:
        break
best = loss.detach().clone()
dist.all_reduce(best, op=dist.ReduceOp.MIN)  # LINE: culprit
