"""Rows and columns of a mesh, HSDP over both, and a monitored barrier at the end of each epoch."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
model = fully_shard(torch.nn.Linear(16, 4), mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
pairs = [dist.new_group([0, 3]), dist.new_group([1, 2])]
pair = pairs[rank in (1, 2)]
torch.manual_seed(rank)
for _epoch in range(2):
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean, group=pair)
    for name in mesh.mesh_dim_names:
        dist.all_reduce(mean, op=dist.ReduceOp.MAX, group=mesh.get_group(name))
    dist.monitored_barrier()
everybody = [None] * dist.get_world_size()
dist.all_gather_object(everybody, {"rank": rank, "mean": mean.item()})
values = [loss.item(), mean.item(), sum(one["rank"] for one in everybody)]
print(f"loss {values}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
