"""The one rule by which a goal chooses among runs, and the search that applies it."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.planning.batches import Window, batch_octaves
from advisor.planning.candidates import WIDEST_WINDOW, Candidates
from advisor.planning.evaluate import NOTHING, Runs, Violation, runs_of
from advisor.planning.goal import UNLIMITED_SECONDS, Limits
from advisor.planning.offers import within_a_node
from advisor.planning.ranges import MOST_DEPTH
from advisor.planning.search_space import SearchSpace, open_space
from advisor.prediction.profile import Profile
from advisor.records import Goal
from advisor.units import DAY
from trainer.token_folder import TokenMeta

LEVEL = 1.001  # scores this close are the same, and the smaller model the better one: cheaper, harder to overfit
ALIKE_USD = 1.01  # dollars this close are the same
LONG_SECONDS = 3 * DAY  # a run that takes longer on one node is looked for on several
USED_UP = 0.9  # of a limit: from here on it is what ends the run, whole steps and whole micro-batches apart
_DEEPER = 1.5  # times the deepest tried, where that one was chosen
_FURTHER = 2  # half octaves tried beyond the batch that a run at the edge wants: a better one may want more


@dataclass(frozen=True, kw_only=True)
class Selection:
    """One run of a search space."""

    place: int  # among the candidates
    steps: int
    seconds: float
    usd: float  # NaN: unknown
    score: float
    violation: Violation = NOTHING  # THIN where every run sees too few tokens


def search(
    goal: Goal, profiles: Sequence[Profile], data_meta: TokenMeta | None, today: datetime.date | None = None
) -> tuple[SearchSpace, Selection | None]:
    """The run that the goal is after and the space it was found in; None where none stands. Raises as `open_space`.

    Where the number of GPUs is open, one node is searched first, and several where that is not enough.
    """
    near = within_a_node(goal)
    space, chosen = _search(near, profiles, data_meta, today)
    if near == goal:
        return space, chosen
    if _enough(space, chosen):
        return replace(space, goal=replace(space.goal, counts=goal.counts)), chosen
    return _search(goal, profiles, data_meta, today)


def _enough(space: SearchSpace, chosen: Selection | None) -> bool:
    """Whether one node is enough: the run takes no days, and no deadline leaves much of the budget unspent."""
    if chosen is None or chosen.seconds > LONG_SECONDS:
        return False
    late, dear = space.limits.patient.overruns(chosen.seconds, chosen.usd)
    return late < USED_UP or space.limits.budget_usd is None or not dear < USED_UP


def _search(
    goal: Goal, profiles: Sequence[Profile], data_meta: TokenMeta | None, today: datetime.date | None
) -> tuple[SearchSpace, Selection | None]:
    """As `search`, for exactly the goal's numbers of GPUs.

    The space is widened until the global batch that the chosen run wants is among those tried, until its depth is
    neither the deepest nor the shallowest of them, and before it is said that nothing stands.
    """
    space = open_space(goal, profiles, data_meta, today)
    chosen = select(space, space.limits)
    while (wanted := (_wanted_window(space, chosen), _wanted_depths(space, chosen))) != (space.window, space.depths):
        space = space.widened(*wanted)
        chosen = select(space, space.limits)
    return space, chosen


def _wanted_depths(space: SearchSpace, chosen: Selection | None) -> tuple[int, int]:
    """The range that all devices have, or a wider one where the choice lies at the end of its device's."""
    least, most = space.depths
    if chosen is None or space.goal.depth is not None:
        return least, most
    depth, tried = int(space.candidates.depth[chosen.place]), space.device(chosen.place).brief.depths
    ended = space.goal.tokens is not None and space.brief.limited  # of so many tokens a larger model is always better
    if depth == tried[-1] and not ended:
        most = max(most, min(math.ceil(_DEEPER * depth), MOST_DEPTH))
    return 1 if depth == tried[0] else least, most


def _wanted_window(space: SearchSpace, chosen: Selection | None) -> Window:
    """The space's own window, or a wider one where the choice lies outside of it."""
    least, most = space.window
    brief, candidates = space.brief, space.candidates
    if brief.settled or brief.goal.global_batch_tokens is not None:
        return space.window
    if chosen is None:
        return min(least, WIDEST_WINDOW[0]), most
    place = chosen.place
    tokens = chosen.steps * float(candidates.step_tokens[place])
    wanted = float(batch_octaves(brief, candidates.scale[place], candidates.counted[place], tokens))
    if wanted < least - 0.5:
        least = max(math.floor(wanted) - _FURTHER, WIDEST_WINDOW[0])
    if wanted > most + 0.5:
        most = min(math.ceil(wanted) + _FURTHER, WIDEST_WINDOW[1])
    return min(least, space.window[0]), max(most, space.window[1])


def select(
    space: SearchSpace,
    limits: Limits,
    *,
    spot: bool | None = None,
    allowed: np.ndarray | None = None,
    candidates: Candidates | None = None,
) -> Selection | None:
    """The run that the goal is after within the limits; None where none stands.

    Each configuration is run as long as is settled or as the limits allow. `allowed` is a mask over the candidates;
    `candidates` go before the space's own; `spot` before what the goal says of spot machines. Where every run sees too
    few tokens, the best of those.
    """
    chosen_from = space.candidates if candidates is None else candidates
    places = np.arange(len(chosen_from)) if allowed is None else np.nonzero(allowed)[0]
    if not len(places):
        return None
    runs = runs_of(chosen_from, places, limits, spot=space.spot if spot is None else spot)
    return best_standing(space, chosen_from, runs, limits)


def best_standing(space: SearchSpace, candidates: Candidates, runs: Runs, limits: Limits) -> Selection | None:
    """The run that the goal is after among those against which nothing stands, else among those of too few tokens."""
    for violation in (NOTHING, Violation.THIN):
        standing = runs.rows(runs.violation == violation)
        if len(standing):
            return selection(standing, best_of(space, candidates, standing, limits))
    return None


def best_of(space: SearchSpace, candidates: Candidates, runs: Runs, limits: Limits) -> int:
    """The place among runs of the one that the goal is after; what waiting counts as is part of the dollars."""
    goal, brief = space.goal, space.brief
    rows = np.arange(len(runs))
    counted = candidates.counted[runs.place]
    if goal.tokens is not None and goal.depth is None and (not brief.limited or goal.objective != "loss"):
        off = np.abs(np.log(goal.tokens / counted / brief.ratio))  # the depth these tokens suit best
        rows = rows[off <= off.min() + 1e-9]
    if limits.budget_usd is None:  # what a day of waiting is worth goes by what is spent then
        limits = replace(limits, budget_usd=float(runs.paid.min()))
    usd = runs.paid + limits.waiting_usd(runs.seconds)
    if goal.objective == "cost":
        return int(rows[np.lexsort((runs.seconds[rows], usd[rows]))[0]])
    if goal.objective == "time":
        return int(rows[np.lexsort((usd[rows], runs.seconds[rows]))[0]])
    unlimited = UNLIMITED_SECONDS[space.candidates.devices[0].profile.device_type]
    if not brief.limited and (runs.seconds[rows] <= unlimited).any():
        rows = rows[runs.seconds[rows] <= unlimited]
    rows = rows[runs.score[rows] <= LEVEL * runs.score[rows].min()]
    cheap = rows[usd[rows] <= ALIKE_USD * usd[rows].min()]
    return int(cheap[np.lexsort((runs.seconds[cheap], candidates.parameters[runs.place[cheap]]))[0]])


def selection(runs: Runs, row: int) -> Selection:
    """One of some runs."""
    return Selection(
        place=int(runs.place[row]),
        steps=int(runs.steps[row]),
        seconds=float(runs.seconds[row]),
        usd=float(runs.usd[row]),
        score=float(runs.score[row]),
        violation=Violation(int(runs.violation[row])),
    )
