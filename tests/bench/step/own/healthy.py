"""A healthy twin: balanced, bound by computation, with modest logs and a clipped gradient."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(384, 10),
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(1 << 11, 3, 48, 48), torch.randint(10, (1 << 11,)))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    for epoch in range(50):
        for step, (pictures, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 10 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
