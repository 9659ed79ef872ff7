"""A training script that nobody wrote for us: its options are not our names, and some of them can be made to lie."""

import argparse
import os
import signal
import sys
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--bsz", type=int, default=4, help="rows of a batch (default: 4)")
parser.add_argument("--accum-iter", type=int, default=1)
parser.add_argument("--ctx", dest="context_len", type=int, default=32)
parser.add_argument("--num-iters", type=int, default=100_000)
parser.add_argument("--crash-at", type=int, default=-1)
parser.add_argument("--save", default=None)
options = parser.parse_args()
lie = os.environ.get("LIE", "")
if lie == "dead":
    options.bsz = 4
elif lie == "capped":
    options.bsz = min(options.bsz, 6)
elif lie == "swapped":
    options.bsz, options.accum_iter = options.accum_iter * 4, max(1, options.bsz // 4)


def stop(number: int, frame: object) -> None:
    print("saved and gone", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, stop)
torch.manual_seed(0)
torch.set_num_threads(1)
width, words = 32, 64
model = nn.Sequential(nn.Embedding(words, width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, words))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ended, seen = None, 0
for step in range(1, options.num_iters + 1):
    if step == options.crash_at:
        raise RuntimeError("the user's own mistake: --steps 300")
    for _ in range(options.accum_iter):
        tokens = torch.randint(0, words, (options.bsz, options.context_len))
        time.sleep(2e-5 * tokens.numel())  # a step takes what its tokens take, on any machine
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()) / options.accum_iter
        loss.backward()
    optimizer.step()
    now = time.time()
    took = "" if ended is None else f" seconds {now - ended:.6f}"
    seen += options.accum_iter * options.bsz * options.context_len
    took += f" tokens {seen}" if "SAY_TOKENS" in os.environ else ""
    ended = now
    optimizer.zero_grad()
    print(f"iter {step} loss {loss.item() * options.accum_iter:.4f}{took}", flush=True)
if options.save:
    torch.save(model.state_dict(), options.save)
