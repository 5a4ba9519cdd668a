"""Rank 0 alone waits at a barrier after it has saved."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
values = torch.ones(4, device="cuda")
dist.all_reduce(values)
if dist.get_rank() == 0:
    state = {"values": values}
    dist.barrier()  # LINE: culprit
dist.all_reduce(values)  # LINE: others
