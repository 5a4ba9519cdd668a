"""Accelerate; the main process alone gathers the loss that it logs."""

import torch
from accelerate import Accelerator

accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
data = torch.utils.data.TensorDataset(torch.randn(64, 16))
loader = torch.utils.data.DataLoader(data, batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, (inputs,) in enumerate(loader):
    loss = model(inputs).square().mean()
    accelerator.backward(loss)  # LINE: others
    optimizer.step()
    optimizer.zero_grad()
    if accelerator.is_main_process and step == 1:
        mean = accelerator.gather(loss.detach()).mean()  # LINE: culprit
        print("mean", mean.item())
accelerator.end_training()
