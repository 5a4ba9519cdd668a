"""Gradients of several batches, no_sync but for the last, and a hook that sends them as fp16."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(70, 16), torch.randn(70, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)
layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
model = DistributedDataParallel(layers, gradient_as_bucket_view=True)
model.register_comm_hook(None, fp16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for number, (inputs, targets) in enumerate(loader, 1):
        model.require_backward_grad_sync = number % 2 == 0 or number == len(loader)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        if model.require_backward_grad_sync:
            optimizer.step()
            optimizer.zero_grad()
values = [loss.item()]
print(f"loss {values}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
