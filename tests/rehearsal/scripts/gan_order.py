"""A GAN; rank 2 updates the generator before the discriminator, the others after it."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
generator = DistributedDataParallel(torch.nn.Linear(8, 16).cuda(), device_ids=[rank])
judge = DistributedDataParallel(torch.nn.Linear(16, 1).cuda(), device_ids=[rank])
generator_optimizer = torch.optim.Adam(generator.parameters())
judge_optimizer = torch.optim.Adam(judge.parameters())


def update_judge():
    real = torch.randn(8, 16, device="cuda")
    fake = generator.module(torch.randn(8, 8, device="cuda")).detach()
    loss = judge(torch.cat([real, fake])).mean()
    loss.backward()  # LINE: others
    judge_optimizer.step()
    judge_optimizer.zero_grad()


def update_generator():
    loss = -judge.module(generator(torch.randn(8, 8, device="cuda"))).mean()
    loss.backward()  # LINE: culprit
    generator_optimizer.step()
    generator_optimizer.zero_grad()


steps = [update_judge, update_generator]
if rank == 2:
    steps.reverse()
for _ in range(3):
    for step in steps:
        step()
