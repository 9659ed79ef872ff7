"""Turns layout runs into workloads. Runs that split only the batch are predicted like other published software."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from advisor.architecture import Model
from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec
from advisor.laws.flops import parameters
from advisor.prediction.batch import predict_batch
from advisor.prediction.layouts import EIGHT_BITS, LayoutRun
from advisor.prediction.profile import Profile
from advisor.prediction.software import require_software, software_of
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Prediction, Software, Workload
from trainer.schema import ModelShape

_RECOMPUTED = {"none": "none", "operators": "selective", "full": "full"}  # `layouts.RECOMPUTE` as in `Workload`
RECOMPUTED_AS = {ours: theirs for theirs, ours in _RECOMPUTED.items()}


def with_heads_of(shape: ModelShape, size: int | None) -> ModelShape:
    """Return the shape with the extra weights of larger heads added as feed-forward width. None adds nothing."""
    if size is None:
        return shape
    more = 2 * (shape.heads + shape.kv_heads) * (size - shape.head_dim)
    return replace(shape, ffn_width=shape.ffn_width + round(more / (3 if shape.family == "llama" else 2)))


def shape_of(model: Model, seq_len: int) -> ModelShape:
    """Return the trainer's shape for a model.

    A model that the trainer does not build becomes a dense one with as many weights for each token, which may break the
    trainer's rules (`ModelShape.problems`).
    """
    sizes = {name: getattr(model, name) for name in ("width", "heads", "kv_heads", "ffn_width", "vocab_size")}
    family = model.family or ("llama" if model.gated else "gpt2")
    shape = ModelShape(family=family, depth=model.layers, seq_len=seq_len, **sizes)
    if model.experts is None and model.attention_parameters is None:
        return with_heads_of(shape, model.head_dim if model.head_dim != shape.head_dim else None)
    attention = 2 * model.width * model.width // model.heads * (model.heads + model.kv_heads)
    left = (model.active - model.tables) / model.layers - attention
    return replace(shape, ffn_width=max(1, round(left / (model.matrices * model.width))))


def described(run: LayoutRun) -> Workload:
    """Return the workload of any run, with its model and layout."""
    if (whole := workload_of(run)) is not None:
        return replace(whole, model=run.model, layout=run.layout)
    software, eight_bit = software_of(run.software), run.precision in EIGHT_BITS
    return Workload(
        shape=shape_of(run.model, run.seq_len),
        micro_batch=run.micro_batch,
        grad_accum=run.micro_batches,
        gpu=run.gpu.key,
        gpus=run.layout.gpus,
        precision="bf16" if eight_bit else run.precision,
        compile=run.software is not None and require_software(run.software).compiled,
        activation_checkpointing=_RECOMPUTED.get(run.recompute, run.recompute),
        sharding=run.layout.sharding if run.layout.gpus > 1 else "none",
        software=replace(software, fp8=eight_bit, fused_attention=run.fused_attention),
        model=run.model,
        layout=run.layout,
    )


def layout_run(w: Workload, spec: GpuSpec) -> LayoutRun:
    """Return the layout run for the workload of `described`, on machines of the catalog."""
    assert w.model is not None and w.layout is not None
    fp8 = w.software is not None and w.software.fp8
    return LayoutRun(
        model=w.model,
        layout=w.layout,
        gpu=spec,
        node_gpus=min(GPUS_PER_NODE, w.gpus),
        seq_len=w.shape.seq_len,
        micro_batch=w.micro_batch,
        micro_batches=w.grad_accum,
        recompute=RECOMPUTED_AS[w.activation_checkpointing],
        precision="fp8" if fp8 else w.precision,
        software=w.software.name if w.software is not None else None,
    )


def workload_of(run: LayoutRun) -> Workload | None:
    """Return the workload of a run that splits only the batch, or None for a run that a workload cannot describe.

    These are runs whose model is split or has experts, that recompute attention alone, or whose machines differ from
    those of the catalog.
    """
    model, layout, machine = run.model, run.layout, min(GPUS_PER_NODE, run.layout.gpus)
    unusual = run.link is not None or run.node_gpus != machine or run.optimizer_copies > 1
    unusual |= model.attention_parameters is not None or model.attending < 1 or model.ahead > 0
    if run.cut or unusual or run.recompute not in _RECOMPUTED or run.precision not in ("bf16", "fp16", "fp8"):
        return None
    shape = shape_of(model, run.seq_len)
    if shape.problems():
        return None
    extra = 0 if model.family else (model.published or model.parameters) - parameters(shape)
    software = software_of(run.software, fp8=run.precision == "fp8", extra_parameters=extra)
    return Workload(
        shape=shape,
        micro_batch=run.micro_batch,
        grad_accum=run.micro_batches,
        gpu=run.gpu.key,
        gpus=layout.gpus,
        precision="bf16" if run.precision == "fp8" else run.precision,
        compile=run.software is not None and require_software(run.software).compiled,
        activation_checkpointing=_RECOMPUTED[run.recompute],
        optimizer=require_software(run.software).optimizer if run.software is not None else "adamw",
        sharding=layout.sharding if layout.gpus > 1 else "none",
        software=replace(software, fused_attention=run.fused_attention),
    )


def predict_whole(runs: Sequence[LayoutRun], workloads: Sequence[Workload]) -> list[Prediction]:
    """Return the predictions of runs of one model on one kind of GPU, given the workload of each."""
    groups: dict[tuple, list[int]] = {}
    for at, (run, w) in enumerate(zip(runs, workloads, strict=True)):
        spec = run.gpu
        if run.network is not None:
            spec = replace(spec, network_bytes_per_second=run.network * GPUS_PER_NODE)
        groups.setdefault((spec, w.precision, w.compile, w.software), []).append(at)
    answers: dict[int, Prediction] = {}
    for key, places in groups.items():
        made = predict_batch(_profile(*key), [workloads[at] for at in places])
        answers |= dict(zip(places, made, strict=True))
    return [answers[at] for at in range(len(runs))]


@lru_cache(maxsize=1024)
def _profile(spec: GpuSpec, precision: str, compile: bool, software: Software) -> Profile:
    return prior_profile(spec, precision=precision, compile=compile, software=software)
