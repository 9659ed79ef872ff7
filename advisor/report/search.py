"""Shows the runs of a search: options, front, near misses, depths and micro-batches, other numbers of GPUs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from advisor import units
from advisor.offer import seller_of
from advisor.options import Goal
from advisor.planning.alternatives import by_price
from advisor.planning.explain import verdict
from advisor.planning.explore import chances, difference
from advisor.records import Estimate, Plan, Run, ScalingPoint, SearchReport
from advisor.report.plan import batch, briefly
from advisor.report.quantities import COST, DEVICE_MEMORY, LOSS, STEP_TIME, THROUGHPUT, TIME, Quantity, memory_of
from advisor.report.table import STAR, Table, capital
from advisor.settings import SHARDINGS
from advisor.units import Formatter

# One exponent serves parameters and tokens: at the best ratio the score is proportional to compute to the power -alpha
# / 2, so that 1 % of it is 2 / 0.353 = 5.7 % of compute.
SCORE = (
    "score ranks runs (lower is better): to lower it by 1 % takes about 6 % more compute. It uses the loss law "
    "outside the range of its data, so it is not a loss forecast"
)
MARKS = {  # after a micro-batch: how it saves memory
    STAR: "full activation checkpointing: little memory, about a third more time",
    "†": "selective activation checkpointing (feed-forward): less memory, about 5 % more time",
    "‡": "model sharded over the GPUs",
}
REMARK, RULED_OUT, VERDICT = "remark", "ruled out by", "verdict"
OTHER_BATCH = "tokens per step"  # only if the global batch cannot be split evenly over some number of GPUs
OF_IDEAL = "of ideal"  # tokens/s per GPU, relative to one GPU alone
CHANCE = "chance of staying within"


def chance_within(limit: str, chance: float) -> str:
    """Gives the probability that a run stays within one limit, from 1 to 99 %."""
    return f"{percent(chance)} chance of staying within the {limit}"


def chance_of(quantity: Quantity, limit: float | None, chance: float) -> str:
    """Gives the same in few words, with the limit: "70 % within $25"."""
    return f"{percent(chance)} within {quantity.words(limit)}"


def percent(chance: float) -> str:
    """Gives a probability, from below 1 % to 99 %."""
    return "<1 %" if chance < 0.005 else f"{min(max(100 * chance, 1), 99):.0f} %"


def common_and_own(runs: Sequence[Run], goal: Goal) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Returns what all named options have in common, and what differs in each."""
    described = [option(run, goal) for run in runs]
    common = {
        name: words
        for name, words in (described[0] if len(described) > 1 else {}).items()
        if words and all(other.get(name) == words for other in described)
    }
    return common, [{name: words for name, words in one.items() if name not in common} for one in described]


def option(run: Run, goal: Goal) -> dict[str, str]:
    """Returns everything about one named option, by label."""
    return {
        "on": f"{run.offer.in_words(', ')}{', may be interrupted' if run.offer.spot else ''}",
        "speed from": briefly(run.grounds),
        "model": model(run),
        "batch": batch(run),
        memory_of(run.offer.gpu).column: DEVICE_MEMORY.of(run.prediction.device_bytes),
        "left free": units.format_bytes(run.headroom_bytes),
        STEP_TIME.column: STEP_TIME.of(run.step_seconds),
        TIME.column: TIME.of(run.total_seconds),
        "tokens": units.format_tokens(run.tokens),
        "epochs": units.format_number(run.standing.epochs),
        COST.column: COST.of(run.cost_usd),
        LOSS.column: LOSS.of(run.loss),
        "score": units.format_number(run.score),
        CHANCE: ", ".join(f"{name} {percent(p)}" for name, p in chances(goal, run.bill).items() if p is not None),
        "why": run.standing.why,
    }


def options(runs: Sequence[Run], goal: Goal) -> Table:
    """Compares the named options; epochs are shown only if the size of the data is known for all."""
    described = [option(run, goal) for run in runs]
    left_out = set() if all(run.standing.epochs is not None for run in runs) else {"epochs"}
    if not any(one[CHANCE] for one in described):
        left_out.add(CHANCE)
    names = [name for name in described[0] if name not in left_out]
    rows = tuple((name, *(words[name] for words in described)) for name in names)
    return Table(columns=("", *(run.standing.name for run in runs)), rows=rows, notes=(SCORE,))


def model(run: Run) -> str:
    """Returns the model's size and depth in words."""
    return f"{units.format_count(run.parameters)} parameters, depth {run.depth}"


def weighed(search: SearchReport) -> str:
    """Says how many runs were considered."""
    return f"{units.format_count(search.candidates)} runs on {len(search.devices)} GPU types were compared."


def front(plan: Plan, search: SearchReport) -> Table:
    """Lists the runs that no other run beats in cost, time and quality at once."""
    title = f"Runs on the Pareto front, the best for each price and each time ({search.front_size} in all)"
    return _runs(title, sorted((*search.front, plan.chosen), key=by_price), REMARK, plan)


def near_misses(search: SearchReport) -> Table:
    """Lists the runs that would be better, and what rules each out."""
    return _runs("Better, but ruled out by one limit", search.near_misses, RULED_OUT)


def neighbour(run: Run, shown: Run) -> str:
    """Says how another run is better than the one shown: "Faster: 8 x l4, 47 min, $20, loss 3.04 (+0.1)"."""
    effect, offer = difference(shown, run), run.offer
    better = [name for name, change in (("faster", effect.seconds), ("cheaper", effect.usd)) if change and change < 0]
    terms = " spot" if offer.spot else " on demand" if offer.provider else ""
    numbers = [f"{offer.gpus} x {offer.gpu}{terms}", TIME.expected(run.total_seconds)]
    numbers += [COST.expected(run.cost_usd)] if run.cost_usd else []
    change = f" ({LOSS.words.change(effect.loss)})" if effect.loss else ""
    numbers += [f"{LOSS.column} {LOSS.expected(run.loss)}{change}"] if run.loss else []
    return f"{capital(' and '.join(better))}: {', '.join(numbers)}"


def machines(plan: Plan, search: SearchReport) -> Table:
    """Compares the plan with the best run on each other machine that the user named."""
    runs = (plan.chosen, *search.machines)
    table = _runs("The best run on each machine asked for", runs, REMARK, plan)
    memory, place = DEVICE_MEMORY.column, table.columns.index(REMARK)
    rows = tuple(
        (*row[:place], DEVICE_MEMORY.expected(run.prediction.device_bytes), *row[place:])
        for row, run in zip(table.rows, runs, strict=True)
    )
    columns = (*table.columns[:place], memory, *table.columns[place:])
    return replace(table, columns=columns, rows=rows, numbers=(*table.numbers, memory)).without("score")


def _runs(title: str, runs: Sequence[Run], last: str, plan: Plan | None = None) -> Table:
    names = ("on", "depth", "parameters", "tokens", TIME.column, COST.column, LOSS.column, "score", last, "batch")
    chosen = plan.chosen if plan else None
    rows = tuple(
        (
            run.offer.in_words(", "),
            str(run.depth),
            units.format_count(run.parameters),
            units.format_tokens(run.tokens),
            TIME.expected(run.total_seconds),
            COST.expected(run.cost_usd),
            LOSS.expected(run.loss),
            units.format_number(run.score),
            "the plan" if run is chosen else run.standing.why,
            batch(run),
        )
        for run in runs
    )
    marked = tuple(number for number, run in enumerate(runs) if run is chosen)
    return Table(columns=names, rows=rows, title=title, numbers=names[1:-2], chosen=marked, notes=(SCORE,))


def candidates(plan: Plan) -> list[Table]:
    """Lists every depth that was considered at its best micro-batch, and other micro-batches of the chosen depth."""
    own, others = plan.chosen.depth, plan.considered
    depths = [plan.chosen, *(run for run in others if run.depth != own)]
    where = "" if plan.workload.gpu == "cpu" else f" on {plan.workload.gpus} x {plan.workload.gpu}"
    by_depth = _candidates(f"Depths considered{where}", sorted(depths, key=lambda run: run.depth), plan)
    sizes = [plan.chosen, *(run for run in others if run.depth == own)]
    sizes.sort(key=lambda run: run.workload.micro_batch)
    title = f"Micro-batches considered at depth {own}"
    by_size = [_candidates(title, sizes, plan).without("depth", "parameters")] if len(sizes) > 1 else []
    return [by_depth, *by_size]


def _candidates(title: str, considered: Sequence[Run], plan: Plan) -> Table:
    memory = memory_of(plan.workload.gpu).column
    names = (
        *("depth", "parameters", "micro-batch", "steps", "tokens", THROUGHPUT.column, memory),
        *(TIME.column, COST.column, VERDICT),
    )

    def marks(run: Run) -> list[str]:
        """Returns the marks for how a configuration saves memory, which `MARKS` explains."""
        recomputed = {"full": [STAR], "selective": ["†"]}.get(run.workload.activation_checkpointing, [])
        return [*recomputed, *(["‡"] if SHARDINGS[run.workload.sharding].moments else [])]

    rows = tuple(
        (
            str(run.depth),
            units.format_count(run.parameters),
            f"{run.workload.micro_batch} x {run.workload.grad_accum}{''.join(marks(run))}",
            units.format_count(run.steps),
            units.format_tokens(run.tokens),
            units.format_centre(run.tokens_per_second, units.format_tokens),
            DEVICE_MEMORY.expected(run.prediction.device_bytes),
            TIME.expected(run.total_seconds),
            COST.expected(run.cost_usd),
            verdict(run, plan.chosen),
        )
        for run in considered
    )
    chosen = tuple(number for number, run in enumerate(considered) if run is plan.chosen)
    used = {mark for run in considered for mark in marks(run)}
    notes = (*(f"{mark} {words}" for mark, words in MARKS.items() if mark in used), SCORE)
    return Table(columns=names, rows=rows, title=title, numbers=names[:-1], chosen=chosen, notes=notes)


def scaling(plan: Plan) -> Table:
    """Lists the chosen run on more and fewer GPUs, its own row as in the plan, and providers if they differ."""
    points = plan.search.scaling if plan.search else ()
    planned = plan.chosen
    names = ("GPUs", THROUGHPUT.column, OF_IDEAL, TIME.column, COST.column, OTHER_BATCH, "from")
    rows = tuple(
        (
            str(p.gpus),
            _as_planned(p.tokens_per_second, planned.tokens_per_second, units.format_tokens),
            units.format_percent(p.efficiency),
            _as_planned(p.total_seconds, planned.total_seconds, TIME.words),
            _as_planned(p.cost_usd, planned.cost_usd, COST.words),
            "as planned" if p.other_batch_tokens is None else units.format_count(p.other_batch_tokens),
            f"{seller_of(p.provider) if p.provider else 'as given'}{f', {p.rented} rented' if _idle(p) else ''}",
        )
        for p in points
    )
    title = "The same run on more and fewer GPUs, each at its best micro-batch"
    why = plan.search.scaling_left_out if plan.search else ()
    notes = (f"not shown: {'; '.join(why)}",) if why else ()
    table = Table(columns=names, rows=rows, title=title, numbers=names[:-1], notes=notes)
    if all(p.other_batch_tokens is None for p in points):
        table = table.without(OTHER_BATCH)
    several = len({p.provider for p in points}) > 1 or any(map(_idle, points))
    return table if several else table.without("from")


def scaling_alone(search: SearchReport | None) -> str:
    """Says why no other number of GPUs is shown."""
    why = search.scaling_left_out if search is not None else ()
    return f"There is no other number of GPUs to show{': ' if why else ''}{'; '.join(why)}."


def _as_planned(number: float | None, planned: Estimate | None, words: Formatter) -> str:
    """Returns a number in words, written as in the plan if it is the plan's own."""
    same = number is not None and planned is not None and math.isclose(number, planned.value, rel_tol=1e-6)
    return units.format_centre(planned, words) if same else words(number)


def pays(search: SearchReport) -> str:
    """Says up to how many GPUs the speed-up exceeds the extra cost."""
    if search.pays_up_to_gpus is None:
        most = search.scaling[-1].gpus
        return f"More GPUs pay off, up to {most} at least: the speed grows by more than the cost."
    return f"Beyond {search.pays_up_to_gpus} GPUs, the cost grows faster than the speed."


def notes(tables: Sequence[Table], above: Collection[str] = ()) -> list[str]:
    """Returns the notes of these tables: first the meaning of the marks, then all that do not stand `above`."""
    needed = dict.fromkeys(note for table in tables for note in table.notes)
    marks = [f"{mark} {words}" for mark, words in MARKS.items() if f"{mark} {words}" in needed]
    return marks + [note for note in needed if note not in marks and note not in above]


def _idle(point: ScalingPoint) -> bool:
    return (point.rented or 0) > point.gpus
