"""FSDP2 for GPUs: mixed precision, clipping, a scheduler that reads the loss, events."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
torch.manual_seed(0)
device = torch.device(f"cuda:{local}")
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
model.to(device)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in (model[0], model[2]):
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
began.record()
for _ in range(3):
    inputs = torch.randn(8, 16).pin_memory().to(device, non_blocking=True)
    loss = model(inputs).float().square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    scheduler.step(mean.item())
ended.record()
torch.cuda.synchronize(local)
assert began.elapsed_time(ended) >= 0
norms = [None] * dist.get_world_size()
dist.all_gather_object(norms, model[0].weight.full_tensor().norm().item())
assert len(set(norms)) == 1
print(f"loss {[mean.item()]}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
