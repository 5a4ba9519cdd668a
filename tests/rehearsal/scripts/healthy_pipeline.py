"""Four stages of a pipeline, under two schedules."""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu")
torch.manual_seed(rank)
layer = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
torch.manual_seed(100)
losses = [torch.zeros(1)]
for schedule_class in (ScheduleGPipe, Schedule1F1B):
    stage = PipelineStage(layer, rank, world, device)
    schedule = schedule_class(stage, 4, loss_fn=torch.nn.functional.mse_loss)
    for _ in range(2):
        inputs, targets = torch.randn(8, 16), torch.randn(8, 16)
        if rank == 0:
            schedule.step(inputs)
        elif rank == world - 1:
            losses = []
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
values = [rank, sum(loss.item() for loss in losses), layer[0].weight.norm().item()]
print(f"loss {values}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
