"""A plain DDP script as tutorials have it; ``--brake`` plants what holds it back."""

import argparse
import os
import tempfile
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):  # type: ignore[misc]
    """Random pictures; a slow disk where asked."""

    def __init__(self, slow: bool) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return 1 << 14

    def __getitem__(self, index: int) -> Any:
        if self.slow:
            time.sleep(0.004)
        return torch.randn(256), index % 10


def log_metrics(file: Any, loss: Any) -> None:
    """Average the loss over the ranks, and write it to a slow disk."""
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    file.write("%f\n" % (mean.item() / dist.get_world_size()))
    file.flush()
    os.fsync(file.fileno())
    time.sleep(0.06)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--brake", default="")
    parser.add_argument("--log", default="")
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--accumulate", type=int, default=1)
    told = parser.parse_args()
    gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpus else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    width = 96 if told.brake == "buckets" else 256
    deep = 60 if told.brake == "buckets" else 6
    layers = [layer for _ in range(deep) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(nn.Linear(256, width), *layers, nn.Linear(width, 10))
    cap = {"bucket_cap_mb": 0.001} if told.brake == "buckets" else {}
    model = DistributedDataParallel(model.to(device), **cap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Images(told.brake in ("loader", "worker") or (told.brake == "rank" and dist.get_rank() == 1))
    workers = 1 if told.brake == "worker" else 0
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data), num_workers=workers)
    with open(told.log, "a") if told.log else tempfile.TemporaryFile("w") as file:
        for step, (pictures, labels) in enumerate(loader):
            last = (step + 1) % told.accumulate == 0
            with nullcontext() if last else model.no_sync():
                loss = nn.functional.cross_entropy(model(pictures.to(device)), labels.to(device))
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            if told.brake == "logging":
                log_metrics(file, loss)
            if step >= told.steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
