"""Find what would change the choice: more or less money or time, a slower device, more or fewer GPUs.

Every sentence is the result of another search in the same space; the tests compare it with a new plan.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

import numpy as np

from advisor.hardware.catalog import require_gpu
from advisor.offer import OWN_MACHINE
from advisor.options import Goal
from advisor.planning.candidates import OVERSHOOT
from advisor.planning.choose import LEVEL, USED_UP, Selection, best_of, select, selection
from advisor.planning.costs import Costs
from advisor.planning.evaluate import NOTHING, Runs, least_steps, runs_at, runs_of
from advisor.planning.explore import pinned
from advisor.planning.goal import Limits
from advisor.planning.offers import GPU_COUNTS, same_machine
from advisor.planning.run import make_run, make_runs
from advisor.planning.search_space import SearchSpace, open_space
from advisor.prediction.comm import caution
from advisor.prediction.loss import DATA_CONSTRAINED
from advisor.prediction.profile import Profile
from advisor.records import Run, ScalingPoint
from advisor.units import (
    format_centre,
    format_error,
    format_number,
    format_percent,
    format_seconds,
    format_tokens,
    format_usd,
)
from trainer.token_folder import TokenMeta

AS_GOOD = 1.02  # a score within this factor of the plan's is about as good
WORTH_SHOWING = 0.05  # share of the price; a smaller saving is not mentioned
BETTER = 0.005  # share of the score; a smaller improvement does not count
SLOWEST = 0.5  # share of the estimated tokens/s; slower devices are not considered
_LATER = (0.25, 1.0, 3.0)  # extensions to try, as shares of the deadline
_TIE = 0.02  # no estimate of a speed is better than that
_HALVINGS = 7  # steps of the search for the slowest speed at which the choice holds, to within 1 %


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """A sentence with the numbers behind it."""

    text: str
    limits: Limits | None = None  # of the other search
    depth: int | None = None
    slower: float | None = None  # share of tokens/s by which the device may be slower before the choice changes


def sensitivity(space: SearchSpace, plan: Run, chosen: Selection) -> Iterator[Sensitivity]:
    """Yield what more or less money, more time, and fewer tokens per second would change."""
    settled, limits = space.brief.settled, space.limits
    budget, deadline, paid = limits.budget_usd, limits.deadline_seconds, plan.cost_usd.value if plan.cost_usd else 0.0
    # Settled work leaves the depth open if a limit decides it.
    wider = not settled or (space.goal.objective == "loss" and space.goal.depth is None and space.brief.limited)
    if wider and budget is not None:
        more = nice(budget / 4)
        yield _more(space, plan, replace(limits, budget_usd=budget + more), f"+{format_usd(more)}")
        half = replace(limits, budget_usd=budget / 2)
        if (less := select(space, half)) is not None:
            choice = make_run(space.candidates, less)
            alike = less.score <= plan.score * (1 + BETTER)
            buys = f"the same quality: {machine(choice, depth=True)}" if alike else _change(plan, choice)
            yield Sensitivity(
                text=f"{format_usd(budget / 2)} would be enough for {buys}", limits=half, depth=choice.depth
            )
    if space.brief.limited and deadline is not None:
        for share in _LATER:
            more = nice_seconds(share * deadline)
            later, words = replace(limits, deadline_seconds=deadline + more), f"{format_seconds(more)} more"
            if wider and share == _LATER[0]:
                yield _more(space, plan, later, words)
            # How much cheaper the same quality is with more time.
            runs = as_good(space, plan.score * LEVEL, later) if paid and not settled else None
            if runs is not None and len(runs) and runs.usd.min() <= (1 - WORTH_SHOWING) * paid:
                choice = make_run(space.candidates, selection(runs, int(runs.usd.argmin())))
                before, after = (format_centre(run.cost_usd, format_usd) for run in (plan, choice))
                saved = f"{before} to {after} ({format_error(plan.cost_usd, choice.cost_usd, format_usd)})"
                on = machine(choice, depth=True)
                text = f"{words} would lower the price from {saved} for a model about as good: {on}"
                yield Sensitivity(text=text, limits=later, depth=choice.depth)
                break
    yield from _waiting(space, plan)
    if not settled or len(space.candidates.machines.devices) > 1:
        yield _slower(space, plan, chosen)


def passed_over(runs: Iterable[Run], plan: Run) -> Iterator[str]:
    """Yield which run of the front is cheaper and no worse than the plan by its expected numbers, and why it lost.

    Machines on which few have published a run are compared at their cautious end (`choose.best_of`).
    """
    better = [
        run
        for run in runs
        if run.cost_usd and plan.cost_usd and run.score is not None and plan.score is not None
        and run.cost_usd.value < plan.cost_usd.value and run.score <= plan.score
        and caution(require_gpu(run.offer.gpu), run.offer.gpus) > 1
    ]  # fmt: skip
    if run := min(better, key=lambda run: run.score or 0.0, default=None):
        result = format_centre(run.cost_usd, format_usd)
        result += f", loss {format_centre(run.loss, format_number)}" if run.loss else ""
        yield (
            f"{machine(run, depth=True)} looks better ({result}), but few runs on such a machine are published: it was "
            "compared by the slow end of its estimate"
        )


def nice(amount: float) -> float:
    """Round an amount to 1, 2 or 5 times a power of ten, as a person would."""
    power = 10.0 ** math.floor(math.log10(amount))
    return power * min((1, 2, 5, 10), key=lambda digit: abs(math.log(amount / power / digit)))


def nice_seconds(seconds: float) -> float:
    """Round a duration to a nice number of seconds, minutes, hours or days."""
    unit = next(unit for unit in (86400.0, 3600.0, 60.0, 1.0) if seconds >= unit or unit == 1.0)
    return nice(max(seconds / unit, 1.0)) * unit


def _more(space: SearchSpace, plan: Run, wider: Limits, words: str) -> Sensitivity:
    """Return which better run a wider limit allows, or what else holds the run back."""
    limits, better = space.limits, select(space, wider)
    choice = make_run(space.candidates, better) if better is not None else plan
    losses = [loss for loss in (plan.loss, choice.loss) if loss]
    shown = [format_centre(loss, format_number) for loss in losses]
    alike = losses and (shown[0] == shown[-1] or losses[0].value <= losses[-1].value)  # only the score is better
    if better is not None and better.score * (1 + BETTER) < plan.score and not alike:
        return Sensitivity(text=f"{words} would buy {_change(plan, choice)}", limits=wider, depth=choice.depth)
    paid = limits.counted(plan.cost_usd) if plan.cost_usd else 0.0
    late, dear = limits.overruns(limits.counted(plan.total_seconds), paid)
    why = ": the data are used up" if space.brief.unique_tokens else ""
    if dear > USED_UP and wider.budget_usd == limits.budget_usd:
        why = ": there is no money left for it"
    if late > USED_UP and wider.deadline_seconds == limits.deadline_seconds:
        why = ": there is no time left for it"
    return Sensitivity(text=f"{words} would not give a better model{why}", limits=wider, depth=plan.depth)


def _waiting(space: SearchSpace, plan: Run) -> Iterator[Sensitivity]:
    """Yield the run that free waiting would allow, and the cheapest and fastest runs about as good as the plan."""
    limits = space.limits.patient
    if limits == space.limits or space.brief.settled or limits.budget_usd is None:
        return
    budget = format_usd(limits.budget_usd)
    if (best := select(space, limits)) is not None and best.score * (1 + BETTER) < plan.score:
        choice = make_run(space.candidates, best)
        wait = format_seconds(choice.total_seconds.value)
        text = f"if you can wait {wait}, the same {budget} buys {_change(plan, choice)} (--value-of-time 0)"
        yield Sensitivity(text=text, limits=limits, depth=choice.depth)
    runs = as_good(space, plan.score * AS_GOOD, limits)
    if len(runs) and plan.cost_usd is not None:
        ends = [make_run(space.candidates, selection(runs, int(o.argmin()))) for o in (runs.usd, runs.seconds)]
        described = [
            f"{format_usd(end.cost_usd.value)} in {format_seconds(end.total_seconds.value)} "
            f"({machine(end, depth=True)})"
            for end in ends
            if end.cost_usd
        ]
        text = f"almost as good (score within 2 %): {', or '.join(dict.fromkeys(described))}"
        yield Sensitivity(text=text, limits=limits)


def as_good(space: SearchSpace, score: float, limits: Limits) -> Runs:
    """Return for each configuration the shortest run of known price within the limits with at most this score."""
    costs = Costs(space.candidates)
    law, counted = DATA_CONSTRAINED, costs.counted
    # Solve the loss law for the tokens that reach the score, taking all tokens as fresh.
    left = score - law.token_term(counted * costs.ratio)
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens = np.where(left > 0, (left / law.token_scale) ** (-1 / law.token_exponent), np.inf)
    reachable = np.isfinite(tokens) & (tokens < 1e16)
    steps = np.maximum(np.where(reachable, np.ceil(tokens / costs.step_tokens), 1.0), least_steps(costs))
    runs = runs_at(costs, np.arange(len(space.candidates)), steps, limits, spot=space.goal.spot != "none")
    good = (runs.violation == NOTHING) & reachable[:, 0] & (runs.score <= score * 1.0001) & ~np.isnan(runs.usd)
    return runs.rows(good)


def _slower(space: SearchSpace, plan: Run, chosen: Selection) -> Sensitivity:
    """Return how much slower than estimated the plan's device may be before another choice is better."""
    field = space.candidates
    keys = np.array([device.profile.key for device in field.machines.devices])[field.device]
    mine = keys == plan.offer.gpu
    same = mine & (field.offer == field.offer[chosen.place]) & (field.depth == plan.depth)
    others = select(space, space.limits, allowed=~mine)

    def rival(speed: float) -> Callable[[], Run] | None:
        step = field.step.scaled(np.where(mine, 1 / speed, 1.0))
        slowed = replace(space, candidates=replace(field, step=step))
        own = select(slowed, space.limits, allowed=same)
        picks = [p for p in (own, others, select(slowed, space.limits, allowed=mine & ~same)) if p is not None]
        if not picks:
            return None
        # Apply the rule of the goal to these, so that ties are decided as in a search.
        columns = {
            name: np.array([getattr(p, name) for p in picks]) for name in ("place", "steps", "seconds", "usd", "score")
        }
        nothing = np.zeros(len(picks), dtype=int)
        runs = Runs(**columns, loss=np.full(len(picks), np.nan), violation=nothing, overrun=nothing)
        first = picks[best_of(slowed, slowed.candidates, runs, space.limits)]
        return None if first is own else partial(make_run, slowed.candidates, first)

    return how_slow(plan, rival)


def how_slow(plan: Run, rival: Callable[[float], Callable[[], Run] | None]) -> Sensitivity:
    """Return how much slower than estimated the GPUs of a plan may be before another choice is better.

    `rival` returns what makes the best other choice if they have this share of their speed, or None if the plan's
    choice is still the best.
    """
    name = "this machine" if plan.offer.gpu == "cpu" else plan.offer.gpu
    if rival(SLOWEST) is None:
        return Sensitivity(text=f"this choice holds even if {name} is half as fast as estimated", slower=None)
    holds, fails = 1.0, SLOWEST
    for _ in range(_HALVINGS):
        middle = (holds + fails) / 2
        holds, fails = (middle, fails) if rival(middle) is None else (holds, middle)
    slower = rival(fails)
    assert slower is not None
    better = slower()
    rate = plan.tokens_per_second
    low = rate.low / rate.value
    other, share = machine(better, depth=better.standing.score is not None), format_percent(1 - fails)
    likely = "quite possible" if fails >= low else "unlikely"
    text = f"this choice holds unless {name} is more than {share} slower than estimated, which is {likely}: then "
    if 1 - fails < _TIE:
        text = f"a near tie: if {name} is even {share} slower than estimated, "
    text += f"{other} is better"
    return Sensitivity(text=text, slower=1 - fails, depth=better.depth)


def _change(plan: Run, other: Run) -> str:
    """Return how another choice differs from the plan, in words."""
    parts = [f"depth {other.depth}" if other.depth != plan.depth else f"{format_tokens(other.tokens)} tokens"]
    if other.depth == plan.depth:
        parts.append(f"instead of {format_tokens(plan.tokens)}")
    elif other.loss and plan.loss:
        parts.append(f"instead of {plan.depth}")
    if not same_machine(other.offer, plan.offer):
        parts.append(f"on {machine(other)}")
    if other.loss and plan.loss:
        before, after = (format_centre(loss, format_number) for loss in (plan.loss, other.loss))
        parts.append(f"(loss {before} to {after})")
    return " ".join(parts)


def machine(run: Run, provided: str = " from ", *, depth: bool = False) -> str:
    """Return the machine of a run as text, with the depth if asked. `provided` is the text before the provider."""
    offer, on = run.offer, f"depth {run.depth} on " if depth else ""
    if offer.gpu == "cpu":
        return f"{on}this CPU"
    provider = f"{provided}{offer.provider}" if offer.provider else ""
    if offer.source == OWN_MACHINE:
        provider = " of your own"
    return f"{on}{offer.gpus} x {offer.gpu}{provider}{' spot' if offer.spot else ''}"


def scaling(
    goal: Goal, plan: Run, profile: Profile, data_meta: TokenMeta | None, today: datetime.date
) -> tuple[tuple[ScalingPoint, ...], int | None]:
    """Return the plan on other numbers of GPUs, with equal model, tokens and global batch, and how many GPUs pay off.

    More GPUs pay off while the product of dollars and hours falls; GPU-hours stand for dollars if the price is unknown.
    The curve ends where the global batch cannot be split further or the links are unknown. It skips numbers of GPUs
    that no provider rents together, and is empty for a CPU.
    """
    workload, mine = plan.workload, plan.offer
    if workload.gpu == "cpu":
        return (), None
    counts = tuple(n for n in GPU_COUNTS if n * workload.shape.seq_len <= OVERSHOOT * workload.step_tokens)
    same = pinned(goal, plan)
    same = replace(same, counts=counts, micro_batch=None, providers=same.providers and goal.providers)
    space = open_space(same, [profile], data_meta, today)
    field, offers = space.candidates, space.candidates.machines.offers
    # The curve ends at the first number of GPUs that cannot run the plan.
    asked = [number for number, offer in enumerate(offers) if offer.spot == mine.spot]
    able = list(takewhile(lambda number: field.fits[field.offer == number].any(), asked))
    sized = runs_of(field, np.flatnonzero(np.isin(field.offer, able)), space.limits, spot=True)
    points: list[ScalingPoint] = []
    for sized_run in make_runs(field, [selection(sized, row) for row in range(len(sized))]):
        run = plan if sized_run.offer == mine else sized_run  # whose micro-batch may be the one that the goal fixes
        rate, gpus, tokens = run.tokens_per_second.value, run.offer.gpus, run.workload.step_tokens
        per_gpu = points[0].tokens_per_second / points[0].gpus if points else rate / gpus
        points.append(
            ScalingPoint(
                gpus=gpus,
                tokens_per_second=rate,
                total_seconds=run.total_seconds.value,
                cost_usd=run.cost_usd.value if run.cost_usd else None,
                efficiency=rate / gpus / per_gpu,
                provider=run.offer.provider,
                rented=run.offer.rented,
                other_batch_tokens=None if tokens == workload.step_tokens else tokens,
            )
        )
    burdens = [(p.cost_usd if p.cost_usd else p.gpus * p.total_seconds) * p.total_seconds for p in points]
    least = min(range(len(points)), key=burdens.__getitem__, default=-1)
    return tuple(points), None if least == len(points) - 1 else points[least].gpus
