"""Hugging Face's Trainer with a callback that prints tensors after each step."""

import tempfile
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments


class Rows(Dataset):  # type: ignore[misc]
    """Rows that lie in memory."""

    def __init__(self) -> None:
        self.rows = torch.randn(1 << 12, 64)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"rows": self.rows[index], "labels": self.rows[index].sum().view(1)}


class Net(nn.Module):  # type: ignore[misc]
    """A perceptron as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, rows: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss and the outputs."""
        outputs = self.net(rows)
        return {"loss": nn.functional.mse_loss(outputs, labels), "outputs": outputs}


class Watch(TrainerCallback):  # type: ignore[misc]
    """Shows how the weights change."""

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Print the weights of the first layer."""
        weights = next(named["model"].parameters())
        print("step", state.global_step, weights)  # planted


def main() -> None:
    """Train."""
    torch.set_printoptions(profile="full")
    with tempfile.TemporaryDirectory() as folder:
        asked = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=32,
            max_steps=3000,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(Net(), asked, train_dataset=Rows(), callbacks=[Watch()]).train()


if __name__ == "__main__":
    main()
