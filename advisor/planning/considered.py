"""What was weighed on the chosen machine and lost: the best run of each depth, and the other micro-batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from advisor.planning.candidates import Device, kind_of, make_candidates
from advisor.planning.choose import Selection, best_standing, selection
from advisor.planning.evaluate import Runs, Violation, runs_of
from advisor.planning.run import make_runs
from advisor.planning.search_space import SearchSpace
from advisor.records import Run


def by_depth(space: SearchSpace, chosen: Selection) -> list[Run]:
    """The best run of each depth on the chosen offer, in the order of depths; the chosen one is among them.

    Of a depth of which none stands, the one nearest to standing.
    """
    candidates = space.candidates
    places = np.nonzero(candidates.offer == candidates.offer[chosen.place])[0]
    runs = runs_of(candidates, places, space.limits, spot=True)
    depths, own = candidates.depth[runs.place], candidates.depth[chosen.place]
    best = [chosen if d == own else nearest(space, runs.rows(depths == d)) for d in np.unique(depths)]
    return make_runs(candidates, best)


def by_micro_batch(space: SearchSpace, device: Device, chosen: Run) -> tuple[list[Run], Run | None]:
    """Other micro-batches of the chosen depth and global batch, and the fastest run that keeps its activations.

    Of each other way of saving memory than the chosen one's the fastest says enough, and of those that do not fit the
    memory in any way the smallest. The run that keeps its activations is looked for where the goal pins the
    micro-batch, says nothing of recomputation, and the chosen run must recompute; else None.
    """
    workload, goal = chosen.workload, space.goal
    brief = device.brief.pinned(depth=chosen.depth, global_batch_tokens=workload.step_tokens)
    there = replace(device, brief=brief, offers=(chosen.offer,))
    candidates = make_candidates([there], every_micro_batch=True)
    if goal.global_batch_tokens is not None:  # as asked means as asked
        candidates = candidates.rows(candidates.step_tokens == workload.step_tokens)
    runs = runs_of(candidates, np.arange(len(candidates)), space.limits, spot=True)
    rate, size, fits = candidates.step_tokens / candidates.step.value, candidates.micro_batch, candidates.fits
    same = candidates.kind == kind_of(device, workload)
    alike = np.nonzero(fits & same & (size != workload.micro_batch))[0]
    never = np.nonzero(~fits & ~np.isin(size, size[fits]))[0]
    unlike = [np.nonzero(fits & (candidates.kind == kind))[0] for kind in np.unique(candidates.kind[fits & ~same])]
    fastest = [places[np.argsort(rate[places])][-1:] for places in unlike]
    smallest = never[np.lexsort((-candidates.kind[never], size[never]))][:1]
    shown = np.concatenate([alike, *fastest, smallest])
    others = make_runs(candidates, [selection(runs, int(place)) for place in shown])
    forced = goal.micro_batch is not None and goal.activation_checkpointing is None
    if not forced or workload.activation_checkpointing == "none":
        return others, None
    free = replace(
        there, brief=replace(brief, goal=replace(brief.goal, micro_batch=None, activation_checkpointing="none"))
    )
    candidates = make_candidates([free], every_micro_batch=True)
    candidates = candidates.rows(candidates.fits)
    if not len(candidates):
        return others, None
    runs = runs_of(candidates, np.arange(len(candidates)), space.limits, spot=True)
    best = int((candidates.step_tokens / candidates.step.value).argmax())
    return others, make_runs(candidates, [selection(runs, best)])[0]


def nearest(space: SearchSpace, runs: Runs) -> Selection:
    """The run that the goal would choose; where none stands the one with the least against it."""
    if (standing := best_standing(space, space.candidates, runs, space.limits)) is not None:
        return standing
    for against in (Violation.MEMORY | Violation.BATCH, Violation.MEMORY):
        without = runs.rows((runs.violation & against) == 0)
        if len(without):
            return selection(without, int(without.overrun.argmin()))
    return selection(runs, int(space.candidates.memory.high[runs.place].argmin()))
