"""Correct the step times of layouts by runs that the user has measured.

    log(measured / predicted) = setup + links · share + model + rest

`share` is the part of the predicted step that goes into exchanges between GPUs. The other four are normal around 0,
with the standard deviations in profiles/layouts.yaml (section `own`, fitted by `benchmarks/layouts.py` to the errors on
sources left out). `setup` and `links` hold for all runs of one person with one software package on one kind of GPU.
`model` holds for all runs of one model, and `rest` for one run alone. Measured runs update them (Gaussian
conditioning).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus
from advisor.prediction.layout_rows import RATES, LayoutReading, measured_seconds, read_layout_row
from advisor.prediction.layout_time import load_law, measure_runs, step_of
from advisor.prediction.layouts import LayoutRun, Model
from advisor.prediction.rows import row_cells
from advisor.store.disk import read_yaml
from advisor.store.folders import profiles_folder


@dataclass(frozen=True, kw_only=True)
class Spreads:
    """Log standard deviations of measured over predicted step times."""

    setup: float
    links: float
    model: float
    rest: float


@cache
def load_spreads() -> Spreads:
    """Read the spreads from profiles/layouts.yaml."""
    return Spreads(**read_yaml(profiles_folder() / "layouts.yaml", "table of layouts")["own"])


@dataclass(frozen=True, kw_only=True)
class OwnRuns:
    """The correction that measured runs give for other layouts of one model on the same kind of GPU."""

    count: int  # measured runs
    mean: tuple[float, float]  # log factor on the step: a constant, and the coefficient of the share of exchanges
    covariance: tuple[float, float, float]  # of these two: variance, covariance, variance
    rest: float  # log standard deviation of a single run
    usual: float  # log factor at the mean share of the measured runs

    def log_factor(self, share: np.ndarray) -> np.ndarray:
        """Return the log factor on predicted step times; `share` is the part that goes into exchanges, shape (n,)."""
        return self.mean[0] + self.mean[1] * share

    def deviation(self, share: np.ndarray) -> np.ndarray:
        """Return the log standard deviation of corrected step times, shape (n,)."""
        alone, both, links = self.covariance
        return np.sqrt(alone + 2 * both * share + links * share**2 + self.rest**2)


def learn(runs: Sequence[LayoutRun], seconds: Sequence[float], model: Model) -> OwnRuns:
    """Return the correction for layouts of `model`, from the measured step seconds of at least one run."""
    step = step_of(measure_runs(runs), load_law())
    off = np.log(seconds) - np.log(step.seconds.value)
    widths = np.array([run.model.width for run in runs])
    return condition(off, step.exchanged, widths, model.width, load_spreads())


def condition(off: np.ndarray, share: np.ndarray, widths: np.ndarray, width: int, s: Spreads) -> OwnRuns:
    """Return the correction for a model of this width, from the log errors, shares and model widths of n runs."""
    # The two unknowns are the set-up plus the planned model's own deviation, and the links.
    alike = (widths == width).astype(float)
    cross = np.stack([s.setup**2 + s.model**2 * alike, s.links**2 * share])
    same = widths[:, None] == widths[None, :]
    seen = s.setup**2 + s.links**2 * np.outer(share, share) + s.model**2 * same + s.rest**2 * np.eye(len(off))
    gain = cross @ np.linalg.inv(seen)
    alone, links = (gain @ off).tolist()
    left = np.diag([s.setup**2 + s.model**2, s.links**2]) - gain @ cross.T
    return OwnRuns(
        count=len(off),
        mean=(alone, links),
        covariance=(float(left[0, 0]), float(left[0, 1]), float(left[1, 1])),
        rest=s.rest,
        usual=alone + links * float(share.mean()),
    )


def read_own_runs(path: Path, planned: LayoutRun) -> OwnRuns | None:
    """Return the correction for `planned` from the measured runs of a CSV file, or None if none has its GPU.

    The columns are those of `predict --rows` and one of RATES. A missing or empty cell has its value in `planned`. A
    row that states only `layers` of the sizes is the planned model with that many layers. Raises AdvisorError (exit 2)
    for a row that cannot be read, or that is faster than its GPUs can be.
    """
    hint = f"name the columns as `predict --rows` does (tp, pp, n_gpus, micro_batch, …), and one of {', '.join(RATES)}"
    columns, *rows = row_cells(path, required=())
    if not rows:
        raise AdvisorError(f"{path} has no row", hint, exit_code=2)
    cards, runs, seconds = load_gpus(), [], []
    for at, row in enumerate(rows, 2):
        stated = {name: cell for name, cell in zip(columns, map(str.strip, row), strict=False) if cell}
        reading = read_layout_row(_usual(planned) | stated, cards)
        if not isinstance(reading, LayoutReading):
            raise AdvisorError(f"{path}, line {at}: {reading.reason}", hint, exit_code=2)
        run = reading.run
        if "dim" not in stated:
            run = replace(run, model=_layers_of(planned.model, run.model.layers))
        took = measured_seconds(stated, run)
        if took is None or took <= 0:
            raise AdvisorError(f"{path}, line {at}: no {', '.join(RATES)}", hint, exit_code=2)
        if (mfu := run.mfu / took) > 1:
            message = (
                f"{path}, line {at}: {took:g} s would be {mfu:.0%} of the peak of {run.layout.gpus} x {run.gpu.key}"
            )
            raise AdvisorError(message, "step_seconds is of one optimizer step, in seconds", exit_code=2)
        if (run.gpu.key, run.software) == (planned.gpu.key, planned.software):
            runs.append(run)
            seconds.append(took)
    return learn(runs, seconds, planned.model) if runs else None


def _usual(run: LayoutRun) -> dict[str, str]:
    """Return the cells of a row that describes the run, for columns that a table leaves out."""
    model, experts = run.model, run.model.experts
    cells: dict[str, Any] = {
        **{"gpu": run.gpu.key, "software": run.software or "", "precision": run.precision, "seq_len": run.seq_len},
        **{"layers": model.layers, "dim": model.width, "heads": model.heads, "kv_heads": model.kv_heads},
        **{"head_dim": model.head_dim, "ffn_width": model.ffn_width, "vocab": model.vocab_size},
        **{"gated_mlp": "yes" if model.gated else "no", "tied_embeddings": "yes" if model.tied else "no"},
    }
    if experts is not None:
        cells |= {
            **{"experts": experts.count, "experts_per_token": experts.per_token, "expert_ffn_width": experts.width},
            **{"shared_experts": experts.shared, "dense_layers": model.layers - experts.layers},
        }
    return {name: str(cell) for name, cell in cells.items()}


def _layers_of(model: Model, layers: int) -> Model:
    """Return the model with this number of layers, of the same kinds in the same proportion."""
    if model.experts is None:
        return replace(model, layers=layers)
    mixed = math.ceil(model.experts.layers * layers / model.layers)
    return replace(model, layers=layers, experts=replace(model.experts, layers=mixed))
