"""Step time of runs with a parallel layout: the work of one GPU, plus the cost of splitting the work.

    step = Σ_k exp(θ_k) · x_k(work of one GPU) + Σ_j c_j · y_j(layout)

The first sum is `throughput.terms` for the slowest pipeline stage. Filling the pipeline adds (p - 1)/v micro-batches
(Narayanan et al. 2021, §2.2). The second sum contains the communication at the links' nominal rates, and the loss from
matrix products that become too small. Its coefficients are fitted to measured runs (profiles/layouts.yaml, written by
`benchmarks/layouts.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec
from advisor.prediction.layouts import EIGHT_BITS, Columns, LayoutRun, columns_of
from advisor.prediction.prior import datasheet_rates, load_prior
from advisor.prediction.software import require_software
from advisor.prediction.throughput import TERMS, Rates, Sizes, terms
from advisor.records import Software
from advisor.store.disk import read_yaml
from advisor.store.folders import profiles_folder

# The costs of splitting the work. Each is a time in seconds that the law multiplies by a coefficient.
COSTS = (
    "tensor",  # bytes of tensor-parallel communication over the link
    "tensor_calls",  # number of these collectives: 10 µs each inside one fast link, 40 µs beyond
    "pipeline",  # bytes between stages; each GPU of a tensor-parallel group sends its share (2104.04473, §4.1)
    "pipeline_calls",  # launches for each micro-batch of a stage
    "context",  # bytes of keys and values
    "expert",  # bytes of the experts' all-to-all
    "routing",  # memory traffic of sorting tokens to their experts and back
    "expert_calls",  # launches for each expert on the GPU
    "small_experts",  # products of experts, times 512 over the expert's width
    "narrow",  # other products, times 512 over the width that remains after splitting
    "weights",  # memory traffic of 16-bit weights for each micro-batch
    "data",  # bytes of gradients, once a step
    "shared_out",  # bytes of weights gathered after a sharded optimizer step; nothing hides them
    "copies",  # launches for the pieces of tensors that a sharded optimizer gathers, if the software copies each alone
    "data_calls",  # latency of gradient rings between nodes, one ring for each 100 MB
    "gathered",  # bytes of weights and gradients for each micro-batch (FSDP)
)
EXCHANGES = tuple(
    name for name in COSTS if name not in ("routing", "expert_calls", "small_experts", "narrow", "weights", "copies")
)
PARTS = ("products", "activations", "overhead", "optimizer", "tensor", "pipeline", "context", "experts", "data")
# The part of a step to which each entry of TERMS and of COSTS belongs, in their order.
_PARTS_OF_TERMS = (
    *("products", "products", "activations", "activations", "activations"),
    *("overhead", "overhead", "optimizer", "overhead"),
)
_PARTS_OF_COSTS = (
    *("tensor", "tensor", "pipeline", "pipeline", "context", "experts", "experts", "experts", "experts"),
    *("products", "activations", "data", "data", "data", "data", "data"),
)
_CALL_SECONDS, _FAR_CALLS, _LAUNCH_SECONDS = 10e-6, 4.0, 5e-6
# Share of the nominal rate reached, share of the arithmetic that hides communication, and share of communication that
# nothing hides. All are our judgement.
_LINK_SHARE, _HIDDEN, _NEVER_HIDDEN = 0.65, 0.8, 0.1
# Communication between layers reaches this share of all network adapters of a node, because the collectives wait for
# each other (Ultra-Scale's layouts with tensor degrees 16 and 32).
_ACROSS = 0.6
_RING_BYTES = 100e6
_FULL_WIDTH = 512.0  # products at least this wide lose little
_TENSORS = 6  # of one layer: queries with keys and values, output, two of the feed-forward, two norms
_SCORE_LANES = 15 / 110  # attention without a fused kernel, as in `throughput`
# For each value of RECOMPUTE: the work of a block, and the number of all-reduces. Recomputing attention's core costs
# 1.6 to 2.7 % more FLOPs (Korthikanti et al. 2022, §5).
_WORK = np.array([1.0, 1.02, 7 / 6, 4 / 3])
_EXCHANGED = np.array([4.0, 4.0, 4.0, 6.0])


@dataclass(frozen=True, kw_only=True)
class LayoutLaw:
    """The coefficients of the costs of splitting, fitted to measured runs."""

    log_costs: np.ndarray  # (len(COSTS),)
    work: float  # log factor on one GPU's work, for losses on many GPUs that no cost explains
    eight_bits: float  # additional log factor for products in 8 bits or fewer
    deviation: float  # log standard deviation of a run by people without earlier runs in the table
    whole: float  # log of the time of whole runs over their predicted steps, failures and checkpoints
    whole_deviation: float  # log standard deviation of the time of a whole run, step time included
    unbalanced: float  # factor on the upper end for mixtures of experts, because routing may be uneven


@cache
def load_law() -> LayoutLaw:
    """Read the time law from profiles/layouts.yaml."""
    return read_time_law(read_yaml(profiles_folder() / "layouts.yaml", "table of layouts")["time"])


def read_time_law(raw: Mapping[str, Any]) -> LayoutLaw:
    """Build the law from the `time` section of a layouts.yaml."""
    numbers = ("work", "eight_bits", "deviation", "whole", "whole_deviation", "unbalanced")
    costs = np.log([raw["costs"][name] for name in COSTS])
    return LayoutLaw(log_costs=costs, **{name: raw[name] for name in numbers})


@lru_cache(maxsize=4096)
def one_gpu(gpu: GpuSpec, precision: str, software: str | None, fused_attention: bool) -> tuple[np.ndarray, Rates]:
    """Return the log coefficients for one GPU's work, (len(TERMS),), and the rates to which they refer.

    Raises AdvisorError if the GPU has no units for the precision.
    """
    kind = "fp16" if precision == "fp16" or gpu.bf16_flops is None else "bf16"
    rates = datasheet_rates(gpu, kind)
    if rates is None:
        raise AdvisorError(f"{gpu.key} has no units for {kind}", "name another GPU")
    named = require_software(software) if software else None
    how = named.software if named else Software()
    how = replace(how, fp8=precision in EIGHT_BITS, fused_attention=fused_attention)
    prior = load_prior(gpu.generation, kind, bool(named and named.compiled), gpu, software=how)
    return prior.mean, rates


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
    columns = {
        "layers": z.layers * share,
        "width": z.width,
        "lanes": lanes + scores,
        "attention_width": z.heads * z.head_dim / z.tensor * z.attending,
        "seq_len": z.seq_len,
        "attended": z.seq_len,
        "vocab": head * z.vocab / z.tensor,
        "tokens": z.tokens,
        "grad_accum": z.micro_batches + (z.pipeline - 1) / z.virtual,
        "parameters": state,
        "block_matmul": (z.local_dense + z.met_experts) * slow,
        "head_matmul": head * z.vocab * z.width / z.tensor,
        "element_bytes": 2.0,
        "weight_bytes": 4.0,
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
    sent = z.per_token * (near - 1) / z.expert / z.link
    # A token is sent once to each other machine with one of its experts. We assume that experts are drawn evenly from
    # all machines, or from those of the token's groups.
    of_groups = z.groups_per_token * np.maximum(machines / z.expert_groups, 1)
    open_to = np.where(z.expert_groups > 1, np.minimum(machines, of_groups), machines)
    sent = sent + (1 - 1 / machines) * open_to * (1 - (1 - 1 / open_to) ** z.per_token) / z.network
    routed = np.where(z.expert > 1, 4 * token_bytes / t * expert_layers, 0.0)
    slow = layers / z.stage_layers
    one_expert = product_seconds * slow * z.met_experts * work.recompute / z.speed

    dense, experts = z.local_dense + z.vocab * z.width / t, z.local_experts
    side = np.maximum(1, np.minimum(z.dense_ranks, np.floor(z.domain / t)))
    dense_link = np.where(z.dense_ranks <= side, z.link, np.minimum(z.link, z.network * np.minimum(side, z.node)))
    spread = z.expert * z.expert_tensor
    expert_side = np.clip(np.minimum(z.expert_ranks, z.node / spread), 1, z.node)
    expert_link = np.where(spread * z.expert_ranks <= z.domain, z.link, np.minimum(z.link, z.network * expert_side))
    moved = (1 - 1 / z.dense_ranks) * dense / dense_link + (1 - 1 / z.expert_ranks) * experts / expert_link

    pieces = _TENSORS * layers * np.where(z.dense_ranks > 1, z.dense_ranks, 0)
    rings = np.ceil(4 * (dense + experts) / _RING_BYTES) * np.where(z.sharding == 2, z.micro_batches, 1)

    # The arithmetic of one micro-batch hides communication, except for a share that nothing hides.
    one_micro = product_seconds * (work.block_matmul * work.recompute / z.speed + work.head_matmul) / micro

    def exposed(seconds: np.ndarray, arithmetic: np.ndarray) -> np.ndarray:
        return np.maximum(_NEVER_HIDDEN * seconds, seconds - _HIDDEN * arithmetic)

    def of_experts(seconds: np.ndarray) -> np.ndarray:
        return np.where(z.hidden_experts, exposed(seconds, micro * one_micro), seconds)

    width = np.where(z.dense > z.layers * z.attention, z.ffn_width, np.inf)
    width = np.minimum(np.where(width > 0, width, np.inf), z.heads * z.head_dim) / t
    far = np.broadcast_to(np.where(z.gpus_in_line <= z.domain, z.link, z.network), micro.shape)
    columns = {
        "tensor": micro * layers * exchanges * 2 * (1 - 1 / t) * token_bytes / across,
        "tensor_calls": micro * layers * exchanges * np.where(inside, 1.0, _FAR_CALLS) * _CALL_SECONDS,
        "pipeline": np.where(z.pipeline > 1, micro * z.virtual * 4 * token_bytes / t / far, 0.0),
        "pipeline_calls": np.where(z.pipeline > 1, micro * z.virtual * _LAUNCH_SECONDS, 0.0),
        "context": micro * layers * keys / np.where(both, z.link, z.network),
        "expert": of_experts(micro * routed * sent),
        "routing": of_experts(micro * z.per_token * token_bytes * expert_layers / residual / z.bandwidth),
        "expert_calls": micro * expert_layers * z.experts / np.maximum(z.expert, 1) * _LAUNCH_SECONDS,
        "small_experts": one_expert * _FULL_WIDTH / np.maximum(z.expert_width / z.expert_tensor, 1),
        "narrow": product_seconds * slow * z.local_dense * work.recompute / z.speed * _FULL_WIDTH / width,
        "weights": z.micro_batches * 2 * (z.local_dense + z.local_experts + work.head_matmul) / z.bandwidth,
        "data": np.where(
            z.sharding < 2, exposed(np.where(z.sharding == 0, 8, 4) * moved / _LINK_SHARE, one_micro), 0.0
        ),
        "shared_out": np.where(z.sharding == 1, 2 * moved, 0.0),
        "copies": np.where(z.by_tensor & (z.sharding == 1), pieces * _LAUNCH_SECONDS, 0.0),
        "data_calls": rings * np.ceil(z.dense_ranks / side) * (z.dense_ranks > side) * _CALL_SECONDS,
        "gathered": np.where(z.sharding == 2, z.micro_batches * exposed(8 * moved / _LINK_SHARE, one_micro), 0.0),
    }
    return np.stack([np.broadcast_to(columns[name], micro.shape) for name in COSTS], axis=-1)


def seconds_of(z: Columns, theta: np.ndarray, rates: Rates | Sequence[Rates]) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds of the slowest pipeline stage: work by TERMS, (n, k), and COSTS at coefficient one, (n, c).

    `theta` has shape (k,) or (n, k). `rates` holds for all rows, or is a sequence with one entry for each row.
    """
    if not isinstance(rates, Rates):
        names = ("matmul_flops", "bandwidth", "launch_seconds")
        columns: dict[str, Any] = {name: np.array([getattr(r, name) for r in rates]) for name in names}
        rates = Rates(**columns)
    seconds, costs = _stage_seconds(z, work_of(z), theta, rates)
    if np.any(z.head_layers > 0):
        before = _stage_seconds(z, work_of(z, last=False), theta, rates)
        longer = (before[0].sum(axis=-1) > seconds.sum(axis=-1)) & (z.pipeline > 1)
        seconds, costs = (np.where(longer[..., None], *pair) for pair in zip(before, (seconds, costs), strict=True))
    return seconds, costs


def _stage_seconds(z: Columns, work: Sizes, theta: np.ndarray, rates: Rates) -> tuple[np.ndarray, np.ndarray]:
    seconds = terms(work, rates) * np.exp(theta)
    weighed = work.block_matmul * work.recompute / work.block_speed + work.head_matmul
    costs = costs_of(z, work, seconds[..., TERMS.index("matmul")] / weighed)
    seconds[..., TERMS.index("weights")] = 0.0  # replaced by the cost of the same name
    return seconds, costs


def seconds_of_runs(runs: Sequence[LayoutRun]) -> tuple[np.ndarray, np.ndarray]:
    """Return the result of `seconds_of` for a list of runs."""
    beliefs = [one_gpu(run.gpu, run.precision, run.software, run.fused_attention) for run in runs]
    return seconds_of(columns_of(runs), np.stack([theta for theta, _ in beliefs]), [rates for _, rates in beliefs])


def parts_of(z: Columns, seconds: np.ndarray, costs: np.ndarray, law: LayoutLaw) -> Mapping[str, np.ndarray]:
    """Return the seconds of a step by PARTS. Filling and draining the pipeline is included in every part."""
    parts = {name: np.zeros(seconds.shape[:-1]) for name in PARTS}
    more = np.exp(law.work + law.eight_bits * (z.speed > 1))
    for at, part in enumerate(_PARTS_OF_TERMS):
        parts[part] = parts[part] + seconds[..., at] * more
    for at, part in enumerate(_PARTS_OF_COSTS):
        parts[part] = parts[part] + np.exp(law.log_costs[at]) * costs[..., at]
    return parts


def exchange_share(parts: Mapping[str, np.ndarray], costs: np.ndarray, law: LayoutLaw) -> np.ndarray:
    """Return the part of each step that goes into EXCHANGES between GPUs, shape (n,)."""
    exchanges = np.array([name in EXCHANGES for name in COSTS])
    share: np.ndarray = costs @ (np.exp(law.log_costs) * exchanges) / np.sum(list(parts.values()), axis=0)
    return share
