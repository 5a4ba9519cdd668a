"""A transformer sharded by FSDP2; the sentences that rank 1 gets are three times as long."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

WIDTH, BATCH = 192, 8


class Encoder(nn.Module):  # type: ignore[misc]
    """Some transformer layers with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        for layer in self.layers:
            rows = layer(rows)  # planted
        scores: torch.Tensor = self.head(rows.mean(1))
        return scores


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    model = Encoder()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    length = 96 if rank == 1 else 32
    for number in range(5000):
        rows = torch.randn(BATCH, length, WIDTH)
        labels = torch.randint(16, (BATCH,))
        loss = nn.functional.cross_entropy(model(rows), labels)
        loss.backward()  # planted
        optimizer.step()
        optimizer.zero_grad()
        if number % 100 == 0 and rank == 0:
            print(f"{number}: {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
