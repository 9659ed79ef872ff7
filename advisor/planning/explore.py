"""Find the runs of a plan's search again, and vary them in what-ifs.

A what-if is a goal in which everything is fixed, with some values changed. `answer.what_if` evaluates such a goal, and
the command line gives the same answer for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from advisor.hardware.catalog import find_gpu
from advisor.laws.intervals import chance_below
from advisor.offer import OWN_MACHINE
from advisor.options import Goal
from advisor.planning.alternatives import UNPROVEN, WORTH_KNOWING, most_gained, publishers
from advisor.planning.goal import DEEPEST, Limits, depths_between
from advisor.planning.offers import GPU_COUNTS, SPOT_MEAN_SECONDS, on_machine
from advisor.planning.recipe import MICRO_BATCHES
from advisor.prediction.comm import caution
from advisor.records import Bill, Estimate, Plan, Run
from advisor.units import format_centre, format_estimate, format_seconds, format_usd

_SEQ_LENS = (128, 256, 512, 1024, 2048, 4096, 8192)
NOISE = 0.003  # share of a number; a smaller change is reported as none
_HALF_OCTAVES = range(-6, 7)  # tokens from an eighth to eight times, in steps of the square root of two
_PRICE_FACTORS = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
_PRICES = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)  # choices if no price is known


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The values to change in a run. None leaves a value unchanged."""

    gpu: str | None = None
    depth: int | None = None
    micro_batch: int | None = None
    seq_len: int | None = None
    tokens: int | None = None
    gpus: int | None = None
    usd_per_gpu_hour: float | None = None


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The differences that a change makes. None means that a value is unknown for one of the two runs."""

    seconds: float | None = None
    usd: float | None = None
    device_bytes: float | None = None
    loss: float | None = None
    activation_checkpointing: tuple[str, str] | None = None  # the level before and now; None: unchanged
    refused: str | None = None  # why the changed run is impossible


def chances(limits: Goal | Limits, bill: Bill | None) -> dict[str, float | None]:
    """Return the probabilities, by "budget" and "deadline", that a run of this bill stays within them.

    None means no such limit or no estimate, or a run that costs nothing and so cannot exceed a budget.
    """
    if bill is None:
        return {"budget": None, "deadline": None}
    pairs = {
        "budget": (limits.budget_usd, bill.cost_usd),
        "deadline": (limits.deadline_seconds, bill.wall_clock.total_seconds),
    }
    return {
        name: None if limit is None or e is None or e.high == 0 else chance_below(limit, e.value, e.low, e.high)
        for name, (limit, e) in pairs.items()
    }


def run_id(run: Run) -> str:
    """Return a short name of a run, which stays the same as long as prices and profiles do."""
    work = run.workload
    spot = "-spot" if run.offer.spot else ""
    return f"{work.gpus}x{work.gpu}{spot}-d{run.depth}-b{work.micro_batch}-s{run.steps}"


def find_run(plan: Plan, wanted: str | None) -> Run | None:
    """Return a run of the plan's search by its option's name or its id, or None if no run has it."""
    search = plan.search
    runs = (*plan.options, *(search.front + search.neighbours + search.near_misses if search else ()))
    return next((run for run in runs if wanted is not None and wanted in (run.standing.name, run_id(run))), None)


def is_unproven(run: Run) -> bool:
    """Return True if too few have published a run on this machine, so that it is compared by its cautious end."""
    return caution(find_gpu(run.offer.gpu), run.offer.gpus) > 1


def little_known(run: Run) -> str:
    """Say that the speed of a run's machine is little known; empty if it is well known."""
    doubt = "so the speed of this choice is little known and may be far from the estimate"
    return f"{publishers(run.offer)}, {doubt}" if is_unproven(run) else ""


def unproven(plan: Plan) -> list[Run]:
    """Return the runs that look better than the plan, but on machines whose speed is little known."""
    return [run for run in (plan.search.neighbours if plan.search else ()) if run.standing.name == UNPROVEN]


def worth_knowing(plan: Plan, shown: Run) -> Run | None:
    """Return the run that is much faster or cheaper than the one shown, for little in the rest, or None."""
    if plan.search is None:
        return None
    if run_id(shown) == run_id(plan.chosen):
        return next((run for run in plan.search.neighbours if run.standing.name == WORTH_KNOWING), None)
    named = {run_id(option) for option in (*plan.options, shown)}
    return most_gained([run for run in plan.search.front if run_id(run) not in named and not is_unproven(run)], shown)


def pinned(goal: Goal, run: Run, changes: Changes | None = None) -> Goal:
    """Return the goal that fixes everything as in this run, with the changes.

    Tokens never change by themselves. The micro-batch is chosen again if GPU, number of GPUs, depth or context change,
    unless the goal or the changes give one; the global batch then changes by a few per cent at most. Budget and
    deadline are dropped, since a what-if may break them. Other or more GPUs are rented if the goal allows, and the
    user's price is not used for another GPU. Another price alone changes only dollars: a spot machine is still taken
    away, and the user's own machine stays.
    """
    work, changes, shape = run.workload, changes or Changes(), run.workload.shape
    gpu, other_gpu = changes.gpu or work.gpu, changes.gpu not in (None, work.gpu)
    moved = other_gpu or changes.gpus not in (None, work.gpus)
    another = moved or changes.depth not in (None, run.depth) or changes.seq_len not in (None, shape.seq_len)
    price = None if other_gpu else goal.usd_per_gpu_hour
    price = price if changes.usd_per_gpu_hour is None else changes.usd_per_gpu_hour
    own = run.offer.source == OWN_MACHINE and not other_gpu
    # Offers at the user's price are on demand, where a stated time between interruptions counts as for spot machines.
    interruptions = goal.interruption_seconds if run.offer.spot or goal.spot == "none" else None
    if run.offer.spot and price is not None:
        interruptions = interruptions or SPOT_MEAN_SECONDS[1]
    providers = goal.providers if moved or not run.offer.provider else (run.offer.provider,)
    # The shape of a named model stays, and the tokens already include the effect of tokens to serve.
    dropped = ("model", "parameters", "epochs", "ratio", "budget_usd", "deadline_seconds", "deadline_at",
               "usd_per_waiting_hour", "inference_tokens")  # fmt: skip
    nothing: dict[str, Any] = dict.fromkeys(dropped)
    return replace(
        on_machine(goal, gpu, changes.gpus or work.gpus, own=own),
        **nothing,
        depth=changes.depth or run.depth,
        micro_batch=changes.micro_batch or (goal.micro_batch if another else work.micro_batch),
        global_batch_tokens=work.step_tokens,
        seq_len=changes.seq_len or shape.seq_len,
        vocab_size=shape.vocab_size,
        tokens=changes.tokens or run.tokens,
        ratio_counts="matrices+head" if goal.family == "nanochat" else "total",
        sure=False,
        objective="loss",
        spot="only" if run.offer.spot and price is None else "none",
        interruption_seconds=interruptions,
        providers=() if price is not None else providers,
        usd_per_gpu_hour=price,
        prices=tuple(p for p in goal.prices if p.gpu == gpu) if changes.usd_per_gpu_hour is None else (),
    )


def ranges(run: Run) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the run's value and the ascending choices for each of the `Changes`, except the GPU."""
    work, shape, offer = run.workload, run.workload.shape, run.offer
    price = None if offer.usd_per_hour is None else offer.usd_per_hour / offer.gpus
    # Prices are whole cents, as a person would type them.
    rents = {round(price * factor, 2) for factor in _PRICE_FACTORS} if price else set(_PRICES)
    values: dict[str, tuple[Any, Iterable[Any]]] = {
        "depth": (run.depth, depths_between(1, max(DEEPEST[shape.family], round(1.25 * run.depth)))),
        "micro_batch": (work.micro_batch, MICRO_BATCHES),
        "seq_len": (shape.seq_len, _SEQ_LENS),
        "tokens": (run.tokens, (round(run.tokens * 2 ** (half / 2)) for half in _HALF_OCTAVES)),
        "gpus": (work.gpus, () if work.gpu == "cpu" else GPU_COUNTS),
        "usd_per_gpu_hour": (price, rents),
    }
    return {
        name: (own, tuple(sorted({*others} if own is None else {own, *others})))
        for name, (own, others) in values.items()
    }


def difference(run: Run, other: Run) -> Effect:
    """Return the expected values of `other` minus those of `run`.

    A change below NOISE is reported as none, because different batches never need exactly the same number of whole
    steps. Loss differences are rounded to 0.001.
    """

    def less(after: Estimate | None, before: Estimate | None) -> float | None:
        if after is None or before is None:
            return None
        change = after.value - before.value
        return change if abs(change) > NOISE * abs(before.value) else 0.0

    loss = None if other.loss is None or run.loss is None else other.loss.value - run.loss.value
    before, now = (one.workload.activation_checkpointing for one in (run, other))
    return Effect(
        seconds=less(other.total_seconds, run.total_seconds),
        usd=less(other.cost_usd, run.cost_usd),
        device_bytes=less(other.prediction.device_bytes, run.prediction.device_bytes),
        loss=None if loss is None else round(loss, 3),
        activation_checkpointing=None if before == now else (before, now),
    )


def broken_limits(goal: Goal, run: Run) -> tuple[str, ...]:
    """Describe the limits that a run breaks; with --sure the high ends of the intervals count."""
    seconds, usd = run.total_seconds, run.cost_usd
    late, dear = Limits.of(goal).broken(seconds, usd)
    written = format_estimate if goal.sure else format_centre
    words = [f"over the deadline: {written(seconds, format_seconds)}, {format_seconds(goal.deadline_seconds)} allowed"]
    words += [f"over the budget: {written(usd, format_usd)}, {format_usd(goal.budget_usd)} allowed"]
    return tuple(text for text, broken in zip(words, (late, dear), strict=True) if broken)
