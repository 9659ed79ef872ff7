"""Correct the step times of layouts by runs that the user has measured.

    log(measured / predicted) = setup + links · share + model + rest

`share` is the part of the predicted step that goes into exchanges between GPUs. The other four are normal around 0,
with the standard deviations in profiles/layouts.yaml (section `own`, fitted by `benchmarks/layouts.py` to the errors on
sources left out). `setup` and `links` hold for all runs of one person with one software package on one kind of GPU.
`model` holds for all runs of one model, and `rest` for one run alone. Measured runs update them (Gaussian
conditioning).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from advisor.architecture import Model
from advisor.prediction.layout_time import load_law, measure_runs, step_of
from advisor.prediction.layouts import LayoutRun
from advisor.store.disk import read_yaml
from advisor.store.folders import profiles_folder


@dataclass(frozen=True, kw_only=True)
class OwnSpreads:
    """Log standard deviations of measured over predicted step times."""

    setup: float
    links: float
    model: float
    rest: float


@cache
def load_spreads() -> OwnSpreads:
    """Read the spreads from profiles/layouts.yaml."""
    return OwnSpreads(**read_yaml(profiles_folder() / "layouts.yaml", "table of layouts")["own"])


@dataclass(frozen=True, kw_only=True)
class OwnRuns:
    """The correction that measured runs give for other layouts of one model on the same kind of GPU."""

    count: int  # measured runs
    mean: tuple[float, float]  # log factor on the step: a constant, and the coefficient of the share of exchanges
    covariance: tuple[float, float, float]  # of these two: variance, covariance, variance
    rest: float  # log standard deviation of a single run
    usual: float  # log factor at the mean share of the measured runs
    before: tuple[float, float]  # variances of a constant and of the coefficient, before the runs were measured

    def log_factor(self, share: np.ndarray) -> np.ndarray:
        """Return the log factor on predicted step times; `share` is the part that goes into exchanges, shape (n,)."""
        return self.mean[0] + self.mean[1] * share

    def deviation(self, share: np.ndarray) -> np.ndarray:
        """Return the log standard deviation of corrected step times by the spreads alone, shape (n,)."""
        alone, both, links = self.covariance
        return np.sqrt(alone + 2 * both * share + links * share**2 + self.rest**2)

    def narrowing(self, share: np.ndarray) -> np.ndarray:
        """Return the factor by which the measured runs reduce the standard deviation of step times, shape (n,)."""
        alone, links = self.before
        return self.deviation(share) / np.sqrt(alone + links * share**2 + self.rest**2)


def learn(runs: Sequence[LayoutRun], seconds: Sequence[float], model: Model) -> OwnRuns:
    """Return the correction for layouts of `model`, from the measured step seconds of at least one run."""
    step = step_of(measure_runs(runs), load_law())
    off = np.log(seconds) - np.log(step.seconds.value)
    widths = np.array([run.model.width for run in runs])
    return condition(off, step.exchanged, widths, model.width, load_spreads())


def condition(off: np.ndarray, share: np.ndarray, widths: np.ndarray, width: int, s: OwnSpreads) -> OwnRuns:
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
        before=(s.setup**2 + s.model**2, s.links**2),
    )
