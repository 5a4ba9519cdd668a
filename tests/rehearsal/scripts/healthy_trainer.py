"""Trainer of transformers; all ranks evaluate, and the first one prints."""

import tempfile

import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def forward(self, inputs, labels):
        result = self.layer(inputs).squeeze(1)
        return {"loss": torch.nn.functional.mse_loss(result, labels), "logits": result}


torch.manual_seed(0)
rows = [{"inputs": torch.randn(16), "labels": torch.randn(())} for _ in range(64)]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=3,
    per_device_train_batch_size=4,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(Model(), arguments, train_dataset=rows, eval_dataset=rows)
trainer.train()
score = trainer.evaluate()["eval_loss"]
print(f"loss {[score]}\n", end="", flush=True)
trainer.accelerator.wait_for_everyone()
