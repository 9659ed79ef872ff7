"""Search the layouts of a model over many GPUs for the fastest that surely fits, and explain why the others lose.

All layouts of a number of GPUs are rows of one table, whose time and memory are computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from advisor.architecture import Layout
from advisor.prediction.layout_batch import SURE, predict_layouts
from advisor.prediction.layout_memory import chance_to_fit
from advisor.prediction.layout_own import OwnRuns
from advisor.prediction.layout_time import load_law, measure, posteriors, step_of
from advisor.prediction.layouts import RECOMPUTE, SHARDINGS, Columns, LayoutRun, columns_of
from advisor.prediction.micro_batch import choose_row, group_keys
from advisor.prediction.software import NamedSoftware, require_software, software_of
from advisor.prediction.whole_models import predict_whole, workload_of
from advisor.records import Prediction
from advisor.units import format_fit_chance, format_share

MOST_TENSOR = 8  # pieces; more pieces leave the node, and every layer would wait for its slow links
PIECE = 8192  # tokens of a sequence on one GPU; published runs rarely have fewer
_MICRO_BATCHES = (1, 2, 4, 8, 16)
_VIRTUAL = (1, 2, 3, 4, 5, 6, 8, 10, 12)
_CUTS = ("tensor", "pipeline", "virtual", "context", "expert", "data", "sharding", "micro_batch", "recompute")
_PIECES = ("tensor", "pipeline", "context", "expert")
_EQUAL = 0.03  # share of a step that is far below the error of the prediction
_ALIKE = 0.02  # share by which chances to fit may differ and are alike
# Share of the fastest step by which layouts that split only the batch may be slower: every software does that without
# further options, and the error of comparing them with split models is as large.
_PLAIN_STEP = 0.2
_PART_WORDS = {
    "products": "matrix products: recomputed, too narrow, or idle while the pipeline fills",
    "activations": "passes through memory",
    "overhead": "launches",
    "optimizer": "the optimizer",
    "tensor": "tensor-parallel exchanges",
    "pipeline": "transfers between pipeline stages",
    "context": "exchanges of keys and values",
    "experts": "experts and their exchanges",
    "data": "data-parallel exchanges",
}


@dataclass(frozen=True, kw_only=True)
class Search:
    """The best layout for a number of GPUs, the best of other kinds, and how many were tried."""

    best: Prediction | None  # None: no layout surely fits
    others: tuple[tuple[Prediction, str], ...]  # with the reason why each lost
    tried: int
    nearest: Prediction | None = None  # the fastest of the likeliest to fit, if none surely does


def search(run: LayoutRun, gpus: int, sequences: int, own: OwnRuns | None = None) -> Search:
    """Return the fastest layout that surely fits this many GPUs; the layout of `run` itself does not matter.

    `sequences` is the global batch, and `own` corrects the times by measured runs. Layouts must divide evenly: tensor,
    pipeline, context and expert parallelism are powers of two, virtual stages divide the layers of a stage, and data
    parallelism is ZeRO-1 or FSDP.
    """
    cuts = _cuts(run, gpus, sequences)
    if not len(cuts["tensor"]):
        return Search(best=None, others=(), tried=0)
    seconds, chance = _timed(run, cuts, sequences, own)
    order, fits = np.lexsort((cuts["micro_batch"], seconds)), chance >= SURE
    if not fits.any():
        likeliest = next(int(at) for at in order if chance[at] >= (1 - _ALIKE) * chance.max())
        [nearest] = predict_layouts([_run_of(run, cuts, likeliest, sequences)], own)
        return Search(best=None, others=(), tried=len(seconds), nearest=nearest)
    # Of the layouts that split only the batch the fastest is taken if splitting the model gains little.
    usable, plain = fits, fits & (np.prod([cuts[name] for name in _PIECES], axis=0) == 1)
    if run.model.experts is None and plain.any():
        usable = plain if seconds[plain].min() <= (1 + _PLAIN_STEP) * seconds[fits].min() else fits
    # A layout is the plainer the fewer kinds of splitting it has, and then the fewer pieces.
    pieces = np.stack([cuts[name] for name in ("tensor", "pipeline", "virtual", "context", "expert")])
    ways = (pieces > 1).sum(axis=0) + (cuts["recompute"] > 0)
    many = np.rint(4 * np.log2(pieces).sum(axis=0)).astype(int)  # virtual stages are no powers of two
    splits = [cuts[name] for name in ("tensor", "pipeline", "virtual", "context", "expert", "sharding", "recompute")]
    kind = np.unique(group_keys(ways, many, *splits), return_inverse=True)[1]
    chosen = choose_row(1 / seconds, cuts["micro_batch"], usable, kind)
    assert chosen is not None  # some layout fits
    # The fastest layout that does not fit, with no larger micro-batch; FSDP alone; the fastest with each other cut.
    kinds = [
        ~fits & (seconds < seconds[chosen]) & (cuts["micro_batch"] <= cuts["micro_batch"][chosen]),
        fits & (cuts["sharding"] == 2) & (cuts["tensor"] == 1) & (cuts["context"] == 1),
        *(fits & (cuts[name] != cuts[name][chosen]) for name in ("tensor", "pipeline", "expert", "recompute")),
    ]
    found: list[int] = []
    for kind in kinds:
        first = next((int(at) for at in order if kind[at]), None)
        if first is not None and first != chosen and first not in found:
            found.append(first)
    best, *losers = predict_layouts([_run_of(run, cuts, at, sequences) for at in (chosen, *found)], own)
    return Search(best=best, others=tuple((loser, _why(loser, best)) for loser in losers), tried=len(seconds))


def _timed(
    run: LayoutRun, cuts: Mapping[str, np.ndarray], sequences: int, own: OwnRuns | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds of a step and the probability that it fits, each per row."""
    changed = {name: cut if name == "recompute" else cut.astype(float) for name, cut in cuts.items()}
    changed["sequence"] = cuts["tensor"] > 1
    changed["micro_batches"] = sequences / (cuts["data"] * cuts["micro_batch"])
    base = columns_of([run])  # values that do not depend on the cuts stay single numbers
    z = Columns(**{f.name: changed.get(f.name, getattr(base, f.name)) for f in fields(Columns)})
    known = posteriors(run.gpu, run.precision, run.software, run.fused_attention)
    step = step_of(measure(z, known, run.gpu, run.software), load_law())
    seconds = step.seconds.value.copy()
    chance = chance_to_fit(z, software_of(run.software), float(run.gpu.memory_bytes)).copy()
    # Layouts that split only the batch are predicted as other runs that do so.
    whole = np.flatnonzero(np.prod([cuts[name] for name in _PIECES], axis=0) == 1).tolist()
    runs = [_run_of(run, cuts, at, sequences) for at in whole]
    plain = [(at, one, w) for at, one in zip(whole, runs, strict=True) if (w := workload_of(one)) is not None]
    answers = predict_whole([one for _, one, _ in plain], [w for _, _, w in plain])
    for (at, _, _), answer in zip(plain, answers, strict=True):
        assert answer.step_seconds and answer.fit_probability is not None
        seconds[at], chance[at] = answer.step_seconds.value, answer.fit_probability
    return (seconds if own is None else seconds * np.exp(own.log_factor(step.exchanged))), chance


def _cuts(run: LayoutRun, gpus: int, sequences: int) -> dict[str, np.ndarray]:
    """Return every way to cut the run, as columns."""
    layers, experts = run.model.layers, run.model.experts
    software = require_software(run.software) if run.software is not None else None
    tensors = [t for t in _powers(min(MOST_TENSOR, run.node_gpus)) if run.model.heads % t == 0]
    rows: list[tuple[int, ...]] = []
    for tensor in tensors:
        for context in _powers(min(64, run.seq_len // PIECE)):
            for pipeline in _powers(min(layers, gpus)):
                data, rest = divmod(gpus, tensor * context * pipeline)
                if rest or not data or sequences % data or math.ceil(layers / pipeline) * (pipeline - 1) >= layers:
                    continue
                ranks, per_rank = data * context * tensor, sequences // data
                dealt = [1]  # numbers of pieces into which the experts are divided
                if experts is not None:
                    dealt = [e for e in _powers(min(experts.count, ranks)) if experts.count % e == ranks % e == 0]
                for virtual in _virtual(layers, pipeline):
                    recomputed = _recomputed(software, layers / (pipeline * virtual))
                    rows += [
                        (tensor, pipeline, virtual, context, expert, data, sharding, micro, recompute)
                        for expert in dealt
                        for sharding in ((1, 2) if data * context > 1 and pipeline == 1 else (1,))
                        for micro in _MICRO_BATCHES
                        if per_rank % micro == 0 and (per_rank // micro) % (pipeline if virtual > 1 else 1) == 0
                        for recompute in recomputed
                    ]
    table = np.array(rows, dtype=int).reshape(-1, len(_CUTS))
    return {name: table[:, at] for at, name in enumerate(_CUTS)}


def _powers(most: int) -> list[int]:
    return [2**n for n in range(max(most, 1).bit_length())]


def _virtual(layers: int, pipeline: int) -> list[int]:
    """Return the numbers of virtual stages that divide the layers of a pipeline stage evenly.

    The first and the last stage may have one or two layers fewer (Llama 3, §3.3.2).
    """
    if pipeline == 1:
        return [1]
    wholes = [whole // pipeline for whole in range(layers, layers + 4) if whole % pipeline == 0]
    return [1, *(v for v in _VIRTUAL if v > 1 and any(whole % v == 0 for whole in wholes))]


def _recomputed(software: NamedSoftware | None, layers: float) -> list[int]:
    """Return the levels of recomputation that a software package offers: nothing, everything, and maybe half.

    Half is every other product (torchtitan), or every other layer of a virtual stage if the stage has at least two
    layers (Megatron's `--recompute-method block`).
    """
    by_layers = software is not None and software.kind == "megatron" and layers > 1.5
    half = by_layers or (software is not None and software.recomputed == "selective")
    return [RECOMPUTE.index(level) for level in ("none", *(["operators"] if half else []), "full")]


def _run_of(run: LayoutRun, cuts: Mapping[str, np.ndarray], at: int, sequences: int) -> LayoutRun:
    cut = {name: int(column[at]) for name, column in cuts.items()}
    layout = Layout(
        **{name: cut[name] for name in ("tensor", "pipeline", "virtual", "context", "expert", "data")},
        sequence=cut["tensor"] > 1,
        sharding=SHARDINGS[cut["sharding"]],
    )
    micro_batches = sequences // (cut["data"] * cut["micro_batch"])
    return replace(run, layout=layout, micro_batch=cut["micro_batch"], micro_batches=micro_batches,
                   recompute=RECOMPUTE[cut["recompute"]])  # fmt: skip


def _why(loser: Prediction, best: Prediction) -> str:
    """Return why a layout lost: it does not fit, or one part of its step takes much longer."""
    assert loser.fit_probability is not None and loser.step_seconds and best.step_seconds
    assert loser.step_parts is not None and best.step_parts is not None  # `predict_layouts` knows them
    ours, theirs = best.step_parts, loser.step_parts
    if loser.fit_probability < SURE:
        return format_fit_chance(loser.fit_probability) if loser.fit_probability > 1 - SURE else "does not fit"
    part = max(ours, key=lambda name: theirs[name] - ours[name])
    slower = loser.step_seconds.value / best.step_seconds.value - 1
    if slower < -_EQUAL:
        return f"{format_share(-slower)} faster, but it splits the model"
    if slower < _EQUAL:
        return f"about equal ({format_share(abs(slower))} {'slower' if slower > 0 else 'faster'})"
    return f"{format_share(slower)} slower, most of it in {_PART_WORDS[part]}"
