"""Chooses the next burst: the one that narrows predictions most per second.

Pure: the present fit goes in, a burst comes out. A plan must decide which depth and micro-batch to recommend. So what
counts is the variance of log step seconds at configurations a plan would consider, not at those cheap to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.prediction.throughput import Posterior, Sizes, coordinates, kernel, predict_log, sizes, terms
from advisor.records import Workload

_VISIT_NOISE = 0.04  # expected deviation of one burst's drift-corrected log median; the fit estimates the real one
# micro-batches to try: powers of two, and one and a half times each of them
_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, kw_only=True)
class BurstCost:
    """The cost of a burst in addition to its timed steps: seconds to build the model, and warm-up steps."""

    build_seconds_per_parameter: float = 6e-9
    fixed_seconds: float = 0.15
    warmup_steps: int = 2
    least_steps: int = 3
    timed_seconds: float = 1.5
    compile_seconds: float = 0.0  # for a block shape that has not been compiled yet
    compiled: frozenset[tuple[float, ...]] = frozenset()  # block shapes that have been compiled, see `block_shapes`

    def seconds(self, z: Sizes, step_seconds: np.ndarray) -> np.ndarray:
        """Return the expected wall seconds of one burst of each workload, shape (n,)."""
        steps = np.maximum(self.least_steps, np.ceil(self.timed_seconds / step_seconds)) + self.warmup_steps
        new = np.array([shape not in self.compiled for shape in block_shapes(z)])
        build = self.fixed_seconds + self.build_seconds_per_parameter * z.parameters
        return build + steps * step_seconds + self.compile_seconds * new


def block_shapes(z: Sizes) -> list[tuple[float, ...]]:
    """Return the shape for which a block is compiled: width, lanes, context length and micro-batch, but not depth."""
    return list(zip(z.width, z.lanes, z.seq_len, z.tokens, strict=True))


def candidates(
    shapes: Sequence[Workload], *, seq_lens: Sequence[int], most_tokens: int, fits: Callable[[Workload], bool]
) -> list[Workload]:
    """Return every burst that could be run: each base shape at every micro-batch and context length that fits.

    `shapes` has one workload per depth. Two gradient-accumulation steps appear once per depth, at a small micro-batch,
    because they separate the cost per step from the cost per micro-batch.
    """
    candidates = []
    for base in shapes:
        for seq_len in seq_lens:
            shape = replace(base.shape, seq_len=seq_len)
            for micro_batch in (size for size in _LADDER if size <= max(1, most_tokens // seq_len)):
                workload = replace(base, shape=shape, micro_batch=micro_batch)
                if not fits(workload):
                    break
                candidates.append(workload)
                if seq_len == seq_lens[0] and micro_batch == 2:
                    candidates.append(replace(workload, grad_accum=2))
    return candidates


def target_weights(posterior: Posterior, z: Sizes, seq_len: int) -> np.ndarray:
    """Weight each candidate: high if its tokens/s are near the best of its depth, otherwise low."""
    seconds = np.exp(predict_log(posterior, z).mean)
    rate = z.tokens * z.grad_accum / seconds
    weight = np.full(len(rate), 0.1)
    for depth in np.unique(z.layers):
        here = (z.layers == depth) & (z.seq_len == seq_len) & (z.grad_accum == 1)
        if here.any():
            weight[here] += (rate[here] / rate[here].max()) ** 4
    return weight


def choose(
    posterior: Posterior,
    pool: Sequence[Workload],
    weights: np.ndarray,
    cost: BurstCost,
    *,
    count: int,
    seconds_left: float,
    visit_noise: float = _VISIT_NOISE,
) -> list[Workload]:
    """Choose the next `count` bursts one by one. Each removes the most weighted variance per second, after those
    before.

    Returns an empty list if nothing fits the seconds left. No outcomes are needed, because in a linearised Gaussian
    model the remaining variance does not depend on the measured value (MacKay 1992, information-based objective
    functions).
    """
    z = sizes(pool)
    predicted = predict_log(posterior, z)
    price = cost.seconds(z, np.exp(predicted.mean))
    # the posterior covariance of log step seconds between all workloads
    x = terms(z, posterior.rates) * np.exp(posterior.theta)
    pull = x / x.sum(axis=1, keepdims=True)
    where, scale = coordinates(z), posterior.discrepancy**2
    covariance = scale * kernel(where, where)
    if len(posterior.points):
        cross = scale * kernel(where, posterior.points)
        inside = scale * kernel(posterior.points, posterior.points) + np.diag(posterior.noise**2)
        solved = np.linalg.solve(inside, cross.T).T
        covariance = covariance - solved @ cross.T
        pull = pull - solved @ posterior.gradients
    covariance = covariance + pull @ posterior.covariance @ pull.T
    chosen: list[Workload] = []
    spent = 0.0
    for _ in range(count):
        gain = (covariance**2 * weights[:, None]).sum(axis=0) / (np.diag(covariance) + visit_noise**2)
        value = np.where(price <= seconds_left - spent, gain / price, -1.0)
        best = int(np.argmax(value))
        if value[best] <= 0:
            break
        chosen.append(pool[best])
        spent += float(price[best])
        column = covariance[:, best]
        covariance = covariance - np.outer(column, column) / (covariance[best, best] + visit_noise**2)
    return chosen


_CONTRASTS: tuple[Callable[[Workload], int], ...] = (
    lambda w: w.shape.depth,
    lambda w: w.micro_batch,
    lambda w: w.shape.seq_len,
    lambda w: w.grad_accum,
)


def missing_contrast(done: Sequence[Workload], pool: Sequence[Workload]) -> list[Workload]:
    """Return candidates that differ from all bursts so far in depth, micro-batch, context length or accumulation."""
    wanted = []
    for value in _CONTRASTS:
        seen = {value(w) for w in done}
        if len(seen) < 2:
            wanted += [w for w in pool if value(w) not in seen]
    return wanted
