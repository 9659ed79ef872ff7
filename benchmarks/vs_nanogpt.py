"""Compares our training step with nanoGPT's and Hugging Face's loops on a model of the same shape.

    python benchmarks/vs_nanogpt.py [--against hf] [--precision bf16] [--device cuda] [--depth 4] ...

The plain loop does what nanoGPT's train.py does: one fused AdamW, scaled-dot-product attention, the exact GELU, full
logits and F.cross_entropy, gradient clipping; fp32 on the CPU and bf16 autocast on CUDA. On CUDA (unless --no-compile)
it also uses torch.compile, on the whole model on its side and block by block on ours. For nanochat shapes, it is the
same loop around a plain nanochat model. `--against hf` is transformers' Trainer around its GPT2LMHeadModel, with its
defaults for what is not named here; run it with a Python that has transformers.

`--precision bf16` or `fp32` trains both sides in that precision. "as shipped" leaves each side its default: fp32 on a
CPU for nanoGPT and Hugging Face, and for ours what a measured product of matrices decides.

Each side has its own process. They take turns of a few steps in random order, so that a drifting machine slows both
alike. The result is the median over rounds of plain seconds / our seconds. Above 1, we are faster.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
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
from trainer.threads import THREADS  # noqa: E402

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
        return x + self.down(F.relu(inner).square() if self.nanochat else F.gelu(inner))


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
    """nanoGPT's loop: `steps` runs some steps and returns their seconds."""

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
        half = runs_in_bf16(self.options)
        for _ in range(count):
            tokens, targets = self.batch()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
                loss = self.model(tokens, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(self.raw.parameters(), GRAD_CLIP)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        synchronise(self.device)
        return time.perf_counter() - began


class HuggingFaceLoop:
    """transformers' Trainer, in a thread that makes as many steps as it is allowed."""

    def __init__(self, options: argparse.Namespace):
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

        shape, loop = shape_of(options), self
        assert shape.family == "gpt2", "transformers has no nanochat trainer to compare with: use --family gpt2"
        self.asked, self.done = queue.Queue(), queue.Queue()

        class Turns(TrainerCallback):
            left = 0

            def on_step_begin(self, *_, **__):
                if self.left == 0:
                    self.left, self.began = loop.asked.get(), time.perf_counter()

            def on_step_end(self, *_, **__):
                self.left -= 1
                if self.left == 0:
                    synchronise(torch.device(options.device))
                    loop.done.put(time.perf_counter() - self.began)

        torch.manual_seed(1337)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=shape.vocab_size, n_positions=shape.seq_len, n_embd=shape.width, n_layer=shape.depth,
                n_head=shape.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
            )
        )  # fmt: skip
        text = torch.from_numpy(np.random.default_rng(0).zipf(1.3, 1 << 20) % shape.vocab_size)
        rows = text[: len(text) // shape.seq_len * shape.seq_len].view(-1, shape.seq_len)
        arguments = TrainingArguments(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=options.micro_batch, max_steps=1_000_000,
            learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, adam_beta2=BETAS[1], max_grad_norm=GRAD_CLIP,
            bf16=runs_in_bf16(options), use_cpu=options.device == "cpu", save_strategy="no", report_to=[],
            disable_tqdm=True, torch_compile=options.compile,
        )  # fmt: skip
        data = [{"input_ids": row, "labels": row} for row in rows]
        trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Turns()])
        threading.Thread(target=trainer.train, daemon=True).start()

    def steps(self, count: int) -> float:
        self.asked.put(count)
        return self.done.get()


class OurLoop:
    """The product's trainer with its records: `steps` runs some steps and returns their seconds."""

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
        context = resolve_device(options.device, {"as shipped": "auto"}.get(options.precision, options.precision))
        tokens = open_tokens(config.data, shape.vocab_size, shape.seq_len, config.seed)
        self.trainer = Trainer(config, context, tokens)

    def steps(self, count: int) -> float:
        began = time.perf_counter()
        for _ in self.trainer.steps(count):
            pass
        self.trainer.context.synchronise()
        return time.perf_counter() - began


def runs_in_bf16(options: argparse.Namespace) -> bool:
    """Return whether another project's loop trains in bf16 autocast here; as shipped, only on CUDA."""
    return options.precision == "bf16" or (options.precision == "as shipped" and options.device == "cuda")


def shape_of(options: argparse.Namespace) -> ModelShape:
    return make_shape(
        options.family, depth=options.depth, width=options.width, vocab_size=options.vocab_size, seq_len=options.seq_len
    )


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def serve(options: argparse.Namespace) -> None:
    """Run one side, which answers each line (a number of steps) with their seconds."""
    side = {"ours": OurLoop, "nanogpt": PlainLoop, "hf": HuggingFaceLoop}[options.side](options)
    for line in sys.stdin:
        print(json.dumps(side.steps(int(line))), flush=True)


def compare(options: argparse.Namespace) -> dict[str, float]:
    """Let both sides take turns, and return the medians over rounds of seconds per step."""
    sides = {}
    for name, loop in (("ours", "ours"), ("plain", options.against)):
        command = [sys.executable, __file__, *sys.argv[1:], "--side", loop]
        environment = {**os.environ, **(THREADS if loop == "ours" else {})}
        sides[name] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        ask(sides[name], options.warm_up)  # both compile at the same time
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
    """Return the seconds of the requested steps; other output from libraries is skipped."""
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
    parser.add_argument("--precision", default="as shipped", choices=("as shipped", "bf16", "fp32"))
    parser.add_argument("--against", default="nanogpt", choices=("nanogpt", "hf"))
    parser.add_argument("--side", choices=("ours", "nanogpt", "hf"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.compile = options.device == "cuda" if options.compile is None else options.compile
    if options.side:
        serve(options)
    else:
        print(json.dumps(compare(options)))


if __name__ == "__main__":
    main()
