"""Tables of a plan: its bill, what was considered, options, front, near misses and scaling. Records to text only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from advisor import render
from advisor.plan.explain import RECOMPUTED, SCORE, verdict
from advisor.plan.provenance import briefly
from advisor.predict.trajectory import Milestone
from advisor.records import Candidate, Choice, Estimate, Plan, ScalingPoint, SearchReport
from advisor.units import (
    Formatter,
    format_bytes,
    format_count,
    format_energy,
    format_estimate,
    format_mass,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
    format_usd,
    format_watts,
)


def bill_table(plan: Plan) -> Any:
    """What the run takes, part by part."""
    prediction, clock = plan.prediction, plan.prediction.wall_clock
    before = [("provisioning", clock.provisioning_seconds), ("downloads", clock.download_seconds)]
    rows: list[tuple[str, Estimate | None, Formatter]] = [
        *((name, value, format_seconds) for name, value in before if value is not None),
        ("start-up", clock.startup_seconds, format_seconds),
        ("compilation", clock.compile_seconds, format_seconds),
        (f"{format_count(plan.run.steps)} steps", clock.steps_seconds, format_seconds),
        ("evaluations", clock.evals_seconds, format_seconds),
        (f"checkpoints{_every(plan)}", clock.checkpoints_seconds, format_seconds),
    ]
    if clock.interruptions_seconds is not None:
        rows.append(("interruptions", clock.interruptions_seconds, format_seconds))
    rows += [
        ("in all", clock.total_seconds, format_seconds),
        ("cost", prediction.cost_usd, format_usd),
        ("of it for disk", prediction.storage_usd, format_usd),
        ("power of the devices", prediction.power_watts, format_watts),
        ("energy of the devices", prediction.energy_kwh, format_energy),
        ("one step", prediction.step_seconds, format_seconds),
        ("throughput", prediction.tokens_per_second, format_rate),
        ("MFU", prediction.mfu, format_percent),
        *((name, value, format_bytes) for name, value in _memory(plan)),
        ("validation loss", prediction.loss, format_number),
    ]
    if prediction.carbon_kg is not None:
        grid = f"CO2e, whole site, {prediction.grid_grams_per_kwh:g} g/kWh"
        rows.insert(
            [name for name, *_ in rows].index("energy of the devices") + 1, (grid, prediction.carbon_kg, format_mass)
        )
    if prediction.bits_per_byte is not None:
        rows.append(("bits per byte", prediction.bits_per_byte, format_number))
    cells = [
        (name, format_estimate(value, formatter), value.basis if value else "-") for name, value, formatter in rows
    ]
    if plan.usd_per_hour:
        asked = [name for name, *_ in cells].index("cost")
        cells.insert(asked, ("price an hour", format_usd(plan.usd_per_hour), plan.price_source))
    if prediction.disk_bytes:
        each, kept = format_bytes(prediction.checkpoint_bytes), format_bytes(prediction.disk_bytes)
        cells.append(("disk for checkpoints", f"{kept} ({each} each)", "exact"))
    return render.table(("what", "predicted (80 % interval)", "basis"), cells)


def _memory(plan: Plan) -> list[tuple[str, Estimate | None]]:
    """ "Memory" is all that a device must hold, context included; the parts go by the names that PyTorch gives them."""
    prediction = plan.prediction
    if plan.workload.gpu == "cpu":
        return [("memory of the process", plan.chosen.device_bytes or prediction.peak_reserved_bytes)]
    return [
        ("memory per GPU, all of it", plan.chosen.device_bytes),
        ("of it reserved by PyTorch", prediction.peak_reserved_bytes),
        ("of that allocated to tensors", prediction.peak_allocated_bytes),
    ]


def _every(plan: Plan) -> str:
    seconds = plan.run.checkpoint.every_seconds
    return f" every {format_seconds(seconds)}" if seconds else ""


def candidate_tables(plan: Plan) -> Iterator[Any]:
    """One table of depths, one of the chosen depth's other micro-batches."""
    depth = plan.chosen.depth
    depths = [plan.chosen, *(c for c in plan.considered if c.depth != depth)]
    where = "" if plan.workload.gpu == "cpu" else f" on {plan.workload.gpus} x {plan.workload.gpu}"
    yield _candidate_table(f"Depths considered{where}", sorted(depths, key=lambda c: c.depth), plan.chosen)
    sizes = [c for c in plan.considered if c.depth == depth]
    if len(sizes) > 1:
        yield ""
        by_size = sorted(sizes, key=lambda c: c.micro_batch)
        yield _candidate_table(f"Micro-batches considered at depth {depth}", by_size, plan.chosen, first=2)
    if any(_recomputes(c) for c in plan.considered):
        yield RECOMPUTED


def search_tables(search: SearchReport, *, several: bool) -> Iterator[Any]:
    """Options, and where there was a choice of devices the front and the near misses; sensitivity; scaling."""
    yield from ("", option_table(search.options))
    if several:
        yield SCORE
        runs = "1 run is" if search.front_size == 1 else f"{search.front_size} runs are"
        title = f"Best for each price and each time ({runs} beaten by no other)"
        yield from ("", choice_table(title, search.front, "remark"))
    if search.near_misses:
        yield from ("", choice_table("Better but for one thing", search.near_misses, "ruled out by"))
    if any(_recomputes(c) for c in (*search.near_misses, *(search.front if several else ()))):
        yield RECOMPUTED
    if search.sensitivity:
        yield from ("", "What the choice depends on", render.points(search.sensitivity))
    if len(search.scaling) > 1:
        yield from ("", scaling_table(search.scaling), _pays(search))


def option_table(options: Sequence[Choice]) -> Any:
    """The named options side by side."""
    seen = [c.epochs for c in options]
    epochs = [("epochs", [format_number(e) for e in seen])] if None not in seen else []
    memory = "memory" if options[0].gpu == "cpu" else "memory per GPU"
    rows = [
        ("on", [machine(c) for c in options]),
        ("speed from", [briefly(c.grounds) for c in options]),
        ("model", [f"depth {c.depth}, {format_count(c.parameters)} parameters" for c in options]),
        ("batch", [batch(c) for c in options]),
        (memory, [format_estimate(c.device_bytes, format_bytes) for c in options]),
        ("headroom", ["unknown" if c.headroom_bytes is None else format_bytes(c.headroom_bytes) for c in options]),
        ("step time", [format_estimate(c.step_seconds, format_seconds) for c in options]),
        ("total time", [format_estimate(c.total_seconds, format_seconds) for c in options]),
        ("tokens", [format_tokens(c.tokens) for c in options]),
        *epochs,
        ("cost", [format_estimate(c.cost_usd, format_usd) for c in options]),
        ("loss", [format_estimate(c.loss, format_number) for c in options]),
        ("score", [format_number(c.score) for c in options]),
        ("why", [c.why for c in options]),
    ]
    return render.table(("", *(c.name for c in options)), [(name, *cells) for name, cells in rows])


def choice_table(title: str, choices: Sequence[Choice], last: str) -> Any:
    """Choices one a line."""
    columns = ("on", "depth", "parameters", "tokens", "time", "cost", "loss", "score", last)
    marked = any(_recomputes(c) for c in choices)
    rows = [
        (
            machine(c),
            _starred(str(c.depth), c, marked),
            format_count(c.parameters),
            format_tokens(c.tokens),
            format_seconds(c.total_seconds.value),
            format_usd(c.cost_usd.value) if c.cost_usd else None,
            format_number(c.loss.value) if c.loss else None,
            format_number(c.score),
            c.why,
        )
        for c in choices
    ]
    styles = {number: "bold" for number, c in enumerate(choices) if c.why == "the plan"}
    return render.table(columns, rows, title=title, right=columns[1:-1], styles=styles)


def scaling_table(points: Sequence[ScalingPoint]) -> Any:
    """The chosen run on more and fewer GPUs."""
    columns = ("GPUs", "throughput", "per GPU", "time", "cost")
    several = len({p.provider for p in points}) > 1 or any((p.rented or 0) > p.gpus for p in points)
    rows = [
        (
            str(p.gpus),
            format_rate(p.tokens_per_second),
            format_percent(p.efficiency),
            format_seconds(p.total_seconds),
            format_usd(p.cost_usd) if p.cost_usd is not None else None,
            *((_rented_from(p),) if several else ()),
        )
        for p in points
    ]
    title = "The same run on more and fewer GPUs, each at its fastest micro-batch"
    return render.table((*columns, "from") if several else columns, rows, title=title, right=columns)


def _rented_from(point: ScalingPoint) -> str:
    idle = f", {point.rented} rented" if (point.rented or 0) > point.gpus else ""
    return f"{point.provider or 'as given'}{idle}"


def machine(choice: Choice) -> str:
    """What is rented, in words."""
    if choice.gpu == "cpu":
        return "this CPU"
    provider = f", {choice.provider}" if choice.provider else ""
    return f"{choice.gpus} x {choice.gpu}{provider}{' spot' if choice.spot else ''}"


def batch(choice: Choice) -> str:
    """Micro-batch, accumulation and checkpointing, in words."""
    accumulated = f" x {choice.grad_accum}" if choice.grad_accum > 1 else ""
    recomputed = ", recomputing activations" if choice.activation_checkpointing == "full" else ""
    return f"{choice.micro_batch} sequences{accumulated}{recomputed}"


def course_table(points: Sequence[Milestone]) -> Any:
    """What the training loss should be on the way."""
    columns = ("after", "step", "tokens", "training loss (80 % interval)")
    rows = [
        (format_percent(p.share), format_count(p.step), format_tokens(p.tokens), format_estimate(p.loss, format_number))
        for p in points
    ]
    return render.table(columns, rows, title="Loss to expect on the way", right=columns[:-1])


def _pays(search: SearchReport) -> str:
    if search.pays_up_to_gpus is None:
        most = search.scaling[-1].gpus
        return f"More GPUs pay as far as this goes ({most}): they shorten the run by more than they raise the bill."
    return f"Beyond {search.pays_up_to_gpus}, more GPUs raise the bill by more than they shorten the run."


def _candidate_table(title: str, candidates: list[Candidate], chosen: Candidate, first: int = 0) -> Any:
    """Candidates one a line; columns before the `first` one are left out."""
    names = ("depth", "parameters", "micro-batch", "steps", "tokens", "tok/s", "memory", "time", "cost", "verdict")
    columns = names[first:]
    marked = any(_recomputes(candidate) for candidate in candidates)
    rows = [_candidate_row(candidate, chosen, marked)[first:] for candidate in candidates]
    styles = {number: "bold" for number, candidate in enumerate(candidates) if candidate is chosen}
    right = columns[:-1]
    return render.table(columns, rows, title=title, right=right, styles=styles)


def _candidate_row(candidate: Candidate, chosen: Candidate, marked: bool) -> tuple[str, ...]:
    memory, cost = candidate.device_bytes, candidate.cost_usd
    return (
        str(candidate.depth),
        format_count(candidate.parameters),
        _starred(f"{candidate.micro_batch} x {candidate.grad_accum}", candidate, marked),
        format_count(candidate.steps),
        format_tokens(candidate.tokens),
        format_tokens(candidate.tokens_per_second.value),
        format_bytes(memory.value if memory else None),
        format_seconds(candidate.total_seconds.value),
        format_usd(cost.value if cost else None),
        verdict(candidate, chosen),
    )


def _recomputes(row: Candidate | Choice) -> bool:
    return row.activation_checkpointing == "full"


def _starred(text: str, row: Candidate | Choice, marked: bool) -> str:
    """A star behind it where activations are recomputed; `marked`: some row of the table has one."""
    return f"{text}{'*' if _recomputes(row) else ' ' if marked else ''}"
