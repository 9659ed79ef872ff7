"""Step time of a workload: physical terms with uncertain coefficients, and a residual.

    step seconds = Σ_k exp(θ_k) · x_k(workload, rates) · exp(r)

x_k is the time of term k at the device's rates if its coefficient is one (sources §3.1). θ has a Gaussian prior that a
calibration updates. r is a Gaussian process over the size of the workload: near calibrated points it follows the
measured residuals, and away from them it returns to zero with its full width. `docs/how-it-predicts.md` derives the
equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from advisor.laws import flops
from advisor.prediction.memory_terms import WorkloadArrays, by_kind
from advisor.records import Software, Workload
from advisor.settings import OPTIMIZERS, PRECISIONS, SHARDINGS

TERMS = (
    "matmul",  # matrix products; 1.0 is the rate of the best measured product
    "attention",  # score and value products of attention
    "traffic",  # passes of every layer activation through memory
    "logits",  # passes of fp32 logits through memory
    "weights",  # passes of fp32 weights through memory per micro-batch (casts, reads, gradient accumulation)
    "layer_overhead",  # launches per layer and micro-batch
    "micro_overhead",  # launches per micro-batch
    "optimizer",  # passes of 28 bytes per parameter, as in fused AdamW
    "step_overhead",  # launches per optimizer step
)
OPTIMIZER_BYTES = 28  # fused AdamW fp32: read p, g, m, v; write p, m, v (sources §3.2)
_LENGTH_LOG2 = 1.0  # a factor of two in size gives residuals a correlation of exp(-1/2)
_ACCUMULATION_WEIGHT = 0.1
# Caches and kernels chosen by size make extrapolation uncertain: log deviation for each factor of two beyond the range
# of the calibration. docs/log.md gives the coverage without this term.
_BEYOND_DEVIATION = 0.03
# Without a fused kernel, the first product writes the attention scores, softmax and dropout read and write them, and
# the second product reads them: 6 passes, and 9 for the gradient. The activations of an eager block pass through memory
# about 110 times per lane.
_SCORE_PASSES, _LANE_PASSES = 15, 110
# By `Software.state`, what a micro-batch reads and writes of each weight, before the coefficient of the term. The 4
# bytes of autocast come out as 47 on an A100: casts, copies and gradients, in untuned loops. 16-bit weights beside fp32
# masters need no casts: 2 + 2 bytes are read by products, and 8 read and written to add up the gradient in fp32. These
# 12 bytes count as 18: judged on benchmarks/layouts.py and on tables in no fit (docs/log.md).
READ_BYTES = {"fp32": 4.0, "16bit": 2.0, "copied": 1.5}
# Work of a block relative to one without checkpointing: "full" repeats the forward pass, "selective" repeats every
# other product, which is half of a forward pass.
_RECOMPUTE = {"full": 4 / 3, "selective": 7 / 6}
# This project's trainer repeats no product with "selective". It only reads and writes the feed-forward's activation
# once more, a small part of a block's memory traffic. The value is our judgement, not measured on a GPU.
_OWN_SELECTIVE_PASSES = 1.05


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The highest rates of a device, which scale the terms."""

    matmul_flops: float  # FLOP/s in the workload's precision
    bandwidth: float  # bytes per second, read plus written
    launch_seconds: float  # one empty operation


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The inputs of the terms for many workloads, as arrays of equal length."""

    layers: np.ndarray
    width: np.ndarray
    lanes: np.ndarray  # activation lanes per layer and token, in units of the width of a 4·width FFN block
    attention_width: np.ndarray  # query heads × head size
    seq_len: np.ndarray
    attended: np.ndarray  # tokens that a query attends to, mean over layers: below seq_len with attention windows
    vocab: np.ndarray
    tokens: np.ndarray  # per micro-batch and device
    grad_accum: np.ndarray
    parameters: np.ndarray
    block_matmul: np.ndarray  # matmul parameters inside blocks
    head_matmul: np.ndarray
    element_bytes: np.ndarray
    weight_bytes: np.ndarray  # per trained parameter: 4, or 2 if the whole state has 16 bits
    read_bytes: np.ndarray  # per weight of a product and micro-batch, see READ_BYTES
    recompute: np.ndarray  # work of a block relative to one without activation checkpointing
    passes: np.ndarray  # memory traffic of a block's activations, relative to one without activation checkpointing
    block_speed: np.ndarray  # peak of a block's products relative to the precision's peak: 2 for 8-bit floats
    step_flops: np.ndarray  # per optimizer step (Muon's Newton-Schulz iterations)


def sizes(workloads: Sequence[Workload]) -> Sizes:
    """Return any workloads as arrays of shape (n,)."""
    columns: dict[str, np.ndarray] = {name: np.empty(len(workloads)) for name in Sizes.__dataclass_fields__}
    for places in by_kind(workloads):
        kind = [workloads[i] for i in places]
        some = sizes_of(WorkloadArrays.of(kind), np.array([w.grad_accum for w in kind]))
        for name, column in columns.items():
            column[places] = getattr(some, name)
    return Sizes(**columns)


def sizes_of(a: WorkloadArrays, grad_accum: np.ndarray, gpus: np.ndarray | None = None) -> Sizes:
    """Return the inputs of the terms for workloads of one kind, shape (n,); `gpus` replaces the number in `a`.

    Each device updates its share of sharded parameters. Published software also splits Muon's iterations over the
    devices, while this project's trainer runs all of them on every device.
    """
    ones = np.ones(len(a.depth))
    # Without a fused kernel, attention scores pass through memory. They count as additional activation lanes.
    fused = a.software is None or a.software.fused_attention
    scores = 0.0 if fused else a.heads * attended_tokens(a.software, a.seq_len) * _SCORE_PASSES / _LANE_PASSES
    head = (a.vocab_size * a.width).astype(float)
    shares = (a.gpus if gpus is None else gpus) * ones if SHARDINGS[a.sharding].moments else ones
    stepped = newton_schulz_flops(a) * ones if OPTIMIZERS[a.optimizer].orthogonalizes else 0.0 * ones
    own_selective = a.software is None and a.activation_checkpointing == "selective"
    return Sizes(
        layers=a.depth.astype(float),
        width=a.width.astype(float),
        lanes=(4 * a.width + a.ffn_width * (2 if a.family == "llama" else 1)) / 8 + scores,
        attention_width=(a.heads * a.head_dim).astype(float),
        seq_len=a.seq_len.astype(float),
        attended=attended_tokens(a.software, a.seq_len) * ones,
        vocab=a.vocab_size.astype(float),
        tokens=a.tokens.astype(float),
        grad_accum=grad_accum.astype(float),
        parameters=a.trained_parameters / shares,
        block_matmul=flops.matmul_parameters(a) - head,
        head_matmul=head,
        element_bytes=PRECISIONS[a.precision].element_bytes * ones,
        weight_bytes=(2 if a.software is not None and a.software.state == "16bit" else 4) * ones,
        read_bytes=READ_BYTES[a.software.state if a.software is not None else "fp32"] * ones,
        recompute=(1.0 if own_selective else _RECOMPUTE.get(a.activation_checkpointing, 1.0)) * ones,
        passes=(_OWN_SELECTIVE_PASSES if own_selective else _RECOMPUTE.get(a.activation_checkpointing, 1.0)) * ones,
        block_speed=(2.0 if a.software is not None and a.software.fp8 else 1.0) * ones,
        step_flops=stepped / (shares if a.software is not None else ones),
    )


@overload
def newton_schulz_flops(s: flops.Shape[int]) -> float: ...
@overload
def newton_schulz_flops(s: flops.Shape[np.ndarray]) -> np.ndarray: ...
def newton_schulz_flops(s: flops.Shape[int] | flops.Shape[np.ndarray]) -> float | np.ndarray:
    """Return Muon's FLOPs per step: 5·(4m²n + 2m³) for each m×n block matrix with m ≤ n (sources §1.2)."""
    kv = s.kv_heads * s.head_dim
    mats = [(s.width, s.width)] * 2 + [(s.width, kv)] * 2 + [(s.width, s.ffn_width)] * (3 if s.family == "llama" else 2)
    pairs = [(1.0 * np.minimum(a, b), 1.0 * np.maximum(a, b)) for a, b in mats]
    return s.depth * sum(5 * (4 * m**2 * n + 2 * m**3) for m, n in pairs)


def all_parameters(w: Workload) -> int:
    """Return the parameters of a model, including those that its shape lacks, such as an untied head."""
    return flops.parameters(w.shape) + extra_parameters(w.software)


def extra_parameters(software: Software | None) -> int:
    """Return the number of parameters that the shape lacks."""
    return software.extra_parameters + software.expert_parameters if software is not None else 0


def attended_tokens(software: Software | None, seq_len: int | np.ndarray) -> float | np.ndarray:
    """Return the tokens that a query attends to, as a mean over layers, without the causal mask (sources §1.2)."""
    windows = software.attended_tokens if software is not None else None
    return seq_len if windows is None else np.minimum(windows, seq_len)


def products(z: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Return the FLOPs of a step's matrix products, and of attention as if nothing were masked, each of shape (n,)."""
    micro = z.grad_accum * z.tokens
    matmul = 6 * (z.block_matmul * z.recompute / z.block_speed + z.head_matmul) * micro + z.step_flops
    return matmul, 12 * z.layers * z.attention_width * z.attended * micro * z.recompute


def terms(z: Sizes, rates: Rates) -> np.ndarray:
    """Return the seconds of each term at coefficient one, shape (n, len(TERMS)).

    The terms are those of sources §3.1, plus one for weights and one for launches per layer.
    """
    micro = z.grad_accum * z.tokens
    flop, byte, launch = 1 / rates.matmul_flops, 1 / rates.bandwidth, rates.launch_seconds
    matmul, attention = products(z)
    columns = (
        matmul * flop,
        attention * flop,
        z.layers * z.lanes * z.element_bytes * micro * z.passes * byte,
        4 * z.vocab * micro * byte,
        z.read_bytes * (z.block_matmul + z.head_matmul) * z.grad_accum * byte,
        z.layers * z.grad_accum * z.recompute * launch,
        z.grad_accum * launch,
        OPTIMIZER_BYTES / 4 * z.weight_bytes * z.parameters * byte,
        np.full_like(z.tokens, launch),
    )
    return np.stack(columns, axis=1)


def coordinates(z: Sizes) -> np.ndarray:
    """Return the position of workloads in log2 of their sizes, shape (n, 6), for the Gaussian process of residuals.

    Gradient accumulation counts little, because it repeats a micro-batch with the same residual.
    """
    accumulation = _ACCUMULATION_WEIGHT * np.log2(z.grad_accum)
    return np.stack([*np.log2([z.layers, z.width, z.tokens, z.seq_len, z.vocab]), accumulation], axis=1)


@dataclass(frozen=True, kw_only=True)
class Nearby:
    """The residuals of published runs of the same software, as a Gaussian process that corrects other runs."""

    points: np.ndarray  # (m, 6) coordinates of the runs
    covariance: np.ndarray  # (m,) covariance of each run's residual with that of a run of equal size on this GPU
    inverse: np.ndarray  # (m, m) inverse covariance of the runs' residuals, with owners and noise
    pull: np.ndarray  # (m,) inverse · residuals
    length: float  # length scale of the process, in factors of two

    def cross(self, where: np.ndarray) -> np.ndarray:
        """Return the covariance of residuals at `where` with those of the runs, shape (len(where), m)."""
        square = (where**2).sum(axis=1)[:, None] + (self.points**2).sum(axis=1) - 2 * where @ self.points.T
        return self.covariance * np.exp(-0.5 * square / self.length**2)

    def residual(self, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the expected residual of runs at `where`, and by how much the runs reduce its variance, both (n,)."""
        cross = self.cross(where)
        return cross @ self.pull, ((cross @ self.inverse) * cross).sum(axis=1)


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """The posterior for one device, from which step times of any workload are predicted."""

    rates: Rates
    theta: np.ndarray  # (k,) log coefficients
    covariance: np.ndarray  # (k, k)
    discrepancy: float  # standard deviation of the residual process r
    drift: float  # standard deviation of the log change in the machine's speed until a later run
    points: np.ndarray  # (m, 6) coordinates of calibrated configurations; m = 0 for a prior
    gradients: np.ndarray  # (m, k) gradients of log step seconds at the points
    residuals: np.ndarray  # (m,) log measured minus log predicted by the terms
    noise: np.ndarray  # (m,)
    tags: tuple[str, ...] = ()  # the tag of each point, see `tag`
    nearby: Nearby | None = None  # published runs of the same software; used if there is no calibration


def tag(w: Workload) -> str:
    """Return the settings that two workloads must share so that their residuals are related."""
    return tag_of(WorkloadArrays.of([w]))


def tag_of(a: WorkloadArrays) -> str:
    """Return the `tag` of workloads that are all of one kind."""
    how = "compile" if a.compile else "eager"
    return f"{a.family}/{a.precision}/{how}/{a.activation_checkpointing}/{a.optimizer}"


def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the squared-exponential correlation of residuals, shape (len(a), len(b))."""
    square = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    return np.exp(-0.5 * square / _LENGTH_LOG2**2)


@dataclass(frozen=True, kw_only=True)
class LogPrediction:
    """The distribution of log step seconds for n workloads."""

    mean: np.ndarray  # (n,)
    expected: np.ndarray  # (n,) log of the mean of step seconds, which is above the median
    deviation: np.ndarray  # (n,) without the machine's drift
    distance: np.ndarray  # (n,) to the nearest calibrated point, in factors of two; inf for a prior
    parts: np.ndarray  # (n, k) seconds per term at the posterior mode


def predict_log(posterior: Posterior, z: Sizes) -> LogPrediction:
    """Return the distribution of log step seconds by universal kriging: physical terms, residual process,
    uncertainty."""
    x = terms(z, posterior.rates) * np.exp(posterior.theta)
    total = x.sum(axis=1)
    gradient = x / total[:, None]
    where = coordinates(z)
    scale = posterior.discrepancy**2
    n = len(total)
    mean, pull, variance = np.log(total), gradient, np.full(n, scale)
    distance = np.full(n, np.inf)
    if posterior.nearby is not None:
        moved, known = posterior.nearby.residual(where)
        mean, variance = mean + moved, variance - known
    if len(posterior.points):
        cross = scale * kernel(where, posterior.points)
        inside = scale * kernel(posterior.points, posterior.points) + np.diag(posterior.noise**2)
        weights = np.linalg.solve(inside, cross.T).T  # (n, m)
        mean = mean + weights @ posterior.residuals
        variance = np.maximum(scale - (weights * cross).sum(axis=1), 0.0)
        pull = gradient - weights @ posterior.gradients
        distance = np.sqrt(((where[:, None, :] - posterior.points[None]) ** 2).sum(axis=2)).min(axis=1)
        # The distance from the range of the calibration, in factors of two.
        low, high = posterior.points.min(axis=0), posterior.points.max(axis=0)
        beyond = np.sqrt(((np.maximum(low - where, 0) + np.maximum(where - high, 0)) ** 2).sum(axis=1))
        variance = variance + (_BEYOND_DEVIATION * beyond) ** 2
    # The last digit of @ depends on the number of rows; einsum gives one run the same result alone and among many.
    rest, variance = variance, variance + np.einsum("nk,kl,nl->n", pull, posterior.covariance, pull)
    # In a prior, each term has the mean of its own lognormal. Bursts determine the sum of the terms better than each
    # term, so after a calibration the sum as a whole is lognormal.
    alone = np.log((x * np.exp(np.diag(posterior.covariance) / 2)).sum(axis=1)) + rest / 2 + (mean - np.log(total))
    expected = mean + variance / 2 if len(posterior.points) else alone
    return LogPrediction(mean=mean, expected=expected, deviation=np.sqrt(variance), distance=distance, parts=x)


def expected_log(posterior: Posterior, z: Sizes) -> np.ndarray:
    """Return only the `mean` of `predict_log`, shape (n,)."""
    trend = np.log(terms(z, posterior.rates) @ np.exp(posterior.theta))
    if posterior.nearby is not None:
        return trend + posterior.nearby.cross(coordinates(z)) @ posterior.nearby.pull
    if not len(posterior.points):
        return trend
    scale = posterior.discrepancy**2
    inside = scale * kernel(posterior.points, posterior.points) + np.diag(posterior.noise**2)
    return trend + scale * kernel(coordinates(z), posterior.points) @ np.linalg.solve(inside, posterior.residuals)


def basis_of(posterior: Posterior, z: Sizes, distance: np.ndarray) -> np.ndarray:
    """Return the basis of each prediction as an index into `intervals.BASES`, shape (n,).

    It is measured at a calibrated point, interpolated inside the range of the calibrated points, extrapolated outside
    their range, and prior without a calibration.
    """
    measured, interpolated, extrapolated, prior = range(4)
    if not len(posterior.points):
        return np.full(len(distance), prior)
    axes = slice(0, 5)  # the range ignores gradient accumulation
    where = coordinates(z)[:, axes]
    low, high = posterior.points[:, axes].min(axis=0) - 1e-6, posterior.points[:, axes].max(axis=0) + 1e-6
    inside = ((where >= low) & (where <= high)).all(axis=1)
    return np.where(distance < 1e-6, measured, np.where(inside, interpolated, extrapolated))
