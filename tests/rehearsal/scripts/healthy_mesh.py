"""A mesh makes the first group by itself, and a group for each of its two dimensions."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
torch.manual_seed(dist.get_rank())
values = torch.randn(4)
dist.all_reduce(values, group=mesh.get_group("model"))
dist.all_reduce(values, group=mesh.get_group("data"))
dist.all_reduce(values)
print(f"loss {[dist.get_rank(), *values.tolist()]}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
