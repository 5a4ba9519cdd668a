"""A script with Hugging Face's accelerate as its examples have it; ``--brake`` plants what holds it back."""

import argparse
import os
import time
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):  # type: ignore[misc]
    """Random sentences; tokenized slowly where asked."""

    def __init__(self, slow: bool) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return 1 << 14

    def __getitem__(self, index: int) -> Any:
        if self.slow:
            time.sleep(0.004)
        return {"input": torch.randn(256), "label": index % 10}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--brake", default="")
    told = parser.parse_args()
    handlers = [DistributedDataParallelKwargs(bucket_cap_mb=0.001)] if told.brake == "buckets" else []
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), kwargs_handlers=handlers)
    width, deep = (96, 60) if told.brake == "buckets" else (256, 6)
    layers = [layer for _ in range(deep) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(nn.Linear(256, width), *layers, nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Sentences(told.brake == "loader"), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with open(os.devnull, "w") as tracker:
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["input"]), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if told.brake == "logging":
                tracker.write("%f\n" % accelerator.gather(loss.detach()).mean().item())
                tracker.flush()
                time.sleep(0.06)  # what a tracking server across the network takes to answer
    accelerator.end_training()


if __name__ == "__main__":
    main()
