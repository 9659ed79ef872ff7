"""The expected loss of a run at every step, which depends on the learning-rate schedule (sources §4.5).

Uses the law of `laws/annealing`. A plain power law in steps is wrong before the decay: at full learning rate, it would
predict a loss that is only reached after the decay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.laws.annealing import FALL_EXPONENT, GAIN_PER_SHARE, GAIN_SPREAD, annealing_sums, planned_shares
from advisor.prediction.loss import CHINCHILLA
from advisor.records import Basis, Estimate, Plan
from trainer.schema import ScheduleConfig

_FALL_SPREAD = 0.6  # relative 80 % half-width of the decrease: our judgement
_POINTS = 200


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """The expected training loss in nats per token, with its 80 % band, at some steps (counted from 1)."""

    step: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    basis: Basis  # of the loss at the end

    def at(self, step: float) -> Estimate:
        """Return the loss at any step, interpolated between the points."""
        value, low, high = (float(np.interp(step, self.step, line)) for line in (self.value, self.low, self.high))
        return Estimate(value=value, low=low, high=high, basis=self.basis)


def plan_trajectory(plan: Plan) -> Trajectory | None:
    """Return the expected training loss of a plan at every step, or None if the plan has no loss forecast."""
    if plan.chosen.loss is None:
        return None
    return expected_trajectory(
        plan.chosen.loss,
        steps=plan.config.steps,
        tokens=plan.chosen.tokens,
        vocab_size=plan.config.model.vocab_size,
        schedule=plan.config.schedule,
    )


def expected_trajectory(
    end: Estimate, *, steps: int, tokens: float, vocab_size: int, schedule: ScheduleConfig
) -> Trajectory:
    """Return the loss from ln V at the first step to `end` at the last one, at up to 200 log-spaced steps.

    The decrease follows the slope of the Chinchilla law at `tokens`; the gain of the learning-rate decay comes during
    the decay. The band at the end is that of `end`. Earlier it is wider, in proportion to the remaining decrease.
    """
    travelled, annealed = annealing_sums(planned_shares(schedule, steps), schedule.warmup_steps)
    step = np.unique(np.round(np.geomspace(1, steps, _POINTS)).astype(int))
    fall = CHINCHILLA.token_exponent * CHINCHILLA.token_term(tokens) / FALL_EXPONENT
    to_fall = fall * ((travelled[step - 1] / travelled[-1]) ** -FALL_EXPONENT - 1)
    to_anneal = GAIN_PER_SHARE * (annealed[-1] - annealed[step - 1])
    start = math.log(vocab_size)
    value = np.minimum(end.value + to_fall + to_anneal, start)
    spread = np.hypot(_FALL_SPREAD * to_fall, GAIN_SPREAD * to_anneal)
    return Trajectory(
        step=step,
        value=value,
        low=np.maximum(value - np.hypot(end.value - end.low, np.minimum(spread, value - end.low)), end.low),
        basis=end.basis,
        high=np.minimum(value + np.hypot(end.high - end.value, spread), max(start, end.high)),
    )
