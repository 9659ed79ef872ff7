"""Shows one prediction: heading, table and verdict on fitting; also as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from advisor import units
from advisor.architecture import Layout
from advisor.prediction.comm import AssumedNetwork
from advisor.prediction.depths import TOKENS_PER_PARAMETER, DepthOption, Download, MemoryBill
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.software import words_of
from advisor.records import Prediction, Software, Workload
from advisor.report.quantities import ALLOCATED, MFU, PROCESS_MEMORY, RESERVED, STEP_TIME, THROUGHPUT, TIME
from advisor.report.render import to_plain
from advisor.report.table import Table
from advisor.workflows.predict import Predicted

ESTIMATES = {  # fields of a prediction, in the order in which they are shown
    "step_seconds": STEP_TIME,
    "tokens_per_second": THROUGHPUT,
    "mfu": MFU,
    "peak_allocated_bytes": ALLOCATED,
    "peak_reserved_bytes": RESERVED,
}
_PARTS = (
    ("weights", "weights_bytes"),
    ("gradients and 16-bit copies", "gradients_bytes"),
    ("layers gathered whole", "gathered_bytes"),
    ("optimizer", "optimizer_bytes"),
    ("activations", "activations_bytes"),
    ("logits", "logits_bytes"),
    ("driver, workspaces, allocator", "overhead_bytes"),
)
_SHARDED = {"none": "", "optimizer": "", "full": " FSDP"}
_SHORT = ("weights", "gradients", "gathered", "optimizer", "activations", "logits", "rest")


def partial_words(workload: Workload) -> str:
    """Says which part of a model is trained; empty if all of it is."""
    software = workload.software or Software()
    if (adapters := software.adapters) is not None:
        kind = "QLoRA" if adapters.quantized else "LoRA"
        return f"{kind} of rank {adapters.rank}" + (" in attention" if adapters.targets == "attention" else "")
    if software.frozen_blocks:
        return f"{software.frozen_blocks} of {workload.shape.depth} blocks frozen"
    return ""


def layout_words(cut: Layout) -> str:
    """Returns a layout in the usual notation, such as TP8 PP4x5 EP8 DP16."""
    pieces = [("TP", cut.tensor), ("CP", cut.context), ("EP", cut.expert)]
    said = [f"{name}{count}" for name, count in pieces if count > 1]
    if cut.pipeline > 1:
        said.insert(1 if cut.tensor > 1 else 0, f"PP{cut.pipeline}" + (f"x{cut.virtual}" if cut.virtual > 1 else ""))
    return " ".join([*said, f"DP{cut.data}"]) + _SHARDED[cut.sharding]


def heading(prediction: Prediction) -> str:
    """Says what is predicted: model, batch, devices."""
    w = prediction.workload
    precision = "fp8" if w.software is not None and w.software.fp8 else w.precision
    if w.model is not None and w.layout is not None:
        active = f", {units.format_count(w.model.active)} active" if w.model.experts else ""
        batch = f"micro-batches of {w.micro_batch} x {w.shape.seq_len} tokens, {w.grad_accum} per replica and step"
        return (
            f"{w.model.name} ({units.format_count(prediction.parameters)} parameters{active}) on {w.gpus} x {w.gpu} "
            f"as {layout_words(w.layout)} ({precision}): {batch}, by {words_of(w.software)}"
        )
    size = f"depth {w.shape.depth}, width {w.shape.width}, {units.format_count(prediction.parameters)} parameters"
    if words := partial_words(w):
        trained = int(WorkloadArrays.of([w]).trained_parameters[0])
        size += f", {words} ({units.format_count(trained)} trained)"
    batch = f"micro-batches of {w.micro_batch} x {w.shape.seq_len} tokens"
    batch += f", {w.grad_accum} gradient-accumulation steps," if w.grad_accum > 1 else ""
    how = f"{precision}, {'compiled' if w.compile else 'eager'}"
    return f"{w.shape.family} of {size}: {batch} on {w.gpus} x {w.gpu} ({how}), by {words_of(w.software)}"


def quantities(prediction: Prediction) -> Table:
    """Lists each number with its interval and its basis."""
    shown = ESTIMATES | ({"peak_reserved_bytes": PROCESS_MEMORY} if prediction.workload.gpu == "cpu" else {})
    rows = [quantity.row(getattr(prediction, name)) for name, quantity in shown.items()]
    rows.append(("FLOPs per token", units.format_number(prediction.flops_per_token), "exact"))
    return Table(columns=("", "80 % interval", "basis"), rows=tuple(rows))


def verdict(prediction: Prediction) -> str:
    """Says whether the run fits the device, and how sure that is."""
    device, chance = units.format_bytes(prediction.device_memory_bytes), prediction.fit_probability
    if chance is None:
        return "how much memory the GPU has is unknown"
    words = {True: f"fits in {device}", False: f"does NOT fit in {device}", None: f"may not fit in {device}"}
    likely = units.format_fit(chance)
    return f"{words[prediction.fits]} (probability that it fits: {likely})"


def network(joined: AssumedNetwork | None) -> str | None:
    """Describes the assumed network between machines, and the step time on Ethernet; None for a single machine."""
    if joined is None:
        return None
    if joined.ethernet_step_seconds is None:
        return f"assumes {joined.words}"
    slow = units.format_seconds(joined.ethernet_step_seconds)
    return f"assumes {joined.words}; on 100 Gb/s Ethernet a step takes {slow}"


def time_unknown(prediction: Prediction) -> str | None:
    """Says why no time is predicted, or returns None if it is."""
    if prediction.step_seconds is not None:
        return None
    return f"time is unknown: {unjoined(prediction.workload)}"


def document(prediction: Predicted) -> dict[str, object]:
    """Returns one prediction for JSON, with everything that is shown with it."""
    return {
        "gpu": prediction.workload.gpu,
        "workload": prediction.workload,
        "parameters": prediction.parameters,
        "flops_per_token": prediction.flops_per_token,
        **{name: to_plain(getattr(prediction, name)) for name in ESTIMATES},
        "fits": prediction.fits,
        "fit_probability": prediction.fit_probability,
        "memory_parts": prediction.memory_parts,
        "would_fit": prediction.would_fit,
        "depths": prediction.other_depths,
        "data": prediction.data,
        **sources(prediction),
        "too_long": prediction.too_long,
        "layout": None if (cut := prediction.workload.layout) is None else layout_words(cut),
        "sources": prediction.sources,
        "assumed": prediction.assumed,
        "time_unknown": time_unknown(prediction),
    }


def sources(predicted: Predicted) -> dict[str, str | None]:
    """Names the software of a prediction, the closest published run, and the network between machines."""
    return {
        "for": predicted.made_for,
        "closest published run": predicted.closest_run,
        "network": network(predicted.network),
    }


def unjoined(w: Workload) -> str:
    """Say that the link between a workload's GPUs is unknown."""
    return f"the link between {w.gpus} GPUs of type {w.gpu} is not in the catalog"


def memory(bill: MemoryBill) -> Table:
    """Lists each part's expected bytes and its share of the GPU's memory."""
    of = bill.device_bytes
    rows = [
        (name, units.format_bytes(value), _share(value, of))
        for name, field in _PARTS
        if (value := getattr(bill, field)) or field != "gathered_bytes"
    ]
    rows.append(("all of it", units.format_estimate(bill.total, units.format_bytes), _share(bill.total.value, of)))
    if bill.headroom_bytes is not None:
        rows.append(("free", units.format_bytes(bill.headroom_bytes), _share(bill.headroom_bytes, of)))
    return Table(columns=("GPU memory at its peak, by part", "expected", "of the GPU's"), rows=tuple(rows))


def _share(value: float, of: float | None) -> str:
    return "-" if of is None else units.format_percent(value / of)


def options(found: Sequence[DepthOption], own: int) -> Table:
    """Lists for each depth its size, step time relative to the plan's own depth, memory by part, and free memory."""
    columns = (
        *("depth", "parameters", "step time", "times this", *_SHORT, "free", "fits"),
        f"{TOKENS_PER_PARAMETER:g} tokens per parameter",
        "steps take",
    )
    chosen = tuple(place for place, one in enumerate(found) if one.depth == own)
    return Table(columns=columns, rows=tuple(map(_option, found)), title="At other depths", chosen=chosen)


def _option(one: DepthOption) -> tuple[str, ...]:
    bill = one.memory
    parts = [units.format_bytes(getattr(bill, field)) if bill else "-" for _, field in _PARTS]
    return (
        f"{one.depth} x {one.width}",
        units.format_count(one.parameters),
        STEP_TIME.expected(one.step_seconds),
        "-" if one.step_ratio is None else units.format_number(one.step_ratio),
        *parts,
        units.format_bytes(bill.headroom_bytes) if bill and bill.headroom_bytes is not None else "-",
        {True: "yes", False: "no", None: "perhaps"}[one.fits],
        units.format_tokens(one.tokens),
        TIME.expected(one.hours.scaled(3600)) if one.hours is not None else "-",
    )


def to_fetch(data: Download, *, billed: bool = True) -> str:
    """Says how much to download and how long that takes, and whether the bill includes it."""
    unbilled = "" if billed else "; not in the bill, because no data are given (--data-tokens adds them)"
    size = f"{data.shards:,} compressed shards of 100 MB, {units.format_number(data.download_bytes / 1e9)} GB"
    return (
        f"data: {units.format_tokens(data.tokens)} tokens are about {units.format_tokens(data.characters)} characters "
        f"of English, {size}, "
        f"{TIME.of(data.seconds)} at {units.format_bandwidth(data.bytes_per_second)}; tokenizing takes one core "
        f"about {units.format_seconds(data.prepare_core_seconds)}{unbilled}"
    )
