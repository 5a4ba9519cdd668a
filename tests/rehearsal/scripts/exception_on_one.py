"""Rank 2 cannot read its data, and the others wait for it."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
if dist.get_rank() == 2:
    raise ValueError("shard 2 is empty")  # LINE: culprit
dist.all_reduce(torch.ones(1, device="cuda"))  # LINE: others
