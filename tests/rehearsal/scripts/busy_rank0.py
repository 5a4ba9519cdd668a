"""Rank 0 works for three seconds while the others wait; no clock may be put forward."""

import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
score = torch.zeros(1)
if dist.get_rank() == 0:
    # what a rank waits for with a deadline of its own is its work
    threading.Event().wait(3)
dist.broadcast(score, src=0)
dist.barrier()
