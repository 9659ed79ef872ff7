"""What else could be done: three named options, the Pareto front, and what was better but for one constraint."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from advisor.plan.candidates import Candidates
from advisor.plan.choose import ALIKE_USD, LEVEL, Selection, select, selection
from advisor.plan.evaluate import Evaluated, Runs, Violation, runs_of
from advisor.plan.explain import caught, memory_needed
from advisor.plan.pareto import best_by_group, non_dominated, spread_out
from advisor.plan.search_space import SearchSpace
from advisor.plan.trial import Trial, make_trial, make_trials
from advisor.predict.groups import group_keys
from advisor.records import Choice
from advisor.units import format_centre, format_percent, format_seconds, format_usd

BOLD = 1.02  # times the best score that a larger model may have and still be the aggressive option
FRONT_SHOWN = 12  # besides the plan
SMALLEST_SHARE = 0.05  # of the plan's price: nobody who asks for a run of $20 looks for one of cents
ALIKE = 1.005  # times the best score of a front whose runs all train as well as each other
SAME = 0.02  # of dollars and hours: how near a run comes to the plan that is the plan again
MISSES_SHOWN = 5
_Point = tuple[float, float, float]  # dollars, seconds, score


def options(space: SearchSpace, plan: Choice) -> tuple[Choice, ...]:
    """Conservative, balanced and aggressive, as people think of them.

    Conservative keeps the limits with the intervals' high ends, on demand, with memory to spare. Balanced is the plan.
    Aggressive takes a spot machine where that buys a better model, else the largest model whose score is at most 2 %
    worse. Where no other run qualifies an option is left out.
    """
    named = []
    if (safe := _conservative(space)) is not None:
        named.append(safe)
    kept = "keeps the limits 9 times out of 10, as asked" if space.limits.sure else "expected to keep the limits"
    named.append(replace(plan, why=kept if _limited(space) else plan.why))
    bold, why = _aggressive(space, plan)
    if bold is not None:
        named.append(choice_of(space.candidates, bold, name="aggressive", why=why))
    return tuple(named)


def front(space: SearchSpace, evaluated: Evaluated, plan: Choice) -> tuple[tuple[Choice, ...], int]:
    """The runs that no other beats in dollars, hours and quality at once, thinned to what is shown; and how many.

    Quality is the score, and where the loss laws hold the predicted loss too, which may differ in the last digits: the
    plan is on the front, and what is shown beats nothing else shown in dollars, hours and loss.
    """
    runs = evaluated.standing
    usd = runs.paid
    runs = runs.rows(non_dominated(np.stack([usd, runs.seconds, runs.score], axis=1)))
    runs = _antichain(runs, plan)
    size = len(runs) + 1
    shown = [selection(runs, row) for row in _worth_showing(space, runs, plan)]
    rows = [trial.choice() for trial in make_trials(space.candidates, shown)]
    rows.append(replace(plan, name="", why="the plan"))
    return tuple(sorted(rows, key=_by_price)), size


def _worth_showing(space: SearchSpace, runs: Runs, plan: Choice) -> list[int]:
    """Places of a few runs of a front: the best for each price, and the best for each time.

    Where all train equally well the prices and times themselves. What comes to the plan's own dollars and hours with
    the same model on the same machine says nothing new.
    """
    usd = runs.paid
    new, together = ~_as_the_plan(space, runs, usd, plan), np.zeros(len(runs))
    if len(runs) and runs.score.max() <= ALIKE * min(runs.score.min(), plan.score):
        line = best_by_group(together, usd, runs.seconds)
        line = line[new[line]]
        return sorted(line[spread_out(usd[line], FRONT_SHOWN)].tolist()) if len(line) else []
    paid = plan.cost_usd.value if plan.cost_usd else 0.0
    large = (usd >= SMALLEST_SHARE * paid) & (runs.seconds >= SMALLEST_SHARE * plan.total_seconds.value) & new
    rows: set[int] = set()
    for effort in (usd, runs.seconds):
        line = best_by_group(together, effort, runs.score)
        line = line[large[line]]
        rows.update(line[spread_out(effort[line], FRONT_SHOWN // 2)].tolist() if len(line) else ())
    return _told_apart(runs, sorted(rows), plan)


def _told_apart(runs: Runs, rows: list[int], plan: Choice) -> list[int]:
    """The rows that no other beats by more than a tie, nor repeats within a few per cent; best scores first."""
    points = {row: (float(runs.paid[row]), float(runs.seconds[row]), float(runs.score[row])) for row in rows}
    own = plan.cost_usd.value if plan.cost_usd else 0.0, plan.total_seconds.value, plan.score
    shown: list[int] = []
    for row in sorted(rows, key=lambda row: points[row][2]):
        mine, before = points[row], [own, *(points[other] for other in shown)]
        beaten = any(_beaten(mine, other) for other in (own, *points.values()))
        if not beaten and not any(_repeats(mine, other) for other in before):
            shown.append(row)
    return sorted(shown)


def _beaten(mine: _Point, other: _Point) -> bool:
    """Whether another is clearly cheaper or faster, and within ties no worse in anything."""
    ties = (ALIKE_USD, ALIKE_USD, LEVEL)
    level = all(theirs <= tie * own for theirs, own, tie in zip(other, mine, ties, strict=True))
    return level and any(theirs * ALIKE_USD < own for theirs, own in zip(other[:2], mine[:2], strict=True))


def _repeats(mine: _Point, other: _Point) -> bool:
    near = all(abs(a - b) <= SAME * max(a, b) for a, b in zip(mine[:2], other[:2], strict=True))
    return near and max(mine[2], other[2]) <= ALIKE * min(mine[2], other[2])


def _as_the_plan(space: SearchSpace, runs: Runs, usd: np.ndarray, plan: Choice) -> np.ndarray:
    """Bool: the plan's model on the plan's machine for all but its dollars and hours, a larger micro-batch say."""
    kind = (plan.gpu, plan.gpus, plan.spot)
    candidates = space.candidates.rows(runs.place)
    mine = np.array([(o.gpu, o.gpus, o.spot) == kind for o in candidates.offers])[candidates.offer]
    mine &= candidates.depth == plan.depth
    paid = plan.cost_usd.value if plan.cost_usd else 0.0
    return mine & (abs(usd - paid) <= SAME * paid) & (abs(runs.seconds / plan.total_seconds.value - 1) <= SAME)


def _by_price(choice: Choice) -> tuple[float, float]:
    return choice.cost_usd.value if choice.cost_usd else 0.0, choice.total_seconds.value


def near_misses(space: SearchSpace, evaluated: Evaluated, plan: Choice) -> tuple[Choice, ...]:
    """Runs that would be better than the plan and have one thing against them, the nearest of each kind and card."""
    runs = evaluated.missed
    better = runs.rows((runs.score * LEVEL < plan.score) & ~_fits_otherwise(space, runs))
    order = np.lexsort((better.score, np.round(np.maximum(better.overrun, 1.0), 2)))
    shown: list[Selection] = []
    seen: dict[Violation, set[str]] = {}
    for row in order.tolist():
        miss = selection(better, row)
        gpus, gpu = seen.setdefault(miss.violation, set()), space.offer(miss.place).gpu
        if gpu in gpus or len(gpus) >= 2 or len(shown) >= MISSES_SHOWN:
            continue
        gpus.add(gpu)
        shown.append(miss)
    trials = make_trials(space.candidates, shown)
    return tuple(trial.choice(why=_what_rules_out(space, trial)) for trial in trials)


def _fits_otherwise(space: SearchSpace, runs: Runs) -> np.ndarray:
    """Bool: memory is against this run, but not against a smaller micro-batch of the same depth on the same machine."""
    kind = group_keys(space.candidates.offer, space.candidates.depth)
    return (runs.violation == Violation.MEMORY) & np.isin(kind[runs.place], np.unique(kind[space.candidates.fits]))


def _conservative(space: SearchSpace) -> Choice | None:
    safe = space.safe
    spot = safe.of_offers("spot").astype(bool)
    allowed = np.full(len(safe), True) if space.goal.spot == "only" else ~spot
    chosen = select(space, replace(space.limits, sure=True), spot=True, allowed=allowed, candidates=safe)
    if chosen is None:
        return None
    why = "keeps the limits 9 times out of 10, with 15 % of memory free" if _limited(space) else "15 % memory free"
    terms = "a spot machine as asked" if spot[chosen.place] else "on demand"
    return choice_of(safe, chosen, name="conservative", why=f"{why}, {terms}")


def _aggressive(space: SearchSpace, plan: Choice) -> tuple[Selection | None, str]:
    spot = select(space, space.limits, spot=True)
    if spot is not None and space.offer(spot.place).spot and not plan.spot and spot.score * LEVEL < plan.score:
        return spot, "a spot machine: may be taken back at any time, time lost to that is expected time here"
    larger = np.nonzero(space.candidates.fits & (space.candidates.parameters > 1.05 * plan.parameters))[0]
    if not len(larger):
        return None, ""
    runs = runs_of(space.candidates, larger, space.limits, spot=space.spot)
    runs = runs.rows((runs.violation == 0) & (runs.score <= BOLD * plan.score))
    if not len(runs):
        return None, ""
    row = int(np.lexsort((runs.score, -space.candidates.parameters[runs.place]))[0])
    return selection(runs, row), "the largest model whose score is at most 2 % worse: stronger if trained on later"


def choice_of(candidates: Candidates, chosen: Selection, *, name: str = "", why: str = "") -> Choice:
    """A chosen run as a row of the search's tables."""
    return make_trial(candidates, chosen).choice(name=name, why=why)


def _limited(space: SearchSpace) -> bool:
    return space.brief.limited


def _antichain(runs: Runs, plan: Choice) -> Runs:
    """The rows of a front that neither beat the plan nor each other, nor are beaten, in dollars, hours and loss.

    Best scores first. Between scores alike the loss law may see it the other way round by a thousandth. A loss that is
    not known gives way to the score, which orders any two.
    """
    usd = runs.paid
    table = np.stack([usd, runs.seconds, runs.loss, runs.score], axis=1)
    paid = plan.cost_usd.value if plan.cost_usd else 0.0
    kept = np.empty((len(runs) + 1, 4))
    kept[0] = (paid, plan.total_seconds.value, plan.loss.value if plan.loss else math.nan, plan.score)
    rows: list[int] = []
    for row in np.argsort(runs.score).tolist():
        others, mine = kept[: len(rows) + 1], table[row]
        which = np.where(np.isnan(others[:, 2]) | math.isnan(mine[2]), 3, 2)
        quality, own = others[np.arange(len(others)), which], mine[which]
        beaten = (others[:, 0] <= mine[0]) & (others[:, 1] <= mine[1]) & (quality <= own)
        beats = (others[:, 0] >= mine[0]) & (others[:, 1] >= mine[1]) & (quality >= own)
        if not (beaten | beats).any():
            rows.append(row)
            kept[len(rows)] = mine
    return runs.rows(np.array(sorted(rows), dtype=int))


def _what_rules_out(space: SearchSpace, trial: Trial) -> str:
    limits = space.limits
    up_to = "up to " if limits.sure else ""
    if trial.violation is Violation.MONEY:
        assert trial.bill.usd is not None and limits.budget_usd is not None
        needs, limit = limits.counted(trial.bill.usd), limits.budget_usd
        words = format_usd(needs) if limits.sure else format_centre(trial.bill.usd, format_usd)
        if words == format_usd(limit):
            return f"over budget by {format_percent(needs / limit - 1)}"
        return f"over budget: {up_to}{words} of {format_usd(limit)}"
    if trial.violation is Violation.TIME:
        clock = trial.bill.clock.total_seconds
        time = format_seconds(clock.high) if limits.sure else format_centre(clock, format_seconds)
        return f"too slow: {up_to}{time} of {format_seconds(limits.deadline_seconds)}"
    if trial.violation is Violation.SPOT:
        return "a spot machine: --spot any allows it"
    if trial.violation is Violation.NOTICE:
        return f"gone before it has saved: {caught(trial)}"
    assert trial.device_bytes is not None and trial.prediction.device_memory_bytes is not None
    return f"does not fit memory: {memory_needed(trial.device_bytes, trial.prediction.device_memory_bytes)}"
