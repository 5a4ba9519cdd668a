"""A mesh makes the first group by itself; rank 0 alone waits for its log."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("data", "model"))
values = torch.ones(4, device="cuda")
dist.all_reduce(values, group=mesh.get_group("model"))
if dist.get_rank() == 0:
    dist.barrier()  # LINE: culprit
dist.all_reduce(values)  # LINE: others
