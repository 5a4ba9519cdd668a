"""SyncBatchNorm; rank 0 alone tries a batch in training mode before the training begins."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
layers = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()
)
layers = torch.nn.SyncBatchNorm.convert_sync_batchnorm(layers).cuda()
model = DistributedDataParallel(layers, device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
if rank == 0:
    example = layers(torch.randn(2, 3, 8, 8, device="cuda"))  # LINE: culprit
    print("features", example.shape)
start = torch.zeros(1, device="cuda")
dist.broadcast(start, src=0)  # LINE: others
for _ in range(3):
    loss = model(torch.randn(4, 3, 8, 8, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
