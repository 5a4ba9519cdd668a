"""A pipeline of two stages on each of two replicas; stage 1 of one expects fewer microbatches."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replica", "stage"))
group = mesh.get_group("stage")
number = dist.get_rank(group)
layer = torch.nn.Linear(16, 16).to(device)
stage = PipelineStage(layer, number, 2, device, group=group)
microbatches = 4
if rank == 3:
    microbatches = 2
schedule = ScheduleGPipe(stage, microbatches, loss_fn=torch.nn.functional.mse_loss)
inputs = torch.randn(8, 16, device=device)
targets = torch.zeros(8, 16, device=device)
if number == 0:
    schedule.step(inputs)  # LINE: others
else:
    schedule.step(target=targets)  # LINE: culprit
dist.barrier()
