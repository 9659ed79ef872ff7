"""What the first loss of a fresh model tells: ln V, a little above, or a fault (sources §7.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

SOUND = 0.3  # nats about ln V: a sound start
FAULT_ABOVE = 1.0  # nats above ln V: a bug of initialisation or scale, a sum for a mean, or another vocabulary
FAULT_BELOW = 0.5  # nats below ln V before any step: loaded weights, a leak, or another vocabulary
_UNSCALED_WITHIN = 0.1  # of the loss that weights of unit variance give; the formula itself is 3 % low


@dataclass(frozen=True, kw_only=True)
class Divisor:
    """Something that a loss may have been summed over."""

    name: str
    count: float


def uniform_loss(vocab_size: float) -> float:
    """ln V: nats per token of a model that knows nothing, which is what a zero-initialised head gives exactly."""
    return math.log(vocab_size)


def divisors(sizes: Mapping[str, float | None]) -> list[Divisor]:
    """Each size of 2 and more, and the product of each pair of them."""
    single = [Divisor(name=name, count=size) for name, size in sizes.items() if size and size >= 2]
    pairs = [Divisor(name=f"{a.name} × {b.name}", count=a.count * b.count) for a, b in combinations(single, 2)]
    return single + pairs


def summed_over(loss: float, vocab_size: int, sizes: Mapping[str, float | None]) -> list[Divisor]:
    """What turns a sound start into this loss if it is summed over it, the nearest to ln V first."""
    off = {d: abs(loss / d.count - uniform_loss(vocab_size)) for d in divisors(sizes)}
    return sorted((d for d in off if off[d] <= SOUND), key=lambda d: off[d])


def unscaled_loss(width: float, vocab_size: int) -> float:
    """First loss with embeddings drawn from N(0, 1), tied to the head: normal logits of standard deviation √d."""
    return math.sqrt(width) * largest_of_normals(vocab_size)


def is_unscaled(loss: float, width: float, vocab_size: int) -> bool:
    """Whether weights of unit variance explain this first loss."""
    return abs(loss / unscaled_loss(width, vocab_size) - 1) < _UNSCALED_WITHIN


def logit_deviation(loss: float, vocab_size: int) -> float:
    """Standard deviation σ of normal logits whose expected cross entropy is `loss` nats.

    The loss is ln V + σ²/2 up to σ = √(2 ln V): every token counts. Beyond, the largest of V logits decides, and it
    is σ times the largest of V standard normals (Derrida 1981, random-energy model). Simulated for V = 4,000 and
    50,257, σ comes out up to 5 % low below that limit, 9 % high just beyond it, and 3 % high from σ = 16 on.
    """
    small = math.sqrt(2 * max(0.0, loss - uniform_loss(vocab_size)))
    limit = math.sqrt(2 * uniform_loss(vocab_size))
    return small if small <= limit else loss / largest_of_normals(vocab_size)


def largest_of_normals(count: int) -> float:
    """Where the largest of `count` ≥ 2 standard normal draws is likeliest, to second order (Cramér 1946, §28.6)."""
    first_order = math.sqrt(2 * math.log(count))
    return first_order - (math.log(math.log(count)) + math.log(4 * math.pi)) / (2 * first_order)
