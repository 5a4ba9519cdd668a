"""Embeddings on all ranks; rank 2 asks rank 0 for fewer rows than it says beforehand."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
table = torch.nn.Embedding(100, 8).cuda()
for step in range(3):
    wanted = [2 + (rank + owner + step) % 3 for owner in range(world)]
    wanted_of = torch.zeros(world, dtype=torch.int64, device="cuda")
    dist.all_to_all_single(wanted_of, torch.tensor(wanted, device="cuda"))
    given = wanted_of.tolist()
    if rank == 2 and step == 1:
        wanted[0] -= 1
    rows = torch.empty(sum(wanted), 8, device="cuda")
    found = table(torch.arange(sum(given), device="cuda"))
    dist.all_to_all_single(rows, found.detach(), wanted, given)  # LINE: culprit  # LINE: others
dist.barrier()
