"""Accelerate; all processes gather the loss, and the main one logs it."""

import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=2)
torch.manual_seed(0)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
data = torch.utils.data.TensorDataset(torch.randn(60, 16))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for (inputs,) in loader:
    with accelerator.accumulate(model):
        loss = model(inputs).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    mean = accelerator.gather_for_metrics(loss.detach().view(1)).mean()
print(f"loss {[mean.item(), loss.item()]}\n", end="", flush=True)
accelerator.wait_for_everyone()
accelerator.end_training()
