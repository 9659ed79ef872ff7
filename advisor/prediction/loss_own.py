"""The loss law corrected by the user's finished runs, and how serving a model changes the best training length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from advisor.laws.intervals import Z80
from advisor.prediction.loss import DATA_CONSTRAINED
from advisor.records import Basis, Estimate

LEAST_RUNS = 2  # a single run may be an outlier
# Another corpus and tokenizer shift the law by about 6 % (`loss.TRANSFER_ERROR`). Runs on one corpus still differ
# because of the law's slope at other sizes and because of the seed.
_PRIOR_DEVIATION, _RUN_DEVIATION = 0.06, 0.02


@dataclass(frozen=True, kw_only=True)
class LossCalibration:
    """The shift of the loss law on the user's data: log of measured over predicted loss."""

    shift: float
    deviation: float  # standard deviation of the shift
    runs: int


def calibrate_loss(log_ratios: Sequence[float]) -> LossCalibration | None:
    """Return the shift of the loss law on the user's data, or None for fewer than two runs.

    `log_ratios` are log(measured / law) for the final losses of finished runs on one data set. They update a prior of
    no shift with a standard deviation of 6 %.
    """
    if len(log_ratios) < LEAST_RUNS:
        return None
    mean = sum(log_ratios) / len(log_ratios)
    scatter = math.sqrt(sum((r - mean) ** 2 for r in log_ratios) / (len(log_ratios) - 1))
    noise = max(_RUN_DEVIATION, scatter)
    precision = 1 / _PRIOR_DEVIATION**2 + len(log_ratios) / noise**2
    shift = sum(log_ratios) / noise**2 / precision
    return LossCalibration(shift=shift, deviation=math.hypot(precision**-0.5, noise), runs=len(log_ratios))


def on_own_data(law: Estimate, calibration: LossCalibration) -> Estimate:
    """Return a loss forecast that the calibration has shifted and narrowed."""
    value, width = law.value * math.exp(calibration.shift), Z80 * calibration.deviation
    return Estimate(value=value, low=value * math.exp(-width), high=value * math.exp(width), basis=Basis.EXTRAPOLATED)


def overtraining_factor(training_tokens: float, inference_tokens: float) -> float:
    """Return the factor on the usual tokens per parameter for a model that will serve `inference_tokens`.

    Minimising training plus inference compute under the one-exponent loss law gives f = (1 + D_inf / (3·D))^(1/α). D is
    the number of training tokens of the overtrained model: √f times `training_tokens` at equal training FLOPs. The
    fixed point f is found by bisection.
    """

    def asked(factor: float) -> float:
        seen = training_tokens * math.sqrt(factor)
        return (1 + inference_tokens / (3 * seen)) ** (1 / DATA_CONSTRAINED.token_exponent)

    low, high = 1.0, asked(1.0)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if asked(middle) > middle else (low, middle)
    return (low + high) / 2
