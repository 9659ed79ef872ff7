"""Scores predictions of RL post-training on published runs, each owner counted once.

`python benchmarks/rl.py score [FILE]` reads `rl_runs.csv`, or another table with its columns, and prints for steps,
parts and hours the error and the share inside the 80 % interval; for pairs of one owner whether the faster of colocated
and split GPUs is named; and whether runs that ran were said to fit. `rows` lists every row.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

from advisor.errors import AdvisorError
from advisor.records import Estimate
from advisor.store.store import Store
from advisor.workflows.rl import RlPredicted, rl_rows

TABLE = Path(__file__).with_name("rl_runs.csv")
PARTS = {"generation": ("gen_seconds",), "log_probs": ("old_logprob_seconds", "ref_seconds"),
         "update": ("update_seconds",), "sync": ("sync_seconds",)}  # fmt: skip
# The same work on the same number of GPUs, colocated and split (rl_runs.csv): which is faster?
PAIRS = [("verl-fa7b-1", "verl-fa7b-2"), ("verl-fa7b-3", "verl-fa7b-4"), ("verl-fa7b-5", "verl-fa7b-6"),
         ("verl-fa30b-1", "verl-fa30b-2"), ("verl-v1-1", "verl-v1-3"), ("nemo-01", "nemo-02"), ("nemo-08", "nemo-09"),
         ("nemo-14", "nemo-15"), ("nemo-25", "nemo-26"), ("nemo-28", "nemo-29"), ("nemo-30", "nemo-31"),
         ("nemo-35", "nemo-36"), ("nemo-38", "nemo-39"), ("nemo-40", "nemo-41")]  # fmt: skip


def predictions(table: Path) -> list[tuple[dict[str, str], RlPredicted | AdvisorError]]:
    """Return each row with its prediction, or why there is none."""
    with tempfile.TemporaryDirectory() as home:
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return list(zip(rows, rl_rows(table, Store(Path(home))), strict=True))


def _measured(row: dict[str, str], names: tuple[str, ...]) -> float:
    return sum(float(row[name]) for name in names if row[name])


def _line(name: str, found: list[tuple[str, float, Estimate]]) -> str:
    """Return one line of scores, with every owner counted once."""
    if not found:
        return f"{name}: nothing to score"
    of_owner = defaultdict(list)
    for owner, true, estimate in found:
        of_owner[owner].append((abs(estimate.value / true - 1), estimate.value / true - 1, estimate.contains(true)))
    weight = np.concatenate([[1 / len(some) / len(of_owner)] * len(some) for some in of_owner.values()])
    off, signed, inside = np.array([one for some in of_owner.values() for one in some]).T

    def quantile(values: np.ndarray, share: float) -> float:
        order = np.argsort(values)
        return float(np.interp(share, np.cumsum(weight[order]) - weight[order] / 2, values[order]))

    return (
        f"{name}: {len(found)} rows of {len(of_owner)} owners, median {quantile(off, 0.5):.1%}, "
        f"p90 {quantile(off, 0.9):.0%}, inside {(weight * inside).sum():.0%}, signed {quantile(signed, 0.5):+.0%}"
    )


def main() -> None:
    """Print the scores, or with `rows` every row."""
    task = sys.argv[1] if len(sys.argv) > 1 else "score"
    answers = predictions(Path(sys.argv[2]) if len(sys.argv) > 2 else TABLE)
    by_id = {row["id"]: (row, answer) for row, answer in answers}
    steps, full, fits = [], [], []
    parts = defaultdict(list)
    for row, answer in answers:
        if isinstance(answer, AdvisorError):
            if task == "rows":
                print(row["id"], "refused:", answer.message)
            continue
        step = answer.way.step
        if row.get("outcome") in ("ok", "oom"):
            fits.append((row["outcome"] == "ok", step.fit_probability))
        if "do not score" in row["notes"]:
            continue
        if row["step_seconds"]:
            true = float(row["step_seconds"])
            steps.append((row["owner"], true, step.step_seconds))
            if not any(one.startswith(("response_len", "prompts", "group")) for one in answer.assumed):
                full.append(steps[-1])
        for name, columns in PARTS.items():
            waits = name == "generation" and "async" in row["mode"]  # what the trainer waits, not what engines take
            if (measured := _measured(row, columns)) and not waits:
                parts[name].append((row["owner"], measured, step.parts[name]))
        if task == "rows":
            ratio = f"{step.step_seconds.value / float(row['step_seconds']):.2f}" if row["step_seconds"] else "-"
            each = {
                name: f"{step.parts[name].value:.0f}/{_measured(row, columns):.0f}" for name, columns in PARTS.items()
            }
            print(row["id"], row["gpu"], row["n_gpus"], row["mode"], f"{step.step_seconds.value:.0f} s", ratio, each,
                  f"fits {step.fit_probability:.2f}", "; ".join(answer.assumed))  # fmt: skip
    print(_line("step, all stated", full))
    print(_line("step, lengths or batch assumed too", steps))
    for name, found in parts.items():
        print(_line(name, found))
    right = total = 0
    for one, other in PAIRS:
        if one not in by_id or any(isinstance(by_id[name][1], AdvisorError) for name in (one, other)):
            continue
        (row, a), (other_row, b) = by_id[one], by_id[other]
        total += 1
        faster = float(row["step_seconds"]) < float(other_row["step_seconds"])
        right += (a.way.step.step_seconds.value < b.way.step.step_seconds.value) == faster
    print(f"colocated or split: the faster named in {right} of {total} pairs")
    ran = [chance for ok, chance in fits if ok]
    failed = [chance for ok, chance in fits if not ok]
    print(f"fits: {sum(c >= 0.5 for c in ran)} of {len(ran)} that ran, {sum(c < 0.5 for c in failed)} of {len(failed)} "
          "that ran out of memory")  # fmt: skip


if __name__ == "__main__":
    main()
