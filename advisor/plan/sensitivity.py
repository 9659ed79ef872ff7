"""What the choice depends on: a little more money or time, or a device slower than estimated, and what changes then.

Every sentence is the outcome of another search on the same field; a test plans anew and compares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from advisor.plan.bills import Bills, Limits
from advisor.plan.field import SOUND
from advisor.plan.market import Market, Pick, choose, find, make_choice
from advisor.plan.search import LEVEL
from advisor.plan.weigh import Pool
from advisor.predict.loss import DATA_CONSTRAINED
from advisor.predict.memory import EstimateArrays
from advisor.records import Choice
from advisor.units import format_number, format_percent, format_seconds, format_tokens, format_usd

WORTH_SAYING = 0.05  # share of the price below which a saving is not worth a sentence
BETTER = 0.005  # of the score: what is less of an improvement is called none
USED_UP = 0.9  # of a limit: from here on it is what ends the run, whole steps and whole micro-batches apart
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


def sensitivity(market: Market, plan: Choice, pick: Pick) -> Iterator[Sensitivity]:
    """Say what more or less money, more time, and fewer tokens per second would change."""
    settled, limits = market.brief.settled, market.limits
    # settled tokens or a settled ratio still leave the depth open, as long as a limit decides it
    wider = not settled or (market.goal.objective == "loss" and market.goal.depth is None and market.brief.limited)
    if wider and limits.budget_usd is not None:
        more = nice(limits.budget_usd / 4)
        yield _more(market, plan, replace(limits, budget_usd=limits.budget_usd + more), f"+{format_usd(more)}")
        half = limits.budget_usd / 2
        if (less := find(market, replace(limits, budget_usd=half))) is not None:
            yield _less(market, plan, less, replace(limits, budget_usd=half), format_usd(half))
    if wider and market.brief.limited and limits.deadline_seconds is not None:
        yield _more(market, plan, *_later(limits, 1 / 4))
    if not settled and market.brief.limited and limits.deadline_seconds is not None:
        cheaper = (_cheaper(market, plan, *_later(limits, share)) for share in _LATER)
        yield from [item for item in cheaper if item is not None][:1]
    if not settled or len(market.field.devices) > 1:
        yield _slower(market, plan, pick)


def _later(limits: Limits, share: float) -> tuple[Limits, str]:
    """A deadline put off by about this share of itself, and how to say that."""
    assert limits.deadline_seconds is not None
    more = nice_seconds(share * limits.deadline_seconds)
    return replace(limits, deadline_seconds=limits.deadline_seconds + more), f"{format_seconds(more)} more"


def nice(amount: float) -> float:
    """The nearest of 1, 2 or 5 times a power of ten: an amount a person would name."""
    power = 10.0 ** math.floor(math.log10(amount))
    return power * min((1, 2, 5, 10), key=lambda digit: abs(math.log(amount / power / digit)))


def nice_seconds(seconds: float) -> float:
    """A duration a person would name: a nice number of seconds, minutes, hours or days."""
    unit = next(unit for unit in (86400.0, 3600.0, 60.0, 1.0) if seconds >= unit or unit == 1.0)
    return nice(max(seconds / unit, 1.0)) * unit


def _more(market: Market, plan: Choice, limits: Limits, words: str) -> Sensitivity:
    """What a wider limit buys."""
    found = find(market, limits)
    if found is None or found.score * (1 + BETTER) >= plan.score:
        why = _why_nothing(market, plan, limits)
        return Sensitivity(text=f"{words} would buy next to nothing{why}", limits=limits, depth=plan.depth)
    choice = make_choice(market, found)
    return Sensitivity(text=f"{words} would buy {_change(plan, choice)}", limits=limits, depth=choice.depth)


def _why_nothing(market: Market, plan: Choice, wider: Limits) -> str:
    """What holds the run back when a wider limit buys nothing: the other limit if it is used up, else the data."""
    end, now = "high" if wider.sure else "value", market.limits
    if wider.deadline_seconds == now.deadline_seconds:
        name, taken, limit = "the deadline", plan.total_seconds, now.deadline_seconds
    else:
        name, taken, limit = "the budget", plan.cost_usd, now.budget_usd
    if limit is not None and taken is not None and getattr(taken, end) > USED_UP * limit:
        return f": {name} binds"
    return ": the data are used up" if market.brief.unique_tokens else ""


def _less(market: Market, plan: Choice, found: Pick, limits: Limits, words: str) -> Sensitivity:
    choice = make_choice(market, found)
    alike = found.score <= plan.score * (1 + BETTER)
    buys = f"the same quality: {_where(choice)}" if alike else _change(plan, choice)
    return Sensitivity(text=f"{words} would still buy {buys}", limits=limits, depth=choice.depth)


def _cheaper(market: Market, plan: Choice, limits: Limits, words: str) -> Sensitivity | None:
    """Whether more time gives the same quality for less money; None when it does not."""
    paid = plan.cost_usd.value if plan.cost_usd else 0.0
    found = cheapest_as_good(market, plan.score * LEVEL, limits)
    if not paid or found is None or found.usd > (1 - WORTH_SAYING) * paid:
        return None
    saved = f"{format_usd(paid)} to {format_usd(found.usd)} ({format_percent(1 - found.usd / paid)} less)"
    choice = make_choice(market, found)
    text = f"{words} would take the price from {saved} at the same quality: {_where(choice)}"
    return Sensitivity(text=text, limits=limits, depth=choice.depth)


def cheapest_as_good(market: Market, score: float, limits: Limits) -> Pick | None:
    """The cheapest run that is at least as good as `score` and keeps the limits; None without one or without prices."""
    wanted = np.array([market.spot or not offer.spot for offer in market.field.offers])[market.field.offer]
    places = np.nonzero(market.field.fits & wanted)[0]
    if not len(places):
        return None
    bills = Bills(market.field.rows(places))
    law, counted = DATA_CONSTRAINED, market.field.counted[places][:, None]
    left = score - law.token_term(counted * bills.ratio)  # for tokens, where they are all fresh
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens = np.where(left > 0, (left / law.token_scale) ** (-1 / law.token_exponent), np.inf)
    reachable = np.isfinite(tokens) & (tokens < 1e16)
    steps = np.where(reachable, np.ceil(tokens / bills.step_tokens), 1.0)
    seconds = bills.seconds(steps)
    good = reachable & bills.keeps(steps, limits) & bills.batch_is_sound(steps, market.brief, SOUND)
    scores = bills.scores(steps)
    usd = np.where(good & (scores <= score * 1.0001), bills.usd(seconds), np.nan)[:, 0]
    if np.isnan(usd).all():
        return None
    row = int(np.nanargmin(usd))
    return Pick(place=int(places[row]), steps=int(steps[row, 0]), seconds=float(seconds[row, 0]), usd=float(usd[row]),
                score=float(scores[row, 0]))  # fmt: skip


def _slower(market: Market, plan: Choice, pick: Pick) -> Sensitivity:
    """How much slower than estimated the plan's kind of device may be before another choice is better."""
    field = market.field
    mine = field.device == field.device[pick.place]
    same = mine & (field.offer == field.offer[pick.place]) & (field.depth == plan.depth)
    others = find(market, market.limits, allowed=~mine)

    def rival(speed: float) -> Pick | None:
        """The best other choice at this speed if it is better than the plan's own; None if the plan's holds."""
        slowed = _slowed(market, mine, speed)
        own = find(slowed, market.limits, allowed=same)
        found = [p for p in (own, others, find(slowed, market.limits, allowed=mine & ~same)) if p is not None]
        first = _preferred(slowed, found) if found else own
        return None if first is own else first

    name = "this machine" if plan.gpu == "cpu" else plan.gpu
    if rival(SLOWEST) is None:
        return Sensitivity(text=f"this choice holds even if {name} gives only half the estimated tokens/s", slower=None)
    holds, fails = 1.0, SLOWEST
    for _ in range(_HALVINGS):
        middle = (holds + fails) / 2
        holds, fails = (middle, fails) if rival(middle) is None else (holds, middle)
    first = rival(fails)
    assert first is not None
    low = plan.tokens_per_second.low / plan.tokens_per_second.value
    inside = "inside the interval" if fails >= low else "below the interval"
    better = make_choice(_slowed(market, mine, fails), first)
    text = (
        f"this choice holds unless {name} gives {format_percent(1 - fails)} fewer tokens/s than estimated, "
        f"{inside} (its low end is {format_percent(1 - low)} down): then {_where(better)} is better"
    )
    return Sensitivity(text=text, slower=1 - fails, depth=better.depth)


def _slowed(market: Market, mine: np.ndarray, speed: float) -> Market:
    factor = np.where(mine, 1 / speed, 1.0)
    step = market.field.step
    slower = EstimateArrays(value=step.value * factor, low=step.low * factor, high=step.high * factor)
    return replace(market, field=replace(market.field, step=slower))


def _preferred(market: Market, picks: list[Pick]) -> Pick:
    """The one of these that the goal is after, ties and all."""
    pool = Pool(
        place=np.array([p.place for p in picks]),
        steps=np.array([p.steps for p in picks]),
        seconds=np.array([p.seconds for p in picks]),
        usd=np.array([p.usd for p in picks]),
        score=np.array([p.score for p in picks]),
        loss=np.full(len(picks), np.nan),
        against=np.zeros(len(picks), dtype=int),
        overrun=np.zeros(len(picks)),
    )
    return picks[choose(market, pool)]


def _change(plan: Choice, other: Choice) -> str:
    """What another choice has in place of the plan's."""
    parts = [f"depth {other.depth}" if other.depth != plan.depth else f"{format_tokens(other.tokens)} tokens"]
    if (other.gpu, other.gpus, other.spot) != (plan.gpu, plan.gpus, plan.spot):
        parts.append(f"on {_machine(other)}")
    if other.depth == plan.depth:
        parts.append(f"instead of {format_tokens(plan.tokens)}")
    elif other.loss and plan.loss:
        parts.append(f"instead of {plan.depth}")
    if other.loss and plan.loss:
        parts.append(f"(loss {_loss(plan)} to {_loss(other)})")
    return " ".join(parts)


def _where(choice: Choice) -> str:
    return f"depth {choice.depth} on {_machine(choice)}"


def _machine(choice: Choice) -> str:
    if choice.gpu == "cpu":
        return "this CPU"
    provider = f" from {choice.provider}" if choice.provider else ""
    return f"{choice.gpus} x {choice.gpu}{provider}{' spot' if choice.spot else ''}"


def _loss(choice: Choice) -> str:
    assert choice.loss is not None
    return format_number(choice.loss.value)
