"""Shows a plan: sentence, basis, bill, expected losses, and the changes of a what-if. No arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from advisor import units
from advisor.hardware.catalog import generation_in_words
from advisor.hardware.offers import OWN_MACHINE
from advisor.options import Goal
from advisor.planning.stages import Part, largest_first, parts, stages
from advisor.prediction.prior import far_slower
from advisor.prediction.software import words_of
from advisor.records import Estimate, Grounds, Plan, Run, Workload
from advisor.report.quantities import (
    ALLOCATED,
    BITS,
    CARBON,
    COST,
    DEVICE_MEMORY,
    ENERGY,
    INTERVAL,
    LOSS,
    MFU,
    POWER,
    PROCESS_MEMORY,
    RESERVED,
    STEP_TIME,
    THROUGHPUT,
    TIME,
    Quantity,
    basis,
    cost_of,
)
from advisor.report.render import to_plain
from advisor.report.table import Table, in_markdown
from advisor.settings import SHARDINGS
from advisor.units import Formatter

if TYPE_CHECKING:
    from advisor.planning.explore import Effect
    from advisor.workflows.plan import PlanDetails

# Names of the parts of wall clock and cost, by their key in `planning.stages`.
PARTS = {
    "provisioning": "waiting for the machine",
    "download": "software and data",
    "startup": "start-up",
    "compile": "compilation",
    "steps": "steps",
    "evals": "evaluations",
    "checkpoints": "checkpoints",
    "interruptions": "failures and restarts",
    "storage": "checkpoint storage",
}
IN_ALL = "in all"
GATE = "continues if the evaluation is at most"
WHAT, BASIS = "what", "basis"  # titles around the estimates of a bill
DEPENDS, RESTS_ON, LEFT_OUT = (
    "What the choice depends on",
    "Sources and assumptions",
    "Not searched",
)  # headings of a plan's texts
# how much of the activations a level recomputes, in words before and after "activations"
_RECOMPUTED = {"none": ("no", "none"), "selective": ("feed-forward", "feed-forward ones"), "full": ("all", "all")}


def sentence(plan: Plan, *, briefly: bool = False) -> str:
    """Returns the recommendation in one sentence: what to train, on what, how (unless `briefly`), its time and cost."""
    if plan.run is None:
        from advisor.report import elsewhere  # only these plans need its tables

        return elsewhere.sentence(plan)
    cost = cost_of(plan.chosen)
    tokens, epochs = f"{units.format_tokens(plan.chosen.tokens)} tokens", plan.chosen.standing.epochs
    if epochs is not None and epochs > 1:
        tokens += f", {units.format_number(epochs)} passes over your {units.format_tokens(plan.chosen.tokens / epochs)}"
    time = TIME.of(plan.chosen.total_seconds)
    by = "" if briefly else f", {how(plan)}, by {words_of(plan.workload.software)}"
    return f"{what_to_train(plan)}{by}, for {tokens}: {time}, {cost}."


def document(plan: Plan, more: PlanDetails | None = None) -> dict[str, Any]:
    """Returns a plan for JSON, with its answer in words and the details shown with it."""
    way = stages(plan) if plan.run is not None else ()  # the course of the loss is known of the trainer's runs
    words = {"sentence": sentence(plan), "speed_rests_on": speed_rests_on(plan), "on_the_way": to_plain(way)}
    details = {"memory_parts": more.memory, "depths": more.depths, "data_to_fetch": more.data} if more else {}
    return to_plain(plan) | words | to_plain(details)


def what_to_train(plan: Plan) -> str:
    """Says what to train, and on what."""
    size = units.format_count(plan.chosen.parameters)
    return f"Train depth {plan.chosen.depth} ({size} parameters) on {device(plan)}"


def device(plan: Plan) -> str:
    """Names a plan's devices and their provider."""
    workload = plan.workload
    words = "this CPU" if workload.gpu == "cpu" else f"{workload.gpus} x {workload.gpu}"
    if plan.offer.machines > 1:
        words += f" ({plan.offer.machines} machines)"
    if plan.offer.provider is not None:
        words += f" from {plan.offer.seller}{' (spot)' if plan.offer.spot else ''}"
    elif plan.offer.source == OWN_MACHINE and workload.gpu != "cpu":
        words += " of your own"
    return words


def how(plan: Plan) -> str:
    """Describes how a step is split up and how memory is saved."""
    run = plan.config
    accumulation = f", {run.grad_accum} gradient-accumulation steps" if run.grad_accum > 1 else ""
    saved = "".join(f", {words}" for words in savings(plan.workload))
    precision = ", fp16" if plan.workload.precision == "fp16" else ""  # some models diverge in fp16
    return f"micro-batches of {run.micro_batch} x {run.model.seq_len} tokens{accumulation}{saved}{precision}"


def speed_rests_on(plan: Plan) -> str | None:
    """Returns one or two sentences on the source of the speed, or None if the plan does not state it."""
    grounds = plan.grounds
    if grounds is None:
        return None
    if grounds.calibration is not None:
        return f"The speed was measured here ({grounds.calibration})."
    if (own := speed_by_own_runs(grounds)) is not None:
        return f"{own.capitalize()}."
    others = grounds.other_runs
    text = (
        f"The speed is an estimate from data sheets and published runs: {grounds.card_runs or 'none'} of this GPU, "
        f"{grounds.generation_runs - grounds.card_runs or 'none'} of other GPUs of its generation "
        f"({generation_in_words(grounds.generation)}), {others} of other generations; {far_slower()}."
    )
    count = len(plan.search.devices) if plan.search else 1
    if count > 1:
        text += f" {count} GPU types were compared; an uncertain speed never counts in a GPU's favour."
        text += " A calibration narrows the estimates." if plan.run is not None else ""
    return text


def speed_by_own_runs(grounds: Grounds | None) -> str | None:
    """Says how runs that the user timed correct the speed, or returns None if there are none."""
    if grounds is None or grounds.own_slowdown is None:
        return None
    runs, off = f"{grounds.own_runs} measured run{'s' if grounds.own_runs > 1 else ''} of yours", grounds.own_slowdown
    than = f"{units.format_share(abs(off - 1))} {'slower' if off > 1 else 'faster'}"
    return f"speed from {runs}, {than} than published runs of other people"


def briefly(grounds: Grounds | None) -> str:
    """Says in a table cell that the speed was measured here, or how many published runs it is based on."""
    if grounds is None:
        return "unknown"
    if grounds.calibration is not None:
        return "measured here"
    runs = "run" if grounds.card_runs == 1 else "runs"
    others, generation = grounds.generation_runs - grounds.card_runs, generation_in_words(grounds.generation)
    related = f"{others} on the same generation ({generation})"
    return f"{grounds.card_runs} published {runs} on this GPU and {related}"


def batch(run: Run) -> str:
    """Describes micro-batch, accumulation and checkpointing."""
    work = run.workload
    accumulated = f", {work.grad_accum} gradient-accumulation steps" if work.grad_accum > 1 else ""
    return f"{work.micro_batch} sequences{accumulated}{''.join(f', {words}' for words in savings(work))}"


def savings(run: Workload) -> Iterator[str]:
    """Yields the ways in which a configuration saves memory."""
    if run.activation_checkpointing != "none":
        yield f"{run.activation_checkpointing} activation checkpointing"
    if SHARDINGS[run.sharding].weights:
        yield "model sharded over the GPUs"


def bill(plan: Plan) -> Table:
    """Lists the parts of the run's time and cost, and the results."""
    run, bill, standing = plan.chosen, plan.bill, plan.chosen.standing
    rows = [(_part(part, plan), TIME.of(part.seconds), basis(part.seconds)) for part in parts(plan) if part.seconds]
    rows.append((IN_ALL, TIME.of(run.total_seconds), basis(run.total_seconds)))
    if run.offer.usd_per_hour:
        rows.append(("machine per hour", COST.words(run.offer.usd_per_hour), run.offer.source))
    if bill.cost_usd is not None and not bill.cost_usd.high:  # a free machine has no measured cost
        rows.append((COST.name, COST.of(bill.cost_usd), "no rent"))
    else:
        rows.append(COST.row(bill.cost_usd))
        stored = units.format_estimate(bill.storage_usd, COST.words)
        rows.append((f"including {PARTS['storage']}", stored, basis(bill.storage_usd)))
    rows += [POWER.row(bill.power_watts), ENERGY.row(bill.energy_kwh)]
    if bill.carbon_kg is not None:
        grid = f"{CARBON.name}, {bill.grid_grams_per_kwh:g} g/kWh"
        rows.append((grid, CARBON.of(bill.carbon_kg), basis(bill.carbon_kg)))
    rows += [STEP_TIME.row(run.step_seconds), THROUGHPUT.row(run.tokens_per_second), MFU.row(run.prediction.mfu)]
    rows += [quantity.row(value) for quantity, value in _memory(run)]
    rows.append(LOSS.row(standing.loss))
    if standing.bits_per_byte is not None:
        rows.append(BITS.row(standing.bits_per_byte))
    if bill.disk_bytes:
        each, total = units.format_bytes(bill.checkpoint_bytes), units.format_bytes(bill.disk_bytes)
        rows.append(("disk for checkpoints", f"{total} ({each} each)", "exact"))
    return Table(columns=(WHAT, INTERVAL, BASIS), rows=tuple(rows))


def summary(plan: Plan) -> Table:
    """Lists the quantities that distinguish plans; unknown ones are left out."""
    run = plan.chosen
    values = (
        (TIME, run.total_seconds),
        (COST, run.cost_usd),
        (LOSS, run.loss),
        (STEP_TIME, run.step_seconds),
        (THROUGHPUT, run.tokens_per_second),
        (MFU, run.prediction.mfu),
        _memory(run)[0],
        (ENERGY, run.bill.energy_kwh),
    )
    rows = tuple(quantity.row(value) for quantity, value in values if value is not None)
    return Table(columns=(WHAT, INTERVAL, BASIS), rows=rows)


def spending(plan: Plan) -> Table:
    """Lists time and dollars by part, the longest first."""
    rows = [
        (_part(part, plan), TIME.of(part.seconds) if part.seconds else "-", COST.words(part.usd))
        for part in largest_first(plan)
    ]
    rows.append((IN_ALL, TIME.of(plan.chosen.total_seconds), COST.of(plan.bill.cost_usd)))
    return Table(columns=("part", TIME.name, COST.name), rows=tuple(rows), numbers=(TIME.name, COST.name))


def course(plan: Plan) -> Table | None:
    """Lists the run in stages with the expected time, cost and loss; None if no loss is predicted or asked for."""
    way = stages(plan)
    if all(stage.loss is None and stage.at_most is None for stage in way):
        return None
    gated = any(stage.at_most is not None for stage in way)
    columns = ["after", "step", "tokens", TIME.name, COST.name, "training loss (80 % interval)"]
    numbers = tuple(columns[:-1])
    columns += [GATE] if gated else []
    rows = [
        (
            units.format_percent(stage.share),
            units.format_count(stage.step),
            units.format_tokens(stage.tokens),
            TIME.words(stage.seconds),
            "unknown" if stage.usd is None else COST.words(stage.usd),
            LOSS.of(stage.loss),
            *(("-" if stage.at_most is None else LOSS.words(stage.at_most),) if gated else ()),
        )
        for stage in way
    ]
    return Table(
        columns=tuple(columns), rows=tuple(rows), title="Progress, time and cost along the run", numbers=numbers
    )


def _part(part: Part, plan: Plan) -> str:
    """Returns a part's name, with how often it happens."""
    seconds = plan.config.checkpoint.every_seconds
    steps, middle = plan.config.steps, plan.chosen.step_seconds.value
    mean = plan.bill.wall_clock.steps_seconds.value / steps
    each = f" of {STEP_TIME.words(mean)} on average, median {STEP_TIME.words(middle)}"
    often = {
        "steps": f" ({units.format_count(steps)}{each if mean > 1.005 * middle else ''})",
        "checkpoints": f" (every {units.format_seconds(seconds)})" if seconds else "",
    }
    return f"{PARTS[part.key]}{often.get(part.key, '')}"


def _memory(run: Run) -> list[tuple[Quantity, Estimate | None]]:
    """Lists the memory that a device needs, and on a GPU how much of it PyTorch reports."""
    prediction = run.prediction
    if run.workload.gpu == "cpu":
        return [(PROCESS_MEMORY, prediction.device_bytes or prediction.peak_reserved_bytes)]
    return [
        (DEVICE_MEMORY, prediction.device_bytes),
        (RESERVED, prediction.peak_reserved_bytes),
        (ALLOCATED, prediction.peak_allocated_bytes),
    ]


def markdown(plan: Plan, goal: Goal) -> str:
    """Returns the plan in Markdown; `goal` is the goal whose command line is shown."""
    return "\n".join(_lines(plan, goal)) + "\n"


def _lines(plan: Plan, goal: Goal) -> Iterator[str]:
    from advisor.planning.command import plan_command

    yield from (f"# {plan.config.name}", "", " ".join(filter(None, (sentence(plan), speed_rests_on(plan)))), "")
    yield in_markdown(summary(plan))
    yield from ("", "## Why", "", *(f"- {reason}" for reason in plan.reasons))
    if plan.warnings:
        yield from ("", "## Mind", "", *(f"- {warning}" for warning in plan.warnings))
    if plan.search and plan.search.sensitivity:
        yield from ("", f"## {DEPENDS}", "", *(f"- {text}" for text in plan.search.sensitivity))
    if way := course(plan):
        yield from ("", f"## {way.title}", "", in_markdown(way))
    yield from ("", "## Again", "", "```", plan_command(goal, "plan.yaml"), "advisor launch plan.yaml", "```", "")
    yield from (f"## {RESTS_ON}", "", *(f"- {text}" for text in plan.inputs), "", f"{plan.id}, {plan.created}")


def unpriced(before: Run, after: Run) -> str:
    """Says why the cost of a changed run is unknown although the cost before is known; else empty."""
    return f"cost unknown: {after.offer.source}" if before.cost_usd and after.cost_usd is None else ""


def effect_in_words(effect: Effect, also: Sequence[str] = ()) -> str:
    """Returns an effect in one line with what changes `also`: "3 h longer (micro-batch 32 → 24)"."""
    if effect.refused:
        return effect.refused
    besides = list(also)
    if effect.activation_checkpointing:
        before, after = effect.activation_checkpointing
        besides.append(f"then recomputes {_RECOMPUTED[after][0]} activations, now {_RECOMPUTED[before][1]}")
    numbers, asides = ", ".join(differences(effect)), ", ".join(besides)
    return f"{numbers} ({asides})" if numbers and asides else numbers or asides or "changes next to nothing"


def differences(effect: Effect) -> list[str]:
    """Returns the numbers of an effect in words: "3 h longer", "$7 more", "loss 0.04 lower"."""
    changed = (
        (effect.seconds, TIME.words, "", "longer", "shorter"),
        (effect.usd, COST.words, "", "more", "less"),
        (effect.device_bytes, DEVICE_MEMORY.words, "", "more memory per GPU", "less memory per GPU"),
        (effect.loss, LOSS.words, f"{LOSS.column} ", "higher", "lower"),
    )
    return [
        f"{name}{words.change(abs(value))[1:]} {more if value > 0 else less}"
        for value, words, name, more, less in changed
        if value
    ]


def signed(value: float | None, words: Formatter) -> str:
    """Returns a difference with its sign; empty if there is none or it is unknown."""
    return words.change(value) if value else ""


def comparison(base: Run, shown: Run, effect: Effect) -> Table:
    """Compares the original and the changed run, number by number, with the differences."""
    rows = (
        (TIME, effect.seconds, [run.total_seconds for run in (base, shown)]),
        (COST, effect.usd, [run.cost_usd for run in (base, shown)]),
        (DEVICE_MEMORY, effect.device_bytes, [run.prediction.device_bytes for run in (base, shown)]),
        (LOSS, effect.loss, [run.loss for run in (base, shown)]),
    )
    why = {COST: unpriced(base, shown)}
    cells = tuple(
        (
            quantity.column,
            quantity.of(before),
            quantity.of(after),
            signed(change, quantity.words) or why.get(quantity, ""),
        )
        for quantity, change, (before, after) in rows
    )
    return Table(columns=("", "as chosen", "what if", "change"), rows=cells)


def changes(base: Run, shown: Run) -> str:
    """Lists the settings that a what-if changed."""
    runs = (base, shown)
    named = [
        ("depth", *(units.format_count(run.depth) for run in runs)),
        ("context", *(units.format_count(run.workload.shape.seq_len) for run in runs)),
        ("tokens", *(units.format_tokens(run.tokens) for run in runs)),
        ("global batch", *(f"{units.format_tokens(run.workload.step_tokens)} tokens" for run in runs)),
        ("micro-batch", *(units.format_count(run.workload.micro_batch) for run in runs)),
        ("activation checkpointing", *(run.workload.activation_checkpointing for run in runs)),
        ("machine", *(run.offer.in_words() for run in runs)),
        ("price per GPU-hour", *(units.format_usd_rate(run.offer.usd_per_gpu_hour) for run in runs)),
    ]
    other = [f"{name} {before} → {after}" for name, before, after in named if before != after]
    return f"Changed: {', '.join(other)}." if other else ""
