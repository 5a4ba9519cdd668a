"""Rank 3 takes itself for the source of the weights."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
rank = dist.get_rank()
weights = torch.full((4,), float(rank), device="cuda")
if rank == 3:
    dist.broadcast(weights, src=3)  # LINE: culprit
else:
    dist.broadcast(weights, src=0)  # LINE: others
