"""A script for GPUs: NCCL, mixed precision, pinned memory, an average over all ranks."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
device = torch.device("cuda", local)
dist.init_process_group("nccl", device_id=device)
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 32), torch.randint(0, 4, (64,)))
loader = DataLoader(data, 4, sampler=DistributedSampler(data), num_workers=1, pin_memory=True)
layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
model = DistributedDataParallel(layers.to(device), device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cuda")
start = torch.cuda.Event(enable_timing=True)
start.record()
for inputs, labels in loader:
    inputs, labels = inputs.cuda(non_blocking=True), labels.to(local)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
torch.cuda.synchronize()
mean = loss.detach().clone()
dist.all_reduce(mean, op=dist.ReduceOp.AVG)
if local == 0:
    values = [mean.item(), torch.cuda.max_memory_allocated()]
    print(f"loss {values}\n", end="", flush=True)
dist.barrier(device_ids=[local])
dist.destroy_process_group()
