"""Rank 2 believes that its work is done and leaves by os._exit, so no clean-up can hang."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
shards = [4, 4, 3, 4]
seen = torch.zeros(1, device="cuda")
for shard in range(max(shards)):
    if shard == shards[rank]:
        os._exit(0)  # LINE: culprit
    seen += 1
    dist.all_reduce(seen)  # LINE: others
