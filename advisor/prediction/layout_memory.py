"""Peak memory of the fullest GPU of a run with a parallel layout: the law of `memory_published` for a part of a model.

What an operation keeps, the bytes of weights, moments and gradients, the factors and their spreads are those of whole
models. This file counts how much of the model, and how many micro-batches, one GPU of a pipeline stage holds
(Korthikanti et al. 2022, arXiv 2205.05198, §4), extended to grouped-query attention and experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from advisor.prediction import memory_published as law
from advisor.prediction.intervals import Mixture
from advisor.prediction.layouts import Columns
from advisor.prediction.memory_published import SELECTIVE, Kind, Parts, PublishedMemory, StateCase, class_of
from advisor.prediction.profile import FIT_MARGIN
from advisor.prediction.software import table
from advisor.records import Software

_NAMES = {
    "state": ("weights", "optimizer", "gradients", "gathered"),
    "activations": ("inputs", "activations"),
    "logits": ("logits",),
    "rest": ("base",),
}
# Of nanotron's 124 layouts that leave a pipeline stage empty, 1 ran (benchmarks/parallel_runs.csv).
_EMPTY_STAGE = 0.01
# Blocks without weights that follow the head in software that balances stages: the cast of the logits, and the loss. If
# stages are small, each of them is a stage of its own.
_AFTER_HEAD = 2
STAGES = ("most", "first", "last")


def summed(found: Mapping[str, Any], at: int = 0) -> dict[str, float]:
    """Return the bytes of the peak of one run by part."""
    return {part: sum(float(found[name][at]) for name in names) for part, names in _NAMES.items()}


def counted(z: Columns, software: Software, case: StateCase, stage: str = "first", *, afab: bool = False) -> Parts:
    """Return the bytes on a GPU of the first or the last pipeline stage, before any factor.

    With `afab`, all forward passes run before the first backward pass, so every stage of a pipeline keeps all
    micro-batches. Otherwise the schedule is 1F1B.
    """
    first, alone, kind = stage == "first", z.pipeline == 1, kind_of(z, software)
    tables = z.vocab * z.width / z.tensor * np.where(alone & ~z.tied, 2, 1)
    norms = (2 * z.layers / z.pipeline + 1) * z.width * 2
    last = alone if first else np.ones_like(alone)
    layers = np.where(alone, z.layers, z.stage_layers if first else np.floor(z.layers / z.pipeline)) + last * z.ahead
    share = layers / z.stage_layers
    pieces = (  # weights on this GPU, and the GPUs that have the same ones
        (z.local_dense * share + norms + tables, np.maximum(z.dense_ranks / z.copies, 1)),
        (z.local_experts * share, np.maximum(z.expert_ranks / z.copies, 1)),
    )
    weight, master, moment, gradient = law.state_bytes(case.state, software)
    full, fp32 = z.sharding == 2, case.state == "fp32"
    gradients = sum(n * gradient / np.where(full, ranks, 1) for n, ranks in pieces)
    stepped = sum(n / np.where(z.sharding > 0, ranks, 1) for n, ranks in pieces)
    named = table().get(software.name or "")
    block = z.tokens * _block(z, kind.name, autocast=fp32 & ~full)
    # A stage of the 1F1B schedule, interleaved or not, holds activations of this many micro-batches' layers.
    behind = z.pipeline - 1 if first else np.zeros_like(z.pipeline)  # number of later stages
    flown = np.where(z.virtual > 1, 2 * behind + (z.virtual - 1) * z.pipeline + 1, behind + 1)
    flown = np.where(afab & ~alone, np.inf, flown)
    flight = np.minimum(flown, z.micro_batches * z.virtual) / z.virtual * layers
    again = z.recompute == 3
    # FSDP gathers the weights of two layers, the one in use and the next one, and keeps one layer's gradients whole.
    # Between the micro-batches of a pipeline it keeps all of them (torchtitan's fsdp_reshard_after_forward).
    held = (z.local_dense + z.local_experts) * share
    elements = held + norms + tables
    whole = np.where(full & ~alone, elements, 0.0)
    gathered = law.gathered_bytes(
        software, case, full=full, several=z.dense_ranks > 1, elements=elements, block=held / z.stage_layers,
        tables=tables, cast=np.where(again, 0.0, held),
    )  # fmt: skip
    logits = (1 + z.ahead) * z.tokens * z.vocab / z.tensor * law.logit_bytes(
        software, case, compile=_compiled(software), autocast=fp32 & ~full
    )  # fmt: skip
    return Parts(
        weights=sum(n * weight / np.where(full, ranks, 1) for n, ranks in pieces) + 2.0 * whole + 0.0 * block,
        optimizer=(master + 2 * moment) * stepped,
        gradients=gradients,
        stepping=(named.step_bytes if named is not None else 0.0) * (master + 2 * moment) / 8 * stepped,
        held=gradients + 4.0 * whole,
        inputs=np.where(again, flight * z.tokens * 2 * z.width * np.where(z.sequence, 1 / z.tensor, 1.0), 0.0),
        activations=np.where(again, 0.0, np.where(z.recompute == 2, SELECTIVE, 1.0) * flight * block),
        worked=np.where(again, block, np.where(z.recompute == 2, (1 - SELECTIVE) * block, 0.0)),
        logits=np.where(last, logits, 0.0) * np.where(afab & ~alone, z.micro_batches, 1.0),
        gathered=np.where(full & ~alone, 0.0, gathered),
    )


def _compiled(software: Software) -> bool:
    return (named := table().get(software.name or "")) is not None and named.compiled


def _block(z: Columns, name: str, *, autocast: np.ndarray) -> np.ndarray:
    """Return the bytes per token that a block keeps on one GPU, the mean of blocks with and without experts.

    For Megatron's GPT with sequence parallelism this is Korthikanti's h/t·(34 + 5·a·s/h).
    """
    t, gated = z.tensor, z.matrices == 3

    def block_bytes(ffn: np.ndarray) -> np.ndarray:
        return law.block_bytes(
            name, gated=gated, residual=z.width * np.where(z.sequence, 1 / t, 1.0), queries=z.heads * z.head_dim / t,
            keys=z.kv_heads * z.head_dim / t, ffn=ffn, autocast=autocast,
        )  # fmt: skip

    # Softmax's output, and in GPTs the mask and the output of its dropout
    scores = np.where(z.fused_attention | (z.recompute > 0), 0.0, np.where(gated, 2, 5) * z.heads * z.seq_len / t)
    # Copies of a token: the one sent, those received by each GPU that shares the expert, and the expert's output.
    copies = z.per_token * 2 * z.width / t * (1 + 2 * z.expert_tensor)
    met = block_bytes((z.per_token + z.shared) * z.expert_width) + copies
    sparse = z.expert_layers / z.layers
    return (1 - sparse) * block_bytes(z.ffn_width / t) + sparse * met + scores * z.attending


def peak_parts(
    z: Columns, software: Software, case: StateCase, counts: str, stage: np.ndarray | int = 0, *, afab: bool = False,
    belief: PublishedMemory | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return the bytes at the peak, as `memory_published.peak`, of the stages in `stage`: indices into STAGES."""
    both = [counted(z, software, case, which, afab=afab) for which in ("first", "last")]
    return fullest(both, kind_of(z, software), counts, law.factors(software, belief), stage)


def fullest(
    both: Sequence[Parts], kind: Kind, counts: str, factor: Mapping[str, float], stage: np.ndarray | int
) -> dict[str, np.ndarray]:
    """Return the peak bytes of the first or last stage. `stage` holds indices into STAGES."""
    found = [law.peak(held, kind, counts, factor) for held in both]
    totals = [np.sum(np.broadcast_arrays(*held.values()), axis=0) for held in found]
    first = np.where(stage == 0, totals[0] >= totals[1], stage == 1)
    return {name: np.where(first, found[0][name], found[1][name]) for name in found[0]}


def kind_of(z: Columns, software: Software) -> Kind:
    """Return the kind of runs of one software package."""
    name, several = class_of(software, _compiled(software)), z.dense_ranks * z.gpus_in_line > z.context
    return Kind(name=name, software=software, selective=z.recompute == 2, several=several)


def layout_mixture(
    z: Columns, software: Software, counts: str, stage: np.ndarray | int = 0, *, afab: bool = False,
    belief: PublishedMemory | None = None,
) -> Mixture:  # fmt: skip
    """Return the memory of runs of one software package; `counts` works as in `memory_published.peak`."""
    each = law.cases(software)
    found = [(case.weight, peak_parts(z, software, case, counts, stage, afab=afab, belief=belief)) for case in each]
    return law.mixture(found, kind_of(z, software), belief or law.load_published_memory())


def chance_to_fit(z: Columns, software: Software, memory_bytes: np.ndarray | float) -> np.ndarray:
    """Return the probability that a run fits and leaves no pipeline stage empty.

    If the schedule of a pipeline is unknown, it is a weighted mean of both schedules.
    """

    def fits(afab: bool) -> np.ndarray:
        return layout_mixture(z, software, "needed", afab=afab).below(FIT_MARGIN * memory_bytes)

    chance = fits(afab=False)
    if np.any(z.afab > 0):
        chance = (1 - z.afab) * chance + z.afab * fits(afab=True)
    # If stages have equal FLOPs, the head's share of the stages holds the head and the blocks after it. Further stages
    # in that share stay empty.
    before_head = np.floor(z.pipeline * z.layers / (z.layers + z.head_layers))
    empty = (z.head_layers > 0) & (before_head + 1 + _AFTER_HEAD < z.pipeline)
    return np.where(empty, chance * _EMPTY_STAGE, chance)
