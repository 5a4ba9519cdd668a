"""DDP without find_unused_parameters; one batch of rank 1 has no picture to encode."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class TextAndPicture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.text = torch.nn.Linear(16, 8)
        self.picture = torch.nn.Linear(32, 8)

    def forward(self, words, picture):
        features = self.text(words)
        if picture is not None:
            features = features + self.picture(picture)
        return features.square().mean()


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = DistributedDataParallel(TextAndPicture().cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    words = torch.randn(8, 16, device="cuda")
    picture = torch.randn(8, 32, device="cuda")
    if rank == 1 and step == 1:
        picture = None
    loss = model(words, picture)  # LINE: culprit
    loss.backward()  # LINE: others
    optimizer.step()
    optimizer.zero_grad()
