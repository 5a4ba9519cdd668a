"""A step is skipped where the loss of all ranks is large, which the ranks know and a fake run does not."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
lines = []
known = torch.tensor(dist.get_rank())
if known.item() == 0:
    lines.append("rank 0 reads what it wrote itself")
for _ in range(3):
    loss = model(torch.randn(2, 4)).square().mean()
    loss.backward()
    dist.all_reduce(known)
    total = loss.detach()
    dist.all_reduce(total)
    print(f"loss {total.item() / 4:.3f}", flush=True)
    try:
        if total.item() > 100:
            dist.barrier()
    except Exception:
        lines.append("nobody comes here")
