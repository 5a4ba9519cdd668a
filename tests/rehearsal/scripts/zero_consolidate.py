"""ZeroRedundancyOptimizer; rank 0 alone collects the optimizer's state for the checkpoint."""

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
layers = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)]).cuda()
model = DistributedDataParallel(layers, device_ids=[rank])
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)
for _ in range(2):
    loss = model(torch.randn(8, 16, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if rank == 0:
    optimizer.consolidate_state_dict(to=0)  # LINE: culprit
    state = optimizer.state_dict()
dist.barrier()  # LINE: others
