"""List the alternatives to a plan: other sizes on the chosen machine, other machines, the Pareto front, near misses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from advisor.offer import Offer
from advisor.planning import explain
from advisor.planning.candidates import KINDS, Device, MemoryKind, make_candidates
from advisor.planning.choose import ALIKE_USD, LEVEL, Selection, best_standing, select, selection
from advisor.planning.evaluate import (
    Evaluated,
    Runs,
    Violation,
    beaten,
    best_by_group,
    non_dominated,
    runs_of,
    spread_out,
)
from advisor.planning.offers import same_machine
from advisor.planning.run import make_run, make_runs
from advisor.planning.search_space import SearchSpace
from advisor.prediction.comm import owners_of_several
from advisor.prediction.micro_batch import group_keys
from advisor.records import Run
from advisor.units import format_share

SURE = "stays within the limits 9 times out of 10"
ROOMIER = 0.05  # share of the GPU's memory; a smaller difference in free memory is no reason to prefer a run
FRONT_SHOWN = 12  # rows of the front that are shown, not counting the plan
SMALLEST_SHARE = 0.05  # of the plan's price and time; smaller runs are not shown, because the user asked for this one
ALIKE = 1.005  # runs whose scores differ by less than this factor count as equally good
SAME = 0.02  # a run whose dollars and hours differ by less than this share repeats the plan
MISSES_SHOWN = 5
UNPROVEN = "unproven"  # name of the run that would be the plan if all machines were as fast as estimated
WORTH_KNOWING = "worth knowing"  # name of the run that is much faster or cheaper for little in the rest
_SCORE_WORTH, _LEAST_GAIN = 15.0, math.log(1.5)  # of a share of the score; the least gain that is worth a word
_LITTLE_WORSE, _LITTLE_DEARER = 1.08, 1.25  # score and dollars; no time that is saved makes up for more


def by_depth(space: SearchSpace, chosen: Selection) -> list[Run]:
    """Return the best run of each depth on the chosen offer, shallowest first; the chosen run is among them.

    If no run of a depth stays within the limits, the run that comes nearest to them stands for that depth.
    """
    candidates = space.candidates
    places = np.nonzero(candidates.offer == candidates.offer[chosen.place])[0]
    runs = runs_of(candidates, places, space.limits, spot=True)
    depths, own = candidates.depth[runs.place], candidates.depth[chosen.place]
    best = [chosen if d == own else nearest(space, runs.rows(depths == d)) for d in sorted(set(depths.tolist()))]
    return make_runs(candidates, best)


def by_micro_batch(space: SearchSpace, device: Device, chosen: Run) -> tuple[list[Run], Run | None]:
    """Return runs with other micro-batches at the chosen depth and global batch, and one without recomputation.

    The second value is the fastest run without activation checkpointing. It is None unless the requested micro-batch
    forces checkpointing and the goal says nothing about checkpointing.
    """
    workload, goal = chosen.workload, space.goal
    brief = device.brief.pinned(depth=chosen.depth, global_batch_tokens=workload.step_tokens)
    there = replace(device, brief=brief, offers=(chosen.offer,))
    candidates = make_candidates([there], every_micro_batch=True)
    if goal.global_batch_tokens is not None:  # a global batch that the goal gives is kept exactly
        candidates = candidates.rows(candidates.step_tokens == workload.step_tokens)
    runs = runs_of(candidates, np.arange(len(candidates)), space.limits, spot=True)
    rate, size, fits = candidates.step_tokens / candidates.step.value, candidates.micro_batch, candidates.fits
    plain = goal.activation_checkpointing or device.profile.activation_checkpointing
    level = workload.activation_checkpointing
    own = MemoryKind(checkpointing=None if level == plain else level, sharding=workload.sharding)
    same = candidates.kind == KINDS.index(own)
    # Show all micro-batches that fit with the chosen way of saving memory, the fastest run for each other way, and the
    # smallest micro-batch that never fits.
    shown = [np.nonzero(fits & same & (size != workload.micro_batch))[0]]
    for kind in sorted(set(candidates.kind[fits & ~same].tolist())):
        places = np.nonzero(fits & (candidates.kind == kind))[0]
        shown.append(places[np.argsort(rate[places])][-1:])
    never = np.nonzero(~fits & ~np.isin(size, size[fits]))[0]
    shown.append(never[np.lexsort((-candidates.kind[never], size[never]))][:1])
    others = make_runs(candidates, [selection(runs, int(place)) for place in np.concatenate(shown)])
    forced = goal.micro_batch is not None and goal.activation_checkpointing is None
    if not forced or workload.activation_checkpointing == "none":
        return others, None
    free = replace(brief, goal=replace(brief.goal, micro_batch=None, activation_checkpointing="none"))
    candidates = make_candidates([replace(there, brief=free)], every_micro_batch=True)
    candidates = candidates.rows(candidates.fits)
    if not len(candidates):
        return others, None
    runs = runs_of(candidates, np.arange(len(candidates)), space.limits, spot=True)
    best = int((candidates.step_tokens / candidates.step.value).argmax())
    return others, make_runs(candidates, [selection(runs, best)])[0]


def nearest(space: SearchSpace, runs: Runs) -> Selection:
    """Return the run that the goal would choose, or if no run stays within the limits, the run that comes nearest."""
    if (standing := best_standing(space, space.candidates, runs, space.limits)) is not None:
        return standing
    for against in (Violation.MEMORY | Violation.BATCH, Violation.MEMORY):
        without = runs.rows((runs.violation & against) == 0)
        if len(without):
            return selection(without, int(without.overrun.argmin()))
    return selection(runs, int(space.candidates.memory.high[runs.place].argmin()))


def paid(run: Run) -> float:
    """Return the expected dollars of a run, or 0 if its price is unknown."""
    return run.cost_usd.value if run.cost_usd else 0.0


def options(space: SearchSpace, plan: Run) -> tuple[tuple[Run, ...], Run | None]:
    """Return a conservative and an aggressive run, each only if it offers something that the plan lacks.

    The second value is the run that --sure would choose, or None if the plan is already as sure, or if no run is.

    The conservative run stays within the limits at the high ends of its intervals, is on demand unless only spot
    machines are wanted, leaves memory free and trains a model no larger than the plan's. The aggressive run takes a
    spot machine and trains a model as good as the plan's.
    """
    found = []
    safe, strict = space.safe, replace(space.limits, sure=True)
    late, dear = replace(strict, usd_per_waiting_hour=0.0).broken(plan.total_seconds, plan.cost_usd)
    may_break = space.brief.limited and not space.limits.sure and (late or dear)
    allowed = np.full(len(safe), True) if space.goal.spot == "only" else ~safe.spot
    chosen = select(space, strict, spot=True, allowed=allowed, candidates=safe)
    if chosen is not None and safe.parameters[chosen.place] <= plan.parameters:
        run = make_run(safe, chosen, name="conservative")
        gains = [SURE] if may_break else []
        # The share of a GPU's memory that stays free at the high end of the estimate.
        free = [
            1 - one.device_bytes.high / one.device_memory_bytes
            for one in (plan.prediction, run.prediction)
            if one.device_bytes is not None and one.device_memory_bytes is not None
        ]
        if len(free) == 2 and free[1] > free[0] + ROOMIER:
            own, other = (format_share(max(share, 0.0)) for share in free)
            gains.append(f"at least {other} of the memory stays free (balanced: {own})")
        terms = "; a spot machine as asked" if safe.spot[chosen.place] else "; on demand" if plan.offer.spot else ""
        found += [run.judged(why=f"{', '.join(gains)}{terms}")] if gains else []
    chosen = None if plan.offer.spot else select(space, space.limits, spot=True)
    if chosen is not None and space.offer(chosen.place).spot and chosen.score <= LEVEL * plan.score:
        run = make_run(space.candidates, chosen, name="aggressive")
        if gains := _differences(run, plan, worse=False):
            why = f"{', '.join(gains)} at spot prices, but may be interrupted; the expected lost time is included"
            found.append(run.judged(why=why))
    surer = select(space, strict) if may_break else None
    return tuple(found), make_run(space.candidates, surer, why=SURE) if surer else None


def machines(space: SearchSpace, plan: Run) -> tuple[Run, ...]:
    """Return the best run on each other machine that the goal allows, with the reason why it was not chosen."""
    candidates, rows = space.candidates, []
    for number in sorted(set(candidates.offer[space.allowed].tolist())):
        offer, places = candidates.machines.offers[number], np.nonzero(candidates.offer == number)[0]
        if same_machine(offer, plan.offer):
            continue
        run = make_run(candidates, nearest(space, runs_of(candidates, places, space.limits, spot=True)))
        differences = _differences(plan, run, worse=True) + _differences(run, plan, worse=False)
        ruled_out = explain.rejection(space.device_of(run), run)
        rows.append(run.judged(why=ruled_out or ", ".join(differences) or "as good as the plan"))
    return tuple(rows)


def _differences(better: Run, other: Run, *, worse: bool) -> list[str]:
    """Return where `better` beats `other` in quality, cost or time; `worse` words this as faults of `other`."""
    words = []
    if better.score * LEVEL < other.score:
        words.append("a worse model" if worse else "a better model")
    less, more = paid(better), paid(other)
    if better.cost_usd and less < (1 - SAME) * more:
        if worse:
            words.append(f"{format_share(more / less - 1)} dearer" if less else "costs money")
        else:
            words.append(f"{format_share(1 - less / more)} cheaper")
    if better.total_seconds.value < (1 - SAME) * other.total_seconds.value:
        ratio = other.total_seconds.value / better.total_seconds.value
        words.append(f"{ratio:.{1 if ratio >= 1.15 else 2}f} times as {'long' if worse else 'fast'}")
    return words


def front(space: SearchSpace, evaluated: Evaluated, plan: Run) -> tuple[tuple[Run, ...], int]:
    """Return the Pareto front, thinned to a readable number of runs, and the size of the whole front with the plan.

    No other run beats these in cost, time and quality at once. Quality is the score and, where the loss laws hold, also
    the predicted loss, because the two may order very similar runs differently.
    """
    runs = evaluated.standing
    runs = runs.rows(non_dominated(np.stack([runs.paid, runs.seconds, runs.score], axis=1)))
    # Compare the plan (first row) and all runs in pairs, by loss where both losses are known and else by score.
    own = (paid(plan), plan.total_seconds.value, plan.loss.value if plan.loss else math.nan, plan.score)
    table = np.concatenate([[own], np.stack([runs.paid, runs.seconds, runs.loss, runs.score], axis=1)])
    unknown = np.isnan(table[:, 2])
    by_loss, by_score = (beaten(column, column) for column in (table[:, 2:3], table[:, 3:]))
    beats = beaten(table[:, :2], table[:, :2]) & np.where(unknown[:, None] | unknown, by_score, by_loss)
    # Keep runs that neither beat the plan or a run kept before nor are beaten by it, best scores first. A run that
    # beats the plan by expected numbers is kept if it lost because its machine counted at its cautious end.
    apart = ~(beats | beats.T)
    rows: list[int] = []
    free = ~beats[:, 0] & (~beats[0] | np.append(False, unsure(space, runs.place)))
    for row in np.argsort(runs.score).tolist():
        if free[row + 1]:
            rows.append(row)
            free = free & apart[row + 1]
    runs = runs.rows(np.array(sorted(rows), dtype=int))
    shown = make_runs(space.candidates, [selection(runs, row) for row in _worth_showing(space, runs, plan)])
    return tuple(sorted(shown, key=by_price)), len(runs) + 1


def gain(seconds: Any, usd: Any, score: Any, than: Run) -> Any:
    """Return by how much runs take less time and money than another run, in balance with their quality.

    Time and cost count as logs of their ratios, a cost only where both are known and positive; a score 1 % higher
    counts as 15 % of them: more than twice what it is worth in compute, because the reader has already chosen. A run
    that is far worse or dearer gains nothing.
    """
    cost = paid(than)
    priced = (np.nan_to_num(usd) > 0) & (cost > 0)
    cheaper = np.where(priced, np.log(np.where(priced, cost, 1.0) / np.where(priced, usd, 1.0)), 0.0)
    gained = np.log(than.total_seconds.value / seconds) + cheaper - _SCORE_WORTH * np.log(score / than.score)
    little = (score <= _LITTLE_WORSE * than.score) & (np.exp(-cheaper) <= _LITTLE_DEARER)
    return np.where(little, gained, -np.inf)


def most_gained(runs: Sequence[Run], than: Run) -> Run | None:
    """Return the run that gains most on another one, or None if none gains enough to be worth a word."""
    gains = [float(gain(run.total_seconds.value, paid(run), run.score, than)) for run in runs]
    best = max(range(len(runs)), key=gains.__getitem__, default=None)
    return None if best is None or gains[best] < _LEAST_GAIN else runs[best]


def neighbours(space: SearchSpace, evaluated: Evaluated, plan: Run, options: Sequence[Run] = ()) -> tuple[Run, ...]:
    """Return runs within the limits that a reader should know before choosing, other than the plan's options.

    The one worth knowing is on another machine, much faster or cheaper for little in the rest (`gain`). Of the unproven
    ones, one would be the plan if all machines were as fast as estimated, one is the fastest of those that look better
    in everything, and one is the cheapest that trains a better model; too few have published a run on their machines
    (`comm.caution`).
    """
    runs, offers = evaluated.standing, space.candidates.machines.offers
    others = np.array([not same_machine(offer, plan.offer) for offer in offers])
    known = np.flatnonzero(~unsure(space, runs.place) & others[space.candidates.offer[runs.place]])
    gains = gain(runs.seconds[known], runs.usd[known], runs.score[known], plan)
    first = known[np.argsort(-gains, kind="stable")[: 2 * len(options) + 1]]
    new = [run for run in make_runs(space.candidates, [selection(runs, int(row)) for row in first])
           if not any(same_machine(run.offer, one.offer) and run.depth == one.depth for one in options)]  # fmt: skip
    found = []
    if (run := most_gained(new, plan)) is not None:
        differences = _differences(run, plan, worse=False) + _differences(plan, run, worse=True)
        found.append(run.judged(name=WORTH_KNOWING, why=", ".join(differences)))
    unproven = [select(space, space.limits, cautious=False)]
    better = (runs.usd < paid(plan)) & (runs.seconds < plan.total_seconds.value) & (runs.score <= plan.score * ALIKE)
    owed = runs.usd + space.limits.waiting_usd(runs.seconds)
    most = paid(plan) + space.limits.waiting_usd(plan.total_seconds.value)
    surpassing = (owed < (1 - SAME) * most) & (runs.score * LEVEL < plan.score)
    for rows, order in ((np.flatnonzero(better), runs.seconds), (np.flatnonzero(surpassing), owed)):
        rows = rows[unsure(space, runs.place[rows])]
        unproven += [selection(runs, int(row)) for row in rows[np.argsort(order[rows], kind="stable")[:1]]]
    machines: list[Offer] = []
    for one in unproven:
        if one is None or not others[space.candidates.offer[one.place]] or not unsure(space, one.place):
            continue
        run = make_run(space.candidates, one, name=UNPROVEN)
        gains = _differences(run, plan, worse=False)
        if gains and not any(same_machine(run.offer, offer) for offer in machines):
            found.append(run.judged(why=f"{', '.join(gains)} at its estimated speed; {not_chosen(run.offer)}"))
            machines.append(run.offer)
    return tuple(found)


def unsure(space: SearchSpace, places: Any) -> Any:
    """Tell for each of these candidates whether too few have published a run on its machine."""
    return space.candidates.machines.cautions[space.candidates.offer[places]] > 1


def publishers(offer: Offer) -> str:
    """Say how few have published a run on several GPUs of this kind."""
    known = "only one owner has" if owners_of_several(offer.gpu) else "nobody has"
    return f"{known} published a run on several {offer.gpu}"


def unpublished(offer: Offer) -> str:
    """Say why a machine is compared by its cautious end."""
    return f"{publishers(offer)}, so it counts at the slow end of its range"


def not_chosen(offer: Offer) -> str:
    """Say why a machine is not chosen although it looks better by its expected numbers."""
    return f"not chosen, because {publishers(offer)}; at its slowest likely speed nothing would be gained"


def by_price(run: Run) -> tuple[float, float]:
    """Return a sort key: expected dollars, then expected seconds."""
    return paid(run), run.total_seconds.value


def _worth_showing(space: SearchSpace, runs: Runs, plan: Run) -> list[int]:
    """Return some rows of a front: the best run at each price, and the best run at each duration.

    If all runs are equally good, prices and times are picked evenly. Runs with the plan's model and machine at about
    the plan's price and time are left out.
    """
    usd, cost, seconds = runs.paid, paid(plan), plan.total_seconds.value
    candidates = space.candidates.rows(runs.place)
    mine = np.array([same_machine(offer, plan.offer) for offer in candidates.machines.offers])[candidates.offer]
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
        # Runs that look better than the plan in everything are all shown.
        better = (usd < cost) & (runs.seconds <= (1 + SAME) * seconds) & (runs.score <= plan.score)
        rows.update(line[better[line]].tolist())
    # Leave out runs that another one clearly beats, and runs that repeat another one within a few per cent, best
    # scores first.
    points = np.stack([usd, runs.seconds, runs.score], axis=1)[sorted(rows)]
    own = np.array([[cost, seconds, plan.score]])
    ties = np.array([ALIKE_USD, ALIKE_USD, LEVEL])
    others = np.concatenate([own, points])
    level = (others[None] <= ties * points[:, None]).all(axis=-1)
    clearly = (others[None, :, :2] * ALIKE_USD < points[:, None, :2]).any(axis=-1)
    worse = (level & clearly).any(axis=1)
    shown, seen = [], own
    for row in np.argsort(points[:, 2], kind="stable").tolist():
        near = (abs(points[row] - seen) <= SAME * np.maximum(points[row], seen))[:, :2].all(axis=1)
        repeats = near & (np.maximum(points[row, 2], seen[:, 2]) <= ALIKE * np.minimum(points[row, 2], seen[:, 2]))
        if not worse[row] and not repeats.any():
            shown.append(sorted(rows)[row])
            seen = np.concatenate([seen, points[row : row + 1]])
    return sorted(shown)


def near_misses(space: SearchSpace, evaluated: Evaluated, plan: Run) -> tuple[Run, ...]:
    """Return runs that are better than the plan but break one limit, the nearest first, at most two GPUs per limit."""
    runs, kind = evaluated.missed, group_keys(space.candidates.offer, space.candidates.depth)
    # A run that does not fit is no near miss if a smaller micro-batch of the same depth fits the same machine.
    fits_otherwise = np.isin(kind[runs.place], kind[space.candidates.fits])
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
    made = make_runs(space.candidates, shown)
    return tuple(run.judged(why=explain.rejection(space.device_of(run), run) or "") for run in made)
