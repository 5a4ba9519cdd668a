"""All ranks save a distributed checkpoint, once in the background, and load it again."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = fully_shard(torch.nn.Linear(16, 4), mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
background = dist.new_group(backend="gloo")
folder = [None]
if rank == 0:
    folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder, src=0)
torch.manual_seed(rank)
for step in range(4):
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    state = {"model": model.state_dict()}
    if step == 1:
        dcp.save(state, checkpoint_id=f"{folder[0]}/{step}")
    if step == 2:
        path = f"{folder[0]}/{step}"
        saving = dcp.async_save(state, checkpoint_id=path, process_group=background)
saving.result()
dcp.load(state, checkpoint_id=f"{folder[0]}/2")
model.load_state_dict(state["model"])
values = [loss.item(), model.weight.full_tensor().norm().item()]
print(f"loss {values}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
