"""Estimates what measuring our trainer's blocks here tells about other software: `python benchmarks/stage_worth.py`.

This uses only the fitted prior (profiles/prior.yaml). It gives the log deviation of one GPU's work with the software,
before and after the work of a compiled PyTorch loop on the same GPU is known exactly (Gaussian conditioning).
"""

from __future__ import annotations

import numpy as np

from advisor.hardware.catalog import require_gpu
from advisor.prediction.prior import _setting, _shared, load_prior
from advisor.prediction.software import require_software
from advisor.prediction.throughput import TERMS

# Shares of a large model's step (products, attention, passes through memory, launches), by our judgement.
SHARES = {"matmul": 0.75, "attention": 0.1, "traffic": 0.12, "layer_overhead": 0.03}


def main() -> None:
    """Print the deviation before and after for each GPU and software."""
    shared, g = _shared(), np.array([SHARES.get(term, 0.0) for term in TERMS])
    print("| GPU | software | before | after |\n|---|---|---|---|")
    for key in ("h100-80gb-sxm", "h200-141gb-sxm", "a100-80gb-sxm", "l4"):
        spec = require_gpu(key)
        own = _setting("bf16", True, spec)
        for name in ("nemo", "megatron", "torchtitan"):
            named = require_software(name)
            other = _setting("bf16", named.compiled, spec, named.software)
            one, two = (shared.pick(spec.generation, spec, setting) for setting in (own, other))
            card = 0.0 if f"card {key}" in shared.place else shared.spreads.card**2
            cross = two @ shared.covariance @ one.T + shared.spreads.between(other, own) + card
            ours = load_prior(spec.generation, "bf16", True, spec).covariance
            theirs = load_prior(spec.generation, "bf16", named.compiled, spec, software=named.software).covariance
            before, known = g @ theirs @ g, g @ ours @ g
            after = before - (g @ cross @ g) ** 2 / known
            print(f"| {key} | {name} | {before**0.5:.1%} | {after**0.5:.1%} |")


if __name__ == "__main__":
    main()
