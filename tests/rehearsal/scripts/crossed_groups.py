"""Two groups with the same members, which rank 0 uses in another order."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
data = dist.new_group([0, 1, 2, 3])
model = dist.new_group([0, 1, 2, 3])
value = torch.ones(4, device="cuda")
if dist.get_rank() == 0:
    dist.all_reduce(value, group=data)  # LINE: culprit
    dist.all_reduce(value, group=model)
else:
    dist.all_reduce(value, group=model)  # LINE: others
    dist.all_reduce(value, group=data)
