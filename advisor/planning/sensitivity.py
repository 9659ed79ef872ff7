"""Find what would change the choice: more or less money or time, a slower device, more or fewer GPUs.

Every sentence is the result of another search in the same space; the tests compare it with a new plan.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from advisor.options import Goal
from advisor.planning.alternatives import unpublished
from advisor.planning.candidates import OVERSHOOT
from advisor.planning.choose import LEVEL, USED_UP, Selection, best_of, one_node_is_enough, select, selection
from advisor.planning.costs import Costs
from advisor.planning.evaluate import NOTHING, Runs, least_steps, runs_at, runs_of
from advisor.planning.explore import is_unproven, pinned
from advisor.planning.goal import Limits
from advisor.planning.offers import BETWEEN, GPU_COUNTS, same_machine, within_a_node
from advisor.planning.run import make_run, make_runs
from advisor.planning.search_space import SearchSpace, open_space
from advisor.prediction.loss import DATA_CONSTRAINED
from advisor.prediction.profile import Profile
from advisor.records import Run, ScalingPoint
from advisor.units import (
    format_centre,
    format_error,
    format_loss,
    format_seconds,
    format_share,
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
    better: bool = False  # a better model than the plan's
    slower: float | None = None  # share of tokens/s by which the device may be slower before the choice changes


Search = Callable[[Limits], tuple[SearchSpace, Selection | None]]  # the whole search within other limits


def sensitivity(space: SearchSpace, plan: Run, chosen: Selection, again: Search | None = None) -> Iterator[Sensitivity]:
    """Yield what more or less money, more time, and fewer tokens per second would change.

    `again` is asked where more than the nodes of this space would be searched; None: they are not.
    """
    settled, limits = space.brief.settled, space.limits
    budget, deadline, paid = limits.budget_usd, limits.deadline_seconds, plan.cost_usd.value if plan.cost_usd else 0.0
    # Settled work leaves the depth open if a limit decides it.
    budget = budget if paid else None  # it limits no run that costs nothing
    wider = not settled or (space.goal.objective == "loss" and space.goal.depth is None and space.brief.limited)
    more: dict[str, Limits] = {}
    if wider and budget is not None:
        extra = nice(budget / 4)
        more[f"+{format_usd(extra)}"] = replace(limits, budget_usd=budget + extra)
    if wider and deadline is not None and space.brief.limited:
        extra = nice_seconds(_LATER[0] * deadline)
        more[f"{format_seconds(extra)} more"] = replace(limits, deadline_seconds=deadline + extra)
    yield from _more(space, plan, more, again)
    if wider and budget is not None:
        half = replace(limits, budget_usd=budget / 2)
        if (less := select(space, half)) is not None:
            choice = make_run(space.candidates, less)
            alike = less.score <= plan.score * (1 + BETTER)
            buys = f"a model as good: {_at_depth(choice)}" if alike else _change(plan, choice)
            yield Sensitivity(text=f"for {format_usd(budget / 2)} you get {buys}", limits=half, depth=choice.depth)
    if space.brief.limited and deadline is not None and paid and not settled:
        now = as_good(space, plan.score * LEVEL, limits)
        cheapest = min([paid, *_cautiously(space, plan, now, limits).usd])
        for share in _LATER:
            extra = nice_seconds(share * deadline)
            later, words = replace(limits, deadline_seconds=deadline + extra), f"{format_seconds(extra)} more"
            # How much cheaper the same quality is with more time.
            runs = as_good(space, plan.score * LEVEL, later)
            runs = _cautiously(space, plan, runs.rows(~np.isin(runs.place, now.place)), later)
            if len(runs) and runs.usd.min() <= (1 - WORTH_SHOWING) * cheapest:
                choice = make_run(space.candidates, selection(runs, int(runs.usd.argmin())))
                before, after = (format_centre(run.cost_usd, format_usd) for run in (plan, choice))
                saved = f"{before} to {after} ({format_error(plan.cost_usd, choice.cost_usd, format_usd)})"
                on = _at_depth(choice)
                text = f"{words} would lower the price from {saved} for a model about as good: {on}"
                yield Sensitivity(text=text, limits=later, depth=choice.depth)
                break
    yield from _waiting(space, plan)
    if not settled or len(space.candidates.machines.devices) > 1:
        yield _slower(space, plan, chosen)


def passed_over(run: Run) -> str:
    """Return why a run that looks better than the plan by its expected numbers was not chosen (`UNPROVEN`)."""
    numbers = [format_centre(run.cost_usd, format_usd), format_centre(run.total_seconds, format_seconds)]
    numbers += [f"loss {format_centre(run.loss, format_loss)}"] if run.loss else []
    return f"{_at_depth(run)} ({', '.join(numbers)}) would be {run.standing.why}"


def nice(amount: float) -> float:
    """Round an amount to 1, 2 or 5 times a power of ten, as a person would."""
    power = 10.0 ** math.floor(math.log10(amount))
    return power * min((1, 2, 5, 10), key=lambda digit: abs(math.log(amount / power / digit)))


def nice_seconds(seconds: float) -> float:
    """Round a duration to a nice number of seconds, minutes, hours or days."""
    unit = next(unit for unit in (86400.0, 3600.0, 60.0, 1.0) if seconds >= unit or unit == 1.0)
    return nice(max(seconds / unit, 1.0)) * unit


def _more(space: SearchSpace, plan: Run, wider: Mapping[str, Limits], again: Search | None) -> list[Sensitivity]:
    """Return what each of these wider limits would buy, or what both buy together if neither helps alone."""
    alone = [_buys(space, plan, limits, words, again) for words, limits in wider.items()]
    if len(alone) == 2 and not any(item.better for item in alone):
        money, time = wider.values()
        both = replace(money, deadline_seconds=time.deadline_seconds)
        together = _buys(space, plan, both, f"{' and '.join(wider)} together", again)
        if together.better:
            return [replace(together, text=f"{together.text}; either alone would not give a better model")]
    return alone


def _buys(space: SearchSpace, plan: Run, wider: Limits, words: str, again: Search | None) -> Sensitivity:
    """Return which better run a wider limit allows, or what else holds the run back."""
    limits, better = space.limits, select(space, wider)
    if space.goal.spot == "none" and space.candidates.spot.any():
        words = f"{words}, still without spot machines,"
    if again and within_a_node(space.goal) != space.goal and not one_node_is_enough(space, wider, better):
        space, better = again(wider)
    choice = make_run(space.candidates, better) if better is not None else plan
    losses = [loss for loss in (plan.loss, choice.loss) if loss]
    shown = [format_centre(loss, format_loss) for loss in losses]
    alike = losses and (shown[0] == shown[-1] or losses[0].value <= losses[-1].value)  # only the score is better
    if better is not None and better.score * (1 + BETTER) < plan.score and not alike:
        return Sensitivity(
            text=f"{words} would buy {_change(plan, choice)}", limits=wider, depth=choice.depth, better=True
        )
    paid = limits.counted(plan.cost_usd) if plan.cost_usd else 0.0
    late, dear = limits.patient.overruns(limits.counted(plan.total_seconds), paid)
    why = ": the data are used up" if space.brief.data_bound(plan) else ""
    if not same_machine(choice.offer, plan.offer):  # then nothing holds it back
        loss = f", loss {' instead of '.join(reversed(shown))}" if len({*shown}) == 2 else ""
        why = f": the choice would be {_at_depth(choice)}{loss}"
        why += f"; {unpublished(plan.offer)}" if is_unproven(plan) else ""
    elif dear > USED_UP and wider.budget_usd == limits.budget_usd:
        why = f": the limit is the budget of {format_usd(limits.budget_usd)}"
    elif late > USED_UP and wider.deadline_seconds == limits.deadline_seconds:
        why = f": the limit is the deadline of {format_seconds(limits.deadline_seconds)}"
    return Sensitivity(text=f"{words} would not give a better model{why}", limits=wider, depth=choice.depth)


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
    runs = _cautiously(space, plan, as_good(space, plan.score * AS_GOOD, limits), limits)
    if len(runs) and plan.cost_usd is not None:
        ends = [make_run(space.candidates, selection(runs, int(o.argmin()))) for o in (runs.usd, runs.seconds)]
        described = [
            f"{format_usd(end.cost_usd.value)} in {format_seconds(end.total_seconds.value)} ({_at_depth(end)})"
            for end in ends
            if end.cost_usd
        ]
        text = f"almost as good (score within 2 %): {', or '.join(dict.fromkeys(described))}"
        yield Sensitivity(text=text, limits=limits)


def _cautiously(space: SearchSpace, plan: Run, runs: Runs, limits: Limits) -> Runs:
    """Return those of these runs that are within the limits as the search counts them, with these seconds and dollars:
    those of a little known machine at its cautious end, as in `best_of`, unless it is the plan's."""
    machines, offer = space.candidates.machines, space.candidates.offer[runs.place]
    mine = np.array([same_machine(other, plan.offer) for other in machines.offers])
    factor = np.where(mine, 1.0, machines.cautions)[offer]
    runs = replace(runs, seconds=runs.seconds * factor, usd=runs.usd * factor)
    return runs.rows((factor == 1) | (np.maximum(*limits.overruns(runs.seconds, runs.usd)) <= 1))


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
    other = better.offer.in_words() if better.standing.score is None else _at_depth(better)
    share = format_share(1 - fails)
    likely = "quite possible" if fails >= low else "unlikely"
    text = f"this choice holds unless {name} is more than {share} slower than estimated, which is {likely}: then "
    if 1 - fails < _TIE:
        text = f"a near tie: if {name} is even {share} slower than estimated, "
    text += f"{other} is better"
    return Sensitivity(text=text, slower=1 - fails, depth=better.depth)


def _change(plan: Run, other: Run) -> str:
    """Return how another choice differs from the plan, in words."""
    where = "" if same_machine(other.offer, plan.offer) else f" on {other.offer.in_words()}"
    if other.depth == plan.depth:
        text = f"{format_tokens(other.tokens)} tokens instead of {format_tokens(plan.tokens)}{where}"
    else:
        size = "larger" if other.depth > plan.depth else "smaller"
        text = f"a {size} model{where}: depth {other.depth} instead of {plan.depth}"
    if other.loss and plan.loss:
        before, after = (format_centre(loss, format_loss) for loss in (plan.loss, other.loss))
        text += f", loss {after} instead of {before}"
    return text


def _at_depth(run: Run) -> str:
    return f"depth {run.depth} on {run.offer.in_words()}"


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The plan on other numbers of GPUs, with equal model, tokens and global batch."""

    points: tuple[ScalingPoint, ...] = ()
    pays_up_to_gpus: int | None = None
    left_out: tuple[str, ...] = ()  # numbers of GPUs that are not shown, with reasons


def scaling(goal: Goal, plan: Run, profile: Profile, data_meta: TokenMeta | None, today: datetime.date) -> Scaling:
    """Return the plan on other numbers of GPUs, and how many GPUs pay off.

    If a number of GPUs cannot split the global batch evenly, the nearest batch that it can split is taken. More GPUs
    pay off while the product of dollars and hours falls; GPU-hours stand for dollars if the price is unknown. A CPU has
    no other numbers.
    """
    workload, mine = plan.workload, plan.offer
    if workload.gpu == "cpu":
        return Scaling()
    asked = sorted({*GPU_COUNTS, *BETWEEN, mine.gpus, *goal.counts})
    counts = tuple(n for n in asked if n * workload.shape.seq_len <= OVERSHOOT * workload.step_tokens)
    left_out = {n: "not even one sequence of the global batch for each" for n in asked if n not in counts}
    same = pinned(goal, plan)
    same = replace(same, counts=counts, micro_batch=None, providers=same.providers and goal.providers)
    space = open_space(same, [profile], data_meta, today)
    field, shown = space.candidates, []
    offers = {o.gpus: (at, o) for at, o in enumerate(space.candidates.machines.offers) if o.spot == mine.spot}
    for n in counts:
        at, offer = offers.get(n, (-1, mine))
        if at < 0:
            left_out[n] = "not to be had together"
        elif not (field.offer == at).any():
            left_out[n] = "the links between them are unknown"
        elif n != mine.gpus and not field.fits[field.offer == at].any():
            left_out[n] = "the run does not surely fit their memory"
        elif n not in (mine.gpus, *GPU_COUNTS, *goal.counts) and (offer.rented or n) > n:
            left_out[n] = f"{offer.rented} are rented together"
        else:
            shown.append(at)
    sized = runs_of(field, np.flatnonzero(np.isin(field.offer, shown)), space.limits, spot=True)
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
    return Scaling(
        points=tuple(points),
        pays_up_to_gpus=None if least == len(points) - 1 else points[least].gpus,
        left_out=tuple(
            f"{', '.join(str(n) for n in sorted(left_out) if left_out[n] == why)}: {why}"
            for why in dict.fromkeys(left_out[n] for n in sorted(left_out))
        ),
    )
