"""A plan in words: its sentence, what its speed rests on, its bill, the loss on the way. No arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.hardware.offers import OWN_MACHINE
from advisor.planning.spending import Part, largest_first, parts
from advisor.planning.stages import stages
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
)
from advisor.report.table import Table
from advisor.units import format_bytes, format_count, format_number, format_percent, format_seconds, format_tokens

# What each part of the wall clock and of the dollars is called, by its key in `plan.spending`.
PARTS = {
    "provisioning": "ordering the machine",
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
GATE = "goes on if its evaluation is at most"
WHAT, BASIS = "what", "basis"  # titles around the estimates of a bill
DEPENDS, RESTS_ON, LEFT_OUT = (
    "What the choice depends on",
    "It rests on",
    "Not searched",
)  # headings over a plan's texts


def sentence(plan: Plan) -> str:
    """The recommendation in one sentence: what to train, on what, how long and for how much."""
    cost = COST.of(plan.bill.cost_usd) if plan.bill.cost_usd else "unknown cost"
    tokens, epochs = f"{format_tokens(plan.chosen.tokens)} tokens", plan.chosen.standing.epochs
    if epochs is not None and epochs > 1:
        tokens += f", {format_number(epochs)} times over your {format_tokens(plan.chosen.tokens / epochs)}"
    time = TIME.of(plan.chosen.total_seconds)
    return f"{what(plan)}, {how(plan)}, by {words_of(plan.workload.software)}, for {tokens}: {time}, {cost}."


def what(plan: Plan) -> str:
    """What to train, and on what."""
    workload = plan.workload
    device = "this CPU" if workload.gpu == "cpu" else f"{workload.gpus} x {workload.gpu}"
    if plan.offer.machines > 1:
        device += f" ({plan.offer.machines} machines)"
    if plan.offer.provider is not None:
        device += f" from {plan.offer.provider}{' (spot)' if plan.offer.spot else ''}"
    elif plan.offer.source == OWN_MACHINE and workload.gpu != "cpu":
        device += " of your own"
    return f"Train depth {plan.chosen.depth} ({format_count(plan.chosen.parameters)} parameters) on {device}"


def how(plan: Plan) -> str:
    """How a step of it is made up, and what is saved memory by."""
    run = plan.run
    accumulation = f", {run.grad_accum} gradient-accumulation steps" if run.grad_accum > 1 else ""
    saved = "".join(f", {words}" for words in savings(plan.workload))
    precision = ", fp16" if plan.workload.precision == "fp16" else ""  # which not every model survives
    return f"micro-batches of {run.micro_batch} x {run.model.seq_len} tokens{accumulation}{saved}{precision}"


def speed_rests_on(plan: Plan) -> str | None:
    """One or two sentences to stand beside the recommendation; None for a plan that does not say."""
    grounds = plan.grounds
    if grounds is None:
        return None
    if grounds.calibration is not None:
        return f"The speed was measured here ({grounds.calibration})."
    others = grounds.other_runs
    text = (
        f"The speed is an estimate from data sheets and published runs: {grounds.card_runs or 'none'} of this GPU, "
        f"{grounds.generation_runs - grounds.card_runs or 'none'} of others of its generation ({grounds.generation}), "
        f"{others} of other generations."
    )
    count = len(plan.search.devices) if plan.search else 1
    if count > 1:
        text += (
            f" {count} kinds of GPU were compared by their expected times, which allow for lucky estimates; "
            "a calibration narrows them."
        )
    return text


def briefly(grounds: Grounds | None) -> str:
    """A cell of a table: "measured here", or how many published runs, as in "1 run on this GPU, 6 on other GPUs …"."""
    if grounds is None:
        return "unknown"
    if grounds.calibration is not None:
        return "measured here"
    runs = "run" if grounds.card_runs == 1 else "runs"
    related = grounds.generation_runs - grounds.card_runs
    return f"{grounds.card_runs} {runs} on this GPU, {related} on other GPUs of its kind ({grounds.generation})"


def batch(run: Run) -> str:
    """Micro-batch, accumulation and checkpointing, in words."""
    work = run.workload
    accumulated = f", {work.grad_accum} accumulation steps" if work.grad_accum > 1 else ""
    return f"{work.micro_batch} sequences{accumulated}{''.join(f', {words}' for words in savings(work))}"


def savings(run: Workload) -> Iterator[str]:
    """How a configuration saves memory, in words."""
    if run.activation_checkpointing != "none":
        part = "feed-forward " if run.activation_checkpointing == "selective" else ""
        yield f"{part}activations recomputed"
    if run.sharding == "full":
        yield "model sharded over the GPUs"


def bill(plan: Plan) -> Table:
    """What the run takes, part by part, and what comes of it."""
    run, bill, standing = plan.chosen, plan.bill, plan.chosen.standing
    rows = [(_part(part, plan), TIME.of(part.seconds), basis(part.seconds)) for part in parts(plan) if part.seconds]
    rows.append((IN_ALL, TIME.of(run.total_seconds), basis(run.total_seconds)))
    if run.offer.usd_per_hour:
        rows.append(("price an hour", COST.words(run.offer.usd_per_hour), run.offer.source))
    if bill.cost_usd is not None and not bill.cost_usd.high:  # nothing was measured of what is not paid
        rows.append((COST.name, COST.of(bill.cost_usd), "no rent; energy is not counted (--kwh-price)"))
    else:
        rows.append(COST.row(bill.cost_usd))
        rows.append((f"including {PARTS['storage']}", COST.of(bill.storage_usd), basis(bill.storage_usd)))
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
        each, kept = format_bytes(bill.checkpoint_bytes), format_bytes(bill.disk_bytes)
        rows.append(("disk for checkpoints", f"{kept} ({each} each)", "exact"))
    return Table(columns=(WHAT, INTERVAL, BASIS), rows=tuple(rows))


def summary(plan: Plan) -> Table:
    """The quantities by which plans are told apart; what is not known is left out."""
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
    """Time and dollars by part, the longest first."""
    rows = [
        (_part(part, plan), TIME.of(part.seconds) if part.seconds else "-", COST.words(part.usd))
        for part in largest_first(plan)
    ]
    rows.append((IN_ALL, TIME.of(plan.chosen.total_seconds), COST.of(plan.bill.cost_usd)))
    return Table(columns=("part", TIME.name, COST.name), rows=tuple(rows), numbers=(TIME.name, COST.name))


def course(plan: Plan) -> Table | None:
    """The run in stages: time, dollars and loss to expect on the way; None where no loss is predicted or asked for."""
    way = stages(plan)
    if all(stage.loss is None and stage.at_most is None for stage in way):
        return None
    gated = any(stage.at_most is not None for stage in way)
    columns = ["after", "step", "tokens", TIME.name, COST.name, "training loss (80 % interval)"]
    numbers = tuple(columns[:-1])
    columns += [GATE] if gated else []
    rows = [
        (
            format_percent(stage.share),
            format_count(stage.step),
            format_tokens(stage.tokens),
            TIME.words(stage.seconds),
            "unknown" if stage.usd is None else COST.words(stage.usd),
            LOSS.of(stage.loss),
            *(("-" if stage.at_most is None else LOSS.words(stage.at_most),) if gated else ()),
        )
        for stage in way
    ]
    return Table(columns=tuple(columns), rows=tuple(rows), title="To expect on the way", numbers=numbers)


def _part(part: Part, plan: Plan) -> str:
    """A part's name, with how often it happens."""
    seconds = plan.run.checkpoint.every_seconds
    often = {
        "steps": f" ({format_count(plan.run.steps)})",
        "checkpoints": f" (every {format_seconds(seconds)})" if seconds else "",
    }
    return f"{PARTS[part.key]}{often.get(part.key, '')}"


def _memory(run: Run) -> list[tuple[Quantity, Estimate | None]]:
    """What a device must hold, and on a GPU how much of it PyTorch reports."""
    prediction = run.prediction
    if run.workload.gpu == "cpu":
        return [(PROCESS_MEMORY, prediction.device_bytes or prediction.peak_reserved_bytes)]
    return [
        (DEVICE_MEMORY, prediction.device_bytes),
        (RESERVED, prediction.peak_reserved_bytes),
        (ALLOCATED, prediction.peak_allocated_bytes),
    ]
