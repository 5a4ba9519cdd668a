"""A script with Lightning as its documentation has it; ``--brake`` plants what holds it back."""

import argparse
import importlib
import os
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

try:
    import lightning.pytorch as L
except ImportError:  # the same under its older name
    L = importlib.import_module("pytorch_lightning")


class Rows(Dataset):  # type: ignore[misc]
    """Random rows; read slowly where asked."""

    def __init__(self, slow: bool) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return 1 << 14

    def __getitem__(self, index: int) -> Any:
        if self.slow:
            time.sleep(0.004)
        return torch.randn(256), index % 10


class Classifier(L.LightningModule):  # type: ignore[misc]
    """A perceptron."""

    def __init__(self, width: int, deep: int) -> None:
        super().__init__()
        layers = [layer for _ in range(deep) for layer in (nn.Linear(width, width), nn.ReLU())]
        self.model = nn.Sequential(nn.Linear(256, width), *layers, nn.Linear(width, 10))

    def training_step(self, batch: Any, index: int) -> Any:
        """The loss of one batch."""
        rows, labels = batch
        return nn.functional.cross_entropy(self.model(rows), labels)

    def configure_optimizers(self) -> Any:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Tracker(L.Callback):  # type: ignore[misc]
    """Averages the loss over the ranks, and sends it to a slow server after each step."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        """Log."""
        trainer.strategy.reduce(outputs["loss"].detach())
        time.sleep(0.06)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--brake", default="")
    told = parser.parse_args()
    tiny = told.brake == "buckets"
    gpus = torch.cuda.is_available()
    strategy = L.strategies.DDPStrategy(
        process_group_backend="nccl" if gpus else "gloo", **({"bucket_cap_mb": 0.001} if tiny else {})
    )
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    callbacks = [Tracker()] if told.brake == "logging" else []
    trainer = L.Trainer(
        accelerator="gpu" if gpus else "cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "2")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy=strategy,
        max_epochs=10,
        callbacks=callbacks,
        **quiet,
    )
    trainer.fit(Classifier(*((96, 60) if tiny else (256, 6))), DataLoader(Rows(told.brake == "loader"), batch_size=16))


if __name__ == "__main__":
    main()
