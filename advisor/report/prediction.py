"""One prediction in words: heading, table and verdict on fitting; and as JSON, alone or as a line of many."""

from __future__ import annotations

import json
from collections.abc import Sequence

from advisor.prediction.comm import assumed_network
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.profile import Profile
from advisor.prediction.software import words_of
from advisor.prediction.trained import trained_parameters
from advisor.records import Estimate, Prediction, Software, Workload
from advisor.report.quantities import ALLOCATED, MFU, PROCESS_MEMORY, RESERVED, STEP_TIME, THROUGHPUT
from advisor.report.table import Table
from advisor.units import format_bytes, format_count, format_number, format_seconds, format_tokens

ESTIMATES = {  # fields of a prediction, in the order in which they are shown
    "step_seconds": STEP_TIME,
    "tokens_per_second": THROUGHPUT,
    "mfu": MFU,
    "peak_allocated_bytes": ALLOCATED,
    "peak_reserved_bytes": RESERVED,
}


def partial_words(workload: Workload) -> str:
    """Which part of a model is trained; empty for all of it."""
    software = workload.software or Software()
    if (adapters := software.adapters) is not None:
        kind = "QLoRA" if adapters.quantized else "LoRA"
        return f"{kind} of rank {adapters.rank}" + (" in attention" if adapters.targets == "attention" else "")
    if software.frozen_blocks:
        return f"{software.frozen_blocks} of {workload.shape.depth} blocks frozen"
    return ""


def heading(prediction: Prediction) -> str:
    """What is predicted: model, batch, devices."""
    w = prediction.workload
    size = f"depth {w.shape.depth}, width {w.shape.width}, {format_count(prediction.parameters)} parameters"
    if words := partial_words(w):
        trained = int(trained_parameters(WorkloadArrays.of([w]))[0])
        size += f", {words} ({format_count(trained)} trained)"
    batch = f"micro-batches of {w.micro_batch} x {w.shape.seq_len} tokens"
    batch += f", {w.grad_accum} gradient-accumulation steps," if w.grad_accum > 1 else ""
    precision = "fp8" if w.software is not None and w.software.fp8 else w.precision
    how = f"{precision}, {'compiled' if w.compile else 'eager'}"
    return f"{w.shape.family} of {size}: {batch} on {w.gpus} x {w.gpu} ({how}), by {words_of(w.software)}"


def quantities(prediction: Prediction) -> Table:
    """Each number with its interval and where it comes from."""
    shown = ESTIMATES | ({"peak_reserved_bytes": PROCESS_MEMORY} if prediction.workload.gpu == "cpu" else {})
    rows = [quantity.row(getattr(prediction, name)) for name, quantity in shown.items()]
    rows.append(("FLOPs per token", format_number(prediction.flops_per_token), "exact"))
    return Table(columns=("", "80 % interval", "basis"), rows=tuple(rows))


def verdict(prediction: Prediction) -> str:
    """Whether it fits the device, and how sure that is."""
    device, chance = format_bytes(prediction.device_memory_bytes), prediction.fit_probability
    if chance is None:
        return "how much memory the GPU has is unknown"
    words = {True: f"fits in {device}", False: f"does NOT fit in {device}", None: f"may not fit in {device}"}
    return f"{words[prediction.fits]} (probability that it fits: {min(max(chance, 0.01), 0.99):.0%})"


def network(prediction: Prediction, profile: Profile) -> str | None:
    """What is taken to join machines, and a step on what else may; None for a single one."""
    step = prediction.step_seconds
    joined = assumed_network(prediction.workload, profile.spec, step.value) if step else None
    if joined is None:
        return None
    return f"assumes {joined.words}; on 100 Gb/s Ethernet a step takes {format_seconds(joined.ethernet_step_seconds)}"


def time_unknown(prediction: Prediction) -> str | None:
    """Why no time is predicted; None where one is."""
    if prediction.step_seconds is not None:
        return None
    return f"time is unknown: {_unjoined(prediction.workload)}"


def sharding_alone(w: Workload, mfu: Estimate | None) -> str:
    """What data parallelism with sharded state comes to, and how many GPUs of it a step has sequences for."""
    sequences = w.step_tokens // w.shape.seq_len
    return (
        f"sharding alone: MFU {MFU.expected(mfu)} on {w.gpus} x {w.gpu}. Every GPU needs a sequence of its own, so "
        f"with {sequences:,} sequences a step ({format_tokens(w.step_tokens)} tokens) it ends at {sequences:,} GPUs; "
        "more of them need another kind of parallelism, or a larger global batch"
    )


def document(prediction: Prediction) -> dict[str, object]:
    """What `predict` promises of one configuration, as JSON has it."""
    return {
        "parameters": prediction.parameters,
        "flops_per_token": prediction.flops_per_token,
        **{name: _estimate(getattr(prediction, name)) for name in ESTIMATES},
        "fits": prediction.fits,
        "fit_probability": prediction.fit_probability,
    }


def rest_of_line(prediction: Prediction, assumed: Sequence[str] = ()) -> str:
    """`document` as JSON text without its opening brace, several times faster than by way of dicts.

    For a table of many rows, where each begins with its number; a time that is not predicted is an `error` in words.
    `assumed` says what a row left open.
    """
    estimates = ", ".join([_estimate_text(name, getattr(prediction, name)) for name in ESTIMATES])
    fits = "null" if prediction.fits is None else "true" if prediction.fits else "false"
    error = ""
    if prediction.step_seconds is None:
        error = f', "error": {json.dumps("time not predicted: " + _unjoined(prediction.workload))}'
    chance = "null" if prediction.fit_probability is None else f"{prediction.fit_probability:.4g}"
    said = f', "assumed": {json.dumps(assumed, ensure_ascii=False)}' if assumed else ""
    return (
        f'"parameters": {prediction.parameters}, "flops_per_token": {prediction.flops_per_token!r}, '
        f'{estimates}, "fits": {fits}, "fit_probability": {chance}{error}{said}}}'
    )


def _estimate(e: Estimate | None) -> dict[str, object] | None:
    return {"value": e.value, "low": e.low, "high": e.high, "basis": e.basis.value} if e else None


def _estimate_text(name: str, e: Estimate | None) -> str:
    if e is None:
        return f'"{name}": null'
    return f'"{name}": {{"value": {e.value:.10g}, "low": {e.low:.10g}, "high": {e.high:.10g}, "basis": "{e.basis}"}}'


def _unjoined(w: Workload) -> str:
    return f"the catalog does not say what joins {w.gpus} GPUs of type {w.gpu}"
