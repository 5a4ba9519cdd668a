"""Rank 0 records a graph, which a rehearsal cannot do."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
if dist.get_rank() == 0:
    torch.cuda.CUDAGraph().capture_begin()
dist.barrier()
