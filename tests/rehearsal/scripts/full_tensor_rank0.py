"""FSDP2; rank 0 alone gathers a parameter to print its norm."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for step in range(3):
    loss = model(torch.randn(8, 16, device="cuda")).square().mean()  # LINE: others
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0 and step == 1:
        print("norm", model[0].weight.full_tensor().norm())  # LINE: culprit
dist.barrier()
