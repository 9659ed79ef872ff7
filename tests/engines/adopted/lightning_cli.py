"""A LightningCLI: jsonargparse reads its options, its data module has the batch."""

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import nn


class Rows(LightningDataModule):
    def __init__(self, batch_size: int = 32):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        rows = torch.utils.data.TensorDataset(torch.randn(4096, 64), torch.randn(4096, 1))
        return torch.utils.data.DataLoader(rows, batch_size=self.batch_size)


class Regression(LightningModule):
    def __init__(self, width: int = 512):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(self, rows):
        return self.body(rows)

    def training_step(self, batch, index):
        rows, target = batch
        return nn.functional.mse_loss(self(rows), target)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    LightningCLI(Regression, Rows)
