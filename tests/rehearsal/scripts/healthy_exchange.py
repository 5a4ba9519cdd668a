"""Uneven all_to_all, batched sends, halves, and objects."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
sent = [1 + (rank + peer) % 3 for peer in range(world)]
output = torch.empty(sum(sent), 2)
dist.all_to_all_single(output, torch.full((sum(sent), 2), float(rank)), sent, sent)
ring = torch.empty(4)
operations = [
    dist.P2POp(dist.isend, torch.full((4,), float(rank)), (rank + 1) % world),
    dist.P2POp(dist.irecv, ring, (rank - 1) % world),
]
for request in dist.batch_isend_irecv(operations):
    request.wait()
halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
half = torch.tensor([float(rank)])
dist.all_reduce(half, group=halves[rank // 2])
names = [None] * world
dist.all_gather_object(names, "x" * rank)
parts = [torch.zeros(2) for _ in range(world)] if rank == 0 else None
dist.gather(torch.full((2,), float(rank)), parts, dst=0)
own = torch.zeros(3)
dist.scatter(own, [torch.full((3,), float(i)) for i in range(world)] if rank == 1 else None, src=1)
values = [output.sum().item(), ring.sum().item(), half.item(), len("".join(names)), own.sum().item()]
print(f"loss {values}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
