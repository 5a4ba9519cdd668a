"""Rank 1 keeps its sum in another type."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
if dist.get_rank() == 1:
    total = torch.ones(4, device="cuda", dtype=torch.float64)
    dist.all_reduce(total)  # LINE: culprit
else:
    total = torch.ones(4, device="cuda")
    dist.all_reduce(total)  # LINE: others
