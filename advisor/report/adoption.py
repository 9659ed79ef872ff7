"""Shows an adopted command and its plan in words and rows. The only arithmetic turns shares into percentages."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from advisor import units
from advisor.adopt.fit import batch_of, choose_fit
from advisor.adopt.plan import Option
from advisor.adopt.session import in_words
from advisor.laws.held_out import HeldOut
from advisor.planning.goal import Limits
from advisor.report.brief import risks
from advisor.report.quantities import ALLOCATED, COST, DEVICE_MEMORY, PROCESS_MEMORY, STEP_TIME, TIME
from advisor.report.table import Table
from advisor.store.adopted import LOG, WHOLE_RUN, Adopted, AdoptedPlan, Recipe
from trainer.schema import to_dict

PREDICTED = "predicted"
_FITS = {
    True: "step times are fitted by the law for decoders",
    False: "step times are fitted by separate terms, which predict its bursts better",
}
MEMORY = {"allocated": ALLOCATED, "device": DEVICE_MEMORY, "resident": PROCESS_MEMORY}  # by who counted it
_MEMORY_KINDS = {"allocated": "allocated", "device": "on the GPU, by NVML", "resident": "memory of its processes"}


def knobs_table(adopted: Adopted) -> Table:
    """Lists each knob, its value in the command, and whether it does what its name says."""
    verdicts = {verdict.name: verdict for verdict in adopted.verdicts}
    rows = []
    for knob in adopted.recipe.knobs:
        verdict = verdicts.get(knob.name)
        value = "" if knob.value is None else f"{knob.value:g}"
        judged = verdict.verdict if verdict else f"{knob.in_bursts} in bursts" if knob.in_bursts else "not tried"
        rows.append((knob.name.replace("_", " "), knob.key, value, judged, verdict.words if verdict else ""))
    columns = ("knob", "set by", "its value", "test", "what was seen")
    return Table(columns=columns, rows=tuple(rows), numbers=("its value",))


def bursts_table(adopted: Adopted, held_out: HeldOut | None = None) -> Table:
    """Lists every burst with its step time, and the time predicted from other batches (`held_out`), if any."""
    rows: list[tuple[str, ...]] = []
    for burst in adopted.bursts:
        batch = batch_of(burst) if burst.shape else None
        memory = burst.allocated_peak_bytes or burst.device_peak_bytes or burst.resident_peak_bytes
        point = held_out.of(batch) if held_out is not None and batch is not None and burst.step_seconds else None
        how = "a whole run" if burst.source == WHOLE_RUN else burst.outcome.replace("_", " ")
        rows.append(
            ("the command as it is" if not rows else in_words(burst.values, adopted.recipe),
             "" if batch is None else f"{batch.calls:g} x {batch.rows:g} x {batch.length:g}",
             units.format_seconds(statistics.median(burst.step_seconds)) if burst.step_seconds else "",
             STEP_TIME.of(point.predicted) if point is not None else "",
             units.format_bytes(memory) if memory else "",
             units.format_seconds(burst.seconds) if burst.seconds else "",
             f"{how}: {burst.reason}" if burst.reason else how)
        )  # fmt: skip
    columns = ("burst", "calls x rows x length", "step", PREDICTED, "memory", "took", "outcome")
    whole = Table(columns=columns, rows=tuple(rows), numbers=("step", PREDICTED, "memory", "took"))
    return whole if held_out is not None else whole.without(PREDICTED)


def adoption_lines(adopted: Adopted) -> Iterator[str]:
    """Yields lines that describe an adopted command."""
    chosen = choose_fit(adopted)
    held_out, base = chosen.held_out, adopted.bursts[0]
    size = f", {units.format_count(base.elements)} trained parameters" if base.elements else ""
    torch = f", PyTorch {adopted.torch}" if adopted.torch else ""
    many = f", {adopted.gpus} processes" if adopted.gpus > 1 else ""
    yield (
        f"{adopted.name}: {adopted.device_key}{torch}{size}{many}; {len(adopted.bursts)} bursts in "
        f"{units.format_seconds(adopted.seconds)}; it starts in {units.format_seconds(base.startup_seconds)}"
    )
    if adopted.by_log:
        yield f"basis: log; the probe saw none of its steps, so they are timed {base.clock}"
    if (model := base.model) is not None:
        gated = "gated feed-forward" if model.family == "llama" else "feed-forward"
        yield (
            f"a decoder of {model.depth} blocks, {model.width} wide, {gated} of {model.ffn_width}, vocabulary of "
            f"{model.vocab_size:,}, by its {'configuration' if adopted.by_log else 'weights'}; {_FITS[chosen.by_law]}"
        )
    if held_out is None:
        yield untested(adopted)
    else:
        yield (
            f"each batch predicted from the others: median error {units.format_percent(held_out.median)}, "
            f"{sum(held_out.inside)} of {len(held_out.inside)} inside their intervals"
        )
    yield from (f"note: {note}" for note in adopted.recipe.notes)


def untested(adopted: Adopted) -> str:
    """Says why no predicted step time could be compared with a measured one, and what would change that."""
    names = ("micro_batch", "grad_accum", "seq_len")
    unstated = [knob.key for knob in adopted.recipe.knobs if knob.name in names and knob.value is None]
    varied = [burst for burst in adopted.bursts if any(setting.name in names for setting in burst.values)]
    advice = "measure the command again with more time: --budget-seconds"
    if unstated:
        advice = f"write {' and '.join(unstated)} with a value into the command, so that bursts can change it"
    elif all(adopted.working(name) is None for name in names):
        advice = "no option that changes its batch is known to work; name one: --knob micro_batch=--OPTION"
    elif any(burst.outcome == "completed" and not burst.steady for burst in varied):
        advice = "some bursts ended before their steps were steady; adopt a command that does more steps"
    return (
        "the predicted step time could not be checked, because fewer than four batch sizes were measured; its interval "
        f"shows only how much the measured steps vary. To improve it, {advice}"
    )


def options_table(options: list[Option], chosen: AdoptedPlan) -> Table:
    """Lists the ways to split the global batch."""
    rows = [
        (f"{o.batch.rows:g}", f"{o.batch.calls:g}", STEP_TIME.of(o.step_seconds),
         PROCESS_MEMORY.of(o.memory_bytes) if o.memory_bytes else "", o.step_seconds.basis.value)
        for o in options
    ]  # fmt: skip
    shape = chosen.shape
    mine = tuple(
        i for i, o in enumerate(options) if shape is None or (o.batch.rows, o.batch.calls) == (shape.rows, shape.calls)
    )
    columns = ("micro-batch", "micro-batches a step", "step", "memory", "basis")
    return Table(columns=columns, rows=tuple(rows), numbers=columns[:2], chosen=mine)


def plan_lines(plan: AdoptedPlan, recipe: Recipe) -> Iterator[str]:
    """Describes the plan in words."""
    clock, step = plan.bill.wall_clock, plan.step_seconds
    yield f"plan {plan.id}: {units.format_count(plan.steps)} steps, {TIME.of(clock.total_seconds)} in all"
    by_log = ", by its log" if plan.basis == LOG else ""
    end = f", end {TIME.of(clock.checkpoints_seconds)}" if clock.checkpoints_seconds is not None else ""
    yield f"start-up {TIME.of(clock.startup_seconds)}, a step {TIME.of(step)} ({step.basis.value}{by_log}){end}"
    if plan.bill.cost_usd is not None:
        yield f"cost {COST.of(plan.bill.cost_usd)}"
    limits = Limits(deadline_seconds=plan.max_seconds, budget_usd=plan.max_usd)
    yield from (f"odds: {risk}" for risk in risks(limits, plan.bill))
    if plan.memory_bytes is not None:
        yield f"peak memory {PROCESS_MEMORY.of(plan.memory_bytes)} ({_MEMORY_KINDS[plan.memory_kind]})"
    if plan.tokens_per_step:
        tokens = units.format_tokens(plan.tokens_per_step * plan.steps)
        rate = units.format_rate(plan.tokens_per_step / step.value)
        yield f"{units.format_tokens(plan.tokens_per_step)} tokens a step, {rate}, {tokens} in all"
    elif plan.rows_per_step is not None:
        rate = units.format_sample_rate(plan.rows_per_step / step.value)
        yield f"{plan.rows_per_step:,.0f} samples a step, {rate}, {plan.rows_per_step * plan.steps:,.0f} in all"
    yield from (f"why: {reason}" for reason in plan.reasons)
    yield from (f"warning: {warning}" for warning in plan.warnings)
    # the settings that the command itself does not have already
    changed = [one for one in plan.values if (knob := recipe.knob(one.name)) is None or knob.value != one.value]
    settings = f"   with {in_words(changed, recipe)}" if changed else ""
    yield f"it runs: {shlex.join(plan.command)}{settings}"


def document(adopted: Adopted, plan: AdoptedPlan | None, path: Path | None) -> dict[str, Any]:
    """Returns the adoption and its plan for JSON."""
    chosen = choose_fit(adopted)
    held_out, errors = chosen.held_out, None
    if held_out is not None:
        errors = {"median_error": held_out.median, "coverage": held_out.coverage, "batches": len(held_out.errors),
                  "by_law": chosen.by_law}  # fmt: skip
    planned = to_dict(plan) if plan is not None else None
    return {"adopted": to_dict(adopted), "held_out": errors, "plan": planned, "plan_file": path}
