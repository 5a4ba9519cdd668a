"""Tensor parallel; rank 2 skips the forward of a sample that its tokenizer calls too long."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
model = parallelize_module(layers.cuda(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for sample in range(4):
    length = 8
    if sample == 2 and rank == 2:
        length = 9
    if length > 8:
        continue
    loss = model(torch.randn(8, 16, device="cuda")).square().mean()  # LINE: others
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("samples", sample)
dist.barrier()  # LINE: culprit
