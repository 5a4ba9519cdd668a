"""A head on a frozen embedding with accelerate, which keeps its whole state every third step."""

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tagger(nn.Module):  # type: ignore[misc]
    """An embedding of sixteen million numbers, and a head that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1 << 16, 256).requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        scores: torch.Tensor = self.head(self.embedding(tokens).mean(1))
        return scores


def main() -> None:
    """Train."""
    accelerator = Accelerator(cpu=True)
    model = Tagger()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=1e-3, momentum=0.9)
    data = TensorDataset(torch.randint(1 << 16, (1 << 13, 64)), torch.randint(8, (1 << 13,)))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "state"
        for number, (tokens, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(tokens), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if number % 3 == 0:
                accelerator.save_state(str(kept))  # planted
    accelerator.end_training()


if __name__ == "__main__":
    main()
