"""What else could be done: named options, each machine asked for, the front, and what was better but for one thing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from advisor.plan import explain
from advisor.plan.candidates import Candidates
from advisor.plan.choose import ALIKE_USD, LEVEL, Selection, select, selection
from advisor.plan.considered import nearest
from advisor.plan.evaluate import Evaluated, Runs, Violation, runs_of
from advisor.plan.explain import caught, memory_needed
from advisor.plan.offers import ANY
from advisor.plan.pareto import best_by_group, non_dominated, spread_out
from advisor.plan.search_space import SearchSpace
from advisor.plan.trial import Trial, make_trial, make_trials
from advisor.predict.groups import group_keys
from advisor.records import Choice
from advisor.units import format_centre, format_percent, format_seconds, format_usd

SURE = "keeps the limits 9 times out of 10"
THE_PLAN = "the plan"
ROOMIER = 0.05  # of the memory: less than that is nothing to choose by
FRONT_SHOWN = 12  # besides the plan
SMALLEST_SHARE = 0.05  # of the plan's price: nobody who asks for a run of $20 looks for one of cents
ALIKE = 1.005  # times the best score of a front whose runs all train as well as each other
SAME = 0.02  # of dollars and hours: how near a run comes to the plan that is the plan again
MISSES_SHOWN = 5
_Point = tuple[float, float, float]  # dollars, seconds, score


def options(space: SearchSpace, plan: Choice) -> tuple[Choice, ...]:
    """The plan as balanced, and beside it what has something that one wants and the plan lacks.

    Conservative keeps the limits with the intervals' high ends, on demand, with memory to spare, by a model that is no
    larger. Aggressive takes a spot machine.
    """
    kept = "keeps the limits 9 times out of 10, as asked" if space.limits.sure else "expected to keep the limits"
    balanced = replace(plan, name="balanced", why=kept if space.brief.limited else plan.why)
    named = (_conservative(space, plan), balanced, _aggressive(space, plan))
    return tuple(choice for choice in named if choice is not None)


def surer(space: SearchSpace, plan: Choice) -> Choice | None:
    """What --sure would plan where the plan may well break a limit; None where it does not, or nothing keeps it."""
    if not _may_break(space, plan):
        return None
    chosen = select(space, replace(space.limits, sure=True))
    return None if chosen is None else choice_of(space.candidates, chosen, why=SURE)


def machines(space: SearchSpace, plan: Choice) -> tuple[Choice, ...]:
    """The best run on each machine that was asked for by name, in that order, with why it was not chosen.

    None where whatever somebody rents was asked for: that front says more than a hundred rows.
    """
    candidates, rows = space.candidates, []
    if space.goal.gpu == ANY:
        return ()
    for number in np.unique(candidates.offer[space.allowed]):
        places = np.nonzero(candidates.offer == number)[0]
        best = nearest(space, runs_of(candidates, places, space.limits, spot=True))
        trial = make_trial(candidates, best)
        row = trial.choice()
        mine = (row.gpu, row.gpus, row.spot) == (plan.gpu, plan.gpus, plan.spot)
        rows.append(replace(plan, name="", why=THE_PLAN) if mine else replace(row, why=_why_not(trial, row, plan)))
    return tuple(rows) if len(rows) > 1 else ()


def _why_not(trial: Trial, row: Choice, plan: Choice) -> str:
    """What rules a machine's best run out, else what it has against it and for it beside the plan."""
    if (ruled_out := explain.rejection(trial)) is not None:
        return ruled_out
    return (
        ", ".join(_differences(plan, row, worse=True) + _differences(row, plan, worse=False)) or "as good as the plan"
    )


def _differences(better: Choice, other: Choice, *, worse: bool) -> list[str]:
    """In what one run is better than another, in words of the better one or, where that is asked, of the worse one."""
    words = []
    if better.score * LEVEL < other.score:
        words.append("a worse model" if worse else "a better model")
    less, more = (choice.cost_usd.value if choice.cost_usd else 0.0 for choice in (better, other))
    if better.cost_usd and less < (1 - SAME) * more:
        if worse:
            words.append(f"{format_percent(round(more / less - 1, 2))} dearer" if less else "costs money")
        else:
            words.append(f"{format_percent(round(1 - less / more, 2))} cheaper")
    if better.total_seconds.value < (1 - SAME) * other.total_seconds.value:
        ratio = other.total_seconds.value / better.total_seconds.value
        words.append(f"{ratio:.{1 if ratio >= 1.15 else 2}f} times as {'long' if worse else 'fast'}")
    return words


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
    rows.append(replace(plan, name="", why=THE_PLAN))
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


def _may_break(space: SearchSpace, plan: Choice) -> bool:
    """Whether the plan keeps its limits less often than 9 times out of 10."""
    late, dear = replace(space.limits.patient, sure=True).broken(plan.total_seconds, plan.cost_usd)
    return space.brief.limited and not space.limits.sure and (late or dear)


def _conservative(space: SearchSpace, plan: Choice) -> Choice | None:
    """A run that is surer of its limits or of its memory; None where there is none, or by a larger model only."""
    safe = space.safe
    spot = safe.of_offers("spot").astype(bool)
    allowed = np.full(len(safe), True) if space.goal.spot == "only" else ~spot
    chosen = select(space, replace(space.limits, sure=True), spot=True, allowed=allowed, candidates=safe)
    if chosen is None or safe.parameters[chosen.place] > plan.parameters:
        return None
    choice, gains = choice_of(safe, chosen, name="conservative"), []
    if _may_break(space, plan):
        gains.append(SURE)
    own, other = _free(plan), _free(choice)
    if own is not None and other is not None and other > own + ROOMIER:
        gains.append(f"{format_percent(other)} of memory free instead of {format_percent(max(own, 0.0))}")
    terms = "a spot machine as asked" if spot[chosen.place] else "on demand"
    return replace(choice, why=f"{', '.join(gains)}; {terms}") if gains else None


def _free(choice: Choice) -> float | None:
    """The share of a GPU's memory that a run leaves free at its interval's high end; None where it is unknown."""
    held, beyond = choice.device_bytes, choice.headroom_bytes
    return None if held is None or beyond is None else 1 - held.high / (held.value + beyond)


def _aggressive(space: SearchSpace, plan: Choice) -> Choice | None:
    """A spot machine that trains as good a model and is better in something; None without one."""
    chosen = None if plan.spot else select(space, space.limits, spot=True)
    if chosen is None or not space.offer(chosen.place).spot or chosen.score > LEVEL * plan.score:
        return None
    choice = choice_of(space.candidates, chosen, name="aggressive")
    gains = ", ".join(_differences(choice, plan, worse=False))
    why = f"{gains}; a spot machine: may be taken back at any time, time lost to that is expected time here"
    return replace(choice, why=why) if gains else None


def choice_of(candidates: Candidates, chosen: Selection, *, name: str = "", why: str = "") -> Choice:
    """A chosen run as a row of the search's tables."""
    return make_trial(candidates, chosen).choice(name=name, why=why)


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
