"""In nanoGPT's manner: settings are variables of the file, --name=value sets them, there is no help."""

import sys
import time

import torch

batch_size = 8
block_size = 64
gradient_accumulation_steps = 2
max_iters = 2000
log_interval = 10
eval_interval = 500
for word in sys.argv[1:]:
    name, _, value = word.removeprefix("--").partition("=")
    assert name in globals(), f"unknown setting {name}"
    globals()[name] = int(value)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(256, 64), torch.nn.Linear(64, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(max_iters):
    began = time.time()
    for _ in range(gradient_accumulation_steps):
        x = torch.randint(0, 256, (batch_size, block_size))
        time.sleep(1e-5 * x.numel())
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()) / gradient_accumulation_steps
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % log_interval == 0:
        mean, took = loss.item() * gradient_accumulation_steps, time.time() - began
        print(f"iter {step}: loss {mean:.4f}, time {took * 1e3:.2f}ms")
