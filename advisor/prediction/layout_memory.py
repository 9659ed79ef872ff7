"""Peak memory of the fullest GPU of a run with a parallel layout, by part.

State and activations are counted as in Korthikanti et al. 2022 (arXiv 2205.05198, §4) and in Megatron-LM's own report
(megatron/training/theoretical_memory_usage.py), extended to gated feed-forwards, grouped-query attention and experts.
The counts are multiplied by factors fitted to measured peaks, one set for each software (profiles/layouts.yaml, written
by `benchmarks/layouts.py`). Software without published peaks gets the mean and the spread of all sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from advisor.prediction.layouts import Columns, LayoutRun
from advisor.store.disk import read_yaml
from advisor.store.folders import profiles_folder

MEMORY_PARTS = ("state", "activations", "logits", "rest")  # each with a fitted factor; the factor of "rest" is in bytes
# Bytes per parameter in mixed precision: weight and main gradient (2 + 4) stay whole, master weight and moments (12)
# can be sharded.
_HELD, _SHARDED = 6.0, 12.0
# Software built on the core of other software, with the same memory (github.com/NVIDIA-NeMo/Megatron-Bridge).
_SAME_CORE = {"nemo": "megatron"}
# Of nanotron's 124 layouts that leave a pipeline stage empty, 1 ran (benchmarks/parallel_runs.csv).
_EMPTY_STAGE = 0.01
# Blocks without weights that follow the head in software that balances stages: the cast of the logits, and the loss. If
# stages are small, each of them is a stage of its own.
_AFTER_HEAD = 2
_OPERATORS_KEEP = 0.4  # share of activations kept if every other product is recomputed (as in `memory_published`)
_LOGIT_BYTES = 6.5  # per logit: 16 bits, an fp32 copy and the loss's temporaries
STAGES = ("most", "first", "last")


@dataclass(frozen=True, kw_only=True)
class MemoryLaw:
    """The logarithms of the factors on the counts, and the spread of peaks around the law."""

    factors: Mapping[str, np.ndarray]  # (len(MEMORY_PARTS),) for each software with published peaks
    usual: np.ndarray  # for any other software
    spread: float  # log standard deviation of a peak of known software
    unknown: float  # additional log standard deviation for other software
    limit: float  # share of the GPU's memory at which half of the runs fail
    softness: float  # log standard deviation of that limit

    def of(self, software: str | None) -> tuple[np.ndarray, float]:
        """Return the log factors for one software and the log standard deviation of its peak."""
        known = self.factors.get(_SAME_CORE.get(software or "", software or ""))
        return (known, self.spread) if known is not None else (self.usual, float(np.hypot(self.spread, self.unknown)))


@cache
def load_memory_law() -> MemoryLaw:
    """Read the memory law from profiles/layouts.yaml."""
    return read_memory_law(read_yaml(profiles_folder() / "layouts.yaml", "table of layouts")["memory"])


def read_memory_law(raw: Mapping[str, Any]) -> MemoryLaw:
    """Build the law from the `memory` section of a layouts.yaml."""
    return MemoryLaw(
        factors={name: np.array([row[f] for f in MEMORY_PARTS]) for name, row in raw["software"].items()},
        usual=np.array([raw["usual"][f] for f in MEMORY_PARTS]),
        **{name: raw[name] for name in ("spread", "unknown", "limit", "softness")},
    )


def counted(z: Columns, stage: str = "first", *, afab: bool = False) -> Mapping[str, np.ndarray]:
    """Return the bytes by MEMORY_PARTS on a GPU of the first or the last pipeline stage, before any factor.

    "rest" is always one byte, so that its factor is a number of bytes. With `afab`, all forward passes run before the
    first backward pass, so every stage of a pipeline keeps all micro-batches. Otherwise the schedule is 1F1B.
    """
    first = stage == "first"
    table = z.vocab * z.width / z.tensor
    alone = z.pipeline == 1
    tables = np.where(alone, table * np.where(z.tied, 1, 2), table)
    norms = (2 * z.layers / z.pipeline + 1) * z.width * 2
    last = alone if first else np.ones_like(alone)
    layers = np.where(alone, z.layers, z.stage_layers if first else np.floor(z.layers / z.pipeline)) + last * z.ahead
    share = layers / z.stage_layers
    dense_ranks = np.maximum(z.dense_ranks / z.copies, 1)
    expert_ranks = np.maximum(z.expert_ranks / z.copies, 1)
    state = _state(z.local_dense * share + norms + tables, dense_ranks, z.sharding)
    state = state + _state(z.local_experts * share, expert_ranks, z.sharding)

    # A stage of the 1F1B schedule, interleaved or not, holds activations for this share of all layers.
    behind = z.pipeline - 1 if first else np.zeros_like(z.pipeline)  # number of later stages
    pieces = np.where(z.virtual > 1, 2 * behind + (z.virtual - 1) * z.pipeline + 1, behind + 1)
    pieces = np.where(afab & ~alone, np.inf, pieces)
    in_flight = np.minimum(pieces, z.micro_batches * z.virtual) / (z.pipeline * z.virtual)
    each, inputs = _layer_bytes(z)
    flight = in_flight * layers / z.layers * z.pipeline
    activations = np.where(z.recompute == 3, inputs * flight + each / z.layers, each * flight)
    # FSDP gathers the weights of two layers, the one in use and the next one, and keeps one layer's gradients whole.
    gathered = np.where(z.sharding == 2, 3 * 2 * (z.local_dense + z.local_experts) / z.stage_layers, 0.0)
    return {
        "state": state + gathered,
        "activations": activations,
        "logits": np.where(last, (1 + z.ahead) * _LOGIT_BYTES * z.tokens * z.vocab / z.tensor, 0.0)
        * np.where(afab & ~alone, z.micro_batches, 1.0),
        "rest": np.ones_like(activations),
    }


def _state(weights: np.ndarray, ranks: np.ndarray, sharding: np.ndarray) -> np.ndarray:
    held = np.where(sharding == 2, _HELD / ranks, _HELD)
    return weights * (held + np.where(sharding > 0, _SHARDED / ranks, _SHARDED))


def _layer_bytes(z: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes that all layers save for one micro-batch, and the bytes of the layers' inputs alone.

    For a GPT without experts and with sequence parallelism this is Korthikanti's s·b·h/t·(34 + 5·a·s/h).
    """
    t, again = z.tensor, z.recompute > 0
    residual = np.where(z.sequence, 1 / t, 1.0)
    plain = z.matrices == 2  # GPTs have dropout, which saves a mask of one byte and its output
    norms = np.where(plain, 10, 8) * z.width * residual
    attention = (4 * z.heads * z.head_dim + 4 * z.kv_heads * z.head_dim + 4 * z.heads) / t
    kept = np.where(plain, 5, 2) * z.heads * z.seq_len / t
    scores = np.where(z.fused_attention | again, 0.0, kept) * z.attending
    inside = np.where(plain, 4, 6)  # input and output of the activation function
    dense = inside * z.ffn_width / t
    # Copies of a token: the one sent, those received by each GPU that shares the expert, and the expert's output.
    copies = z.per_token * 2 * z.width / t * (1 + 2 * z.expert_tensor)
    met = inside * (z.per_token + z.shared) * z.expert_width / t + copies
    every = (norms + attention + scores) * z.layers + dense * (z.layers - z.expert_layers) + met * z.expert_layers
    every = every * np.where(z.recompute == 2, _OPERATORS_KEEP, 1.0)
    return z.tokens * every, z.tokens * 2 * z.width * residual * z.layers


def peak_parts(
    z: Columns, log_factors: np.ndarray, stage: np.ndarray, *, afab: bool = False
) -> Mapping[str, np.ndarray]:
    """Return bytes by MEMORY_PARTS for the pipeline stages in `stage`, which contains indices into STAGES.

    `log_factors` has shape (n, len(MEMORY_PARTS)) or (len(MEMORY_PARTS),).
    """
    weighed = [
        np.stack([parts[name] * np.exp(log_factors[..., at]) for at, name in enumerate(MEMORY_PARTS)], axis=-1)
        for parts in (counted(z, "first", afab=afab), counted(z, "last", afab=afab))
    ]
    totals = [parts.sum(axis=-1) for parts in weighed]
    first = np.where(stage == 0, totals[0] >= totals[1], stage == 1)
    chosen = np.where(first[..., None], *weighed)
    return {part: chosen[..., at] for at, part in enumerate(MEMORY_PARTS)}


def factors_of(runs: Sequence[LayoutRun], law: MemoryLaw) -> tuple[np.ndarray, np.ndarray]:
    """Return the log factors of runs, (n, len(MEMORY_PARTS)), and the log standard deviations of their peaks, (n,)."""
    pairs = [law.of(run.software) for run in runs]
    return np.stack([factors for factors, _ in pairs]), np.array([deviation for _, deviation in pairs])


def peak_and_chance(
    z: Columns,
    log_factors: np.ndarray,
    deviation: np.ndarray | float,
    memory_bytes: np.ndarray | float,
    law: MemoryLaw,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of the fullest GPU, and the probability that a run fits and leaves no pipeline stage empty.

    `log_factors` is as in `peak_parts`; `deviation` is the peak's log standard deviation. The bytes hold for 1F1B. If
    the schedule of a pipeline is unknown, the probability is a weighted mean of both schedules.
    """
    from scipy.special import ndtr  # its import takes longer than a plan without layouts

    def peak(afab: bool) -> np.ndarray:
        return sum(peak_parts(z, log_factors, np.array(STAGES.index("most")), afab=afab).values(), np.zeros(()))

    def fits(most: np.ndarray) -> np.ndarray:
        return ndtr(np.log(memory_bytes * law.limit / most) / np.hypot(deviation, law.softness))

    usual = peak(afab=False)
    chance = fits(usual)
    if np.any(z.afab > 0):
        chance = (1 - z.afab) * chance + z.afab * fits(peak(afab=True))
    # If stages have equal FLOPs, the head's share of the stages holds the head and the blocks after it. Further stages
    # in that share stay empty.
    before_head = np.floor(z.pipeline * z.layers / (z.layers + z.head_layers))
    empty = (z.head_layers > 0) & (before_head + 1 + _AFTER_HEAD < z.pipeline)
    return usual, np.where(empty, chance * _EMPTY_STAGE, chance)
