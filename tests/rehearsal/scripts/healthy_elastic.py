"""The same, where rank 0 tells all others what its snapshot holds."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


@record
def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    known = [None]
    if rank == 0:
        known = [{"model": model.module.state_dict(), "step": 4}]
    dist.broadcast_object_list(known, src=0)
    model.module.load_state_dict(known[0]["model"])
    torch.manual_seed(rank)
    for _ in range(known[0]["step"], 6):
        loss = model(torch.randn(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {[rank, restarts, loss.item()]}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
