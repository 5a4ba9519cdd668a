"""FSDP; all ranks evaluate together and gather the whole state for a checkpoint of rank 0."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType

on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank = dist.get_rank()
device = torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
model = FullyShardedDataParallel(layers.to(device), device_id=device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
torch.manual_seed(rank)
for _ in range(3):
    loss = model(torch.randn(8, 16, device=device)).square().mean()
    loss.backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    score = model(torch.randn(32, 16, device=device)).mean()
whole = FullStateDictConfig(offload_to_cpu=on_gpu, rank0_only=on_gpu)
with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
    state = model.state_dict()
assert not state or len(state) == 4
values = [loss.item(), score.item()]
print(f"loss {values}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
