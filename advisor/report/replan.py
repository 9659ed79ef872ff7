"""Compares a plan with the run that it repeats, in a table and in sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from advisor.records import Estimate, Plan
from advisor.report.quantities import COST, LOSS, MFU, STEP_TIME, THROUGHPUT, TIME, Quantity, memory_of
from advisor.report.table import Table
from advisor.units import format_bytes, format_count, format_number, format_tokens
from advisor.workflows.replan import Replan, ReplanKnob, There

_TOKENS = ("tokens", "global_batch")
_NAMES = {"global_batch": "global batch", "micro_batch": "micro-batch", "grad_accum": "accumulation", "gpu": "GPU",
          "gpus": "GPUs", "seq_len": "sequence", "vocab_size": "vocabulary", "compile": "torch.compile",
          "kv_heads": "key/value heads", "ffn_width": "feed-forward width",
          "activation_checkpointing": "activation checkpointing"}  # fmt: skip


def table(found: Replan, plan: Plan) -> Table:
    """Lists measurements of the run, predictions for the run, and predictions for the plan."""
    there, before, promise = found.there, found.predicted_there, plan.chosen
    held = promise.prediction.device_bytes
    memory = memory_of(plan.workload.gpu)
    rows = (
        _row(STEP_TIME, there.step_seconds, before.step_seconds if before else None, promise.step_seconds),
        _row(
            THROUGHPUT, there.tokens_per_second, before.tokens_per_second if before else None, promise.tokens_per_second
        ),
        _row(MFU, there.mfu, before.mfu if before else None, promise.prediction.mfu),
        _row(memory, there.memory_bytes, before.peak_reserved_bytes if before else None, held),
        ("steps", _steps(there.steps_done, there.steps_planned), "", format_count(plan.config.steps)),
        ("tokens", format_tokens(there.tokens), "", format_tokens(plan.chosen.tokens)),
        _row(TIME, _seconds(there.spent_hours), _scaled(there.whole_hours, 3600), promise.total_seconds),
        _row(COST, there.spent_usd, there.whole_usd, promise.cost_usd),
        (LOSS.name, _loss(there), "", LOSS.of(promise.loss)),
    )
    here = f"{plan.workload.gpus} x {plan.workload.gpu}"
    places = f"{there.gpus} x {there.gpu or 'unknown GPU'}"
    columns = (Path(found.source).name, f"measured on {places}", "expected there", f"predicted on {here}")
    return Table(columns=columns, rows=rows)


def _row(quantity: Quantity, measured: float | None, there: Estimate | None, here: Estimate | None) -> tuple[str, ...]:
    seen = "unknown" if measured is None else quantity.words(measured)
    return quantity.name, seen, quantity.of(there) if there is not None else "", quantity.of(here)


def _loss(there: There) -> str:
    """Returns the last evaluation's loss, or else the last step's, which is then marked."""
    if there.eval_loss is not None:
        return format_number(there.eval_loss)
    return "unknown" if there.loss is None else f"{format_number(there.loss)} (training)"


def _seconds(hours: float | None) -> float | None:
    return None if hours is None else hours * 3600


def _scaled(estimate: Estimate | None, factor: float) -> Estimate | None:
    return None if estimate is None else estimate.scaled(factor)


def _steps(done: float | None, planned: float | None) -> str:
    if done is None:
        return "unknown"
    return format_count(done) + (f" of {format_count(planned)}" if planned is not None and planned > done else "")


def sentences(found: Replan) -> tuple[str, ...]:
    """Says what was kept, what changed, what the speed is based on, and what had to be assumed about the run."""
    kept = ", ".join(f"{name_of(knob)} {value(knob.name, knob.here)}" for knob in found.knobs if knob.kept)
    changed = ", ".join(in_words(knob) for knob in found.knobs if not knob.kept)
    assumed = (f"assumed about the run: {text}" for text in found.unsure)
    fate = (f"result of the run that is planned again: {found.fate}",) if found.fate else ()
    return (*fate, f"as in the run: {kept}", f"changed: {changed or 'nothing'}", f"speed: {found.speed}", *assumed)


def in_words(knob: ReplanKnob) -> str:
    """Describes a setting that differs, as in "GPUs 8 → 2"."""
    return f"{name_of(knob)} {value(knob.name, knob.there)} → {value(knob.name, knob.here)}"


def name_of(knob: ReplanKnob) -> str:
    """Returns the name of a setting."""
    return _NAMES.get(knob.name, knob.name.replace("_", " "))


def value(name: str, given: Any) -> str:
    """Returns a setting's value as people write it."""
    if given is None:
        return "unknown"
    if isinstance(given, bool):
        return "on" if given else "off"
    if name in _TOKENS:
        return format_tokens(given)
    if name.endswith("_bytes"):
        return format_bytes(given)
    return format_number(given) if isinstance(given, float) else str(given)
