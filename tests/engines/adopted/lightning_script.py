"""A plain Lightning script with a few options of its own."""

import argparse

import lightning
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--accumulate-grad-batches", type=int, default=1)
parser.add_argument("--max-steps", type=int, default=500)
options = parser.parse_args()


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


data = torch.utils.data.TensorDataset(torch.randn(20_000, 32), torch.randint(0, 10, (20_000,)))
loader = torch.utils.data.DataLoader(data, batch_size=options.batch)
trainer = lightning.Trainer(
    max_steps=options.max_steps,
    accumulate_grad_batches=options.accumulate_grad_batches,
    max_epochs=-1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Model(), loader)
