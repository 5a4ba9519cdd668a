"""DDP with uneven batches under join(), which knows nothing of the loop's own all_reduce."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 1).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batches = 4
if rank == 3:
    batches = 2
with model.join():  # LINE: culprit
    for _ in range(batches):
        loss = model(torch.randn(8, 16, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        metrics = torch.stack([loss.detach(), loss.detach().sqrt()])
        dist.all_reduce(metrics)  # LINE: others
