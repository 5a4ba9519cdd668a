"""Plain DDP whose rank 0 writes a report of its predictions while the others wait at a barrier."""

import json
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def write_report(folder: str, step: int, outputs: torch.Tensor) -> None:
    """One row a prediction, safe on the disk."""
    path = os.path.join(folder, "report.jsonl")
    with open(path, "a") as file:
        for index, row in enumerate(outputs.tolist()):
            file.write(json.dumps({"step": step, "index": index, "scores": row}) + "\n")  # planted
            file.flush()  # planted
            os.fsync(file.fileno())  # planted


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 32))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(1 << 14, 128), torch.randint(32, (1 << 14,)))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(20):
            for step, (rows, labels) in enumerate(loader):
                outputs = model(rows)
                loss = nn.functional.cross_entropy(outputs, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step % 2 == 0:
                    if rank == 0:
                        write_report(folder, step, outputs.detach())  # planted
                    dist.barrier()  # planted
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
