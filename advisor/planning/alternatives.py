"""What else could be done: named options, each machine asked for, the front, and what was better but for one thing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from advisor.planning import explain
from advisor.planning.choose import ALIKE_USD, LEVEL, Selection, select, selection
from advisor.planning.considered import nearest
from advisor.planning.evaluate import Evaluated, Runs, Violation, runs_of
from advisor.planning.offers import ANY
from advisor.planning.pareto import best_by_group, non_dominated, spread_out
from advisor.planning.run import make_run, make_runs
from advisor.planning.search_space import SearchSpace
from advisor.prediction.groups import group_keys
from advisor.records import Run
from advisor.units import format_centre, format_percent, format_seconds, format_usd

SURE = "keeps the limits 9 times out of 10"
ROOMIER = 0.05  # of the memory: less than that is nothing to choose by
FRONT_SHOWN = 12  # besides the plan
SMALLEST_SHARE = 0.05  # of the plan's price: nobody who asks for a run of $20 looks for one of cents
ALIKE = 1.005  # times the best score of a front whose runs all train as well as each other
SAME = 0.02  # of dollars and hours: how near a run comes to the plan that is the plan again
MISSES_SHOWN = 5


def paid(run: Run) -> float:
    """Expected dollars of a run, 0 where they are unknown: what orders runs."""
    return run.cost_usd.value if run.cost_usd else 0.0


def balanced(space: SearchSpace, plan: Run) -> Run:
    """The plan's own run under the name that it has among the options."""
    if not space.brief.limited:
        return plan.judged(name="balanced", why="the plan")
    sure = "keeps the limits 9 times out of 10, as asked" if space.limits.sure else "expected to keep the limits"
    return plan.judged(name="balanced", why=sure)


def options(space: SearchSpace, plan: Run) -> tuple[Run, ...]:
    """What has something that one wants and the plan lacks.

    Conservative keeps the limits with the intervals' high ends, on demand, with memory to spare, by a model that is no
    larger. Aggressive takes a spot machine that trains as good a model.
    """
    found = []
    safe = space.safe
    spot = safe.of_offers("spot").astype(bool)
    allowed = np.full(len(safe), True) if space.goal.spot == "only" else ~spot
    chosen = select(space, replace(space.limits, sure=True), spot=True, allowed=allowed, candidates=safe)
    if chosen is not None and safe.parameters[chosen.place] <= plan.parameters:
        run = make_run(safe, chosen, name="conservative")
        gains = [SURE] if may_break(space, plan) else []
        own, other = _free(plan), _free(run)
        if own is not None and other is not None and other > own + ROOMIER:
            gains.append(f"{format_percent(other)} of memory free instead of {format_percent(max(own, 0.0))}")
        terms = "a spot machine as asked" if spot[chosen.place] else "on demand"
        found += [run.judged(why=f"{', '.join(gains)}; {terms}")] if gains else []
    chosen = None if plan.offer.spot else select(space, space.limits, spot=True)
    if chosen is not None and space.offer(chosen.place).spot and chosen.score <= LEVEL * plan.score:
        run = make_run(space.candidates, chosen, name="aggressive")
        if gains := _differences(run, plan, worse=False):
            back = "a spot machine: may be taken back at any time, time lost to that is expected time here"
            found.append(run.judged(why=f"{', '.join(gains)}; {back}"))
    return tuple(found)


def may_break(space: SearchSpace, plan: Run) -> bool:
    """Whether the plan keeps its limits less often than 9 times out of 10."""
    late, dear = replace(space.limits.patient, sure=True).broken(plan.total_seconds, plan.cost_usd)
    return space.brief.limited and not space.limits.sure and (late or dear)


def surer(space: SearchSpace, plan: Run) -> Run | None:
    """What --sure would plan where the plan may well break a limit; None where it does not, or nothing keeps it."""
    chosen = select(space, replace(space.limits, sure=True)) if may_break(space, plan) else None
    return None if chosen is None else make_run(space.candidates, chosen, why=SURE)


def machines(space: SearchSpace, plan: Run) -> tuple[Run, ...]:
    """The best run on each other machine that was asked for by name, in that order, with why it was not chosen.

    None where whatever somebody rents was asked for: that front says more than a hundred rows.
    """
    candidates, rows = space.candidates, []
    if space.goal.gpu == ANY:
        return ()
    for number in np.unique(candidates.offer[space.allowed]):
        offer, places = candidates.offers[number], np.nonzero(candidates.offer == number)[0]
        if (offer.gpu, offer.gpus, offer.spot) == (plan.offer.gpu, plan.offer.gpus, plan.offer.spot):
            continue
        run = make_run(candidates, nearest(space, runs_of(candidates, places, space.limits, spot=True)))
        differences = _differences(plan, run, worse=True) + _differences(run, plan, worse=False)
        ruled_out = explain.rejection(space.device_of(run), run)
        rows.append(run.judged(why=ruled_out or ", ".join(differences) or "as good as the plan"))
    return tuple(rows)


def _differences(better: Run, other: Run, *, worse: bool) -> list[str]:
    """In what one run is better than another, in words of the better one or, where that is asked, of the worse one."""
    words = []
    if better.score * LEVEL < other.score:
        words.append("a worse model" if worse else "a better model")
    less, more = paid(better), paid(other)
    if better.cost_usd and less < (1 - SAME) * more:
        if worse:
            words.append(f"{format_percent(round(more / less - 1, 2))} dearer" if less else "costs money")
        else:
            words.append(f"{format_percent(round(1 - less / more, 2))} cheaper")
    if better.total_seconds.value < (1 - SAME) * other.total_seconds.value:
        ratio = other.total_seconds.value / better.total_seconds.value
        words.append(f"{ratio:.{1 if ratio >= 1.15 else 2}f} times as {'long' if worse else 'fast'}")
    return words


def front(space: SearchSpace, evaluated: Evaluated, plan: Run) -> tuple[tuple[Run, ...], int]:
    """The runs that no other beats in dollars, hours and quality at once, thinned to what is shown; and how many.

    Quality is the score, and where the loss laws hold the predicted loss too, which may differ in the last digits: the
    plan is on the front, and what is shown beats nothing else shown in dollars, hours and loss.
    """
    runs = evaluated.standing
    runs = runs.rows(non_dominated(np.stack([runs.paid, runs.seconds, runs.score], axis=1)))
    # Keep the rows that neither beat the plan or each other nor are beaten, in dollars, hours and loss. Best scores
    # come first: between scores alike the loss law may see it the other way round by a thousandth. A loss that is not
    # known gives way to the score, which orders any two.
    table = np.stack([runs.paid, runs.seconds, runs.loss, runs.score], axis=1)
    kept = np.empty((len(runs) + 1, 4))
    kept[0] = (paid(plan), plan.total_seconds.value, plan.loss.value if plan.loss else math.nan, plan.score)
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
    runs = runs.rows(np.array(sorted(rows), dtype=int))
    shown = make_runs(space.candidates, [selection(runs, row) for row in _worth_showing(space, runs, plan)])
    return tuple(sorted(shown, key=by_price)), len(runs) + 1


def by_price(run: Run) -> tuple[float, float]:
    """Orders the runs of a front."""
    return paid(run), run.total_seconds.value


def _worth_showing(space: SearchSpace, runs: Runs, plan: Run) -> list[int]:
    """Places of a few runs of a front: the best for each price, and the best for each time.

    Where all train equally well the prices and times themselves. What comes to the plan's own dollars and hours with
    the same model on the same machine says nothing new.
    """
    usd, cost, seconds = runs.paid, paid(plan), plan.total_seconds.value
    kind, candidates = (plan.offer.gpu, plan.offer.gpus, plan.offer.spot), space.candidates.rows(runs.place)
    mine = np.array([(o.gpu, o.gpus, o.spot) == kind for o in candidates.offers])[candidates.offer]
    mine &= candidates.depth == plan.depth
    new = ~(mine & (abs(usd - cost) <= SAME * cost) & (abs(runs.seconds / seconds - 1) <= SAME))
    together = np.zeros(len(runs))
    if len(runs) and runs.score.max() <= ALIKE * min(runs.score.min(), plan.score):
        line = best_by_group(together, usd, runs.seconds)
        line = line[new[line]]
        return sorted(line[spread_out(usd[line], FRONT_SHOWN)].tolist()) if len(line) else []
    large = (usd >= SMALLEST_SHARE * cost) & (runs.seconds >= SMALLEST_SHARE * seconds) & new
    rows: set[int] = set()
    for effort in (usd, runs.seconds):
        line = best_by_group(together, effort, runs.score)
        line = line[large[line]]
        rows.update(line[spread_out(effort[line], FRONT_SHOWN // 2)].tolist() if len(line) else ())
    # What another beats by more than a tie, or what repeats another within a few per cent, is left out; best scores
    # come first.
    points = np.stack([usd, runs.seconds, runs.score], axis=1)[sorted(rows)]
    own = np.array([[cost, seconds, plan.score]])
    ties = np.array([ALIKE_USD, ALIKE_USD, LEVEL])
    others = np.concatenate([own, points])
    level = (others[None] <= ties * points[:, None]).all(axis=-1)
    clearly = (others[None, :, :2] * ALIKE_USD < points[:, None, :2]).any(axis=-1)
    beaten = (level & clearly).any(axis=1)
    shown, seen = [], own
    for row in np.argsort(points[:, 2], kind="stable").tolist():
        near = (abs(points[row] - seen) <= SAME * np.maximum(points[row], seen))[:, :2].all(axis=1)
        repeats = near & (np.maximum(points[row, 2], seen[:, 2]) <= ALIKE * np.minimum(points[row, 2], seen[:, 2]))
        if not beaten[row] and not repeats.any():
            shown.append(sorted(rows)[row])
            seen = np.concatenate([seen, points[row : row + 1]])
    return sorted(shown)


def near_misses(space: SearchSpace, evaluated: Evaluated, plan: Run) -> tuple[Run, ...]:
    """Runs that would be better than the plan and have one thing against them, the nearest of each kind and card."""
    runs, kind = evaluated.missed, group_keys(space.candidates.offer, space.candidates.depth)
    # memory is against this run, but not against a smaller micro-batch of the same depth on the same machine
    fits_otherwise = np.isin(kind[runs.place], np.unique(kind[space.candidates.fits]))
    better = runs.rows((runs.score * LEVEL < plan.score) & ~((runs.violation == Violation.MEMORY) & fits_otherwise))
    shown: list[Selection] = []
    seen: dict[Violation, set[str]] = {}
    for row in np.lexsort((better.score, np.round(np.maximum(better.overrun, 1.0), 2))).tolist():
        miss = selection(better, row)
        gpus, gpu = seen.setdefault(miss.violation, set()), space.offer(miss.place).gpu
        if gpu in gpus or len(gpus) >= 2 or len(shown) >= MISSES_SHOWN:
            continue
        gpus.add(gpu)
        shown.append(miss)
    return tuple(run.judged(why=_what_rules_out(space, run)) for run in make_runs(space.candidates, shown))


def _what_rules_out(space: SearchSpace, run: Run) -> str:
    limits, bill = space.limits, run.bill
    up_to = "up to " if limits.sure else ""
    if run.standing.against == ("money",):
        assert bill.cost_usd is not None and limits.budget_usd is not None
        needs, limit = limits.counted(bill.cost_usd), limits.budget_usd
        words = format_usd(needs) if limits.sure else format_centre(bill.cost_usd, format_usd)
        if words == format_usd(limit):
            return f"over budget by {format_percent(needs / limit - 1)}"
        return f"over budget: {up_to}{words} of {format_usd(limit)}"
    if run.standing.against == ("time",):
        total = run.total_seconds
        time = format_seconds(total.high) if limits.sure else format_centre(total, format_seconds)
        return f"too slow: {up_to}{time} of {format_seconds(limits.deadline_seconds)}"
    if run.standing.against == ("spot",):
        return "a spot machine: --spot any allows it"
    return explain.rejection(space.device_of(run), run) or ""


def _free(run: Run) -> float | None:
    """The share of a GPU's memory that a run leaves free at its interval's high end; None where it is unknown."""
    held, whole = run.prediction.device_bytes, run.prediction.device_memory_bytes
    return None if held is None or whole is None else 1 - held.high / whole
