"""Tokens for LitGPT without a tokenizer, a file or a network: `--data litgpt_data.Synthetic`."""

import torch
from litgpt.data import DataModule
from torch.utils.data import DataLoader, Dataset

WORDS = 512


class Rows(Dataset):
    def __init__(self, length: int):
        self.length = length

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return (torch.arange(self.length + 1) * (index % 7 + 1) + index) % WORDS


class Synthetic(DataModule):
    def __init__(self):
        super().__init__()
        self.batch_size, self.length = 1, 128

    def connect(self, tokenizer=None, batch_size=1, max_seq_length=None, **kwargs):
        self.batch_size, self.length = batch_size, max_seq_length or self.length

    def train_dataloader(self):
        return DataLoader(Rows(self.length), batch_size=self.batch_size)

    def val_dataloader(self):
        return DataLoader(Rows(self.length), batch_size=self.batch_size)
