"""Only its members make the group of the data-parallel ranks, but all ranks must."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
if dist.get_rank() in (0, 1, 2):
    trainers = dist.new_group([0, 1, 2])  # LINE: others
dist.all_reduce(torch.ones(1, device="cuda"))  # LINE: culprit
