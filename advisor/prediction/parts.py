"""The parts of a predicted step, each with an interval: the parts that a profiler's trace measures."""

from __future__ import annotations

import numpy as np

from advisor.laws.intervals import Z80
from advisor.prediction import comm
from advisor.prediction.batch import BACKWARD, predict_batch
from advisor.prediction.profile import Profile
from advisor.prediction.throughput import TERMS, predict_log, products, sizes
from advisor.records import Basis, Estimate, Workload

PARTS = ("products", "attention", "loss", "optimizer", "passes", "launches")  # and "communication", which has no term
_PART_OF_TERM = {
    **{"matmul": "products", "attention": "attention", "logits": "loss", "optimizer": "optimizer"},
    **dict.fromkeys(("traffic", "weights"), "passes"),
    **dict.fromkeys(("layer_overhead", "micro_overhead", "step_overhead"), "launches"),
}


def product_flops(w: Workload) -> float:
    """Return the FLOPs of products with weights in a step on one GPU, as if every weight were trained."""
    z = sizes([w])
    return float(products(z)[0][0] - z.step_flops[0])


def parts_of_step(profile: Profile, w: Workload, *, head_is_loss: bool) -> dict[str, Estimate] | None:
    """Return the predicted seconds of each part of a step, which add up to the predicted step.

    `head_is_loss` counts the product with the vocabulary as a part of the loss. Returns None if only the whole step is
    predicted: with unknown links, adapters, frozen weights, rollouts, or a model that is split over GPUs.
    """
    step = predict_batch(profile, [w])[0].step_seconds
    how = w.software
    partly = how is not None and (how.adapters is not None or how.frozen_blocks > 0)
    if step is None or partly or w.layout is not None or w.rollouts is not None:
        return None
    z, posterior = sizes([w]), profile.posterior_of(w.sharding)
    logs = predict_log(posterior, z)
    alone, zero = float(np.exp(logs.mean[0])), Estimate(value=0.0, low=0.0, high=0.0, basis=Basis.MEASURED)
    exposed = comm.exposed_seconds(w, profile.spec, BACKWARD * alone / w.grad_accum) if w.gpus > 1 else zero
    if exposed is None:
        return None
    belongs = np.array([[float(_PART_OF_TERM[term] == name) for term in TERMS] for name in PARTS])
    # Of the matrix products, Muon's iterations are the optimizer's, and the head's may be the loss's.
    matmul = float(products(z)[0][0])
    head = 6 * float(z.head_matmul[0] * z.grad_accum[0] * z.tokens[0]) / matmul if head_is_loss else 0.0
    for name, share in (("optimizer", float(z.step_flops[0]) / matmul), ("loss", head)):
        belongs[[PARTS.index(name), PARTS.index("products")], TERMS.index("matmul")] += (share, -share)

    seconds = logs.parts[0] * max(0.0, step.value - exposed.value) / logs.parts[0].sum()
    found = {"communication": exposed}
    for name, row in zip(PARTS, belongs, strict=True):
        value = float(row @ seconds)
        pull = row * seconds / (value or 1.0)
        variance = float(pull @ posterior.covariance @ pull) + posterior.discrepancy**2 + posterior.drift**2
        spread = float(np.exp(Z80 * profile.widening * variance**0.5))
        found[name] = Estimate(value=value, low=value / spread, high=value * spread, basis=step.basis)
    return found
