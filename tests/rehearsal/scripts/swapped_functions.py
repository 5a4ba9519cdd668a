"""Two sums of one number each: rank 1 makes them in the other order, and nothing notices."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
loss = torch.ones(1, device="cuda")
hits = torch.ones(1, device="cuda")


def sum_loss():
    dist.all_reduce(loss)  # LINE: others


def count_hits():
    dist.all_reduce(hits)  # LINE: culprit


if dist.get_rank() == 1:
    count_hits()
    sum_loss()
else:
    sum_loss()
    count_hits()
