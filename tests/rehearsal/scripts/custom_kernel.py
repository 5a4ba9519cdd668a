"""A kernel that only a GPU has; the shape of its result is told, unless an argument says `bare`."""

import os
import sys

import torch
import torch.distributed as dist

torch.library.define("rehearsed::scale", "(Tensor values) -> Tensor")


@torch.library.impl("rehearsed::scale", "CUDA")
def scale(values):
    return values * 2


if "bare" not in sys.argv:
    torch.library.register_fake("rehearsed::scale", torch.empty_like)

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
values = torch.ones(8, device="cuda")
values = torch.ops.rehearsed.scale(values)
dist.all_reduce(values)
print("loss", values.sum().item(), flush=True)
