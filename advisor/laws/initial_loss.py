"""What the first loss of a fresh model tells: ln V, a little above, or a fault (sources §7.1)."""

from __future__ import annotations

import math

SOUND = 0.3  # nats about ln V: a sound start
FAULT_ABOVE = 1.0  # nats above ln V: a bug of initialisation or scale, a sum for a mean, or another vocabulary
FAULT_BELOW = 0.5  # nats below ln V before any step: loaded weights, a leak, or another vocabulary


def uniform_loss(vocab_size: float) -> float:
    """ln V: nats per token of a model that knows nothing, which is what a zero-initialised head gives exactly."""
    return math.log(vocab_size)
