"""A job that torchrun starts anew: each rank goes on from the snapshot of its host, and one host is new."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
model = DistributedDataParallel(torch.nn.Linear(4, 4).cuda(), device_ids=[local])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
path = f"snapshot-{local}.pt"
if local != 3:
    torch.save({"model": model.module.state_dict(), "step": 4}, path)
first = 0
if os.path.exists(path):
    snapshot = torch.load(path, map_location=f"cuda:{local}")
    model.module.load_state_dict(snapshot["model"])
    first = snapshot["step"]
for _ in range(first, 6):
    model(torch.ones(2, 4, device="cuda")).sum().backward()  # LINE: culprit
    optimizer.step()
    optimizer.zero_grad()
done = torch.tensor([6.0], device="cuda")
dist.all_reduce(done)  # LINE: others
