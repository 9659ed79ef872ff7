"""Step time of runs whose model is split over GPUs: the work of one GPU, its exchanges, and the cost of splitting.

    step = exp(r) · Σ_k exp(θ_k) · x_k(work of one GPU) + data-parallel exchange + Σ_j c_j · y_j(layout)

The first sum is `throughput.terms` for the slowest pipeline stage, with the coefficients and the residuals of published
runs that any prediction uses. Filling the pipeline adds (p - 1)/v micro-batches (Narayanan et al. 2021, §2.2). The
exchange is that of `comm`. The last sum contains the communication of the split, and the loss from matrix products
that become too small. It is zero for a dense model that is not split. Its coefficients are fitted to measured runs
(profiles/layouts.yaml, written by `benchmarks/layouts.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from advisor.hardware.catalog import GpuSpec
from advisor.laws.intervals import Z80
from advisor.prediction import comm
from advisor.prediction.intervals import EstimateArrays, sum_independent
from advisor.prediction.layouts import EIGHT_BITS, SHARDINGS, Columns, LayoutRun, columns_of
from advisor.prediction.software import require_software, software_of
from advisor.prediction.throughput import TERMS, Posterior, Sizes, coordinates, terms
from advisor.prediction.uncalibrated import prior_profile
from advisor.store.disk import read_yaml
from advisor.store.folders import profiles_folder

# The costs of splitting the work. Each is a time in seconds that the law multiplies by a coefficient.
COSTS = (
    "tensor",  # bytes of tensor-parallel communication over the link, as far as products do not hide them
    "tensor_calls",  # number of these collectives: 10 µs each inside one fast link, 40 µs beyond
    "pipeline",  # bytes between stages; each GPU of a tensor-parallel group sends its share (2104.04473, §4.1)
    "pipeline_calls",  # launches for each micro-batch of a stage
    "context",  # bytes of keys and values
    "expert",  # bytes of the experts' all-to-all
    "routing",  # memory traffic of sorting tokens to their experts and back
    "expert_calls",  # launches for each expert on the GPU
    "small_experts",  # products of experts, times 512 over the expert's width
    "narrow",  # other products, times 512 over the width that remains after splitting, less that of a whole model
)
EXCHANGES = tuple(name for name in COSTS if name not in ("routing", "expert_calls", "small_experts", "narrow"))
PARTS = ("products", "activations", "overhead", "optimizer", "tensor", "pipeline", "context", "experts", "data")
# The part of a step to which each entry of TERMS and of COSTS belongs, in their order.
_PARTS_OF_TERMS = (
    *("products", "products", "activations", "activations", "activations"),
    *("overhead", "overhead", "optimizer", "overhead"),
)
_PARTS_OF_COSTS = (
    *("tensor", "tensor", "pipeline", "pipeline", "context", "experts", "experts", "experts", "experts", "products"),
)
_CALL_SECONDS, _FAR_CALLS, _LAUNCH_SECONDS = 10e-6, 4.0, 5e-6
# Share of the arithmetic that hides the exchange of tokens between experts; share that nothing hides. Both are judged.
_HIDDEN, _NEVER_HIDDEN = 0.8, 0.1
# Communication between layers reaches this share of all network adapters of a node, because the collectives wait for
# each other (Ultra-Scale's layouts with tensor degrees 16 and 32).
_ACROSS = 0.6
_RING_SHARE = 0.65  # of the nominal rate that rings reach; at the nominal rate the fitted cost of experts is near 1
_FULL_WIDTH = 512.0  # products at least this wide lose little
_SCORE_LANES = 15 / 110  # attention without a fused kernel, as in `throughput`
# For each value of RECOMPUTE: the work of a block, and the number of all-reduces. Recomputing attention's core costs
# 1.6 to 2.7 % more FLOPs (Korthikanti et al. 2022, §5).
_WORK = np.array([1.0, 1.02, 7 / 6, 4 / 3])
_EXCHANGED = np.array([4.0, 4.0, 4.0, 6.0])


@dataclass(frozen=True, kw_only=True)
class LayoutLaw:
    """The coefficients of the costs of splitting, fitted to measured runs."""

    log_costs: np.ndarray  # (len(COSTS),)
    eight_bits: float  # log factor on the work with 8 bits or fewer in Megatron's kernels
    deviation: float  # log standard deviation that splitting adds to that of the work
    whole: float  # log of the time of whole runs over their predicted steps, failures and checkpoints
    whole_deviation: float  # log standard deviation of the time of a whole run, step time included
    unbalanced: float  # factor on the upper end for mixtures of experts, because routing may be uneven


@cache
def load_law() -> LayoutLaw:
    """Read the time law from profiles/layouts.yaml."""
    return read_time_law(read_yaml(profiles_folder() / "layouts.yaml", "table of layouts")["time"])


def read_time_law(raw: Mapping[str, Any]) -> LayoutLaw:
    """Build the law from the `time` section of a layouts.yaml."""
    numbers = ("eight_bits", "deviation", "whole", "whole_deviation", "unbalanced")
    costs = np.log([raw["costs"][name] for name in COSTS])
    return LayoutLaw(log_costs=costs, **{name: raw[name] for name in numbers})


@lru_cache(maxsize=4096)
def posteriors(gpu: GpuSpec, precision: str, software: str | None, fused_attention: bool) -> tuple[Posterior, ...]:
    """Return the posterior of one GPU's speed for each of SHARDINGS, from its data sheet and published runs.

    Raises AdvisorError if the GPU has no units for the precision.
    """
    kind = "fp16" if precision == "fp16" or gpu.bf16_flops is None else "bf16"
    how = replace(software_of(software, fp8=precision in EIGHT_BITS), fused_attention=fused_attention)
    compiled = software is not None and require_software(software).compiled
    profile = prior_profile(gpu, precision=kind, compile=compiled, software=how)
    return tuple(profile.posterior_of(sharding) for sharding in SHARDINGS)


def work_of(z: Columns, *, last: bool = True) -> Sizes:
    """Return the work of a GPU in one step, on the last pipeline stage or, with `last` False, on an earlier stage.

    Only the last stage has the head. `grad_accum` includes the micro-batches lost to filling and draining the pipeline.
    """
    rows = np.zeros(np.broadcast_shapes(z.tensor.shape, z.micro_batch.shape, z.layers.shape))
    layers = z.last_layers if last else z.stage_layers
    share, slow = layers / z.layers, layers / z.stage_layers
    head = 1 + z.ahead if last else 0.0
    residual = np.where(z.sequence, 1 / z.tensor, 1.0)
    mixed = z.expert_layers / z.layers
    widths = (1 - mixed) * z.ffn_width + mixed * z.shared * z.expert_width
    lanes = (2 * z.width / z.tensor + 2 * z.width * residual + (z.matrices - 1) * widths / z.tensor) / 8
    scores = np.where(z.fused_attention, 0.0, z.heads * z.seq_len * _SCORE_LANES / z.tensor)
    sharded = z.sharding > 0
    state = (z.local_dense + z.vocab * z.width / z.tensor) / np.where(sharded, z.dense_ranks, 1)
    state = state + z.local_experts / np.where(sharded, z.expert_ranks, 1)
    # Only the micro-batches themselves read weights, not the pipeline's bubble. All experts on the GPU are read.
    micro, head_weights = z.micro_batches + (z.pipeline - 1) / z.virtual, head * z.vocab * z.width / z.tensor
    met = (z.local_dense + z.met_experts) * slow + head_weights
    held = (z.local_dense + z.local_experts) * slow + head_weights
    columns = {
        "layers": z.layers * share,
        "width": z.width,
        "lanes": lanes + scores,
        "attention_width": z.heads * z.head_dim / z.tensor * z.attending,
        "seq_len": z.seq_len,
        "attended": z.seq_len,
        "vocab": head * z.vocab / z.tensor,
        "tokens": z.tokens,
        "grad_accum": micro,
        "parameters": state,
        "block_matmul": (z.local_dense + z.met_experts) * slow,
        "head_matmul": head_weights,
        "element_bytes": 2.0,
        "weight_bytes": 4.0,
        "read_bytes": z.read_bytes * (held / met) * z.micro_batches / micro,
        "recompute": _WORK[z.recompute],
        "passes": _WORK[z.recompute],
        "block_speed": z.speed,
        "step_flops": 0.0,
    }
    return Sizes(**{name: column + rows for name, column in columns.items()})


def costs_of(z: Columns, work: Sizes, product_seconds: np.ndarray) -> np.ndarray:
    """Return the seconds of each of COSTS at coefficient one, shape (n, len(COSTS)).

    `product_seconds` is the estimated time per step of the matrix products with one weight.
    """
    micro, layers = work.grad_accum, work.layers
    t, inside = z.tensor, z.tensor <= z.domain
    across = np.where(inside, z.link, np.minimum(z.link, _ACROSS * z.network * np.minimum(t, z.node)))
    exchanges = np.where(t > 1, _EXCHANGED[z.recompute], 0.0)
    residual = np.where(z.sequence, t, 1.0)
    token_bytes = z.tokens * z.width * 2

    both = z.tensor * z.context <= z.domain
    keys = np.where(z.context > 1, 3 * (z.context - 1) / z.context, 0.0) * 2 * z.seq_len * z.micro_batch
    keys = keys * z.kv_heads * z.head_dim * 2 / t

    expert_layers = z.expert_layers * work.layers / z.layers
    near = np.maximum(1, np.minimum(z.expert, np.floor(z.domain / z.expert_tensor)))
    machines = z.expert / near
    sent = z.per_token * (near - 1) / z.expert / z.link * _RING_SHARE
    # A token is sent once to each other machine with one of its experts. We assume that experts are drawn evenly from
    # all machines, or from those of the token's groups.
    of_groups = z.groups_per_token * np.maximum(machines / z.expert_groups, 1)
    open_to = np.where(z.expert_groups > 1, np.minimum(machines, of_groups), machines)
    sent = sent + (1 - 1 / machines) * open_to * (1 - (1 - 1 / open_to) ** z.per_token) / z.network * _RING_SHARE
    routed = np.where(z.expert > 1, 4 * token_bytes / t * expert_layers, 0.0)
    slow = layers / z.stage_layers
    one_expert = product_seconds * slow * z.met_experts * work.recompute / z.speed

    # The arithmetic of one micro-batch hides communication, except for a share that nothing hides.
    one_micro = product_seconds * (work.block_matmul * work.recompute / z.speed + work.head_matmul) / micro

    def exposed(seconds: np.ndarray, arithmetic: np.ndarray) -> np.ndarray:
        return np.maximum(_NEVER_HIDDEN * seconds, seconds - _HIDDEN * arithmetic)

    def of_experts(seconds: np.ndarray) -> np.ndarray:
        return np.where(z.hidden_experts, exposed(seconds, micro * one_micro), seconds)

    width = np.where(z.dense > z.layers * z.attention, z.ffn_width, np.inf)
    width = np.minimum(np.where(width > 0, width, np.inf), z.heads * z.head_dim) / t
    far = np.broadcast_to(np.where(z.gpus_in_line <= z.domain, z.link, z.network), micro.shape)
    # With sequence parallelism, software overlaps its gathers and scatters with the products that they feed.
    moved = micro * layers * exchanges * 2 * (1 - 1 / t) * token_bytes / across
    columns = {
        "tensor": np.where(z.sequence, exposed(moved, micro * one_micro), moved),
        "tensor_calls": micro * layers * exchanges * np.where(inside, 1.0, _FAR_CALLS) * _CALL_SECONDS,
        "pipeline": np.where(z.pipeline > 1, micro * z.virtual * 4 * token_bytes / t / far, 0.0),
        "pipeline_calls": np.where(z.pipeline > 1, micro * z.virtual * _LAUNCH_SECONDS, 0.0),
        "context": micro * layers * keys / np.where(both, z.link, z.network),
        "expert": of_experts(micro * routed * sent),
        "routing": of_experts(micro * z.per_token * token_bytes * expert_layers / residual / z.bandwidth),
        "expert_calls": micro * expert_layers * z.experts / np.maximum(z.expert, 1) * _LAUNCH_SECONDS,
        "small_experts": one_expert * _FULL_WIDTH / np.maximum(z.expert_width / z.expert_tensor, 1),
        "narrow": product_seconds * slow * z.local_dense * work.recompute / z.speed * _FULL_WIDTH / width * (1 - 1 / t),
    }
    return np.stack([np.broadcast_to(columns[name], micro.shape) for name in COSTS], axis=-1)


def exchange_of(z: Columns, work: Sizes, work_seconds: np.ndarray) -> EstimateArrays:
    """Return the seconds of a step that the exchange of gradients and sharded weights adds, shape (n,)."""
    ranks, t = z.dense_ranks, z.tensor
    # Each GPU of a replica exchanges with its own ring; the rings of one machine share its network adapters.
    side = np.maximum(1, np.minimum(ranks, np.floor(z.domain / t)))
    rate = np.where(ranks <= side, z.link, np.minimum(z.link, z.network * np.minimum(side, z.node)))
    spread = z.expert * z.expert_tensor
    expert_side = np.clip(np.minimum(z.expert_ranks, z.node / spread), 1, z.node)
    expert_rate = np.where(spread * z.expert_ranks <= z.domain, z.link, np.minimum(z.link, z.network * expert_side))
    # Experts are exchanged over fewer GPUs: as the weights that the ring of all ranks moves in the same time.
    alike = (1 - 1 / z.expert_ranks) / expert_rate * rate / np.maximum(1 - 1 / ranks, 0.5)
    tables = z.vocab * z.width / t * np.where((z.pipeline == 1) & ~(z.tied > 0), 2, 1)
    held = z.local_dense + tables + z.local_experts * alike
    ones = np.ones(work.layers.shape)
    joined = comm.Joined(
        bytes_per_second=rate * ones,
        spread=z.link_spread * ones,
        overlap=z.overlap * ones,
        doublings=np.log2(np.ceil(t * z.pipeline * z.context * z.data / z.domain)) * (ranks > 1) * ones,
    )
    exchange = comm.Exchange(
        gpus=ranks * ones,
        parameters=held * ones,
        depth=work.layers,
        grad_accum=work.grad_accum,
        # A pipeline is taken to keep the gathered weights until its last micro-batch (our judgement, unverified).
        gathers=np.where(z.pipeline > 1, 1, z.micro_batches) * ones,
        full=False,
        own=False,
        gathered_bytes=4 * held * ones,
        scattered_bytes=2 * held * ones,
        step_bytes=0 * ones,
        after_bytes=0 * ones,
        copy_seconds=0 * ones,
    )
    copied = np.where(z.by_tensor, comm.copy_seconds(work.layers, ranks), 0.0)
    optimizer = replace(exchange, after_bytes=2 * held * ones, copy_seconds=copied)
    kinds = (exchange, optimizer, replace(exchange, full=True))  # in the order of SHARDINGS
    backward = 2 / 3 * work_seconds / work.grad_accum
    made = [comm.exposed_over(kind, joined, backward) for kind in kinds]
    sides = (np.choose(z.sharding.astype(int) * ones.astype(int), [getattr(one, side) for one in made])
             for side in ("value", "low", "high"))  # fmt: skip
    value, low, high = sides
    return EstimateArrays(value=value, low=low, high=high, basis=made[0].basis)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the law adds up for n runs, before its fitted coefficients."""

    seconds: np.ndarray  # (n, len(TERMS)) of one GPU, on the slowest pipeline stage
    costs: np.ndarray  # (n, len(COSTS)) at coefficient one
    exchange: EstimateArrays  # (n,) data-parallel exchange
    deviation: np.ndarray  # (n,) log standard deviation of the work
    eight: np.ndarray  # (n,) 1.0 for products with 8 bits or fewer in Megatron's kernels


def measure(z: Columns, known: Sequence[Posterior], gpu: GpuSpec, software: str | None) -> Work:
    """Return the work of runs with one software on one GPU type. `known` is the result of `posteriors`."""
    work = work_of(z)
    n = work.layers.shape
    sharding = np.where(z.dense_ranks > 1, z.sharding, 0).astype(int) * np.ones(n, dtype=int)
    theta = np.stack([one.theta for one in known])[sharding]
    seconds, costs = _stage(z, work, theta, known[0])
    if np.any(z.head_layers > 0):
        earlier = work_of(z, last=False)
        before = _stage(z, earlier, theta, known[0])
        longer = (before[0].sum(axis=-1) > seconds.sum(axis=-1)) & (z.pipeline > 1)
        seconds, costs = (np.where(longer[..., None], *pair) for pair in zip(before, (seconds, costs), strict=True))
    # Published runs of the software correct runs of models of similar size, however they are split.
    sizes = {name: np.broadcast_to(value, n) for name, value in (("layers", z.layers), ("vocab", z.vocab))}
    where = coordinates(replace(work, **sizes, grad_accum=np.broadcast_to(z.micro_batches, n)))
    moved, variance = np.zeros(n), np.full(n, known[0].discrepancy ** 2)
    gradient = seconds / seconds.sum(axis=-1, keepdims=True)
    for at, one in enumerate(known):
        some = sharding == at
        if not some.any():
            continue
        if one.nearby is not None:
            moved[some], less = one.nearby.residual(where[some])
            variance[some] -= less
        variance[some] += np.einsum("nk,kl,nl->n", gradient[some], one.covariance, gradient[some])
    seconds = seconds * np.exp(moved)[..., None]
    machine = comm.machine_deviation(gpu, 2) * (z.tensor * z.pipeline * z.context * z.data > 1)
    megatron = software is not None and require_software(software).kind == "megatron"
    return Work(
        seconds=seconds,
        costs=costs,
        exchange=exchange_of(z, work, seconds.sum(axis=-1)),
        deviation=np.sqrt(variance + machine**2),
        eight=megatron * (z.speed > 1) * np.ones(n),
    )


def _stage(z: Columns, work: Sizes, theta: np.ndarray, known: Posterior) -> tuple[np.ndarray, np.ndarray]:
    seconds = terms(work, known.rates) * np.exp(theta)
    weighed = work.block_matmul * work.recompute / work.block_speed + work.head_matmul
    return seconds, costs_of(z, work, seconds[..., TERMS.index("matmul")] / weighed)


def measure_runs(runs: Sequence[LayoutRun]) -> Work:
    """Return the work of any runs, in their order. Raises AdvisorError if a GPU cannot run one of them."""
    groups: dict[tuple, list[int]] = {}
    for at, run in enumerate(runs):
        groups.setdefault((run.gpu, run.precision, run.software, run.fused_attention), []).append(at)
    made = []
    for (gpu, precision, software, fused), places in groups.items():
        z = columns_of([runs[at] for at in places])
        made.append(measure(z, posteriors(gpu, precision, software, fused), gpu, software))
    order = np.argsort([at for places in groups.values() for at in places])

    def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts)[order]

    return Work(
        exchange=EstimateArrays(
            **{of: joined([getattr(one.exchange, of) for one in made]) for of in ("value", "low", "high", "basis")}
        ),
        **{name: joined([getattr(one, name) for one in made]) for name in ("seconds", "costs", "deviation", "eight")},
    )


@dataclass(frozen=True, kw_only=True)
class Step:
    """The seconds of a step of n runs."""

    parts: Mapping[str, np.ndarray]  # by PARTS; filling and draining the pipeline is in each of them
    seconds: EstimateArrays  # with the 80 % interval
    exchanged: np.ndarray  # part of the step that goes into exchanges between GPUs


def step_of(work: Work, law: LayoutLaw) -> Step:
    """Return the step by the law: the work, the exchange, and the costs of splitting with their coefficients."""
    parts = {name: np.zeros(work.deviation.shape) for name in PARTS}
    more = np.exp(law.eight_bits * work.eight)
    for at, part in enumerate(_PARTS_OF_TERMS):
        parts[part] = parts[part] + work.seconds[..., at] * more
    costs = work.costs * np.exp(law.log_costs)
    for at, part in enumerate(_PARTS_OF_COSTS):
        parts[part] = parts[part] + costs[..., at]
    alone = np.sum(list(parts.values()), axis=0)
    width = np.exp(Z80 * np.hypot(work.deviation, law.deviation))
    basis = work.exchange.basis
    seconds = sum_independent(
        EstimateArrays(value=alone, low=alone / width, high=alone * width, basis=basis), work.exchange
    )
    parts["data"] = parts["data"] + work.exchange.value
    exchanges = np.array([name in EXCHANGES for name in COSTS])
    return Step(parts=parts, seconds=seconds, exchanged=(costs @ exchanges + work.exchange.value) / seconds.value)
