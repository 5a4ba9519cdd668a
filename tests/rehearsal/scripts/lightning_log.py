"""Lightning; rank 0 alone logs a metric that is to be averaged over all ranks."""

import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def training_step(self, batch, number):
        loss = self.layer(batch[0]).square().mean()
        if self.global_rank == 0 and number == 1:
            self.log("loss", loss, sync_dist=True, on_step=True)  # LINE: culprit
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 16))
loader = torch.utils.data.DataLoader(data, batch_size=4)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=4,
    strategy="ddp",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Model(), loader)  # LINE: others
