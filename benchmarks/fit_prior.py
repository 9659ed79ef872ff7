"""Fit the prior for devices that nobody has calibrated, from published runs.

It writes profiles/prior.yaml, and profiles/prior_runs.csv with what the formula leaves unexplained of each run.

    python benchmarks/fit_prior.py [--runs profiles/public_runs.csv] [--out profiles/prior.yaml]

The model is that of prior_model.py, one for all rows (docs/how-it-predicts.md, "Before any calibration").
"""

from __future__ import annotations

import argparse
import base64
import csv
import datetime
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import prior_model
import yaml
from left_out import HeldOut, leave_out, weighted_quantile
from prior_model import ROOT, RUNS, Run, fitted

from advisor.hardware.catalog import GpuSpec
from advisor.prediction.nearest import PublishedRun
from advisor.prediction.prior import FAR_SLOWER, PRIOR_SCHEMA
from advisor.prediction.throughput import TERMS


def summary(held: HeldOut) -> dict:
    """Return the errors of predictions for left-out runs, with every owner counted once, and also by rows."""
    weights, relative = held.weights, held.relative
    return {
        "rows": len(relative),
        "owners": len({run.owner for run in held.runs}),
        "median": round(weighted_quantile(relative, weights, 0.5), 4),
        "p90": round(weighted_quantile(relative, weights, 0.9), 4),
        "inside_80_percent": round(float(np.average(held.inside, weights=weights)), 3),
        "width": round(held.width, 3),
        "interval_score": round(held.interval_score, 3),
        "signed_median": round(held.signed, 4),
        "owners_far_slower": len({run.owner for run in held.of(held.errors < -math.log(FAR_SLOWER)).runs}),
        "by_rows": {
            "median": round(float(np.median(relative)), 4),
            "p90": round(float(np.quantile(relative, 0.9)), 4),
            "inside_80_percent": round(float(held.inside.mean()), 3),
        },
    }


def document(runs: list[Run], known: dict[str, GpuSpec], source: str) -> tuple[dict, tuple[PublishedRun, ...]]:
    """Return the content of prior.yaml and the rows of prior_runs.csv."""
    ways = {
        "leave_one_owner_out": [run.owner for run in runs],
        "leave_one_gpu_out": [run.likeliest.gpu for run in runs],
        "leave_one_generation_out": [known[run.likeliest.gpu].generation for run in runs],
    }
    belief, residuals = fitted(runs, known)
    spreads = asdict(belief.spreads)
    lower = belief.covariance[np.tril_indices(len(belief.mode))]
    made = {
        "schema": PRIOR_SCHEMA,
        "provenance": {
            "script": "benchmarks/fit_prior.py",
            "date": datetime.date.today().isoformat(),
            "runs": source,
            "rows": sum(not run.encoder for run in runs),
            "sources": len({run.source for run in runs if not run.encoder}),
            "owners": len({run.owner for run in runs if not run.encoder}),
            "encoder_rows": sum(run.encoder for run in runs),
            "rates": "datasheet: dense peak of the precision, memory bandwidth, 5e-6 s per launch",
        },
        "terms": list(TERMS),
        "held_out": {name: summary(leave_out(runs, groups, known)) for name, groups in ways.items()},
        "spreads": spreads | {"terms": numbers(spreads["terms"])},
        "generation_spread": numbers(belief.generation_spread),
        "matmul_shifts": {name: round(shift, 4) for name, shift in belief.matmul_shifts.items()},
        "generations": {
            name: {"rows": rows, "headroom": round(belief.headrooms[name], 4)}
            for name, rows in belief.rows_by_generation.items()
        },
        "cards": dict(belief.rows_by_card),
        "software": [name for name in belief.place if name.startswith("software ")],
        "mode": numbers(belief.mode),
        "covariance": base64.b64encode(lower.astype("<f4").tobytes()).decode(),
    }
    return made, residuals


def write_runs(path: Path, runs: Sequence[PublishedRun]) -> None:
    """Write the file that `advisor.prediction.nearest` reads."""
    names = ("owner", "source", "address", "software", "gpu", "gpus", "switches", "checkpointing")
    measured = ("tokens_per_second", "residual", "noise", "owner_deviation")
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow((*names, *measured, *(f"where_{axis}" for axis in range(6))))
        for run in runs:
            figures = [f"{getattr(run, name):.4g}" for name in measured]
            table.writerow([getattr(run, name) for name in names] + figures + [f"{axis:.3f}" for axis in run.where])


def numbers(values: np.ndarray) -> list[float]:
    return [float(f"{v:.6g}") for v in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=RUNS, help="published runs; default: those shipped")
    parser.add_argument("--out", type=Path, default=ROOT / "profiles" / "prior.yaml")
    chosen = parser.parse_args()
    runs = prior_model.read_runs(chosen.runs)
    made, residuals = document(runs, prior_model.published_cards(), f"profiles/{chosen.runs.name}")
    chosen.out.write_text(yaml.safe_dump(made, sort_keys=False, default_flow_style=None, width=160), encoding="utf-8")
    write_runs(chosen.out.with_name("prior_runs.csv"), residuals)
    for name, held in made["held_out"].items():
        print(f"{name}: {held['rows']} rows of {held['owners']} owners, each counted once: median", end=" ")
        print(f"{held['median']:.1%}, p90 {held['p90']:.1%}, {held['inside_80_percent']:.0%} inside")


if __name__ == "__main__":
    main()
