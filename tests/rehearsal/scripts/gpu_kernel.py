"""Rank 0 asks the driver, which a rehearsal cannot answer."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
if dist.get_rank() == 0:
    torch.cuda.get_device_properties(0)
dist.barrier()
