"""All ranks but one meet at a monitored barrier after the data was prepared."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
lengths = torch.tensor([100 + rank])
if rank != 1:
    dist.monitored_barrier()  # LINE: others
dist.all_reduce(lengths)  # LINE: culprit
