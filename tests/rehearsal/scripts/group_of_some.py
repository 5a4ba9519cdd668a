"""Only the members make their group, but all ranks must."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
if dist.get_rank() < 2:
    half = dist.new_group([0, 1])
dist.all_reduce(torch.ones(1, device="cuda"))
