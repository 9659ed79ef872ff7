"""The loss a run is expected to show at every step, its learning-rate schedule taken into account (sources §4.5).

Tissue et al. 2024: L(s) = L0 + A·S1^−α − C·S2, S1 the sum of learning rates, S2 the sum of their momentum-averaged
falls. A raw power law in steps would promise a run at full learning rate what only a decayed one reaches. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.predict.loss import CHINCHILLA
from advisor.records import Basis, Estimate, Plan
from trainer.schema import ScheduleConfig

# As in findings/loss_forecast: fitted on the public 100 M curves of Luo et al. 2025 at a peak of 3e-4, rates taken as
# shares of the peak; other public runs gain 1.0 to 1.6 times as much from annealing.
_ALPHA, _MEMORY = 0.77, 0.999
_GAIN_PER_SHARE = 1.2 * 0.468 * 3e-4
_GAIN_SPREAD, _FALL_SPREAD = 0.5, 0.6  # 80 % half-widths of the gain and of the fall, relative: judged
_POINTS = 200
SHARES = (0.02, 0.1, 0.25, 0.5, 0.75, 1.0)  # of a run, at which a plan states its expected loss


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


@dataclass(frozen=True, kw_only=True)
class Milestone:
    """The training loss expected at one moment of a run."""

    share: float  # of the steps
    step: int
    tokens: int
    loss: Estimate


def plan_trajectory(plan: Plan) -> Trajectory | None:
    """The training loss that a plan expects at every step; None where it promises no loss."""
    if plan.prediction.loss is None:
        return None
    return expected_trajectory(
        plan.prediction.loss,
        steps=plan.run.steps,
        tokens=plan.chosen.tokens,
        vocab_size=plan.run.model.vocab_size,
        schedule=plan.run.schedule,
    )


def milestones(plan: Plan, shares: Sequence[float] = SHARES) -> tuple[Milestone, ...]:
    """A plan's expected loss after some shares of its steps; empty where it promises none."""
    course = plan_trajectory(plan)
    if course is None:
        return ()
    steps = {max(1, round(share * plan.run.steps)): share for share in shares}
    return tuple(
        Milestone(share=share, step=step, tokens=step * plan.workload.step_tokens, loss=course.at(step))
        for step, share in steps.items()
    )


def expected_trajectory(
    end: Estimate, *, steps: int, tokens: float, vocab_size: int, schedule: ScheduleConfig
) -> Trajectory:
    """From ln V at the first step to the predicted loss `end` at the last, at up to 200 steps spread evenly in log.

    How fast it falls follows from the Chinchilla law's own slope at `tokens`; the part that only a falling learning
    rate brings comes when the rate falls. The band is the end's, wider before in proportion to what is still to come.
    """
    shares = learning_rate_shares(schedule, steps)
    travelled, annealed = annealing_sums(shares, schedule.warmup_steps)
    step = np.unique(np.round(np.geomspace(1, steps, _POINTS)).astype(int))
    fall = CHINCHILLA.token_exponent * CHINCHILLA.token_term(tokens) / _ALPHA
    to_fall = fall * ((travelled[step - 1] / travelled[-1]) ** -_ALPHA - 1)
    to_anneal = _GAIN_PER_SHARE * (annealed[-1] - annealed[step - 1])
    start = math.log(vocab_size)
    value = np.minimum(end.value + to_fall + to_anneal, start)
    spread = np.hypot(_FALL_SPREAD * to_fall, _GAIN_SPREAD * to_anneal)
    return Trajectory(
        step=step,
        value=value,
        low=np.maximum(value - np.hypot(end.value - end.low, np.minimum(spread, value - end.low)), end.low),
        basis=end.basis,
        high=np.minimum(value + np.hypot(end.high - end.value, spread), max(start, end.high)),
    )


def learning_rate_shares(schedule: ScheduleConfig, steps: int) -> np.ndarray:
    """Shares of the peak rate at every step, shape (steps,): the trainer's schedules, without torch."""
    at = np.arange(steps, dtype=float)
    final, warmup = schedule.final_fraction, schedule.warmup_steps
    if schedule.name == "wsd":
        decay = max(1, round(schedule.decay_fraction * steps))
        shares = final + (1 - final) * np.clip((steps - at) / decay, 0, 1)
    else:
        progress = np.clip((at - warmup) / max(1, steps - warmup), 0, 1)
        shares = final + (1 - final) * 0.5 * (1 + np.cos(np.pi * progress))
    return np.where(at < warmup, (at + 1) / max(1, warmup), shares)


def annealing_sums(shares: np.ndarray, warmup_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """S1 and S2 after each step, in shares of the peak rate; warm-up counts as if it were at the peak (Tissue)."""
    flat = shares.copy()
    flat[:warmup_steps] = 1.0
    momentum, annealed, total = 0.0, np.empty(len(flat)), 0.0
    falls = np.concatenate([[0.0], flat[:-1] - flat[1:]]).tolist()
    for i, fall in enumerate(falls):
        momentum = _MEMORY * momentum + fall
        total += momentum
        annealed[i] = total
    return np.cumsum(flat), annealed
