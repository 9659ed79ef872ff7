"""What there is to look at around a plan: the other runs of its search, and what-ifs.

Pure. A what-if is a goal like any other, with everything pinned but what is changed (`answer.what_if` evaluates it), so
that the command line gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from advisor.laws.intervals import chance_below
from advisor.offer import OWN_MACHINE
from advisor.planning.batches import MICRO_BATCHES
from advisor.planning.goal import DEEPEST, Limits, depths_between
from advisor.planning.offers import on_machine
from advisor.records import Estimate, Goal, Plan, Run
from advisor.units import format_seconds, format_usd

_SEQ_LENS = (128, 256, 512, 1024, 2048, 4096, 8192)
GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64)  # that a control offers
_HALF_OCTAVES = range(-6, 7)  # tokens from an eighth to eight times, in steps of the square root of two
_PRICE_FACTORS = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
_PRICES = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)  # where none is known


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is varied of a run. None: left as it is."""

    gpu: str | None = None
    depth: int | None = None
    micro_batch: int | None = None
    seq_len: int | None = None
    tokens: int | None = None
    gpus: int | None = None
    usd_per_gpu_hour: float | None = None


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What a change does: differences to the run as it was. None: not known on one of the sides."""

    seconds: float | None = None
    usd: float | None = None
    device_bytes: float | None = None
    loss: float | None = None
    recomputes: bool | None = None  # activations from now on, or no longer
    refused: str | None = None  # why there is no such run


@dataclass(frozen=True, kw_only=True)
class Chances:
    """How likely a run keeps its limits, 0…1. None: no such limit, or nothing known to hold against it."""

    budget: float | None = None
    deadline: float | None = None


def chances(goal: Goal, run: Run) -> Chances:
    """How likely a run costs no more than the goal's budget, and ends within its deadline."""

    def chance(limit: float | None, e: Estimate | None) -> float | None:
        return None if limit is None or e is None else chance_below(limit, e.value, e.low, e.high)

    return Chances(
        budget=chance(goal.budget_usd, run.cost_usd), deadline=chance(goal.deadline_seconds, run.total_seconds)
    )


def run_id(run: Run) -> str:
    """A short name of a run that stays the same while prices and profiles do."""
    work = run.workload
    spot = "-spot" if run.offer.spot else ""
    return f"{work.gpus}x{work.gpu}{spot}-d{run.depth}-b{work.micro_batch}-s{run.steps}"


def find_run(plan: Plan, wanted: str | None) -> Run | None:
    """The run of a plan's search by an option's name or by its id; None without one."""
    runs = (*plan.options, *(plan.search.front + plan.search.near_misses if plan.search else ()))
    return next((run for run in runs if wanted is not None and wanted in (run.standing.name, run_id(run))), None)


def pinned(goal: Goal, run: Run, changes: Changes | None = None) -> Goal:
    """The goal for which nothing is open: this run of its search, with the changes.

    Tokens and global batch stay as they are when something else changes; the micro-batch is chosen anew where another
    card, count, depth or context may want another, unless the goal or the changes name it. Budget and deadline are left
    out, since a what-if may break them; other or more GPUs are rented where the goal allows, and a price that was given
    for this card says nothing of another.
    """
    work, changes, shape = run.workload, changes or Changes(), run.workload.shape
    gpu, other_card = changes.gpu or work.gpu, changes.gpu not in (None, work.gpu)
    moved = other_card or changes.gpus not in (None, work.gpus)
    another = moved or changes.depth not in (None, run.depth) or changes.seq_len not in (None, shape.seq_len)
    price = None if other_card else goal.usd_per_gpu_hour
    price = price if changes.usd_per_gpu_hour is None else changes.usd_per_gpu_hour
    own = run.offer.source == OWN_MACHINE and not other_card and changes.usd_per_gpu_hour is None
    providers = goal.providers if moved or not run.offer.provider else (run.offer.provider,)
    return replace(
        on_machine(goal, gpu, changes.gpus or work.gpus, own=own),
        depth=changes.depth or run.depth,
        model=None,  # its shape stays
        parameters=None,
        epochs=None,
        micro_batch=changes.micro_batch or (goal.micro_batch if another else work.micro_batch),
        global_batch_tokens=work.step_tokens,
        seq_len=changes.seq_len or shape.seq_len,
        vocab_size=shape.vocab_size,
        tokens=changes.tokens or run.tokens,
        ratio=None,
        ratio_counts="matrices+head" if goal.family == "nanochat" else "total",
        budget_usd=None,
        deadline_seconds=None,
        sure=False,
        usd_per_waiting_hour=None,
        inference_tokens=None,  # already in the tokens
        objective="loss",
        spot="only" if run.offer.spot and price is None else "none",  # a price that is given is the only offer
        providers=() if price is not None else providers,
        usd_per_gpu_hour=price,
        prices=tuple(p for p in goal.prices if p.gpu == gpu) if changes.usd_per_gpu_hour is None else (),
    )


def ranges(run: Run) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Where a run stands in each of the `Changes` but the card, and the ascending values it may have there."""
    work, shape, offer = run.workload, run.workload.shape, run.offer
    price = None if offer.usd_per_hour is None else offer.usd_per_hour / offer.gpus
    # to the cent, so that the command line is one that a person would type
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
    """Expected hours, dollars, bytes and loss of the other run less those of the first.

    Losses to a thousandth: finer than they are known, coarser than whole optimizer steps, which no two batches share.
    """

    def less(after: Estimate | None, before: Estimate | None) -> float | None:
        return None if after is None or before is None else after.value - before.value

    loss = less(other.loss, run.loss)
    recomputes = [one.workload.activation_checkpointing != "none" for one in (run, other)]
    return Effect(
        seconds=other.total_seconds.value - run.total_seconds.value,
        usd=less(other.cost_usd, run.cost_usd),
        device_bytes=less(other.prediction.device_bytes, run.prediction.device_bytes),
        loss=None if loss is None else round(loss, 3),
        recomputes=None if recomputes[0] == recomputes[1] else recomputes[1],
    )


def against(run: Run, other: Run) -> Effect:
    """What a run takes, costs and comes to beyond another one, to a cent."""
    effect = difference(other, run)
    usd = None if effect.usd is None else round(effect.usd, 2)
    return replace(effect, usd=usd, device_bytes=None, recomputes=None)


def broken_limits(goal: Goal, run: Run) -> tuple[str, ...]:
    """In words, which of the goal's limits the time and cost of a run break: high ends where it wants to be sure."""
    total, cost = run.total_seconds, run.cost_usd
    limits = Limits(deadline_seconds=goal.deadline_seconds, budget_usd=goal.budget_usd, sure=goal.sure)
    late, dear = limits.broken(total, cost)
    broken = []
    if late:
        broken.append(f"takes {format_seconds(limits.counted(total))} of {format_seconds(goal.deadline_seconds)}")
    if dear and cost is not None:
        broken.append(f"costs {format_usd(limits.counted(cost))} of {format_usd(goal.budget_usd)}")
    return tuple(broken)
