"""A pipeline whose last stage forgets to receive."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
rank, world = dist.get_rank(), dist.get_world_size()
activation = torch.ones(4, device="cuda")
if 0 < rank < world - 1:
    dist.recv(activation, src=rank - 1)
if rank < world - 1:
    dist.send(activation, dst=rank + 1)  # LINE: culprit
dist.barrier()  # LINE: others
