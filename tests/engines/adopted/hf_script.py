"""A script around transformers' Trainer, as thousands are: its own arguments beside TrainingArguments."""

from dataclasses import dataclass

import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


@dataclass
class Own:
    rows: int = 4096
    length: int = 64


class Random(torch.utils.data.Dataset):
    def __init__(self, own):
        self.own = own

    def __len__(self):
        return self.own.rows

    def __getitem__(self, i):
        tokens = torch.randint(0, 128, (self.own.length,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": tokens, "labels": tokens}


own, arguments = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()
shape = LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
Trainer(model=LlamaForCausalLM(shape), args=arguments, train_dataset=Random(own)).train()
