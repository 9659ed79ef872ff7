"""Measures how many rows per second `advisor predict --rows` answers without start-up: distinct and repeated rows.

    python benchmarks/rows_speed.py [--rows 40000] [--record]

Every distinct row has its own shape, batch and GPU, so no earlier result can be reused. Start-up is the time of the
same command on a table of one row. Each command is a separate process, as a user would run it. `--record` keeps the raw
seconds for docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import in_words, record, repeat

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("gpu", "n_gpus", "params", "layers", "dim", "heads", "ffn_mult", "vocab", "seq_len", "micro_batch")
COLUMNS = (*COLUMNS, "grad_accum", "precision", "compile", "act_ckpt", "parallelism", "flash_attn")
REPEATS = 5


def distinct_rows(count: int) -> list[tuple]:
    """Return rows of GPT-2 shapes, no two alike in what is predicted, and the same on every machine."""
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
    return (card, gpus, *size, 1 + i % 5, precision, "yes" if i % 3 else "no", checkpointing, parallelism, "SDPA")


def seconds(path: Path) -> list[float]:
    """Return the seconds of several runs of the command on this table."""
    command = [sys.executable, "-m", "advisor", "predict", "--rows", str(path)]
    run = {"check": False, "stdout": subprocess.DEVNULL, "cwd": ROOT}
    return repeat(lambda: subprocess.run(command, **run), REPEATS)[0]


def write(path: Path, rows: list[tuple]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return path


def main() -> None:
    """Print, and with --record keep, seconds and rows per second for distinct and repeated rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--record", action="store_true", help="keep the result in benchmarks/raw/speed/")
    options = parser.parse_args()
    count = options.rows
    rows = distinct_rows(count)
    tables = {
        "start_up": rows[:1],
        "distinct": rows,
        "open": [(*row[:-1], "") for row in rows],  # attention is not stated, so each row has two readings
        "repeated": [rows[i % 200] for i in range(count)],
    }
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, table in tables.items():
            took[name] = seconds(write(Path(folder) / "rows.csv", table))
            more = statistics.median(took[name]) - statistics.median(took["start_up"])
            rate = f", {count / more:,.0f} rows a second" if name != "start_up" else ""
            print(f"{name}: {len(table):,} rows in {in_words(took[name])}{rate}")
    if options.record:
        record("rows_speed", {"rows": count, **{f"{name}_seconds": values for name, values in took.items()}})


if __name__ == "__main__":
    main()
