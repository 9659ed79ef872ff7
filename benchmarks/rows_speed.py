"""How many rows a second `advisor predict --rows` answers, start-up taken off: rows that all differ, and repeated ones.

    python benchmarks/rows_speed.py [--rows 40000]

Every row has a shape, batch and card of its own, so nothing can be remembered from an earlier one. Start-up is the same
command on a table of one row. Each command is a process of its own, as a user would run it; the best of three counts,
since other programs on the machine only ever slow it down.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("gpu", "n_gpus", "params", "layers", "dim", "heads", "ffn_mult", "vocab", "seq_len", "micro_batch")
COLUMNS = (*COLUMNS, "grad_accum", "precision", "compile", "act_ckpt", "parallelism")
REPEATS = 3


def distinct_rows(count: int) -> list[tuple]:
    """Rows of GPT-2 shapes, no two alike in what is predicted; the same on every machine."""
    cards = ("A100 80GB SXM", "H100 80GB SXM", "A100 40GB SXM", "L4", "RTX 4090", "H200 SXM", "V100 32GB SXM2")
    shapes = itertools.product(range(2, 97), range(2, 65), (512, 1024, 2048, 4096), (1, 2, 3, 4, 6, 8, 12, 16))
    chosen = random.Random(0).sample(list(shapes), count)
    return [_row(cards[i % len(cards)], i, *shape) for i, shape in enumerate(chosen)]


def _row(card: str, i: int, layers: int, heads: int, seq_len: int, micro: int) -> tuple:
    dim, vocab = 64 * heads, 32_000 + 64 * (i % 500)
    if i % 2 and heads % 4 == 0:  # a llama with grouped heads, found by its count
        mult, params = 3.5, 2 * vocab * dim + layers * (int(2.5 * dim**2 + 10.5 * dim**2) + 2 * dim) + dim
    else:
        mult, params = 4, vocab * dim + seq_len * dim + layers * (12 * dim**2 + 13 * dim) + 2 * dim
    gpus = (1, 1, 2, 8)[i % 4]
    precision = "fp16" if card.startswith("V100") else "bf16"
    checkpointing, parallelism = ("none", "full")[i % 2], ("DDP", "FSDP")[i // 2 % 2]
    size = (params, layers, dim, heads, mult, vocab, seq_len, micro)
    return (card, gpus, *size, 1 + i % 5, precision, "yes" if i % 3 else "no", checkpointing, parallelism)


def seconds(path: Path) -> float:
    """The best of several runs of the command on this table."""
    command = [sys.executable, "-m", "advisor", "predict", "--rows", str(path)]
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, cwd=ROOT)
        best = min(best, time.perf_counter() - start)
    return best


def write(path: Path, rows: list[tuple]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return path


def main() -> None:
    """Print seconds and rows a second for distinct and for repeated rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=40_000)
    count = parser.parse_args().rows
    rows = distinct_rows(count)
    repeated = [rows[i % 200] for i in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        start_up = seconds(write(Path(folder) / "one.csv", rows[:1]))
        print(f"start-up (a table of one row): {start_up:.2f} s")
        for name, table in (("all distinct", rows), ("200 distinct, repeated", repeated)):
            took = seconds(write(Path(folder) / "many.csv", table))
            print(f"{name}: {count:,} rows in {took:.2f} s, {count / (took - start_up):,.0f} rows a second")


if __name__ == "__main__":
    main()
