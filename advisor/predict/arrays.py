"""Step time and memory of very many configurations of one device: arrays in, arrays out, no object per configuration.

The same formulas as `predict/batch`, for searches over more configurations than anybody will look at. Pure.
"""

from __future__ import annotations

import numpy as np

from advisor import flops
from advisor.laws.intervals import Z80
from advisor.predict import comm
from advisor.predict.batch import BACKWARD
from advisor.predict.memory import EstimateArrays
from advisor.predict.memory_terms import WorkloadArrays
from advisor.predict.profile import FIT_MARGIN, Profile, unlikeness
from advisor.predict.throughput import ELEMENT_BYTES, Sizes, newton_schulz_flops, predict_log


def fits(device_bytes: EstimateArrays, memory_bytes: int | None) -> np.ndarray:
    """Bool: the interval's high end fits the device with margin; True where its memory is unknown."""
    if memory_bytes is None:
        return np.ones(len(device_bytes.high), dtype=bool)
    return device_bytes.high <= FIT_MARGIN * memory_bytes


def step_seconds_many(profile: Profile, a: WorkloadArrays, grad_accum: np.ndarray, gpus: np.ndarray) -> EstimateArrays:
    """Seconds per optimizer step, communication included, shape (n,); NaN where the links are unknown.

    `gpus` goes before the arrays' own number, so that several counts are predicted at once. Sharding and selective
    recomputation, which the trainer lacks, are not looked at.
    """
    logs = predict_log(profile.posterior, sizes_of(a, grad_accum))
    how = "compile" if a.compile else "eager"
    tag = f"{a.family}/{a.precision}/{how}/{a.activation_checkpointing}/{a.optimizer}"
    deviation = np.sqrt(logs.deviation**2 + profile.posterior.drift**2 + unlikeness(profile.posterior, tag) ** 2)
    value, spread = np.exp(logs.mean), np.exp(Z80 * deviation)
    alone = EstimateArrays(value=value, low=value / spread, high=value * spread)
    if not (gpus > 1).any():
        return alone
    exchange = comm.Exchange(
        gpus=gpus,
        parameters=a.parameters.astype(float),
        depth=a.depth,
        grad_accum=grad_accum,
        full=np.zeros(len(value), dtype=bool),
    )
    exposed = comm.exposed_many(exchange, profile.spec, BACKWARD * value / grad_accum)
    return sum_independent_many(alone, exposed)


def sum_independent_many(*parts: EstimateArrays) -> EstimateArrays:
    """Sum of estimates with unrelated errors: half-widths in quadrature, below and above apart."""
    value = sum(part.value for part in parts)
    below = np.sqrt(sum((part.value - part.low) ** 2 for part in parts))
    above = np.sqrt(sum((part.high - part.value) ** 2 for part in parts))
    return EstimateArrays(value=value, low=value - below, high=value + above)


def sizes_of(a: WorkloadArrays, grad_accum: np.ndarray) -> Sizes:
    """What the terms are computed from, shape (n,): as `throughput.sizes` for a list of workloads."""
    head = (a.vocab_size * a.width).astype(float)
    ones = np.ones(len(a.depth))
    return Sizes(
        layers=a.depth.astype(float),
        width=a.width.astype(float),
        lanes=(4 * a.width + a.ffn_width * (2 if a.family == "llama" else 1)) / 8,
        attention_width=(a.heads * a.head_dim).astype(float),
        seq_len=a.seq_len.astype(float),
        attended=a.seq_len.astype(float),
        vocab=a.vocab_size.astype(float),
        tokens=a.tokens.astype(float),
        grad_accum=grad_accum.astype(float),
        parameters=a.parameters.astype(float),
        block_matmul=flops.matmul_parameters(a) - head,
        head_matmul=head,
        element_bytes=ELEMENT_BYTES[a.precision] * ones,
        weight_bytes=4 * ones,
        recompute=(4 / 3 if a.activation_checkpointing == "full" else 1.0) * ones,
        step_flops=newton_schulz_flops(a) if a.optimizer == "muon" else 0.0 * ones,
    )
