"""Neighbours exchange their activations; rank 1 was meant to receive first, and sends as rank 0."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
own = torch.full((4,), float(rank), device="cuda")
other = torch.empty(4, device="cuda")
partner = rank ^ 1
if rank in (0, 1, 2):
    dist.send(own, dst=partner)  # LINE: culprit
    dist.recv(other, src=partner)
else:
    dist.recv(other, src=partner)
    dist.send(own, dst=partner)
dist.barrier()  # LINE: others
