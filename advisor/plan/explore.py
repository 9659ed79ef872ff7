"""What there is to look at around a plan: what-ifs, the other runs of its search.

Pure: a plan, a profile and changes in, what to show out, in the units it is drawn in. A what-if is a goal like any
other, with everything pinned but what is changed, so that the command line gives the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from advisor.errors import AdvisorError
from advisor.hardware.offers import OWN_MACHINE
from advisor.laws.intervals import chance_below
from advisor.plan.answer import bare_plan
from advisor.plan.batches import MICRO_BATCHES
from advisor.plan.goal import DEEPEST, Limits, depths_between
from advisor.plan.offers import on_machine
from advisor.predict.profile import Profile
from advisor.records import Choice, Estimate, Goal, Plan, SearchReport
from advisor.units import HOUR, format_seconds, format_usd
from trainer.token_folder import TokenMeta

_SEQ_LENS = (128, 256, 512, 1024, 2048, 4096, 8192)
GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64)  # that a control offers
_HALF_OCTAVES = range(-6, 7)  # tokens from an eighth to eight times, in steps of the square root of two
_PRICE_FACTORS = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
_PRICES = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)  # where none is known
_NOW = datetime(2000, 1, 1, tzinfo=UTC)  # of plans of which only the numbers are looked at


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
class FrontPoint:
    """One run of the search in the units of the chart."""

    id: str
    kind: str  # plan | front | missed
    hours: float
    usd: float | None
    loss: float | None
    choice: Choice


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """What a run may be varied over: ascending values, the run's own among them."""

    depth: tuple[int, ...]
    micro_batch: tuple[int, ...]
    seq_len: tuple[int, ...]
    tokens: tuple[int, ...]
    gpus: tuple[int, ...]
    usd_per_gpu_hour: tuple[float, ...]
    own: Changes  # the run itself


def choice_id(choice: Choice) -> str:
    """A short name of a run that stays the same while prices and profiles do."""
    spot = "-spot" if choice.spot else ""
    return f"{choice.gpus}x{choice.gpu}{spot}-d{choice.depth}-b{choice.micro_batch}-s{choice.steps}"


@dataclass(frozen=True, kw_only=True)
class Chances:
    """How likely a run keeps its limits, 0…1. None: no such limit, or nothing known to hold against it."""

    budget: float | None = None
    deadline: float | None = None


def chances(goal: Goal, choice: Choice) -> Chances:
    """How likely a run costs no more than the goal's budget, and ends within its deadline."""
    return Chances(
        budget=_chance(goal.budget_usd, choice.cost_usd), deadline=_chance(goal.deadline_seconds, choice.total_seconds)
    )


def _chance(limit: float | None, estimate: Estimate | None) -> float | None:
    if limit is None or estimate is None:
        return None
    return chance_below(limit, estimate.value, estimate.low, estimate.high)


def against(choice: Choice, other: Choice) -> Effect:
    """What a run takes, costs and comes to beyond another one: to a cent, and losses to a thousandth."""
    usd, loss = _less(choice.cost_usd, other.cost_usd), _less(choice.loss, other.loss)
    return Effect(
        seconds=_less(choice.total_seconds, other.total_seconds),
        usd=None if usd is None else round(usd, 2),
        loss=None if loss is None else round(loss, 3),
    )


def find_choice(search: SearchReport, wanted: str | None) -> Choice | None:
    """The run of a search by an option's name or by its id; None without one."""
    runs = (*search.options, *search.front, *search.near_misses)
    return next((c for c in runs if wanted is not None and wanted in (c.name, choice_id(c))), None)


def pinned(plan: Plan, choice: Choice, changes: Changes | None = None) -> Goal:
    """The goal for which nothing is open: this run of the plan's search, with the changes.

    Tokens and global batch stay as they are when something else changes; the micro-batch is chosen anew where another
    card, count, depth or context may want another, unless the goal or the changes name it. Budget and deadline are left
    out, since a what-if may break them; other or more GPUs are rented where the plan's own goal allows, and a price
    that was given for this card says nothing of another.
    """
    goal, model, changes = plan.goal, plan.run.model, changes or Changes()
    gpu, other_card = changes.gpu or choice.gpu, changes.gpu not in (None, choice.gpu)
    moved = other_card or changes.gpus not in (None, choice.gpus)
    another = moved or changes.depth not in (None, choice.depth) or changes.seq_len not in (None, model.seq_len)
    price = None if other_card else goal.usd_per_gpu_hour
    price = price if changes.usd_per_gpu_hour is None else changes.usd_per_gpu_hour
    own = choice.price_source == OWN_MACHINE and not other_card and changes.usd_per_gpu_hour is None
    return replace(
        on_machine(goal, gpu, changes.gpus or choice.gpus, own=own),
        depth=changes.depth or choice.depth,
        model=None,  # its shape stays
        parameters=None,
        epochs=None,
        micro_batch=changes.micro_batch or (goal.micro_batch if another else choice.micro_batch),
        global_batch_tokens=choice.tokens // choice.steps,
        seq_len=changes.seq_len or model.seq_len,
        vocab_size=model.vocab_size,
        tokens=changes.tokens or choice.tokens,
        ratio=None,
        ratio_counts="matrices+head" if goal.family == "nanochat" else "total",
        budget_usd=None,
        deadline_seconds=None,
        sure=False,
        usd_per_waiting_hour=None,
        inference_tokens=None,  # already in the tokens
        objective="loss",
        spot="only" if choice.spot and price is None else "none",  # a price that is given is the only offer
        providers=() if price is not None else goal.providers if moved or not choice.provider else (choice.provider,),
        usd_per_gpu_hour=price,
        prices=tuple(p for p in goal.prices if p.gpu == gpu) if changes.usd_per_gpu_hour is None else (),
    )


def ranges(plan: Plan, choice: Choice) -> Ranges:
    """What there is to vary of a run of the plan's search, and where the run itself stands."""
    family, seq_len = plan.goal.family, plan.run.model.seq_len
    price = None if choice.usd_per_hour is None else choice.usd_per_hour / choice.gpus
    # to the cent, so that the command line is one that a person would type
    rents = {price} if price is not None else set()
    rents |= {round(price * factor, 2) for factor in _PRICE_FACTORS} if price else set(_PRICES)
    depths = depths_between(1, max(DEEPEST[family], round(1.25 * choice.depth)))
    return Ranges(
        depth=tuple(sorted({*depths, choice.depth})),
        micro_batch=tuple(sorted({*MICRO_BATCHES, choice.micro_batch})),
        seq_len=tuple(sorted({*_SEQ_LENS, seq_len})),
        tokens=tuple(sorted({choice.tokens, *(round(choice.tokens * 2 ** (half / 2)) for half in _HALF_OCTAVES)})),
        gpus=(1,) if choice.gpu == "cpu" else tuple(sorted({*GPU_COUNTS, choice.gpus})),
        usd_per_gpu_hour=tuple(sorted(rents)),
        own=Changes(
            depth=choice.depth,
            micro_batch=choice.micro_batch,
            seq_len=seq_len,
            tokens=choice.tokens,
            gpus=choice.gpus,
            usd_per_gpu_hour=price,
        ),
    )


def effect(before: Goal, after: Goal, profile: Profile, data_meta: TokenMeta | None) -> Effect:
    """What planning for one pinned goal changes against planning for another."""
    try:
        plans = [bare_plan(goal, profile, now=_NOW, data_meta=data_meta) for goal in (before, after)]
    except AdvisorError as error:
        return Effect(refused=error.message)
    return difference(plans[0], plans[1], profile)


def difference(plan: Plan, other: Plan, profile: Profile, other_profile: Profile | None = None) -> Effect:
    """Expected hours, dollars, bytes and loss of the other plan less those of the first, on its device if another.

    Losses to a thousandth: finer than they are known, coarser than whole optimizer steps, which no two batches share.
    """
    before, after = plan.prediction, other.prediction
    memory = [profile.memory.device_total_bytes(plan.workload)]
    memory.append((other_profile or profile).memory.device_total_bytes(other.workload))
    loss = _less(after.loss, before.loss)
    recomputes = [p.run.activation_checkpointing != "none" for p in (plan, other)]
    return Effect(
        seconds=after.wall_clock.total_seconds.value - before.wall_clock.total_seconds.value,
        usd=_less(after.cost_usd, before.cost_usd),
        device_bytes=_less(memory[1], memory[0]),
        loss=None if loss is None else round(loss, 3),
        recomputes=None if recomputes[0] == recomputes[1] else recomputes[1],
    )


def broken_limits(goal: Goal, plan: Plan) -> tuple[str, ...]:
    """In words, which of the goal's limits the time and cost of a plan break: high ends where it wants to be sure."""
    total, cost = plan.prediction.wall_clock.total_seconds, plan.prediction.cost_usd
    limits = Limits(deadline_seconds=goal.deadline_seconds, budget_usd=goal.budget_usd, sure=goal.sure)
    late, dear = limits.broken(total, cost)
    broken = []
    if late:
        broken.append(f"takes {format_seconds(limits.counted(total))} of {format_seconds(goal.deadline_seconds)}")
    if dear and cost is not None:
        broken.append(f"costs {format_usd(limits.counted(cost))} of {format_usd(goal.budget_usd)}")
    return tuple(broken)


def hours(seconds: float | None) -> float | None:
    """Seconds on an axis of hours."""
    return None if seconds is None else seconds / HOUR


def front_points(search: SearchReport) -> tuple[FrontPoint, ...]:
    """The front, the plan among it, and the near misses, in the units of their chart."""
    runs = [("plan" if c.why == "the plan" else "front", c) for c in search.front]
    runs += [("missed", c) for c in search.near_misses]
    return tuple(
        FrontPoint(
            id=choice_id(choice),
            kind=kind,
            hours=choice.total_seconds.value / HOUR,
            usd=choice.cost_usd.value if choice.cost_usd else None,
            loss=choice.loss.value if choice.loss else None,
            choice=choice,
        )
        for kind, choice in runs
    )


def _less(after: Estimate | None, before: Estimate | None) -> float | None:
    return None if after is None or before is None else after.value - before.value
