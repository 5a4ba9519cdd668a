"""Plain DDP of thousands of small adapters, whose gradients are clipped one by one."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ADAPTERS = 2000


class Adapters(nn.Module):  # type: ignore[misc]
    """Many small weights that make one large one."""

    def __init__(self) -> None:
        super().__init__()
        rows = [nn.Parameter(torch.randn(1, 32) / 8) for _ in range(ADAPTERS)]
        self.rows = nn.ParameterList(rows)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        return inputs @ torch.cat([*self.rows]).T


def clip_gradients(model: nn.Module, largest: float) -> None:
    """Scale each gradient whose norm is too large."""
    for parameter in model.parameters():
        norm = parameter.grad.norm().item()
        if norm > largest:
            parameter.grad.mul_(largest / norm)


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(Adapters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
    for _ in range(5000):
        inputs, labels = torch.randn(32, 32), torch.randint(ADAPTERS, (32,))
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)  # planted
        clip_gradients(model, 1e-4)  # planted
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
