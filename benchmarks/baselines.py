"""Predicts the same held-out configurations by simpler means: a constant MFU, and a line in batch size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.laws import flops
from advisor.records import MeasuredStep, Workload


def step_flops(w: Workload) -> float:
    """Return the FLOPs of one optimizer step, forward and backward."""
    return flops.flops_per_token(w.shape) * w.step_tokens


def constant_mfu(seen: Sequence[MeasuredStep], held: Sequence[Workload]) -> np.ndarray:
    """Return step seconds if every configuration ran at the median FLOP/s of the measured ones."""
    rate = float(np.median([step_flops(o.workload) / o.step_seconds for o in seen]))
    return np.array([step_flops(w) / rate for w in held])


def straight_line(seen: Sequence[MeasuredStep], held: Sequence[Workload]) -> np.ndarray:
    """Return step seconds from a line through the nearest depth's three smallest batches, scaled by FLOPs.

    Batch-size finders do this: they time a few small batches of one model and extend the line.
    """
    return np.array([_line(seen, w) for w in held])


def _line(seen: Sequence[MeasuredStep], w: Workload) -> float:
    depths = sorted({o.workload.shape.depth for o in seen}, key=lambda d: abs(d - w.shape.depth))
    for depth in depths:
        same = [o for o in seen if o.workload.shape.depth == depth and o.workload.grad_accum == 1]
        smallest = sorted(same, key=lambda o: o.workload.micro_tokens)[:3]
        if len({o.workload.micro_tokens for o in smallest}) >= 2:
            break
    else:
        return float("nan")
    tokens = np.array([o.workload.micro_tokens for o in smallest], dtype=float)
    slope, fixed = np.polyfit(tokens, [o.step_seconds for o in smallest], 1)
    at = max(fixed + slope * w.micro_tokens, 1e-9) * w.grad_accum
    return at * flops.flops_per_token(w.shape) / flops.flops_per_token(smallest[0].workload.shape)
