"""How a learning-rate schedule shapes the loss of a run: Tissue et al. 2024 (sources §4.5).

L(s) = L0 + A·S1^−α − C·S2, with S1 the sum of learning rates and S2 the sum of their momentum-averaged falls. Rates are
shares of the peak here: absolute ones would give a run at 6e-4 twice the gain of one at 3e-4. A raw power law in steps
is 0.1 nats wrong where this is 0.02: it does not know that the rate will fall.
"""

from __future__ import annotations

import numpy as np

from trainer.schema import ScheduleConfig

# Refit on the public 100 M curves of Luo et al. 2025, whose peak is 3e-4 and whose rates are taken absolutely.
FALL_EXPONENT, MEMORY = 0.77, 0.999  # α and λ
_ANNEALING, _FITTED_PEAK = 0.468, 3e-4  # C
# Public runs whatever their peak (AdamW at 6e-4 and above, Muon) gain 1.0 to 1.6 times what the published C gives.
GAIN_PER_SHARE = 1.2 * _ANNEALING * _FITTED_PEAK  # nats for each unit of S2
GAIN_SPREAD = 0.5  # 80 % half-width of the gain, relative: judged
FULL_DECAY_NATS = GAIN_PER_SHARE / (1 - MEMORY)  # of a fall from the peak to nothing, once its momentum is spent
_FORGOTTEN = 1e-17  # a fall weighs nothing by then
KINDS = ("cosine", "linear", "wsd", "constant")


def learning_rate_shares(
    kind: str, steps: int, *, warmup_steps: int = 0, final_share: float = 0.1, decay_share: float = 0.2
) -> np.ndarray:
    """Rate over peak at each of `steps` steps, shape (steps,): linear warm-up, then the schedule named.

    cosine: half a cosine down to `final_share` (Loshchilov and Hutter 2016). linear: a straight line there. wsd, or
    trapezoid: constant, then a line over the last `decay_share` of the steps (Hu et al. 2024). ValueError for others.
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
    """Half a cosine from 1 to 0 as `progress` goes from 0 to 1."""
    return 0.5 * (1 + np.cos(np.pi * progress))


def planned_shares(schedule: ScheduleConfig, steps: int) -> np.ndarray:
    """`learning_rate_shares` of the trainer's own schedule."""
    return learning_rate_shares(
        schedule.name,
        steps,
        warmup_steps=schedule.warmup_steps,
        final_share=schedule.final_fraction,
        decay_share=schedule.decay_fraction,
    )


def annealing_sums(shares: np.ndarray, warmup_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """S1 and S2 after each step, in shares of the peak; warm-up counts as if it were at the peak (Tissue)."""
    flat = shares.copy()
    flat[:warmup_steps] = 1.0
    momentum, reach = np.concatenate([[0.0], flat[:-1] - flat[1:]]), 1
    while reach < len(flat) and MEMORY**reach > _FORGOTTEN:  # each round doubles how far back the momentum reaches
        momentum[reach:] += MEMORY**reach * momentum[:-reach]
        reach *= 2
    return np.cumsum(flat), np.cumsum(momentum)
