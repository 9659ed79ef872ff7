"""Our training step against a plain, well-written PyTorch loop of the same shape, in the manner of nanoGPT.

    python benchmarks/vs_nanogpt.py [--device cuda] [--family gpt2] [--depth 4] [--vocab-size 4096] [--seq-len 256] ...

The plain loop does what nanoGPT's train.py does: one fused AdamW, scaled-dot-product attention, full logits and
F.cross_entropy, gradient clipping; fp32 on the CPU, bf16 autocast on CUDA, and there (unless --no-compile)
torch.compile, of the whole model on its side and block by block on ours. For nanochat shapes it is the same loop
around a plain nanochat model.

Each side lives in a process of its own. They take turns of a few steps, in random order, so that a drifting machine
slows both alike; the result is the median over rounds of plain seconds / our seconds. Above 1, we are faster.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainer.data import open_tokens  # noqa: E402
from trainer.device import resolve_device  # noqa: E402
from trainer.loop import Trainer  # noqa: E402
from trainer.schema import ModelShape, OptimizerConfig, RunConfig, make_shape  # noqa: E402

LEARNING_RATE, BETAS, WEIGHT_DECAY, GRAD_CLIP = 3e-4, (0.9, 0.95), 0.1, 1.0


class PlainAttention(nn.Module):
    def __init__(self, shape: ModelShape):
        super().__init__()
        self.heads, self.nanochat = shape.heads, shape.family == "nanochat"
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=not self.nanochat)
        self.output = nn.Linear(shape.width, shape.width, bias=not self.nanochat)
        if self.nanochat:
            size = shape.head_dim
            angles = torch.outer(torch.arange(shape.seq_len), 10_000.0 ** (-torch.arange(0, size, 2) / size))
            self.register_buffer("cos", angles.cos()[:, None], persistent=False)
            self.register_buffer("sin", angles.sin()[:, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time_, width = x.shape
        q, k, v = (part.view(batch, time_, self.heads, -1) for part in self.qkv(x).split(width, dim=2))
        if self.nanochat:
            q, k = (F.rms_norm(self.rotate(part), (part.shape[-1],)) for part in (q, k))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(y.transpose(1, 2).contiguous().view(batch, time_, width))

    def rotate(self, x: Tensor) -> Tensor:
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)


class PlainBlock(nn.Module):
    def __init__(self, shape: ModelShape):
        super().__init__()
        self.nanochat, width = shape.family == "nanochat", shape.width
        self.norms = nn.ModuleList(plain_norm(shape) for _ in range(2))
        self.attention = PlainAttention(shape)
        self.up = nn.Linear(width, shape.ffn_width, bias=not self.nanochat)
        self.down = nn.Linear(shape.ffn_width, width, bias=not self.nanochat)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        inner = self.up(self.norms[1](x))
        return x + self.down(F.relu(inner).square() if self.nanochat else F.gelu(inner, approximate="tanh"))


class PlainModel(nn.Module):
    def __init__(self, shape: ModelShape):
        super().__init__()
        self.nanochat = shape.family == "nanochat"
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.positions = None if self.nanochat else nn.Embedding(shape.seq_len, shape.width)
        self.first_norm = plain_norm(shape) if self.nanochat else nn.Identity()
        self.blocks = nn.ModuleList(PlainBlock(shape) for _ in range(shape.depth))
        self.last_norm = plain_norm(shape)
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        for block in self.blocks:
            for matrix in (block.attention.output.weight, block.down.weight):
                nn.init.normal_(matrix, std=0.02 / math.sqrt(2 * shape.depth))
        if not self.nanochat:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.first_norm(x)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.last_norm(x))
        if self.nanochat:
            logits = 15 * torch.tanh(logits.float() / 15)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class PlainRmsNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],))


def plain_norm(shape: ModelShape) -> nn.Module:
    return PlainRmsNorm() if shape.family == "nanochat" else nn.LayerNorm(shape.width)


class PlainLoop:
    """nanoGPT's loop: `steps` runs some and gives their seconds."""

    def __init__(self, options: argparse.Namespace):
        shape, self.options = shape_of(options), options
        self.device = torch.device(options.device)
        torch.manual_seed(1337)
        torch.set_float32_matmul_precision("high" if self.device.type == "cuda" else "highest")
        self.raw = PlainModel(shape).to(self.device)
        groups = [
            {"params": [p for p in self.raw.parameters() if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
            {"params": [p for p in self.raw.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=LEARNING_RATE, betas=BETAS, fused=True
        )
        self.model = torch.compile(self.raw) if options.compile else self.raw
        text = np.random.default_rng(0).zipf(1.3, 1 << 20) % shape.vocab_size
        self.text = text.astype(np.uint16)

    def batch(self) -> tuple[Tensor, Tensor]:
        length = self.options.seq_len
        starts = torch.randint(len(self.text) - length - 1, (self.options.micro_batch,)).tolist()
        windows = [torch.from_numpy(self.text[i : i + length + 1].astype(np.int64)) for i in starts]
        both = torch.stack([w[:-1] for w in windows]), torch.stack([w[1:] for w in windows])
        if self.device.type == "cpu":
            return both
        return tuple(part.pin_memory().to(self.device, non_blocking=True) for part in both)

    def steps(self, count: int) -> float:
        synchronise(self.device)
        began = time.perf_counter()
        for _ in range(count):
            tokens, targets = self.batch()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                loss = self.model(tokens, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(self.raw.parameters(), GRAD_CLIP)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        synchronise(self.device)
        return time.perf_counter() - began


class OurLoop:
    """The product's trainer, records included: `steps` runs some and gives their seconds."""

    def __init__(self, options: argparse.Namespace):
        shape = shape_of(options)
        config = RunConfig(
            model=shape,
            steps=1_000_000,
            micro_batch=options.micro_batch,
            device=options.device,
            compile=options.compile,
            optimizer=OptimizerConfig(
                learning_rate=LEARNING_RATE, beta1=BETAS[0], beta2=BETAS[1], weight_decay=WEIGHT_DECAY,
                grad_clip=GRAD_CLIP,
            ),
        )  # fmt: skip
        context = resolve_device(options.device, "auto")
        tokens = open_tokens(config.data, shape.vocab_size, shape.seq_len, config.seed)
        self.trainer = Trainer(config, context, tokens)

    def steps(self, count: int) -> float:
        began = time.perf_counter()
        for _ in self.trainer.steps(count):
            pass
        self.trainer.context.synchronise()
        return time.perf_counter() - began


def shape_of(options: argparse.Namespace) -> ModelShape:
    return make_shape(
        options.family, depth=options.depth, width=options.width, vocab_size=options.vocab_size, seq_len=options.seq_len
    )


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def serve(options: argparse.Namespace) -> None:
    """One side: answers each line, a number of steps, with their seconds."""
    side = (OurLoop if options.side == "ours" else PlainLoop)(options)
    for line in sys.stdin:
        print(json.dumps(side.steps(int(line))), flush=True)


def compare(options: argparse.Namespace) -> dict[str, float]:
    """Let both sides take turns; seconds per step are medians over rounds."""
    sides = {}
    for name in ("ours", "plain"):
        command = [sys.executable, __file__, *sys.argv[1:], "--side", name]
        sides[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ask(sides[name], options.warm_up)  # both compile at once
    for side in sides.values():
        answer(side)
    seconds: dict[str, list[float]] = {"ours": [], "plain": []}
    order = random.Random(0)
    for _ in range(options.rounds):
        for name in order.sample(("ours", "plain"), 2):
            seconds[name].append(turn(sides[name], options.steps) / options.steps)
    for process in sides.values():
        process.stdin.close()
        process.wait()
    ratios = [plain / ours for ours, plain in zip(seconds["ours"], seconds["plain"], strict=True)]
    return {
        "ours_step_seconds": statistics.median(seconds["ours"]),
        "plain_step_seconds": statistics.median(seconds["plain"]),
        "ratio": statistics.median(ratios),
        "ratio_low": sorted(ratios)[len(ratios) // 5],
        "ratio_high": sorted(ratios)[-1 - len(ratios) // 5],
    }


def turn(side: subprocess.Popen[str], steps: int) -> float:
    ask(side, steps)
    return answer(side)


def ask(side: subprocess.Popen[str], steps: int) -> None:
    side.stdin.write(f"{steps}\n")
    side.stdin.flush()


def answer(side: subprocess.Popen[str]) -> float:
    """Seconds of the steps asked for; what libraries print besides is passed over."""
    for line in side.stdout:
        try:
            return float(line)
        except ValueError:
            print(line, end="", file=sys.stderr)
    sys.exit("one side ended before it answered")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--family", default="gpt2", choices=("gpt2", "nanochat"))
    for name, default in {"depth": 4, "vocab-size": 4096, "seq-len": 256, "micro-batch": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--width", type=int, default=None)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=5, help="of one turn")
    parser.add_argument("--warm-up", type=int, default=5, help="steps before the first round")
    parser.add_argument("--side", choices=("ours", "plain"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.compile = options.device == "cuda" if options.compile is None else options.compile
    if options.side:
        serve(options)
    else:
        print(json.dumps(compare(options)))


if __name__ == "__main__":
    main()
