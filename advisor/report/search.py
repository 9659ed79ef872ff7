"""The runs of a search in words: options, front, near misses, depths and micro-batches, other numbers of GPUs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from advisor.plan.explain import verdict
from advisor.plan.explore import chances
from advisor.plan.sensitivity import machine
from advisor.records import Candidate, Choice, Estimate, Goal, Plan, ScalingPoint, SearchReport
from advisor.report.plan import batch, briefly
from advisor.report.quantities import COST, DEVICE_MEMORY, LOSS, STEP_TIME, THROUGHPUT, TIME, memory_of
from advisor.report.table import STAR, Table
from advisor.units import (
    Formatter,
    format_bytes,
    format_centre,
    format_count,
    format_number,
    format_percent,
    format_tokens,
)

# One exponent for parameters and tokens: at the best ratio the score goes as compute to the power -alpha / 2, so that
# 1 % of it is 2 / 0.353 = 5.7 % of compute.
SCORE = (
    "score: what runs are ranked by, lower is better; 1 % of it is worth 6 % of compute. A loss law used beyond "
    "the sizes that it was fitted on: not a loss to expect"
)
MARKS = {  # behind a micro-batch: how it saves memory
    STAR: "activations recomputed in the backward pass: little memory, about a third more time",
    "†": "feed-forward activations recomputed in the backward pass: less memory, about 5 % more time",
    "‡": "model sharded over the GPUs",
}
REMARK, RULED_OUT, VERDICT = "remark", "ruled out by", "verdict"
OTHER_BATCH = "tokens per step"  # only where the global batch cannot be split over some number of GPUs
OF_IDEAL = "of ideal"  # tokens/s per GPU, relative to one GPU alone
SCALING_ALONE = (
    "There is no other number of GPUs to show: this run cannot be split over more, nobody rents more of these GPUs "
    "together, or the links between them are unknown."
)


CHANCE = "chance to keep"


def kept(goal: Goal, choice: Choice) -> str:
    """How likely a run keeps the budget and the deadline, as far as there are such; never said to be certain."""
    likely = chances(goal, choice)
    said = (("budget", likely.budget), ("deadline", likely.deadline))
    return ", ".join(f"{name} {min(max(100 * p, 1), 99):.0f} %" for name, p in said if p is not None)


def apart(choices: Sequence[Choice], goal: Goal) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What all of the named options have in common, and what each has of its own."""
    described = [option(choice, goal) for choice in choices]
    common = {
        name: words
        for name, words in (described[0] if len(described) > 1 else {}).items()
        if words and all(other.get(name) == words for other in described)
    }
    return common, [{name: words for name, words in one.items() if name not in common} for one in described]


def option(choice: Choice, goal: Goal) -> dict[str, str]:
    """Everything said of one of the named options, by what it is called."""
    return {
        "on": machine(choice, ", "),
        "speed from": briefly(choice.grounds),
        "model": model(choice),
        "batch": batch(choice),
        memory_of(choice.gpu).column: DEVICE_MEMORY.of(choice.device_bytes),
        "headroom": format_bytes(choice.headroom_bytes),
        STEP_TIME.column: STEP_TIME.of(choice.step_seconds),
        TIME.column: TIME.of(choice.total_seconds),
        "tokens": format_tokens(choice.tokens),
        "epochs": format_number(choice.epochs),
        COST.column: COST.of(choice.cost_usd),
        LOSS.column: LOSS.of(choice.loss),
        "score": format_number(choice.score),
        CHANCE: kept(goal, choice),
        "why": choice.why,
    }


def options(choices: Sequence[Choice], goal: Goal) -> Table:
    """The named options side by side; epochs only where all know how much data there is."""
    described = [option(choice, goal) for choice in choices]
    left_out = set() if all(choice.epochs is not None for choice in choices) else {"epochs"}
    if not any(one[CHANCE] for one in described):
        left_out.add(CHANCE)
    names = [name for name in described[0] if name not in left_out]
    rows = tuple((name, *(words[name] for words in described)) for name in names)
    return Table(columns=("", *(choice.name for choice in choices)), rows=rows, notes=(SCORE,))


def model(run: Choice | Candidate) -> str:
    """Depth and size, in words."""
    return f"depth {run.depth}, {format_count(run.parameters)} parameters"


def weighed(search: SearchReport) -> str:
    """How many runs were looked at."""
    return f"{format_count(search.candidates)} runs on {len(search.devices)} kinds of GPUs were weighed."


def front(search: SearchReport) -> Table:
    """The runs that no other beats in dollars, hours and quality at once."""
    runs = "1 run is" if search.front_size == 1 else f"{search.front_size} runs are"
    return _choices(f"Best for each price and each time ({runs} beaten by no other)", search.front, REMARK)


def near_misses(search: SearchReport) -> Table:
    """The runs that would be better, and what stands against each."""
    return _choices("Would be better, but breaks one limit", search.near_misses, RULED_OUT)


def machines(search: SearchReport) -> Table:
    """The best run on each machine that was asked for by name."""
    rows = search.machines
    table = _choices("The machines asked for, each at its best", rows, REMARK)
    memory = tuple(DEVICE_MEMORY.expected(c.device_bytes) for c in rows)
    place = table.columns.index(REMARK)
    return replace(
        table,
        columns=(*table.columns[:place], DEVICE_MEMORY.column, *table.columns[place:]),
        rows=tuple((*r[:place], held, *r[place:]) for r, held in zip(table.rows, memory, strict=True)),
        numbers=(*table.numbers, DEVICE_MEMORY.column),
    ).without("score")


def _choices(title: str, choices: Sequence[Choice], last: str) -> Table:
    names = ("on", "depth", "parameters", "tokens", TIME.column, COST.column, LOSS.column, "score", last, "batch")
    rows = tuple(
        (
            machine(c, ", "),
            str(c.depth),
            format_count(c.parameters),
            format_tokens(c.tokens),
            TIME.expected(c.total_seconds),
            COST.expected(c.cost_usd),
            LOSS.expected(c.loss),
            format_number(c.score),
            c.why,
            batch(c),
        )
        for c in choices
    )
    chosen = tuple(number for number, c in enumerate(choices) if c.why == "the plan")
    return Table(columns=names, rows=rows, title=title, numbers=names[1:8], chosen=chosen, notes=(SCORE,))


def candidates(plan: Plan) -> list[Table]:
    """Every depth that was considered, at its best micro-batch, and where there are any the chosen one's others."""
    chosen = plan.chosen
    depths = [chosen, *(c for c in plan.considered if c.depth != chosen.depth)]
    where = "" if plan.workload.gpu == "cpu" else f" on {plan.workload.gpus} x {plan.workload.gpu}"
    by_depth = _candidates(f"Depths considered{where}", sorted(depths, key=lambda c: c.depth), plan)
    sizes = sorted((c for c in plan.considered if c.depth == chosen.depth), key=lambda c: c.micro_batch)
    title = f"Micro-batches considered at depth {chosen.depth}"
    by_size = [_candidates(title, sizes, plan).without("depth", "parameters")] if len(sizes) > 1 else []
    return [by_depth, *by_size]


def _candidates(title: str, considered: Sequence[Candidate], plan: Plan) -> Table:
    memory = memory_of(plan.workload.gpu).column
    names = (
        *("depth", "parameters", "micro-batch", "steps", "tokens", THROUGHPUT.column, memory),
        *(TIME.column, COST.column, VERDICT),
    )
    rows = tuple(
        (
            str(c.depth),
            format_count(c.parameters),
            f"{c.micro_batch} x {c.grad_accum}{''.join(_marks(c))}",
            format_count(c.steps),
            format_tokens(c.tokens),
            format_centre(c.tokens_per_second, format_tokens),
            DEVICE_MEMORY.expected(c.device_bytes),
            TIME.expected(c.total_seconds),
            COST.expected(c.cost_usd),
            verdict(c, plan.chosen),
        )
        for c in considered
    )
    chosen = tuple(number for number, c in enumerate(considered) if c is plan.chosen)
    used = {mark for c in considered for mark in _marks(c)}
    notes = (*(f"{mark} {words}" for mark, words in MARKS.items() if mark in used), SCORE)
    return Table(columns=names, rows=rows, title=title, numbers=names[:-1], chosen=chosen, notes=notes)


def scaling(plan: Plan) -> Table:
    """The chosen run on more and fewer GPUs, its own row as it stands elsewhere; who lets them where that differs."""
    points = plan.search.scaling if plan.search else ()
    promised = plan.prediction
    names = ("GPUs", THROUGHPUT.column, OF_IDEAL, TIME.column, COST.column, OTHER_BATCH, "from")
    rows = tuple(
        (
            str(p.gpus),
            _as_promised(p.tokens_per_second, promised.tokens_per_second, format_tokens),
            format_percent(p.efficiency),
            _as_promised(p.total_seconds, promised.wall_clock.total_seconds, TIME.words),
            _as_promised(p.cost_usd, promised.cost_usd, COST.words),
            "as planned" if p.other_batch_tokens is None else format_count(p.other_batch_tokens),
            _rented_from(p),
        )
        for p in points
    )
    title = "The same run on more and fewer GPUs, each at the micro-batch that suits it"
    table = Table(columns=names, rows=rows, title=title, numbers=names[:-1])
    if all(p.other_batch_tokens is None for p in points):
        table = table.without(OTHER_BATCH)
    several = len({p.provider for p in points}) > 1 or any(_idle(p) for p in points)
    return table if several else table.without("from")


def _as_promised(number: float | None, promised: Estimate | None, words: Formatter) -> str:
    """A number in words: the plan's own where it is the same."""
    same = number is not None and promised is not None and math.isclose(number, promised.value, rel_tol=1e-6)
    return format_centre(promised, words) if same else words(number)


def pays(search: SearchReport) -> str:
    """Up to how many GPUs the run gains more than it pays."""
    if search.pays_up_to_gpus is None:
        most = search.scaling[-1].gpus
        return f"More GPUs pay as far as this goes ({most}): they shorten the run by more than they raise the bill."
    return f"Beyond {search.pays_up_to_gpus}, more GPUs raise the bill by more than they shorten the run."


def notes(tables: Sequence[Table], said: Collection[str] = ()) -> list[str]:
    """What has to be known to read these tables: what the marks mean, then the rest as far as it was not `said`."""
    needed = dict.fromkeys(note for table in tables for note in table.notes)
    marks = [f"{mark} {words}" for mark, words in MARKS.items() if f"{mark} {words}" in needed]
    return marks + [note for note in needed if note not in marks and note not in said]


def _idle(point: ScalingPoint) -> bool:
    return (point.rented or 0) > point.gpus


def _rented_from(point: ScalingPoint) -> str:
    return f"{point.provider or 'as given'}{f', {point.rented} rented' if _idle(point) else ''}"


def _marks(run: Candidate) -> list[str]:
    """How a configuration saves memory, as `MARKS` explains it."""
    recomputed = {"full": [STAR], "selective": ["†"]}.get(run.activation_checkpointing, [])
    return [*recomputed, *(["‡"] if run.sharding != "none" else [])]
