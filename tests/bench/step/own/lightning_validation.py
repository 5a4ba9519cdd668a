"""A Lightning module whose trainer validates every ten batches."""

import os

import lightning.pytorch as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(L.LightningModule):  # type: ignore[misc]
    """A perceptron."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(64, 512)]
        for _ in range(4):
            layers += [nn.ReLU(), nn.Linear(512, 512)]
        self.net = nn.Sequential(*layers, nn.Linear(512, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """The loss of one batch."""
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        """The error of one batch."""
        error = nn.functional.l1_loss(self.net(batch[0]), batch[1])  # planted
        self.log("val_error", error)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def main() -> None:
    """Train."""
    torch.manual_seed(1)
    rows = torch.randn(1 << 14, 64)
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    held = TensorDataset(rows[: 1 << 13], rows[: 1 << 13].sum(1, keepdim=True))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "2")),
        strategy=L.strategies.DDPStrategy(process_group_backend="gloo"),
        max_epochs=20,
        val_check_interval=10,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), DataLoader(data, batch_size=64), DataLoader(held, batch_size=64))


if __name__ == "__main__":
    main()
