"""Lightning; all ranks log a metric that is averaged over them, and validate."""

import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def training_step(self, batch, number):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def validation_step(self, batch, number):
        self.log("score", self.layer(batch[0]).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 16))
loader = torch.utils.data.DataLoader(data, batch_size=4)
trainer = lightning.Trainer(
    accelerator="gpu",
    devices=4,
    strategy="ddp",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Model(), loader, loader)
values = [trainer.callback_metrics[name].item() for name in ("loss", "score")]
print(f"loss {values}\n", end="", flush=True)
