"""The last batch of rank 3 is shorter, and its features are summed over all ranks."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
rows = 8
if dist.get_rank() == 3:
    rows = 5
features = torch.ones(rows, 2, device="cuda")
dist.all_reduce(features)  # LINE: culprit  # LINE: others
