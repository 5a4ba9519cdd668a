"""Two replicas of a model on two ranks each: FSDP2 over the one dimension, tensors over the other."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
model = fully_shard(parallelize_module(layers, mesh["tensor"], plan), mesh=mesh["data"])
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
torch.manual_seed(mesh.get_local_rank("data"))
for _ in range(3):
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
whole = distribute_tensor(torch.arange(8.0), mesh["tensor"], [Shard(0)])
values = [loss.item(), (whole * 2).full_tensor().sum().item()]
print(f"loss {values}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
