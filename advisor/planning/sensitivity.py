"""What the choice depends on: a little more money or time, or a device slower than estimated, and what changes then.

Every sentence is the outcome of another search on the same field; a test plans anew and compares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from advisor.offer import OWN_MACHINE
from advisor.planning.choose import LEVEL, USED_UP, Selection, best_of, select, selection
from advisor.planning.costs import Costs
from advisor.planning.evaluate import NOTHING, Runs, least_steps, runs_at
from advisor.planning.goal import Limits
from advisor.planning.run import make_run
from advisor.planning.search_space import SearchSpace
from advisor.prediction.loss import DATA_CONSTRAINED
from advisor.records import Run
from advisor.units import (
    format_centre,
    format_error,
    format_number,
    format_percent,
    format_seconds,
    format_tokens,
    format_usd,
)

AS_GOOD = 1.02  # times the plan's score: still about as good a model
WORTH_SAYING = 0.05  # share of the price below which a saving is not worth a sentence
BETTER = 0.005  # of the score: what is less of an improvement is called none
SLOWEST = 0.5  # of the estimated tokens/s; beyond that the estimate is no longer what is in doubt
_LATER = (0.25, 1.0, 3.0)  # of the deadline: how much later is tried to save money
_HALVINGS = 7  # of the interval searched for the slowest speed at which a choice holds: under 1 %


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """What a sentence rests on, for those who want the numbers."""

    text: str
    limits: Limits | None = None  # under which it was searched again
    depth: int | None = None
    slower: float | None = None  # share of tokens/s that may be missing before the choice changes


def sensitivity(space: SearchSpace, plan: Run, chosen: Selection) -> Iterator[Sensitivity]:
    """Say what more or less money, more time, and fewer tokens per second would change."""
    settled, limits = space.brief.settled, space.limits
    budget, deadline = limits.budget_usd, limits.deadline_seconds
    # settled tokens or a settled ratio still leave the depth open, as long as a limit decides it
    wider = not settled or (space.goal.objective == "loss" and space.goal.depth is None and space.brief.limited)
    if wider and budget is not None:
        more = nice(budget / 4)
        yield _more(space, plan, replace(limits, budget_usd=budget + more), f"+{format_usd(more)}")
        half = replace(limits, budget_usd=budget / 2)
        if (less := select(space, half)) is not None:
            choice = make_run(space.candidates, less)
            alike = less.score <= plan.score * (1 + BETTER)
            buys = f"the same quality: {_where(choice)}" if alike else _change(plan, choice)
            yield Sensitivity(text=f"{format_usd(budget / 2)} would still buy {buys}", limits=half, depth=choice.depth)
    if space.brief.limited and deadline is not None:
        later = [nice_seconds(share * deadline) for share in _LATER]
        put_off = [(replace(limits, deadline_seconds=deadline + m), f"{format_seconds(m)} more") for m in later]
        if wider:
            yield _more(space, plan, *put_off[0])
        if not settled:
            cheaper = (_cheaper(space, plan, *each) for each in put_off)
            yield from [item for item in cheaper if item is not None][:1]
    yield from _waiting(space, plan)
    if not settled or len(space.candidates.devices) > 1:
        yield _slower(space, plan, chosen)


def nice(amount: float) -> float:
    """The nearest of 1, 2 or 5 times a power of ten: an amount a person would name."""
    power = 10.0 ** math.floor(math.log10(amount))
    return power * min((1, 2, 5, 10), key=lambda digit: abs(math.log(amount / power / digit)))


def nice_seconds(seconds: float) -> float:
    """A duration a person would name: a nice number of seconds, minutes, hours or days."""
    unit = next(unit for unit in (86400.0, 3600.0, 60.0, 1.0) if seconds >= unit or unit == 1.0)
    return nice(max(seconds / unit, 1.0)) * unit


def _more(space: SearchSpace, plan: Run, wider: Limits, words: str) -> Sensitivity:
    """What a wider limit buys."""
    limits, better = space.limits, select(space, wider)
    if better is not None and better.score * (1 + BETTER) < plan.score:
        choice = make_run(space.candidates, better)
        return Sensitivity(text=f"{words} would buy {_change(plan, choice)}", limits=wider, depth=choice.depth)
    # what holds the run back: the other limit if it is used up, else the data
    paid = limits.counted(plan.cost_usd) if plan.cost_usd else 0.0
    late, dear = limits.overruns(limits.counted(plan.total_seconds), paid)
    why = ": the data are used up" if space.brief.unique_tokens else ""
    if dear > USED_UP and wider.budget_usd == limits.budget_usd:
        why = ": the budget binds"
    if late > USED_UP and wider.deadline_seconds == limits.deadline_seconds:
        why = ": the deadline binds"
    return Sensitivity(text=f"{words} would buy next to nothing{why}", limits=wider, depth=plan.depth)


def _cheaper(space: SearchSpace, plan: Run, limits: Limits, words: str) -> Sensitivity | None:
    """Whether more time gives the same quality for less money; None when it does not."""
    paid = plan.cost_usd.value if plan.cost_usd else 0.0
    cheapest = cheapest_as_good(space, plan.score * LEVEL, limits)
    if not paid or cheapest is None or cheapest.usd > (1 - WORTH_SAYING) * paid:
        return None
    choice = make_run(space.candidates, cheapest)
    before, after = format_centre(plan.cost_usd, format_usd), format_centre(choice.cost_usd, format_usd)
    saved = f"{before} to {after} ({format_error(plan.cost_usd, choice.cost_usd, format_usd)})"
    text = f"{words} would take the price from {saved} at the same quality: {_where(choice)}"
    return Sensitivity(text=text, limits=limits, depth=choice.depth)


def _waiting(space: SearchSpace, plan: Run) -> Iterator[Sensitivity]:
    """What patience would buy, and the cheapest and the fastest run about as good as the plan."""
    limits = space.limits.patient
    if limits == space.limits or space.brief.settled or limits.budget_usd is None:
        return
    budget = format_usd(limits.budget_usd)
    if (best := select(space, limits)) is not None and best.score * (1 + BETTER) < plan.score:
        choice = make_run(space.candidates, best)
        buys = f"{_change(plan, choice)} in {format_seconds(choice.total_seconds.value)}"
        text = f"if waiting cost nothing (--value-of-time 0) {budget} would buy {buys}"
        yield Sensitivity(text=text, limits=limits, depth=choice.depth)
    runs = _as_good(space, plan.score * AS_GOOD, limits)
    if len(runs) and plan.cost_usd is not None:
        ends = [make_run(space.candidates, selection(runs, int(o.argmin()))) for o in (runs.usd, runs.seconds)]
        said = [
            f"{_where(end)} for {format_usd(end.cost_usd.value)} in {format_seconds(end.total_seconds.value)}"
            for end in ends
            if end.cost_usd
        ]
        text = f"at a score at most 2 % higher the cheapest is {said[0]}, the fastest {said[1]}"
        yield Sensitivity(text=text, limits=limits)


def cheapest_as_good(space: SearchSpace, score: float, limits: Limits) -> Selection | None:
    """The cheapest run that is at least as good as `score` and keeps the limits; None without one or without prices."""
    runs = _as_good(space, score, limits)
    return selection(runs, int(runs.usd.argmin())) if len(runs) else None


def _as_good(space: SearchSpace, score: float, limits: Limits) -> Runs:
    """The shortest run of each configuration that is at least as good as `score` and keeps the limits."""
    places = np.arange(len(space.candidates))
    costs = Costs(space.candidates)
    law, counted = DATA_CONSTRAINED, costs.counted
    left = score - law.token_term(counted * costs.ratio)  # for tokens, where they are all fresh
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens = np.where(left > 0, (left / law.token_scale) ** (-1 / law.token_exponent), np.inf)
    reachable = np.isfinite(tokens) & (tokens < 1e16)
    steps = np.maximum(np.where(reachable, np.ceil(tokens / costs.step_tokens), 1.0), least_steps(costs))
    runs = runs_at(costs, places, steps, limits, spot=space.spot)
    good = (runs.violation == NOTHING) & reachable[:, 0] & (runs.score <= score * 1.0001) & ~np.isnan(runs.usd)
    return runs.rows(good)


def _slower(space: SearchSpace, plan: Run, chosen: Selection) -> Sensitivity:
    """How much slower than estimated the plan's kind of device may be before another choice is better."""
    field = space.candidates
    keys = np.array([device.profile.key for device in field.devices])[field.device]
    mine = keys == plan.offer.gpu
    same = mine & (field.offer == field.offer[chosen.place]) & (field.depth == plan.depth)
    others = select(space, space.limits, allowed=~mine)

    def rival(speed: float) -> Selection | None:
        """The best other choice at this speed if it is better than the plan's own; None if the plan's holds."""
        slowed = _slowed(space, mine, speed)
        own = select(slowed, space.limits, allowed=same)
        picks = [p for p in (own, others, select(slowed, space.limits, allowed=mine & ~same)) if p is not None]
        if not picks:
            return None
        # the one of these that the goal is after, ties and all
        columns = {
            name: np.array([getattr(p, name) for p in picks]) for name in ("place", "steps", "seconds", "usd", "score")
        }
        nothing = np.zeros(len(picks), dtype=int)
        runs = Runs(**columns, loss=np.full(len(picks), np.nan), violation=nothing, overrun=nothing)
        first = picks[best_of(slowed, slowed.candidates, runs, space.limits)]
        return None if first is own else first

    name = "this machine" if plan.offer.gpu == "cpu" else plan.offer.gpu
    if rival(SLOWEST) is None:
        return Sensitivity(text=f"this choice holds even if {name} gives only half the estimated tokens/s", slower=None)
    holds, fails = 1.0, SLOWEST
    for _ in range(_HALVINGS):
        middle = (holds + fails) / 2
        holds, fails = (middle, fails) if rival(middle) is None else (holds, middle)
    first = rival(fails)
    assert first is not None
    rate = plan.tokens_per_second
    low = rate.low / rate.value
    inside = "inside the interval" if fails >= low else "below the interval"
    better = make_run(_slowed(space, mine, fails).candidates, first)
    text = (
        f"this choice holds unless {name} gives {format_percent(1 - fails)} fewer tokens/s than estimated, "
        f"{inside} (its low end is {format_percent(1 - low)} down): then {_where(better)} is better"
    )
    return Sensitivity(text=text, slower=1 - fails, depth=better.depth)


def _slowed(space: SearchSpace, mine: np.ndarray, speed: float) -> SearchSpace:
    step = space.candidates.step.scaled(np.where(mine, 1 / speed, 1.0))
    return replace(space, candidates=replace(space.candidates, step=step))


def _change(plan: Run, other: Run) -> str:
    """What another choice has in place of the plan's."""
    parts = [f"depth {other.depth}" if other.depth != plan.depth else f"{format_tokens(other.tokens)} tokens"]
    if (other.offer.gpu, other.offer.gpus, other.offer.spot) != (plan.offer.gpu, plan.offer.gpus, plan.offer.spot):
        parts.append(f"on {machine(other)}")
    if other.depth == plan.depth:
        parts.append(f"instead of {format_tokens(plan.tokens)}")
    elif other.loss and plan.loss:
        parts.append(f"instead of {plan.depth}")
    if other.loss and plan.loss:
        before, after = (format_centre(loss, format_number) for loss in (plan.loss, other.loss))
        parts.append(f"(loss {before} to {after})")
    return " ".join(parts)


def _where(choice: Run) -> str:
    return f"depth {choice.depth} on {machine(choice)}"


def machine(run: Run, provided: str = " from ") -> str:
    """What is rented, in words; `provided` stands before the provider."""
    offer = run.offer
    if offer.gpu == "cpu":
        return "this CPU"
    provider = f"{provided}{offer.provider}" if offer.provider else ""
    if offer.source == OWN_MACHINE:
        provider = " of your own"
    return f"{offer.gpus} x {offer.gpu}{provider}{' spot' if offer.spot else ''}"
