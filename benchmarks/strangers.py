"""Score `published_rows.py` on runs of owners that no fit has seen: `python benchmarks/strangers.py`.

`strangers.csv` holds published runs of people and projects that are in no table of `profiles/`. They are kept only for
scoring: whoever changes a law, a fit or a reader does not open the table and reads only this script's totals. Every
owner counts once, however many rows they have.
"""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TABLE = Path(__file__).with_suffix(".csv")
MISS = 10.0  # 2 / (1 - 0.8): cost of one unit outside an 80 % interval (Gneiting and Raftery 2007, interval score)


def tokens_per_second(row: dict[str, str]) -> float | None:
    """Return the tokens per second of the whole run, as its owner published them."""
    if row["tok_per_s_total"]:
        return float(row["tok_per_s_total"])
    return float(row["tok_per_s_per_gpu"]) * float(row["n_gpus"] or 1) if row["tok_per_s_per_gpu"] else None


def memory_bytes(row: dict[str, str]) -> float | None:
    """Return the peak memory of one GPU, in the sense in which its owner gave it."""
    return float(row["mem_gib_per_gpu"]) * 2**30 if row["mem_gib_per_gpu"] else None


QUANTITIES: dict[str, Callable[[dict[str, str]], float | None]] = {
    "tokens_per_second": tokens_per_second,
    "peak_reserved_bytes": memory_bytes,
    "peak_allocated_bytes": memory_bytes,
}


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Estimates compared with the truth, with every owner counted once."""

    owners: int
    median: float  # of |estimate / truth - 1|
    p90: float
    inside: float  # share within the 80 % interval
    width: float  # median of high / low
    interval_score: float  # in log
    signed: float  # median of estimate / truth - 1


def scores(runs: Sequence[tuple[str, float, Mapping[str, float]]]) -> Scores:
    """Return the scores of runs, given each run's owner, its true value, and the estimate's value, low and high."""
    of_owner = Counter(owner for owner, *_ in runs)
    weight = np.array([1 / of_owner[owner] for owner, *_ in runs]) / len(of_owner)
    low, error, high = (
        np.log([estimate[end] / true for _, true, estimate in runs]) for end in ("low", "value", "high")
    )
    off, miss = np.abs(np.expm1(error)), np.maximum(0.0, np.maximum(low, -high))
    return Scores(
        owners=len(of_owner),
        median=quantile(off, weight, 0.5),
        p90=quantile(off, weight, 0.9),
        inside=float(weight[miss == 0].sum()),
        width=math.exp(quantile(high - low, weight, 0.5)),
        interval_score=float((weight * (high - low + MISS * miss)).sum()),
        signed=math.expm1(quantile(error, weight, 0.5)),
    )


def score(rows: list[dict[str, str]], found: dict[int, dict[str, Any]], quantity: str) -> str:
    """Return one line with errors, coverage, width and interval score in log, each owner counted once."""
    asked = [(n, row, true) for n, row in enumerate(rows, 1) if (true := QUANTITIES[quantity](row)) is not None]
    answered = [(n, row, true) for n, row, true in asked if found.get(n, {}).get(quantity) is not None]
    s = scores([(row.get("owner") or row["source"], true, found[n][quantity]) for n, row, true in answered])
    return (
        f"{quantity}: {len(answered)} rows of {s.owners} owners, {len(asked) - len(answered)} refused; "
        f"median {s.median:.1%}, p90 {s.p90:.0%}, inside {s.inside:.0%}, high/low {s.width:.2f}, "
        f"interval score {s.interval_score:.2f}, signed {s.signed:+.1%}"
    )


def quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """Return a weighted quantile."""
    order = np.argsort(values)
    return float(np.interp(share, np.cumsum(weights[order]) - weights[order] / 2, values[order]))


def main() -> None:
    """Print one line for each quantity."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    command = [sys.executable, str(TABLE.with_name("published_rows.py")), str(TABLE), "--json"]
    lines = subprocess.run(command, capture_output=True, text=True, cwd=TABLE.parents[1]).stdout.splitlines()
    found = {answer["row"]: answer for answer in map(json.loads, lines)}
    for quantity in QUANTITIES:
        print(score(rows, found, quantity))


if __name__ == "__main__":
    main()
