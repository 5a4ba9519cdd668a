"""Rank 1 stops early by itself."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
loss = torch.ones(1, device="cuda")
for epoch in range(3):
    dist.all_reduce(loss)  # LINE: others
    if dist.get_rank() == 1 and epoch == 1:
        sys.exit(0)  # LINE: culprit
