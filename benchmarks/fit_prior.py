"""Fit the beliefs about devices that nobody has calibrated, from published runs; writes profiles/prior.yaml.

    python benchmarks/fit_prior.py [RUNS.csv] [--out profiles/prior.yaml] [--keep profiles/public_runs.csv]

The model is prior_model.py's, one for all rows (docs/how-it-predicts.md, "Before any calibration"); the choice of its
spreads and what the file holds are here.
"""

from __future__ import annotations

import argparse
import csv
import datetime
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from prior_model import (
    KEPT_COLUMNS,
    ROOT,
    Fitted,
    HeldOut,
    Runs,
    belief,
    fit,
    headroom_place,
    leave_out,
    matmul_shifts,
    read_runs,
    selector,
)

from advisor.hardware.catalog import GpuSpec, load_published_gpus
from advisor.predict.prior import PRIOR_SCHEMA
from advisor.predict.throughput import TERMS

SOURCE_SPREADS, ROW_SPREADS = (0.04, 0.06, 0.08, 0.11), (0.03, 0.05, 0.07)  # candidates, sd of log step
COVERAGE = 0.84  # wanted of 80 % intervals: most rows are of one source, and the others are inside less often


def calibrated_discrepancy(parts: Sequence[HeldOut]) -> float:
    """The smallest spread with which 80 % intervals hold `COVERAGE` of what is left out, averaged over the ways."""
    grid = np.arange(0.01, 0.4, 0.001)
    covered = np.array([np.mean([p.coverage(d) for p in parts]) for d in grid])
    return float(grid[np.argmax(covered >= COVERAGE)])


def summary(held: HeldOut, discrepancy: float) -> dict:
    relative = np.abs(np.expm1(-held.errors))  # of tokens per second
    by_group = {
        str(g): {
            "rows": int((held.groups == g).sum()),
            "median": round(float(np.median(relative[held.groups == g])), 3),
            "bias": round(float(np.median(np.expm1(-held.errors[held.groups == g]))), 3),
        }
        for g in sorted(set(held.groups))
    }
    return {
        "rows": len(relative),
        "median": round(float(np.median(relative)), 4),
        "p90": round(float(np.quantile(relative, 0.9)), 4),
        "coverage_of_80_percent": round(held.coverage(discrepancy), 3),
        "groups": by_group,
    }


def numbers(values: np.ndarray) -> list:
    return [numbers(row) for row in values] if values.ndim == 2 else [float(f"{v:.6g}") for v in values]


def written(mean: np.ndarray, covariance: np.ndarray) -> dict:
    return {"mean": numbers(mean), "covariance": numbers(covariance)}


def document(runs: Runs, known: dict[str, GpuSpec], source: str) -> dict:
    """Everything prior.yaml holds; the spreads are those that predict left-out sources and GPUs best, at the width that
    each would be given.
    """
    shifts = matmul_shifts(known)
    ways = {"leave_one_source_out": runs.sources, "leave_one_gpu_out": runs.gpus}
    best = (-np.inf, 0.0, 0.0, {})
    for source_sd in SOURCE_SPREADS:
        for row_sd in ROW_SPREADS:
            held = {name: leave_out(runs, groups, shifts, source_sd, row_sd) for name, groups in ways.items()}
            width = calibrated_discrepancy(list(held.values()))
            score = float(np.mean([h.density(width) for h in held.values()]))
            best = max(best, (score, source_sd, row_sd, held), key=lambda b: b[0])
    _, source_sd, row_sd, held = best
    discrepancy = calibrated_discrepancy(list(held.values()))
    transfer = leave_out(runs, runs.gpus, shifts, source_sd, row_sd, known=True)
    transfer_discrepancy = calibrated_discrepancy([transfer])
    held["leave_one_generation_out"] = leave_out(runs, runs.generations, shifts, source_sd, row_sd)
    fitted = fit(runs, np.arange(len(runs.workloads)), shifts, source_sd, row_sd)
    return {
        "schema": PRIOR_SCHEMA,
        "provenance": {
            "script": "benchmarks/fit_prior.py",
            "date": datetime.date.today().isoformat(),
            "runs": source,
            "rows": len(runs.decoders),
            "sources": len(set(runs.sources[runs.decoders])),
            "encoder_rows": int(runs.encoder.sum()),
            "rates": "datasheet: dense peak of the precision, memory bandwidth, 5e-6 s per launch",
            "source_spread": source_sd,
            "row_spread": row_sd,
        },
        "terms": list(TERMS),
        "discrepancy": round(discrepancy, 4),
        "transfer_discrepancy": round(transfer_discrepancy, 4),
        "held_out": {name: summary(h, discrepancy) for name, h in held.items()}
        | {"leave_one_gpu_out_source_known": summary(transfer, transfer_discrepancy)},
        "matmul_shifts": {a: round(s, 4) for a, s in shifts.items()},
        "headroom": {
            "mean": round(float(fitted.mode[headroom_place(fitted.model)]), 4),
            "deviation": round(float(fitted.covariance[(headroom_place(fitted.model),) * 2] ** 0.5), 4),
        },
        "rows_by_card": {str(card): int((runs.gpus == card).sum()) for card in sorted(set(runs.gpus))},
        "generations": {
            name: generation_entry(runs, fitted, name, shifts) for name in (*fitted.model.generations, "unmeasured")
        },
        "cross_covariance": cross_covariances(runs, fitted),
    }


def cross_covariances(runs: Runs, fitted: Fitted) -> dict:
    """Covariance of θ between every two entries of `generations`: what a calibration on one tells about another."""
    names = (*fitted.model.generations, "unmeasured")
    found: dict[str, dict] = {}
    for label, on in (("eager", 0.0), ("compiled", 1.0)):
        picks = {name: selector(fitted.model, name, on, entry_headroom(runs, name)) for name in names}
        found[label] = {
            f"{one} {other}": numbers(picks[one] @ fitted.covariance @ picks[other].T)
            for i, one in enumerate(names)
            for other in names[i:]
            if one != other or one == "unmeasured"
        }
    return found


def entry_headroom(runs: Runs, name: str) -> float:
    """The power headroom that an entry of `generations` holds at: the mean of its rows."""
    mine = runs.generations == name
    return float(runs.headroom[mine].mean()) if mine.any() else 0.0


def generation_entry(runs: Runs, fitted: Fitted, name: str, shifts: dict[str, float]) -> dict:
    """What is believed of cards of one generation, at the power headroom of those that were measured."""
    mine = runs.generations == name
    headroom = entry_headroom(runs, name)
    return {
        "rows": int(mine.sum()),
        "sources": len(set(runs.sources[mine])),
        "headroom": round(headroom, 4),
        **{
            label: written(*belief(fitted, name, on, headroom, shifts))
            for label, on in (("eager", 0.0), ("compiled", 1.0))
        },
    }


def keep_rows(runs: Runs, path: Path) -> None:
    """Write the rows used, so that the fit can be repeated from the project alone."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, KEPT_COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(runs.lines[place] for place in runs.decoders)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kept = ROOT / "profiles" / "public_runs.csv"
    parser.add_argument("runs", nargs="?", type=Path, default=kept, help="published runs; default: those kept before")
    parser.add_argument("--out", type=Path, default=ROOT / "profiles" / "prior.yaml")
    parser.add_argument("--keep", type=Path, default=kept, help="where the rows used are copied to")
    chosen = parser.parse_args()
    known = load_published_gpus()
    runs = read_runs(chosen.runs, known)
    if chosen.runs.resolve() != chosen.keep.resolve():
        keep_rows(runs, chosen.keep)
    made = document(runs, known, f"profiles/{chosen.keep.name}")
    chosen.out.write_text(yaml.safe_dump(made, sort_keys=False, default_flow_style=None, width=160), encoding="utf-8")
    for name, held in made["held_out"].items():
        print(f"{name}: {held['rows']} rows, median {held['median']:.1%}, p90 {held['p90']:.1%}", end="")
        print(f", {held['coverage_of_80_percent']:.0%} inside")


if __name__ == "__main__":
    main()
