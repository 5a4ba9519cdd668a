"""A GAN of two DDP models; all ranks update them in one order."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
generator = DistributedDataParallel(torch.nn.Linear(8, 16))
judge = DistributedDataParallel(torch.nn.Linear(16, 1))
generator_optimizer = torch.optim.Adam(generator.parameters())
judge_optimizer = torch.optim.Adam(judge.parameters())
torch.manual_seed(dist.get_rank())
for _ in range(4):
    real, noise = torch.randn(8, 16), torch.randn(8, 8)
    with torch.no_grad():
        fake = generator.module(noise)
    judge_loss = judge(torch.cat([real, fake])).square().mean()
    judge_loss.backward()
    judge_optimizer.step()
    judge_optimizer.zero_grad()
    loss = -judge.module(generator(noise)).mean()
    loss.backward()
    generator_optimizer.step()
    generator_optimizer.zero_grad()
    judge_optimizer.zero_grad()
values = [loss.item(), judge_loss.item()]
print(f"loss {values}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
