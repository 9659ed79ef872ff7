"""Judge the first loss of a new model: it should be ln V or slightly above (sources §7.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

SOUND = 0.3  # nats around ln V that are normal
FAULT_ABOVE = 1.0  # nats above ln V: wrong initialisation or scale, a sum instead of a mean, or another vocabulary
FAULT_BELOW = 0.5  # nats below ln V before any step: loaded weights, a leak, or another vocabulary
_UNSCALED_WITHIN = 0.1  # relative tolerance for the loss of unit-variance weights, because the formula is 3 % low


@dataclass(frozen=True, kw_only=True)
class Divisor:
    """A size over which a loss may have been summed by mistake."""

    name: str
    count: float


def uniform_loss(vocab_size: float) -> float:
    """Return ln V, the loss of a uniform prediction, which a zero-initialised head gives exactly."""
    return math.log(vocab_size)


def divisors(sizes: Mapping[str, float | None]) -> list[Divisor]:
    """Return all sizes of at least 2, and the products of any two of them."""
    single = [Divisor(name=name, count=size) for name, size in sizes.items() if size and size >= 2]
    pairs = [Divisor(name=f"{a.name} × {b.name}", count=a.count * b.count) for a, b in combinations(single, 2)]
    return single + pairs


def summed_over(loss: float, vocab_size: int, sizes: Mapping[str, float | None]) -> list[Divisor]:
    """Return the sizes that would give this loss if a normal first loss were summed over them, best match first."""
    off = {d: abs(loss / d.count - uniform_loss(vocab_size)) for d in divisors(sizes)}
    return sorted((d for d in off if off[d] <= SOUND), key=lambda d: off[d])


def unscaled_loss(width: float, vocab_size: int) -> float:
    """Return the first loss with N(0, 1) embeddings tied to the head; the logits have standard deviation √d."""
    return math.sqrt(width) * largest_of_normals(vocab_size)


def is_unscaled(loss: float, width: float, vocab_size: int) -> bool:
    """Return True if weights of unit variance explain this first loss."""
    return abs(loss / unscaled_loss(width, vocab_size) - 1) < _UNSCALED_WITHIN


def logit_deviation(loss: float, vocab_size: int) -> float:
    """Return the standard deviation σ of normal logits whose expected cross entropy is `loss` nats.

    Up to σ = √(2 ln V) the loss is ln V + σ²/2. Beyond this limit, the largest of V logits dominates: σ times the
    largest of V standard normals (Derrida 1981, random-energy model). In simulations with V = 4,000 and 50,257, σ was
    up to 5 % low below the limit, 9 % high just above it, and 3 % high from σ = 16 on.
    """
    small = math.sqrt(2 * max(0.0, loss - uniform_loss(vocab_size)))
    limit = math.sqrt(2 * uniform_loss(vocab_size))
    return small if small <= limit else loss / largest_of_normals(vocab_size)


def largest_of_normals(count: int) -> float:
    """Return the mode of the largest of `count` ≥ 2 standard normals, to second order (Cramér 1946, §28.6)."""
    first_order = math.sqrt(2 * math.log(count))
    return first_order - (math.log(math.log(count)) + math.log(4 * math.pi)) / (2 * first_order)
