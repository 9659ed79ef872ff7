"""Beliefs about a device before any burst has run on it: profiles/prior.yaml, by architecture generation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.predict.throughput import TERMS


@dataclass(frozen=True, kw_only=True)
class CoefficientPrior:
    """Gaussian beliefs about the log coefficients of the throughput terms; what no formula explains; both learnt from published runs."""

    mean: np.ndarray  # (len(TERMS),)
    covariance: np.ndarray  # (len(TERMS), len(TERMS))
    discrepancy: float  # standard deviation of log step seconds that the terms leave unexplained
    source: str


def measured_prior() -> CoefficientPrior:
    """Beliefs when the device's own ceilings were measured: every term within a factor of a few of its physical floor.

    Means: products of a training step reach 80-90 % of the best measured product, attention 30-40 % of it (fitted a2/a1 of
    1.5-2.4, handbook §3.1); activations pass memory 20-60 times per layer forward and backward (a3 of 100-380 B over 2-byte
    elements), logits about 6 times in fp32, weights about 5 times; launches per layer 60 eager; optimizer at 1.3 times its floor.
    """
    beliefs = {
        "matmul": (1.2, 0.25),
        "attention": (2.5, 0.6),
        "traffic": (40.0, 0.8),
        "logits": (6.0, 0.8),
        "weights": (5.0, 0.7),
        "layer_overhead": (80.0, 0.8),
        "micro_overhead": (150.0, 0.8),
        "optimizer": (1.3, 0.5),
        "step_overhead": (300.0, 0.8),
    }
    return CoefficientPrior(
        mean=np.log([beliefs[t][0] for t in TERMS]),
        covariance=np.diag([beliefs[t][1] ** 2 for t in TERMS]),
        discrepancy=0.03,
        source="physical floors measured on the device (handbook §3.1)",
    )
