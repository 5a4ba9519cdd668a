"""Rank 0 sends the name of the run; rank 3 has read it from its environment and does not take it."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
name = [None]
if rank == 0:
    name = ["run-17"]
if rank == 3:
    name = ["run-17"]
else:
    dist.broadcast_object_list(name, src=0)  # LINE: others
dist.barrier()  # LINE: culprit
