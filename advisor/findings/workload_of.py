"""Infer the workload of a run from what its log declares: family, shape, batch and GPU, and the assumptions.

Only values with a single possibility are derived. Assumptions go into `unsure`, and gaps without a sensible assumption
go into `missing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from advisor.findings import series
from advisor.findings.run_facts import logged_step_tokens, positive
from advisor.findings.run_metrics import seconds_between
from advisor.hardware.catalog import GpuSpec, find_gpu, gpus_named
from advisor.hardware.software_support import usual_precision
from advisor.laws import flops
from advisor.prediction.shape_by_count import COUNT_TOLERANCE, closest_shape
from advisor.readers.run_table import RunTable
from advisor.records import Workload
from trainer.schema import ACTIVATION_CHECKPOINTING, FAMILIES, ConfigError, ModelShape, make_shape

_FAMILY_WORDS = (
    (("nanochat",), "nanochat"),
    (("gpt2", "gpt-2", "nanogpt", "gpt-neo", "megatron", "opt"), "gpt2"),
    (("llama", "mistral", "qwen", "olmo", "gemma", "phi"), "llama"),
)
# What these trainers build, and how they run by default.
_FRAMEWORK_FAMILY = {"nanochat": "nanochat", "nanogpt": "gpt2", "build-nanogpt": "gpt2", "llm.c": "gpt2"}
_FUSED = ("nanochat", "nanogpt", "build-nanogpt", "llm.c", "modded-nanogpt")  # torch.compile or fused by hand
_USUAL_VOCABULARY = {"gpt2": (50257, 50304), "nanochat": (65536, 32768), "llama": ()}
_USUAL_CONTEXT = {"gpt2": 1024, "nanochat": 2048}
_DEEPEST = 128
_COUNT_TOLERANCE = 0.02
_WORK_TOLERANCE = 0.1  # programs count the FLOPs of a token in different ways
ONE_DEVICE = "how many GPUs: not stated, one assumed (--gpus)"
_MICRO_TOKENS = 32_768  # of a micro-batch if only the whole batch is known


@dataclass(kw_only=True)
class _Notes:
    unsure: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Inferred:
    """The workload of a log, as far as it can be inferred."""

    workload: Workload | None
    gpu: str | None  # catalog key or "cpu"; None: not named, unknown or ambiguous
    unsure: tuple[str, ...]  # assumptions, in words
    missing: tuple[str, ...]  # facts that would have to be stated to get a workload, in words


def infer(run: RunTable, given: Mapping[str, Any] | None = None) -> Inferred:
    """Return the workload of a run from its log's facts; what the user gives (names of FACTS) takes precedence."""
    facts, notes = {**run.facts, **(given or {})}, _Notes()
    gpu, spec = _gpu(facts, notes)
    shape = _shape(facts, (run.framework or "").lower(), notes)
    gpus = _gpus(run, facts, gpu, shape, notes)
    batch = _batch(run, facts, shape, gpus, notes) if shape else None
    micro, length = _whole(facts, "micro_batch"), _whole(facts, "seq_len")
    if micro and length and _whole(facts, "grad_accum") is None and facts.get("step_tokens") == micro * length:
        notes.unsure.append("gradient accumulation: not stated, none assumed")
    workload, said = None, facts.get("activation_checkpointing")
    if gpu is not None and shape is not None and batch is not None:
        stated, fused = facts.get("compile"), (run.framework or "").lower() in _FUSED
        if not isinstance(stated, bool) and not fused and gpu != "cpu":
            notes.unsure.append("torch.compile: not stated, eager assumed")
        workload = Workload(
            shape=shape,
            micro_batch=batch[0],
            grad_accum=batch[1],
            gpu=gpu,
            gpus=gpus,
            precision=_precision(facts, spec, notes),
            compile=stated if isinstance(stated, bool) else fused,
            activation_checkpointing=str(said) if said in ACTIVATION_CHECKPOINTING else "none",
            optimizer="muon" if "muon" in str(facts.get("optimizer", "")).lower() else "adamw",
        )
    return Inferred(workload=workload, gpu=gpu, unsure=tuple(notes.unsure), missing=tuple(notes.missing))


def _gpu(facts: Mapping[str, Any], notes: _Notes) -> tuple[str | None, GpuSpec | None]:
    name = str(facts.get("gpu") or "").strip()
    if not name:
        notes.missing.append("the GPU (--gpu)")
        return None, None
    if name.lower() == "cpu":
        return "cpu", None
    card = find_gpu(name, positive(facts, "gpu_memory_bytes"))
    if card is None:
        several = ", ".join(spec.key for spec in gpus_named(name))
        said = f"{name!r} could be any of {several}" if several else f"{name!r} is not in the catalog"
        notes.missing.append(f"the GPU (--gpu): {said}")
        return None, None
    return card.key, card


def _gpus(run: RunTable, facts: Mapping[str, Any], gpu: str | None, shape: ModelShape | None, notes: _Notes) -> int:
    """Return the number of devices: stated, or all their work over the logged work of one device, or else one."""
    count = _whole(facts, "world_size")
    if count is not None or gpu == "cpu":
        return count or 1
    printed, length = run.column("seconds"), positive(facts, "seq_len")
    by_clock = seconds_between(run, "unix_seconds")
    seconds = series.median(printed if np.isfinite(printed).any() else by_clock)
    tokens = _step_tokens(run, facts, shape) if shape else logged_step_tokens(run, facts, length)
    rate = tokens / seconds if tokens and seconds > 0 else None
    flops_each, rate_each = positive(facts, "device_flops"), positive(facts, "device_tokens_per_second")
    ratios = {
        "FLOP/s": rate * flops.flops_per_token(shape) / flops_each if rate and shape and flops_each else 0.0,
        "tokens/s": rate / rate_each if rate and rate_each else 0.0,
    }
    for unit, ratio in ratios.items():
        if round(ratio) and abs(ratio / round(ratio) - 1) <= _WORK_TOLERANCE:
            notes.unsure.append(f"how many GPUs: {round(ratio)}, by the {unit} that the log says each one does")
            return round(ratio)
    notes.unsure.append(ONE_DEVICE)
    samples, micro = positive(facts, "step_samples"), positive(facts, "micro_batch")
    if samples and micro and "grad_accum" not in facts and (product := samples / micro) > 1:
        notes.unsure.append(f"gradient accumulation: {product:.0f} steps by the stated batches, if there is one GPU")
    return 1


def _shape(facts: Mapping[str, Any], framework: str, notes: _Notes) -> ModelShape | None:
    said = str(facts.get("family") or "").lower()
    by_words = [name for words, name in _FAMILY_WORDS if any(word in said for word in words)]
    family = said if said in FAMILIES else by_words[0] if by_words else _FRAMEWORK_FAMILY.get(framework)
    seq_len = _whole(facts, "seq_len") or _USUAL_CONTEXT.get(family or "")
    if seq_len and not _whole(facts, "seq_len"):
        notes.unsure.append(f"the context length: not stated, {family}'s usual {seq_len} assumed")
    if seq_len is None:
        notes.missing.append("the context length (seq_len)")
        return None
    if _whole(facts, "depth") is None:
        return _shape_by_count(facts, family, seq_len, notes)
    if family is None:
        return _shape_of_unknown_family(facts, seq_len, notes)
    shapes = [s for v in _vocabularies(facts, family) if (s := _made(facts, family, seq_len, v)) is not None]
    if not shapes:
        notes.missing.append("a vocabulary and sizes that fit together (vocab_size, depth, width, heads)")
        return None
    count = positive(facts, "parameters")
    shape = min(shapes, key=lambda s: abs(math.log(flops.parameters(s) / count))) if count else shapes[0]
    if _whole(facts, "vocab_size") is None:
        notes.unsure.append(f"the vocabulary: not stated, {shape.vocab_size:,} assumed")
    if _whole(facts, "width") is None:
        usual = f"{shape.family}'s {shape.width} for {shape.depth} blocks"
        notes.unsure.append(f"the width: not stated, {usual} assumed")
    exact = flops.parameters(shape)
    if count and abs(exact / count - 1) > _COUNT_TOLERANCE:
        notes.unsure.append(f"the shape: {shape.family} of these sizes has {exact:,} parameters, {count:,.0f} declared")
    return shape


def _vocabularies(facts: Mapping[str, Any], family: str) -> tuple[int, ...]:
    stated = _whole(facts, "vocab_size")
    return (stated,) if stated else _USUAL_VOCABULARY[family]


def _made(
    facts: Mapping[str, Any], family: str, seq_len: int, vocab: int, depth: int | None = None
) -> ModelShape | None:
    """Return the family's shape with every stated size, or None if the numbers do not fit together."""
    try:
        return make_shape(
            family,
            depth=depth or _whole(facts, "depth") or 0,
            vocab_size=vocab,
            seq_len=seq_len,
            **{name: _whole(facts, name) for name in ("width", "heads", "kv_heads", "ffn_width")},
        )
    except ConfigError:
        return None


def _shape_by_count(facts: Mapping[str, Any], family: str | None, seq_len: int, notes: _Notes) -> ModelShape | None:
    """Return the depth of a family's proportions that has the declared number of parameters within 1 %."""
    count = positive(facts, "parameters")
    if count is None or family is None or _whole(facts, "width"):
        notes.missing.append("the shape (depth, width, heads), or a known family with its parameter count")
        return None
    made = (
        _made(facts, family, seq_len, v, depth)
        for v in _vocabularies(facts, family)
        for depth in range(1, _DEEPEST + 1)
    )
    close = [s for s in made if s is not None and abs(flops.parameters(s) / count - 1) < _COUNT_TOLERANCE / 2]
    if not close:
        notes.missing.append(f"the shape (depth, width, heads): no {family} has {count:,.0f} parameters")
        return None
    shape = min(close, key=lambda s: abs(flops.parameters(s) - count))
    notes.unsure.append(f"the shape: {family} of depth {shape.depth}, the only one near {count:,.0f} parameters")
    return shape


def _shape_of_unknown_family(facts: Mapping[str, Any], seq_len: int, notes: _Notes) -> ModelShape | None:
    """Return a dense decoder with the printed parameter count, or else a GPT-2 of these sizes."""
    vocab, count = _whole(facts, "vocab_size"), positive(facts, "parameters")
    if not vocab or not all(_whole(facts, name) for name in ("depth", "width", "heads")):
        notes.missing.append("the family, or all of depth, width, heads and vocab_size")
        return None
    shape, error = _made(facts, "gpt2", seq_len, vocab), 0.0
    if shape is None or (count is None and shape.ffn_width != 4 * shape.width):
        notes.missing.append("the family: these sizes leave it open")
        return None
    if count is not None:
        shape, error = closest_shape(shape, count)
    if error > COUNT_TOLERANCE:
        notes.missing.append(f"the family: no dense decoder of these sizes has {count:,.0f} parameters")
        return None
    notes.unsure.append(f"the family: not stated, {shape.family} assumed by its sizes")
    return shape


def _batch(
    run: RunTable, facts: Mapping[str, Any], shape: ModelShape, gpus: int, notes: _Notes
) -> tuple[int, int] | None:
    """Return micro-batch and accumulation per device; if one is missing, it is derived from the tokens per step."""
    micro, accum, tokens = _whole(facts, "micro_batch"), _whole(facts, "grad_accum"), _step_tokens(run, facts, shape)
    sequences = round(tokens / (shape.seq_len * gpus)) if tokens else None
    if micro and accum:
        if sequences and abs(micro * accum / sequences - 1) > 0.02:
            notes.unsure.append(f"the batch: {micro} x {accum} stated, {sequences} sequences per GPU by tokens")
        return micro, accum
    if micro:
        return micro, max(1, round(sequences / micro)) if sequences else 1
    if not sequences:
        notes.missing.append("the batch (micro_batch and grad_accum, or tokens per step)")
        return None
    if accum:
        return max(1, round(sequences / accum)), accum
    most = max(1, _MICRO_TOKENS // shape.seq_len)
    guess = max(b for b in range(1, min(sequences, most) + 1) if sequences % b == 0)
    notes.unsure.append(f"the micro-batch: not stated, {guess} of {sequences} sequences assumed")
    return guess, sequences // guess


def _step_tokens(run: RunTable, facts: Mapping[str, Any], shape: ModelShape) -> float | None:
    """Return the tokens of a step: stated, or from what the log has, or rate times seconds."""
    if known := positive(facts, "step_tokens") or logged_step_tokens(run, facts, shape.seq_len):
        return known
    middle = series.median(run.column("tokens_per_second") * run.column("seconds"))
    return middle if np.isfinite(middle) and middle >= 1 else None


def _precision(facts: Mapping[str, Any], spec: GpuSpec | None, notes: _Notes) -> str:
    said = str(facts.get("precision") or "").lower()
    if said in ("bf16", "fp16", "fp32"):
        return said
    usual = "fp32" if spec is None else usual_precision(spec)
    if said == "fp8":
        notes.unsure.append(f"the precision: fp8 is not modelled, {usual} taken")
    elif spec is not None:
        notes.unsure.append(f"the precision: not stated, {usual} assumed")
    return usual


def _whole(facts: Mapping[str, Any], name: str) -> int | None:
    """Return a positive whole number of plausible size, or None."""
    value = positive(facts, name)
    return int(value) if value is not None and value == int(value) and value < 1e12 else None
