"""Trainer of transformers; the first rank alone evaluates after the training."""

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
if trainer.is_world_process_zero():
    print(trainer.evaluate())  # LINE: culprit
trainer.accelerator.wait_for_everyone()  # LINE: others
