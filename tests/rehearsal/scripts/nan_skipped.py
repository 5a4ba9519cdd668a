"""A rank whose loss is not a number goes on with the next batch, before DDP's backward."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 1).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    inputs = torch.randn(8, 16, device="cuda")
    if rank == 2 and step == 1:
        inputs[0, 0] = float("nan")
    loss = model(inputs).square().mean()
    if loss.isnan():
        continue
    loss.backward()  # LINE: others
    optimizer.step()
    optimizer.zero_grad()
losses = [torch.zeros(1, device="cuda") for _ in range(4)]
dist.all_gather(losses, loss.detach().view(1))  # LINE: culprit
