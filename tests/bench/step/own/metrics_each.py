"""Plain DDP that averages the accuracy of each class over the ranks, one all_reduce a class."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 200


def reduce_metrics(scores: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Class → share of its samples that were right, over all ranks."""
    right = (scores.argmax(1) == labels).float()
    metrics = {}
    for number in range(CLASSES):
        value = right[labels == number].sum()
        dist.all_reduce(value)  # planted
        metrics[f"accuracy/{number}"] = value.item() / dist.get_world_size()
    return metrics


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history = []
    for _ in range(5000):
        rows, labels = torch.randn(64, 256), torch.randint(CLASSES, (64,))
        scores = model(rows)
        loss = nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(reduce_metrics(scores.detach(), labels))


if __name__ == "__main__":
    main()
