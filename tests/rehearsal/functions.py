"""Functions that ranks call, of `test_function.py`."""

import torch
import torch.distributed as dist


def step_of_all(rounds: int = 1) -> None:
    dist.init_process_group("nccl")
    total = torch.ones(4, device="cuda")
    for _ in range(rounds):
        dist.all_reduce(total)
    assert total[0] == dist.get_world_size() ** rounds


def step_of_some() -> None:
    dist.init_process_group("nccl")
    total = torch.ones(4, device="cuda")
    if dist.get_rank() == 1:
        dist.barrier()
    dist.all_reduce(total)
