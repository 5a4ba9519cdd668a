"""Rank 0 alone collects the metrics."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
metrics = {"rank": dist.get_rank()}
if dist.get_rank() == 0:
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, metrics)  # LINE: culprit
dist.barrier()  # LINE: others
