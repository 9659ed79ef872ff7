"""The effect of the learning-rate schedule on the loss of a run: Tissue et al. 2024 (sources §4.5).

L(s) = L0 + A·S1^−α − C·S2, where S1 is the sum of learning rates and S2 the sum of their momentum-averaged decreases.
Learning rates are shares of the peak here. With absolute rates, a run at 6e-4 would gain twice as much as a run at
3e-4. The error is 0.02 nats. A plain power law in steps ignores the decay and is off by 0.1 nats.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.schema import ScheduleConfig

# Refitted to the public 100 M curves of Luo et al. 2025, with absolute learning rates and a peak of 3e-4.
FALL_EXPONENT, MEMORY = 0.77, 0.999  # α and λ
_ANNEALING, _FITTED_PEAK = 0.468, 3e-4  # C
# Public runs with other peaks (AdamW at 6e-4 and above, Muon) gain 1.0 to 1.6 times what the published C predicts.
GAIN_PER_SHARE = 1.2 * _ANNEALING * _FITTED_PEAK  # nats for each unit of S2
GAIN_SPREAD = 0.5  # relative 80 % half-width of the gain: our judgement
FULL_DECAY_NATS = GAIN_PER_SHARE / (1 - MEMORY)  # the gain of a decay from the peak to zero, long after it
_FORGOTTEN = 1e-17  # an earlier decrease is ignored below this weight
KINDS = ("cosine", "linear", "wsd", "constant")


def learning_rate_shares(
    kind: str, steps: int, *, warmup_steps: int = 0, final_share: float = 0.1, decay_share: float = 0.2
) -> np.ndarray:
    """Return the learning rate as a share of its peak at each step, shape (steps,), with a linear warm-up.

    "cosine" decays along half a cosine to `final_share` (Loshchilov and Hutter 2016), "linear" along a straight line.
    "wsd" (trapezoid) is constant, then linear over the last `decay_share` of the steps (Hu et al. 2024). Raises
    ValueError for other kinds.
    """
    at = np.arange(steps, dtype=float)
    progress = np.clip((at - warmup_steps) / max(1, steps - warmup_steps), 0, 1)
    decay_steps = max(1, round(decay_share * steps))
    if kind not in KINDS:
        raise ValueError(f"schedule {kind!r} is not one of {', '.join(KINDS)}")
    height = {
        "cosine": cosine(progress),
        "linear": 1 - progress,
        "wsd": np.clip((steps - at) / decay_steps, 0, 1),
        "constant": np.ones(steps),
    }[kind]
    return np.where(at < warmup_steps, (at + 1) / max(1, warmup_steps), final_share + (1 - final_share) * height)


def cosine(progress: float | np.ndarray) -> float | np.ndarray:
    """Return half a cosine, from 1 at `progress` 0 to 0 at `progress` 1."""
    return 0.5 * (1 + np.cos(np.pi * progress))


def planned_shares(schedule: ScheduleConfig, steps: int) -> np.ndarray:
    """Return `learning_rate_shares` for a schedule of this project's trainer."""
    return learning_rate_shares(
        schedule.name,
        steps,
        warmup_steps=schedule.warmup_steps,
        final_share=schedule.final_fraction,
        decay_share=schedule.decay_fraction,
    )


def annealing_sums(shares: np.ndarray, warmup_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return S1 and S2 after each step, in shares of the peak. Warm-up steps count as steps at the peak (Tissue)."""
    flat = shares.copy()
    flat[:warmup_steps] = 1.0
    momentum, reach = np.concatenate([[0.0], flat[:-1] - flat[1:]]), 1
    while reach < len(flat) and MEMORY**reach > _FORGOTTEN:  # each round doubles the reach of the momentum
        momentum[reach:] += MEMORY**reach * momentum[:-reach]
        reach *= 2
    return np.cumsum(flat), np.cumsum(momentum)


# Losses are comparable only in one phase of the schedule. A lower learning rate lowers the loss in proportion to the
# decrease as a share of the peak, by 0.12 to 0.14 nats for the whole peak (two laws of annealing on public curves of
# 100 M parameters: Tissue et al. 2024 and the Multi-Power Law of Luo et al. 2025, sources §4.5). Phases are therefore
# compared by the difference of the shares and not by their ratio: 100 % against 80 % of the peak makes 0.025 nats, 5 %
# against 1 % only 0.005. A twentieth of the peak changes the loss by 0.007 nats, at most 0.01, as two seeds do.
SAME_PHASE = 0.05
_ROUNDING = 1e-9  # in floating point, 0.15 - 0.1 is slightly more than 0.05


def same_phase(shares: Sequence[float | None]) -> bool:
    """Return True if learning rates, as shares of their peaks, are close enough to compare losses; None is ignored."""
    seen = [share for share in shares if share is not None]
    return not seen or max(seen) - min(seen) <= SAME_PHASE + _ROUNDING


def phase_problem(shares: Sequence[float | None], names: Sequence[str] = ()) -> str | None:
    """Return the reason why losses at these shares of the peak cannot be compared, or None if they can.

    With `names`, the text gives the share of each run, otherwise the smallest and the largest share.
    """
    if same_phase(shares):
        return None
    seen = [share for share in shares if share is not None]
    if names:
        each = (f"{name} at {_percent(share)}" for name, share in zip(names, shares, strict=True) if share is not None)
        return f"not in the same learning-rate phase: {', '.join(each)} of the peak"
    return (
        f"not in the same learning-rate phase: learning rates at {_percent(min(seen))} and {_percent(max(seen))} "
        "of their peaks"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
