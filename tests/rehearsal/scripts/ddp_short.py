"""DDP; rank 2 has one batch less than the others."""


import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.Linear(4, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batches = 5 - (rank == 2)
for _ in range(batches):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()  # LINE: others
    optimizer.step()
total = torch.tensor([float(batches)])
dist.all_reduce(total)  # LINE: culprit
print("loss", loss.item())
