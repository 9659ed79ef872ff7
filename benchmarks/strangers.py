"""Score `advisor predict --rows` on runs of owners that no fit has seen: `python benchmarks/strangers.py`.

`strangers.csv` holds published runs of people and projects that stand in no table of `profiles/`. They are kept to
score with: whoever changes a law, a fit or a reader does not open the table, and reads this script's totals only. Every
owner counts once, however many rows it has.
"""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TABLE = Path(__file__).with_suffix(".csv")
MISS = 10.0  # 2 / (1 - 0.8): what a unit outside an 80 % interval costs (Gneiting and Raftery 2007, interval score)


def tokens_per_second(row: dict[str, str]) -> float | None:
    """Tokens per second of the whole run, as its owner published it."""
    if row["tok_per_s_total"]:
        return float(row["tok_per_s_total"])
    return float(row["tok_per_s_per_gpu"]) * float(row["n_gpus"] or 1) if row["tok_per_s_per_gpu"] else None


def memory_bytes(row: dict[str, str]) -> float | None:
    """Peak memory of one GPU, in whichever sense its owner gave it."""
    return float(row["mem_gib_per_gpu"]) * 2**30 if row["mem_gib_per_gpu"] else None


QUANTITIES: dict[str, Callable[[dict[str, str]], float | None]] = {
    "tokens_per_second": tokens_per_second,
    "peak_reserved_bytes": memory_bytes,
    "peak_allocated_bytes": memory_bytes,
}


def score(rows: list[dict[str, str]], found: dict[int, dict[str, Any]], quantity: str) -> str:
    """One line: errors, coverage, width and interval score in log, each owner once."""
    scored, refused = [], 0
    for number, row in enumerate(rows, 1):
        if (true := QUANTITIES[quantity](row)) is None:
            continue
        if (estimate := found.get(number, {}).get(quantity)) is None:
            refused += 1
            continue
        low, value, high = (math.log(estimate[end] / true) for end in ("low", "value", "high"))
        scored.append((row.get("owner") or row["source"], value, high - low, max(0.0, low, -high)))
    of_owner = Counter(owner for owner, *_ in scored)
    weight = np.array([1 / of_owner[owner] for owner, *_ in scored]) / len(of_owner)
    error, width, miss = (np.array([run[i] for run in scored]) for i in (1, 2, 3))
    off, total = np.abs(np.expm1(error)), float((weight * (width + MISS * miss)).sum())
    return (
        f"{quantity}: {len(scored)} rows of {len(of_owner)} owners, {refused} refused; "
        f"median {quantile(off, weight, 0.5):.1%}, p90 {quantile(off, weight, 0.9):.0%}, "
        f"inside {float(weight[miss == 0].sum()):.0%}, "
        f"high/low {math.exp(quantile(width, weight, 0.5)):.2f}, interval score {total:.2f}, "
        f"signed {math.expm1(quantile(error, weight, 0.5)):+.1%}"
    )


def quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """A weighted quantile."""
    order = np.argsort(values)
    return float(np.interp(share, np.cumsum(weights[order]) - weights[order] / 2, values[order]))


def main() -> None:
    """Print one line for each quantity."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    command = [sys.executable, "-m", "advisor", "predict", "--rows", str(TABLE)]
    lines = subprocess.run(command, capture_output=True, text=True, cwd=TABLE.parents[1]).stdout.splitlines()
    found = {answer["row"]: answer for answer in map(json.loads, lines)}
    for quantity in QUANTITIES:
        print(score(rows, found, quantity))


if __name__ == "__main__":
    main()
