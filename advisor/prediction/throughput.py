"""Step time of a workload: physical terms with uncertain coefficients, plus what they leave unexplained.

    step seconds = Σ_k exp(θ_k) · x_k(workload, rates) · exp(r)

x_k is the time term k would take at the device's rates if its coefficient were one (sources §3.1); θ has a
Gaussian prior, made posterior by a calibration; r is a Gaussian process over the workload's size that is pulled to the
measured residuals near calibrated points and returns to zero, with its full width, away from them.
`docs/how-it-predicts.md` derives the equations. Pure: no disk, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from advisor.laws import flops
from advisor.prediction.memory_terms import WorkloadArrays, by_kind
from advisor.prediction.trained import trained_parameters
from advisor.records import Software, Workload

TERMS = (
    "matmul",  # matrix products at the measured rate; 1.0 = as fast as the best measured product
    "attention",  # score and value products of attention
    "traffic",  # passes of every layer activation through memory
    "logits",  # passes of fp32 logits through memory
    "weights",  # passes of fp32 weights through memory per micro-batch (casts, reads, gradient accumulation)
    "layer_overhead",  # launches per layer and micro-batch
    "micro_overhead",  # launches per micro-batch
    "optimizer",  # passes of the 28 bytes per parameter that a fused AdamW must move
    "step_overhead",  # launches per optimizer step
)
OPTIMIZER_BYTES = 28  # fused AdamW fp32: read p, g, m, v; write p, m, v (sources §3.2)
_LENGTH_LOG2 = 1.0  # residuals of workloads a factor of two apart correlate by exp(-1/2)
_ACCUMULATION_WEIGHT = 0.1
# What the terms cannot know grows with the distance extrapolated (caches, kernels chosen by size): log deviation per
# factor of two beyond the calibrated box; docs/log.md has the coverage without it.
_BEYOND_DEVIATION = 0.03
# Without a fused kernel a score is written by the product, read and written by softmax and dropout, read by the second
# product: 6 passes, and 9 for its gradient. Counted alike, the activations of an eager block are some 110 of a lane.
_SCORE_PASSES, _LANE_PASSES = 15, 110
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
# Work of a block in units of a plain one: full checkpointing repeats its forward pass; a selectively checkpointed block
# repeats every other product, half of a forward pass.
_RECOMPUTE = {"full": 4 / 3, "selective": 7 / 6}
# The trainer here repeats no product: of the feed-forward's activation, one pass in, one out, of the tens of an eager
# block. Judged, not measured on a card.
_OWN_SELECTIVE_PASSES = 1.05


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What the device does at best: the scale of every term."""

    matmul_flops: float  # FLOP/s in the workload's precision
    bandwidth: float  # bytes per second, read plus written
    launch_seconds: float  # one dispatched operation on nothing


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Many workloads as arrays of equal length: what the terms are computed from."""

    layers: np.ndarray
    width: np.ndarray
    lanes: np.ndarray  # activation lanes per layer and token, in units of the width of a 4·width FFN block
    attention_width: np.ndarray  # query heads × head size
    seq_len: np.ndarray
    attended: np.ndarray  # tokens that a query may see, mean over layers: less than seq_len under windows
    vocab: np.ndarray
    tokens: np.ndarray  # per micro-batch and device
    grad_accum: np.ndarray
    parameters: np.ndarray
    block_matmul: np.ndarray  # matmul parameters inside blocks
    head_matmul: np.ndarray
    element_bytes: np.ndarray
    weight_bytes: (
        np.ndarray
    )  # per parameter, of the weights that the optimizer steps: 4, or 2 where all state is 16-bit
    recompute: np.ndarray  # work of a block in units of one without activation checkpointing
    passes: np.ndarray  # activations of a block moved through memory, in the same units
    block_speed: np.ndarray  # peak of a block's products in units of the precision's own: 2 in 8-bit floats
    step_flops: np.ndarray  # per optimizer step (Muon's Newton-Schulz iterations)


def sizes(workloads: Sequence[Workload]) -> Sizes:
    """Gather workloads of any kinds into arrays of shape (n,)."""
    columns: dict[str, np.ndarray] = {name: np.empty(len(workloads)) for name in Sizes.__dataclass_fields__}
    for places in by_kind(workloads):
        kind = [workloads[i] for i in places]
        some = sizes_of(WorkloadArrays.of(kind), np.array([w.grad_accum for w in kind]))
        for name, column in columns.items():
            column[places] = getattr(some, name)
    return Sizes(**columns)


def sizes_of(a: WorkloadArrays, grad_accum: np.ndarray, gpus: np.ndarray | None = None) -> Sizes:
    """What the terms of workloads of one kind are computed from, shape (n,); `gpus` goes before the arrays' own.

    Each device updates only its share of sharded parameters. Elsewhere Muon's iterations are shared out as the
    parameters are, each matrix orthogonalised by one device; the trainer here does all of them on every device.
    """
    ones = np.ones(len(a.depth))
    head = (a.vocab_size * a.width).astype(float)
    shares = (a.gpus if gpus is None else gpus) * ones if a.sharding != "none" else ones
    stepped = newton_schulz_flops(a) * ones if a.optimizer == "muon" else 0.0 * ones
    own_selective = a.software is None and a.activation_checkpointing == "selective"
    return Sizes(
        layers=a.depth.astype(float),
        width=a.width.astype(float),
        lanes=(4 * a.width + a.ffn_width * (2 if a.family == "llama" else 1)) / 8 + _score_lanes(a),
        attention_width=(a.heads * a.head_dim).astype(float),
        seq_len=a.seq_len.astype(float),
        attended=attended_tokens(a.software, a.seq_len) * ones,
        vocab=a.vocab_size.astype(float),
        tokens=a.tokens.astype(float),
        grad_accum=grad_accum.astype(float),
        parameters=trained_parameters(a) / shares,
        block_matmul=flops.matmul_parameters(a) - head,
        head_matmul=head,
        element_bytes=ELEMENT_BYTES[a.precision] * ones,
        weight_bytes=(2 if a.software is not None and a.software.state == "16bit" else 4) * ones,
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
    """Muon's work per step: 5·(4m²n + 2m³) for each m×n block matrix, m ≤ n (sources §1.2); arrays of arrays."""
    kv = s.kv_heads * s.head_dim
    mats = [(s.width, s.width)] * 2 + [(s.width, kv)] * 2 + [(s.width, s.ffn_width)] * (3 if s.family == "llama" else 2)
    pairs = [(1.0 * np.minimum(a, b), 1.0 * np.maximum(a, b)) for a, b in mats]
    return s.depth * sum(5 * (4 * m**2 * n + 2 * m**3) for m, n in pairs)


def all_parameters(w: Workload) -> int:
    """Trainable parameters: the shape's, and what a published model has more or fewer of (an untied or tied head)."""
    return flops.parameters(w.shape) + extra_parameters(w.software)


def extra_parameters(software: Software | None) -> int:
    """Trainable parameters that the shape lacks."""
    return software.extra_parameters if software is not None else 0


def attended_tokens(software: Software | None, seq_len: int | np.ndarray) -> float | np.ndarray:
    """Tokens that a query may see, mean over layers; the causal mask does not halve them (sources §1.2)."""
    windows = software.attended_tokens if software is not None else None
    return seq_len if windows is None else np.minimum(windows, seq_len)


def _score_lanes(a: WorkloadArrays) -> float | np.ndarray:
    """What attention in plain operations adds: scores through memory, in units of activation lanes."""
    fused = a.software is None or a.software.fused_attention
    return 0.0 if fused else a.heads * attended_tokens(a.software, a.seq_len) * _SCORE_PASSES / _LANE_PASSES


def terms(z: Sizes, rates: Rates) -> np.ndarray:
    """Seconds of each term at coefficient one, shape (n, len(TERMS)); sources §3.1 with a weights and a layer-launch
    term.
    """
    micro = z.grad_accum * z.tokens
    flop, byte, launch = 1 / rates.matmul_flops, 1 / rates.bandwidth, rates.launch_seconds
    columns = (
        (6 * (z.block_matmul * z.recompute / z.block_speed + z.head_matmul) * micro + z.step_flops) * flop,
        12 * z.layers * z.attention_width * z.attended * micro * z.recompute * flop,
        z.layers * z.lanes * z.element_bytes * micro * z.passes * byte,
        4 * z.vocab * micro * byte,
        z.weight_bytes * (z.block_matmul + z.head_matmul) * z.grad_accum * byte,
        z.layers * z.grad_accum * z.recompute * launch,
        z.grad_accum * launch,
        OPTIMIZER_BYTES / 4 * z.weight_bytes * z.parameters * byte,
        np.full_like(z.tokens, launch),
    )
    return np.stack(columns, axis=1)


def coordinates(z: Sizes) -> np.ndarray:
    """Where a workload lies, in factors of two, shape (n, 6): the axes of the residual process and of the domain.

    Accumulation counts little: it repeats the same micro-batch, so that what the terms miss of one they miss of all.
    """
    accumulation = _ACCUMULATION_WEIGHT * np.log2(z.grad_accum)
    return np.stack([*np.log2([z.layers, z.width, z.tokens, z.seq_len, z.vocab]), accumulation], axis=1)


@dataclass(frozen=True, kw_only=True)
class Nearby:
    """What published runs of the same software leave unexplained by the terms, and how that bears on other runs."""

    points: np.ndarray  # (m, 6) coordinates of the runs
    covariance: np.ndarray  # (m,) of each run's residual with that of a run of the same size here
    inverse: np.ndarray  # (m, m) of the covariance of the runs' residuals, owners and noise included
    pull: np.ndarray  # (m,) inverse · residuals
    length: float  # of the process, in factors of two

    def cross(self, where: np.ndarray) -> np.ndarray:
        """Covariance of residuals at these coordinates with those of the runs, shape (len(where), m)."""
        square = (where**2).sum(axis=1)[:, None] + (self.points**2).sum(axis=1) - 2 * where @ self.points.T
        return self.covariance * np.exp(-0.5 * square / self.length**2)


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Beliefs about one device: enough to predict any workload of the family it was fitted on."""

    rates: Rates
    theta: np.ndarray  # (k,) log coefficients
    covariance: np.ndarray  # (k, k)
    discrepancy: float  # standard deviation of the residual process r
    drift: float  # standard deviation of the log of the machine's own speed between now and a later run
    points: np.ndarray  # (m, 6) coordinates of calibrated configurations; m = 0 for a prior
    gradients: np.ndarray  # (m, k) of log step seconds at the points
    residuals: np.ndarray  # (m,) log measured minus log modelled
    noise: np.ndarray  # (m,)
    tags: tuple[str, ...] = ()  # the workload tag of each point, see `tag`
    nearby: Nearby | None = None  # published runs of the same software, of a prior alone


def tag(w: Workload) -> str:
    """What must agree for a measurement to say something about a workload's residual."""
    return tag_of(WorkloadArrays.of([w]))


def tag_of(a: WorkloadArrays) -> str:
    """As `tag`, of workloads of one kind."""
    how = "compile" if a.compile else "eager"
    return f"{a.family}/{a.precision}/{how}/{a.activation_checkpointing}/{a.optimizer}"


def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared-exponential correlation of residuals, shape (len(a), len(b))."""
    square = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    return np.exp(-0.5 * square / _LENGTH_LOG2**2)


@dataclass(frozen=True, kw_only=True)
class LogPrediction:
    """Median and spread of log step seconds for n workloads."""

    mean: np.ndarray  # (n,)
    expected: np.ndarray  # (n,) log of the mean of step seconds, which is above the median
    deviation: np.ndarray  # (n,) without the machine's drift
    distance: np.ndarray  # (n,) to the nearest calibrated point, factors of two; inf for a prior
    parts: np.ndarray  # (n, k) seconds per term at the posterior mode


def predict_log(posterior: Posterior, z: Sizes) -> LogPrediction:
    """Universal kriging at the posterior mode: physical trend, plus the residual process, plus both uncertainties."""
    x = terms(z, posterior.rates) * np.exp(posterior.theta)
    total = x.sum(axis=1)
    gradient = x / total[:, None]
    where = coordinates(z)
    scale = posterior.discrepancy**2
    n = len(total)
    mean, pull, variance = np.log(total), gradient, np.full(n, scale)
    distance = np.full(n, np.inf)
    if posterior.nearby is not None:
        cross = posterior.nearby.cross(where)
        mean = mean + cross @ posterior.nearby.pull
        variance = variance - ((cross @ posterior.nearby.inverse) * cross).sum(axis=1)
    if len(posterior.points):
        cross = scale * kernel(where, posterior.points)
        inside = scale * kernel(posterior.points, posterior.points) + np.diag(posterior.noise**2)
        weights = np.linalg.solve(inside, cross.T).T  # (n, m)
        mean = mean + weights @ posterior.residuals
        variance = np.maximum(scale - (weights * cross).sum(axis=1), 0.0)
        pull = gradient - weights @ posterior.gradients
        distance = np.sqrt(((where[:, None, :] - posterior.points[None]) ** 2).sum(axis=2)).min(axis=1)
        variance = variance + (_BEYOND_DEVIATION * _beyond(posterior, where)) ** 2
    # not by @, whose last digit depends on how many rows there are: one run is a table of one row
    rest, variance = variance, variance + np.einsum("nk,kl,nl->n", pull, posterior.covariance, pull)
    # Each term by itself has the mean of a lognormal. Bursts fix the sum of the terms and not each of them, so that
    # after a calibration the sum has it.
    alone = np.log((x * np.exp(np.diag(posterior.covariance) / 2)).sum(axis=1)) + rest / 2 + (mean - np.log(total))
    expected = mean + variance / 2 if len(posterior.points) else alone
    return LogPrediction(mean=mean, expected=expected, deviation=np.sqrt(variance), distance=distance, parts=x)


def expected_log(posterior: Posterior, z: Sizes) -> np.ndarray:
    """The mean of `predict_log` alone, shape (n,)."""
    trend = np.log(terms(z, posterior.rates) @ np.exp(posterior.theta))
    if posterior.nearby is not None:
        return trend + posterior.nearby.cross(coordinates(z)) @ posterior.nearby.pull
    if not len(posterior.points):
        return trend
    scale = posterior.discrepancy**2
    inside = scale * kernel(posterior.points, posterior.points) + np.diag(posterior.noise**2)
    return trend + scale * kernel(coordinates(z), posterior.points) @ np.linalg.solve(inside, posterior.residuals)


def _beyond(posterior: Posterior, where: np.ndarray) -> np.ndarray:
    """How far outside the box of calibrated configurations each workload lies, in factors of two, shape (n,)."""
    low, high = posterior.points.min(axis=0), posterior.points.max(axis=0)
    gap = np.maximum(low - where, 0) + np.maximum(where - high, 0)
    return np.sqrt((gap**2).sum(axis=1))


def basis_of(posterior: Posterior, z: Sizes, distance: np.ndarray) -> np.ndarray:
    """Measured on a calibrated point, interpolated inside their box, extrapolated outside, prior without any.

    Places in `intervals.BASES`, shape (n,).
    """
    measured, interpolated, extrapolated, prior = range(4)
    if not len(posterior.points):
        return np.full(len(distance), prior)
    axes = slice(0, 5)  # how often a micro-batch repeats is no border
    where = coordinates(z)[:, axes]
    low, high = posterior.points[:, axes].min(axis=0) - 1e-6, posterior.points[:, axes].max(axis=0) + 1e-6
    inside = ((where >= low) & (where <= high)).all(axis=1)
    return np.where(distance < 1e-6, measured, np.where(inside, interpolated, extrapolated))
