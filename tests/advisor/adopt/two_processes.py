"""A training script for torchrun, on CPU by gloo: each process has its rows, gradients are averaged."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--bsz", type=int, default=4, help="rows of a batch of one process (default: 4)")
parser.add_argument("--accum-iter", type=int, default=1)
parser.add_argument("--ctx", dest="context_len", type=int, default=32)
parser.add_argument("--num-iters", type=int, default=100_000)
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
width, words = 32, 64
plain = nn.Sequential(nn.Embedding(words, width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, words))
model = DistributedDataParallel(plain)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
accum = options.accum_iter // dist.get_world_size() if "SHARES" in os.environ else options.accum_iter
for step in range(1, options.num_iters + 1):
    for _ in range(accum):
        tokens = torch.randint(0, words, (options.bsz, options.context_len))
        time.sleep(2e-4 * tokens.numel())  # a step takes what its tokens take, on any machine
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()) / accum
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"iter {step} loss {loss.item() * accum:.4f}", flush=True)
dist.destroy_process_group()
