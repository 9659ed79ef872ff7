"""The records of runs with a parallel layout, and their conversion to columns for `layout_time` and `layout_memory`.

A layout gives the degree of each kind of parallelism. Tensor parallelism splits matrices, pipeline parallelism layers,
context parallelism the tokens of a sequence, expert parallelism the experts, and data parallelism the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from advisor.architecture import Experts, Layout, Model
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec, peak_flops, read_link
from advisor.prediction.comm import reached, through_host, unsure, usual_network
from advisor.prediction.software import require_software
from advisor.prediction.throughput import READ_BYTES

# What the backward pass recomputes: nothing, the core of attention (Megatron's selective), every other matrix product
# of a block (torchtitan's selective), or the whole block. `whole_models` translates them to the levels of `Workload`.
RECOMPUTE = ("none", "attention", "operators", "full")
SHARDINGS = ("none", "optimizer", "full")  # over data-parallel GPUs: nothing, the optimizer, all (FSDP)
# Peak of low-precision products divided by the 16-bit peak, used if the data sheet does not give it.
_SPEED = {"fp8": 2.0, "mxfp8": 2.0, "fp4": 4.0}
EIGHT_BITS = tuple(_SPEED)  # precisions with 8 bits or fewer


@dataclass(frozen=True, kw_only=True)
class LayoutRun:
    """One training run on many GPUs."""

    model: Model
    layout: Layout
    gpu: GpuSpec
    node_gpus: int = GPUS_PER_NODE
    link: float | None = None  # bytes per second between GPUs of a node, one way; None: from the data sheet
    network: float | None = None  # bytes per second between nodes for each GPU; None: the vendor's reference machine
    seq_len: int
    micro_batch: int  # sequences
    micro_batches: int  # of one replica in one step
    recompute: str = "none"  # one of RECOMPUTE
    precision: str = "bf16"  # of the matrix products: bf16 | fp16 | fp8 | mxfp8 | fp4
    fused_attention: bool = True
    software: str | None = None  # a name in profiles/software.csv
    afab: float = 0.0  # probability that the pipeline runs all forward passes before the first backward pass, not 1F1B
    stage: str = "most"  # pipeline stage whose memory is predicted: most (the fullest) | first | last
    optimizer_copies: int = 1  # groups of GPUs, each of which stores a complete sharded optimizer
    hidden_experts: bool = False  # tokens go to their experts and back while another micro-batch computes (DualPipe)

    @property
    def cut(self) -> bool:
        """Return True if the model is split over GPUs, or its experts are; False if only the batch is."""
        layout = self.layout
        return self.model.experts is not None or layout.gpus * layout.expert > layout.data

    @property
    def step_tokens(self) -> int:
        return self.seq_len * self.micro_batch * self.micro_batches * self.layout.data

    @property
    def flops_per_token(self) -> float:
        """FLOPs per token: 6 for each weight of a product, plus attention without a causal mask."""
        scores = self.model.attending * self.model.layers * self.model.heads * self.model.head_dim * self.seq_len
        return 6.0 * self.model.products + 12.0 * scores

    @property
    def mfu(self) -> float:
        """The MFU of a step of one second: its model FLOPs over the dense 16-bit peak of all GPUs."""
        peak = peak_flops(self.gpu, "bf16") or self.gpu.fp16_flops
        assert peak is not None
        return self.flops_per_token * self.step_tokens / (peak * self.layout.gpus)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Many runs as arrays that broadcast against each other. In a search, the model's sizes are scalars."""

    layers: np.ndarray
    width: np.ndarray
    heads: np.ndarray
    kv_heads: np.ndarray
    head_dim: np.ndarray
    ffn_width: np.ndarray
    matrices: np.ndarray
    vocab: np.ndarray
    tied: np.ndarray
    attention: np.ndarray  # weights of one layer
    attending: np.ndarray
    dense: np.ndarray  # weights that process every token, in all layers
    expert_layers: np.ndarray
    experts: np.ndarray
    per_token: np.ndarray
    expert_width: np.ndarray
    shared: np.ndarray
    expert_groups: np.ndarray
    groups_per_token: np.ndarray
    hidden_experts: np.ndarray
    tensor: np.ndarray
    sequence: np.ndarray
    pipeline: np.ndarray
    virtual: np.ndarray
    context: np.ndarray
    expert: np.ndarray
    expert_tensor: np.ndarray
    data: np.ndarray
    sharding: np.ndarray  # 0 none, 1 optimizer, 2 full
    copies: np.ndarray
    seq_len: np.ndarray
    micro_batch: np.ndarray
    micro_batches: np.ndarray
    recompute: np.ndarray  # index into RECOMPUTE
    speed: np.ndarray  # peak of the blocks' products divided by the 16-bit peak
    fused_attention: np.ndarray
    domain: np.ndarray  # GPUs that the fast link joins
    node: np.ndarray
    link: np.ndarray  # bytes per second one way that collectives reach
    network: np.ndarray  # bytes per second between nodes for each GPU that collectives reach
    link_spread: np.ndarray  # factor by which links may be slower or faster
    overlap: np.ndarray  # (3, n) share of a backward pass that hides communication: low, middle, high
    read_bytes: np.ndarray  # see `throughput.READ_BYTES`
    bandwidth: np.ndarray
    ahead: np.ndarray  # layers of multi-token prediction, on the last stage
    head_layers: np.ndarray  # number of layers that cost as much as the head, see `head_layers`
    by_tensor: np.ndarray  # see `Named`
    afab: np.ndarray

    @cached_property
    def tokens(self) -> np.ndarray:
        """Tokens of one micro-batch on one GPU."""
        return self.seq_len * self.micro_batch / self.context

    @cached_property
    def stage_layers(self) -> np.ndarray:
        """Layers of the fullest pipeline stage."""
        others = self.layers / np.maximum(self.pipeline - 1, 1)  # if the head alone fills the last stage
        even = np.minimum((self.layers + self.head_layers) / self.pipeline, others)
        whole = np.where(self.virtual > 1, even, np.ceil(even - 1e-9))
        return np.minimum(whole, self.layers)

    @cached_property
    def last_layers(self) -> np.ndarray:
        """Layers of the last pipeline stage: fewer than elsewhere if the software balances the head against layers."""
        even = (self.layers + self.head_layers) / self.pipeline - self.head_layers
        cut = np.where((self.head_layers > 0) & (self.pipeline > 1), np.maximum(even, 0.0), self.stage_layers)
        return cut + self.ahead

    @cached_property
    def local_dense(self) -> np.ndarray:
        """Block weights on one GPU that process every token."""
        return self.dense / self.tensor * self.stage_layers / self.layers

    @cached_property
    def local_experts(self) -> np.ndarray:
        """Expert weights on one GPU."""
        one = self.matrices * self.width * self.expert_width
        held = self.expert_layers * self.experts * one / (self.expert * self.expert_tensor)
        return held * self.stage_layers / self.layers

    @cached_property
    def met_experts(self) -> np.ndarray:
        """Expert weights that one token on one GPU is multiplied with."""
        one = self.matrices * self.width * self.expert_width
        return self.expert_layers * self.per_token * one / self.tensor * self.stage_layers / self.layers

    @cached_property
    def gpus_in_line(self) -> np.ndarray:
        """GPUs of one replica."""
        return self.tensor * self.context * self.pipeline

    @cached_property
    def dense_ranks(self) -> np.ndarray:
        """GPUs with the same dense weights."""
        return np.maximum(self.data * self.context, 1)

    @cached_property
    def expert_ranks(self) -> np.ndarray:
        """GPUs with the same experts."""
        return np.maximum(self.data * self.context * self.tensor / (self.expert * self.expert_tensor), 1)


_COLUMN_NAMES = {f.name for f in fields(Columns)}


def columns_of(runs: Sequence[LayoutRun]) -> Columns:
    """Return runs as columns of shape (n,). Raises AdvisorError if the catalog has no interconnect for a GPU."""
    rows = []
    for run in runs:
        model, layout = run.model, run.layout
        experts = model.experts or Experts(count=0, per_token=0, width=0, layers=0)
        own = {
            "vocab": float(model.vocab_size),
            "experts": float(experts.count),
            "expert_width": float(experts.width),
            "expert_groups": float(experts.groups[0]),
            "groups_per_token": float(experts.groups[1]),
            "sequence": layout.sequence and layout.tensor > 1,
            "sharding": SHARDINGS.index(layout.sharding),
            "copies": float(run.optimizer_copies),
            "recompute": RECOMPUTE.index(run.recompute),
            "speed": block_speed(run.gpu, run.precision),
            "head_layers": head_layers(model, run.software),
            "by_tensor": run.software is not None and require_software(run.software).by_tensor,
            "read_bytes": READ_BYTES[require_software(run.software).state if run.software else "fp32"],
            **links(run),
        }
        # All other columns have the name of a field of the run, its layout, its model or its experts.
        for name in _COLUMN_NAMES - own.keys():
            value = next(getattr(part, name) for part in (run, layout, model, experts) if hasattr(part, name))
            own[name] = value if isinstance(value, bool) else float(value)
        rows.append(own)
    columns = {name: np.array([row[name] for row in rows]) for name in _COLUMN_NAMES}
    return Columns(**columns | {"overlap": columns["overlap"].T})


def links(run: LayoutRun) -> dict[str, Any]:
    """Return the columns about links and networks. Raises AdvisorError if the catalog has no interconnect for it."""
    link = read_link(run.gpu.interconnect)
    if link is None:
        raise AdvisorError(f"the catalog has no link between GPUs of type {run.gpu.key}", "name another GPU")
    host = run.node_gpus > 2 if run.link is not None else through_host(run.gpu, run.node_gpus)
    spread, overlap = unsure(run.gpu, run.node_gpus)
    return {
        "domain": float(link.gpus if link.gpus > GPUS_PER_NODE else run.node_gpus),
        "node": float(run.node_gpus),
        "link": (run.link or link.bytes_per_second) * reached(link, host),
        "network": (run.network or usual_network(run.gpu)) * reached(link, host=False),
        "link_spread": spread,
        "overlap": overlap,
        "bandwidth": run.gpu.memory_bytes_per_second,
    }


def block_speed(gpu: GpuSpec, precision: str) -> float:
    """Return the peak of the blocks' matrix products divided by the 16-bit peak."""
    if precision not in _SPEED:
        return 1.0
    whole, eight = peak_flops(gpu, "bf16"), gpu.fp8_flops
    return eight / whole if precision != "fp4" and whole and eight else _SPEED[precision]


def head_layers(model: Model, software: str | None) -> float:
    """Return how many layers cost as much as the head if the software balances pipeline stages by FLOPs, else 0."""
    balanced = software is not None and require_software(software).balanced
    return model.vocab_size * model.width / (model.dense / model.layers) if balanced else 0.0
