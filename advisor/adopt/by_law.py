"""Predicts the step time of an adopted command whose model is a known decoder: our law, calibrated by its bursts.

The rates of the law are nominal. The prior on a common factor of all coefficients is wide, so only their ratios come
from our law. Rates that are off by a factor of ten change the errors on two recorded commands by a hundredth at most
(docs/log.md, 2026-11-23). The law is used if it predicts the command's bursts from each other at least as well as
`empirical` does. Pure.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.adopt.empirical import (
    Batch,
    Fitted,
    Seen,
    drift_of,
    fit_time,
    hold_each_out,
    unsteady,
    visits_of,
)
from advisor.adopt.session import seen_times
from advisor.calibration.fit import fit
from advisor.laws.held_out import HeldOut
from advisor.prediction.prior import measured_prior
from advisor.prediction.throughput import Rates, predict_log, sizes
from advisor.records import MeasuredStep, Workload
from advisor.store.adopted import Adopted
from trainer.schema import ModelShape

_NOMINAL = Rates(matmul_flops=1e11, bandwidth=2e10, launch_seconds=5e-6)  # of a few cores; only ratios matter
_COMMON = 1.5  # deviation of the log of the common factor: a GPU or a core, another library
_NOISE = 0.05  # of the log of one visit, from the burst's median; the machine's drift is in the prediction

Fit = Callable[[Sequence[Seen]], Fitted]


def workload(model: ModelShape, batch: Batch) -> Workload:
    """Returns the workload of a batch; rows that are packed end to end count as one long row."""
    rows, length = (1, round(batch.tokens)) if batch.end_to_end else (round(batch.rows), round(batch.length))
    shape = replace(model, seq_len=max(1, length))
    return Workload(shape=shape, micro_batch=max(1, rows), grad_accum=round(batch.calls), gpu="cpu", precision="fp32")


def fit_law(model: ModelShape, seen: Sequence[Seen]) -> Fitted:
    """Returns the law's step time for a command with this model; raises ValueError without a burst."""
    visits = visits_of(seen)
    observed = [
        MeasuredStep(workload=workload(model, batch), step_seconds=math.exp(statistics.median(logs)),
                    noise=_NOISE / math.sqrt(len(logs)))
        for batch, logs in visits.items()
    ]  # fmt: skip
    house = measured_prior()
    prior = replace(house, covariance=house.covariance + _COMMON**2 * np.ones_like(house.covariance))
    drift = unsteady(drift_of(list(visits.values())), seen)
    posterior = fit(observed, _NOMINAL, prior, drift)
    # What the law leaves unexplained of bursts on a busy machine is far more than their noise.
    logs = predict_log(posterior, sizes([step.workload for step in observed])).mean
    left = float(np.sqrt(np.mean((logs - np.log([step.step_seconds for step in observed])) ** 2)))

    def log_of(batch: Batch) -> tuple[float, float]:
        found = predict_log(posterior, sizes([workload(model, batch)]))
        return float(found.mean[0]), math.hypot(float(found.deviation[0]), drift, left)

    return Fitted(log_of=log_of, seen=tuple(visits))


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The chosen fit of a command's step times, with its held-out errors (None: too few bursts)."""

    fit: Fit
    held_out: HeldOut | None
    by_law: bool


@functools.lru_cache(maxsize=16)
def choose_fit(adopted: Adopted) -> Chosen:
    """Chooses the law if the model is known, one process trains and the law's held-out error is no larger.

    Only the terms fit bursts of several processes. The two fits are compared on bursts of one process.
    """
    seen, model = seen_times(adopted.bursts), adopted.bursts[0].model
    terms = hold_each_out(seen, fit_time)
    if model is None or terms is None or adopted.bursts[0].processes > 1:
        return Chosen(fit=fit_time, held_out=terms, by_law=False)
    known = model

    def by_law(some: Sequence[Seen]) -> Fitted:
        return fit_law(known, _of_one_process(some))

    law = hold_each_out(_of_one_process(seen), by_law)
    # the terms are compared on the batches that the law predicts
    same = [point for point in terms.points if law is not None and law.of(point.configuration)]
    if law is None or law.median > HeldOut(points=tuple(same)).median:
        return Chosen(fit=fit_time, held_out=terms, by_law=False)
    return Chosen(fit=by_law, held_out=law, by_law=True)


def _of_one_process(seen: Sequence[Seen]) -> list[Seen]:
    return [one for one in seen if one.batch.processes == 1]
