"""A thread of each rank reduces on its GPU; that of rank 1 once more where "more" is said."""

import sys
import threading

import torch
import torch.distributed as dist


def reduce_often(times: int) -> None:
    for _ in range(times):
        dist.all_reduce(torch.ones(4, device="cuda"))


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
more = rank == 1 and "more" in sys.argv
helper = threading.Thread(target=reduce_often, args=(4 if more else 3,))
helper.start()
helper.join()
if "kernel" in sys.argv:
    helper = threading.Thread(target=torch.cuda.cudart)
    helper.start()
    helper.join()
