"""FSDP; rank 0 alone evaluates, but each forward gathers the shards of all ranks."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
model = FullyShardedDataParallel(layers.cuda(), device_id=rank)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for _ in range(2):
    loss = model(torch.randn(8, 16, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if rank == 0:
    with torch.no_grad():
        score = model(torch.randn(32, 16, device="cuda")).mean()  # LINE: culprit
    print("score", score.item())
dist.barrier()  # LINE: others
dist.destroy_process_group()
