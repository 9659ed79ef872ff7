"""The loss a run is expected to show at every step, its learning-rate schedule taken into account (sources §4.5).

By the law of `laws/annealing`: a raw power law in steps would promise a run at full learning rate what only a decayed
one reaches. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.laws.annealing import FALL_EXPONENT, GAIN_PER_SHARE, GAIN_SPREAD, annealing_sums, planned_shares
from advisor.prediction.loss import CHINCHILLA
from advisor.records import Basis, Estimate, Plan
from trainer.schema import ScheduleConfig

_FALL_SPREAD = 0.6  # 80 % half-width of the fall, relative: judged
_POINTS = 200


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """Expected training loss with its 80 % band at some steps (1-based), nats per token."""

    step: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    basis: Basis  # of the loss at the end

    def at(self, step: float) -> Estimate:
        """The loss at any step, between points by interpolation."""
        value, low, high = (float(np.interp(step, self.step, line)) for line in (self.value, self.low, self.high))
        return Estimate(value=value, low=low, high=high, basis=self.basis)


def plan_trajectory(plan: Plan) -> Trajectory | None:
    """The training loss that a plan expects at every step; None where it promises no loss."""
    if plan.chosen.loss is None:
        return None
    return expected_trajectory(
        plan.chosen.loss,
        steps=plan.run.steps,
        tokens=plan.chosen.tokens,
        vocab_size=plan.run.model.vocab_size,
        schedule=plan.run.schedule,
    )


def expected_trajectory(
    end: Estimate, *, steps: int, tokens: float, vocab_size: int, schedule: ScheduleConfig
) -> Trajectory:
    """From ln V at the first step to the predicted loss `end` at the last, at up to 200 steps spread evenly in log.

    How fast it falls follows from the Chinchilla law's own slope at `tokens`; the part that only a falling learning
    rate brings comes when the rate falls. The band is the end's, wider before in proportion to what is still to come.
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
