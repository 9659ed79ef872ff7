"""Predicts one configuration with a parallel layout, by the law of plans over layouts: experts, several machines."""

from __future__ import annotations

from dataclasses import replace

from advisor.architecture import Layout, Model
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec
from advisor.options import LAYOUT_DEGREES, Goal, PredictOptions
from advisor.planning.models import NamedModel
from advisor.prediction.comm import ETHERNET_BYTES_PER_SECOND, AssumedNetwork
from advisor.prediction.layout_batch import predict_layouts
from advisor.prediction.layouts import LayoutRun
from advisor.prediction.micro_batch import choose_prediction
from advisor.prediction.software import require_software
from advisor.prediction.whole_models import RECOMPUTED_AS, layout_run
from advisor.records import Prediction, Workload

SOFTWARE = "nemo"  # if none is named, as in plans over layouts
_MICRO_BATCHES = (1, 2, 4, 8, 16)


def choose_layout(
    options: PredictOptions, architecture: NamedModel, spec: GpuSpec, gpus: int
) -> tuple[LayoutRun, Prediction, list[str]]:
    """Return the run that options describe, its prediction, and what was assumed.

    The degrees that are not given are 1; experts are dealt out to as many GPUs as possible. Raises AdvisorError
    (exit 2) if the degrees do not divide evenly.
    """
    name, seq_len, assumed = software_and_length(options, architecture)
    layout, degrees_assumed = _layout(options, architecture, gpus)
    run = replace(
        open_run(architecture.model, spec, gpus, seq_len, name, options.precision),
        layout=layout,
        micro_batch=options.micro_batch or 1,
        micro_batches=options.grad_accum,
        recompute=RECOMPUTED_AS[options.activation_checkpointing or require_software(name).recomputed],
    )
    # Of the shardings and micro-batches that are not given, take the plainest that fits and is about as fast as any.
    requested = options.sharding
    if requested == "gradients":
        assumed.append("ZeRO-2 as ZeRO-1, which needs more memory and as much time")
        requested = "optimizer"
    shardings = [requested] if requested or gpus == 1 else ["optimizer", "full"]
    sizes = [options.micro_batch] if options.micro_batch else _MICRO_BATCHES
    tried = [
        replace(run, layout=replace(layout, sharding=sharding or "none"), micro_batch=size)
        for sharding in shardings
        for size in sizes
    ]
    answers = predict_layouts(tried)
    kinds = [at // len(sizes) for at in range(len(tried))]
    prediction = choose_prediction(answers, kinds) or answers[0]
    chosen = tried[answers.index(prediction)]
    assumed += [f"--sharding {chosen.layout.sharding}"] if len(shardings) > 1 else []
    assumed += [f"--micro-batch {chosen.micro_batch}"] if options.micro_batch is None else []
    return chosen, prediction, [*degrees_assumed, *assumed]


def software_and_length(options: Goal | PredictOptions, architecture: NamedModel) -> tuple[str, int, list[str]]:
    """Return the software and the tokens of a sequence, and which of them were assumed."""
    name, seq_len = options.software or SOFTWARE, options.seq_len or architecture.shape.seq_len
    assumed = [f"--software {SOFTWARE}"] if options.software is None else []
    return name, seq_len, [*assumed, *([f"--seq-len {seq_len}"] if options.seq_len is None else [])]


def open_run(model: Model, spec: GpuSpec, gpus: int, seq_len: int, software: str, precision: str) -> LayoutRun:
    """Return a run on these GPUs whose layout and batch are still open."""
    if precision == "auto":
        precision = "bf16" if spec.bf16_flops else "fp16"
    return LayoutRun(
        model=model, layout=Layout(), gpu=spec, node_gpus=min(GPUS_PER_NODE, gpus), seq_len=seq_len, micro_batch=1,
        micro_batches=1, precision=precision, software=software,
    )  # fmt: skip


def network_of(w: Workload, spec: GpuSpec) -> AssumedNetwork | None:
    """Return the network that a prediction assumes between machines, or None on one machine."""
    if w.gpus <= GPUS_PER_NODE:
        return None

    def on_ethernet() -> float:
        [slow] = predict_layouts([layout_run(w, spec.with_network(ETHERNET_BYTES_PER_SECOND))])
        assert slow.step_seconds is not None
        return slow.step_seconds.value

    return AssumedNetwork.of(spec, on_ethernet)


def _layout(options: PredictOptions, architecture: NamedModel, gpus: int) -> tuple[Layout, list[str]]:
    """Return the layout with the degrees that are given, and what was assumed."""
    tensor, pipeline, context, expert, virtual = (getattr(options, name) for name in LAYOUT_DEGREES)
    cut, experts = (tensor or 1) * (pipeline or 1) * (context or 1), architecture.model.experts
    if gpus % cut:
        degrees = " x ".join(f"--{name} {value}" for name in LAYOUT_DEGREES[:3] if (value := getattr(options, name)))
        available = f"{gpus} GPUs" if gpus > 1 else "one GPU"
        raise AdvisorError(f"{degrees} does not divide {available}", "say how many there are: --gpus", exit_code=2)
    if (virtual or 1) > 1 and (pipeline or 1) == 1:
        raise AdvisorError(f"--vpp {virtual} needs pipeline stages", "say how many: --pp 4", exit_code=2)
    if architecture.model.heads % (tensor or 1):
        message = f"--tp {tensor} does not divide the {architecture.model.heads} heads of {architecture.name}"
        raise AdvisorError(message, "choose a number that divides them", exit_code=2)
    if expert is not None and (experts is None or experts.count % expert or gpus % expert):
        has = "no experts" if experts is None else f"{experts.count} experts"
        message = f"--ep {expert}: {architecture.name} has {has}, and there are {gpus} GPUs"
        raise AdvisorError(message, "choose a number that divides both", exit_code=2)
    assumed = []
    if experts is not None and expert is None:
        ranks = gpus // (pipeline or 1)
        expert = max(n for n in range(1, min(ranks, experts.count) + 1) if experts.count % n == ranks % n == 0)
        assumed.append(f"--ep {expert}")
    return Layout(
        tensor=tensor or 1, sequence=(tensor or 1) > 1, pipeline=pipeline or 1, virtual=virtual or 1,
        context=context or 1, expert=expert or 1, data=gpus // cut,
    ), assumed  # fmt: skip
