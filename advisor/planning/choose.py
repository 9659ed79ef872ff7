"""Search for the best run, and decide by the goal which of many runs is the best."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.hardware.catalog import require_gpu
from advisor.options import MOST_DEPTH, Goal
from advisor.planning.candidates import WIDEST_WINDOW, Candidates
from advisor.planning.costs import Costs
from advisor.planning.evaluate import NOTHING, Runs, Violation, runs_of
from advisor.planning.goal import UNLIMITED_SECONDS, Limits, price_missing, waiting_price
from advisor.planning.offers import within_a_node
from advisor.planning.recipe import recommended_batch
from advisor.planning.search_space import SearchSpace, open_space
from advisor.prediction.comm import caution
from advisor.prediction.profile import Profile
from advisor.records import Run
from advisor.units import DAY
from trainer.token_folder import TokenMeta

LEVEL = 1.001  # scores within this factor are equal, and the smaller model wins: it is cheaper and overfits less
ALIKE_USD = 1.01  # dollars within this factor are equal
LONG_SECONDS = 3 * DAY  # if a run on one node takes longer, several nodes are searched too
HOPELESS_SECONDS = 10 * LONG_SECONDS  # no other depth or batch makes a run on one node that much shorter
USED_UP = 0.9  # a limit used up to this share ends the run, because steps and micro-batches are whole
_DEEPER = 1.5  # factor for the new greatest depth if the search chose the greatest one
_BEYOND = 1.1  # so that the depth that a surplus of tokens asks for is not the deepest one again
_FURTHER = 2  # half octaves to try beyond the batch that a run at the edge of the window needs


@dataclass(frozen=True, kw_only=True)
class Selection:
    """One run of a search space."""

    place: int  # index of its candidate
    steps: int
    seconds: float
    usd: float  # NaN: unknown
    score: float
    violation: Violation = NOTHING  # THIN if every run sees too few tokens


def search(
    goal: Goal, profiles: Sequence[Profile], data_meta: TokenMeta | None, today: datetime.date | None = None
) -> tuple[SearchSpace, Selection | None]:
    """Return the searched space and the best run in it, or None if no run stays within the limits.

    If the goal leaves the number of GPUs open, one node is searched first, and several nodes only if one is not enough.
    Raises as `open_space` does.
    """
    near = within_a_node(goal)
    for asked, enough in ((near, HOPELESS_SECONDS), (goal, math.inf)):
        enough = math.inf if asked == goal else enough
        space = open_space(asked, profiles, data_meta, today)
        chosen = select(space, space.limits)
        while (chosen is None or chosen.seconds < enough) and (wider := _wider(space, chosen)) is not None:
            space, chosen = wider, select(wider, wider.limits)
        if asked == goal:
            break
        if one_node_is_enough(space, space.limits, chosen):
            return replace(space, goal=replace(space.goal, counts=goal.counts)), chosen
    return space, chosen


def one_node_is_enough(space: SearchSpace, limits: Limits, chosen: Selection | None) -> bool:
    """Return True for a run of a few days, unless the deadline leaves much of the budget unspent."""
    if chosen is None or chosen.seconds > LONG_SECONDS:
        return False
    costs = Costs(space.candidates.rows(np.array([chosen.place])))
    late, dear = costs.overruns(np.array([[chosen.steps]]), limits.patient)
    return bool(late[0, 0] < USED_UP or limits.budget_usd is None or not dear[0, 0] < USED_UP)


def _wider(space: SearchSpace, chosen: Selection | None) -> SearchSpace | None:
    """Return a wider space if the choice lies at the edge of this one, or None if it lies inside.

    Inside means that its best global batch was tried, and that its depth is neither its device's deepest nor its
    shallowest. Without a choice, all global batches are tried.
    """
    c, brief, goal = space.candidates, space.brief, space.goal
    low, high = space.window
    tried = [device.brief.depths for device in c.machines.devices]
    least, most = max(depths[0] for depths in tried), min(depths[-1] for depths in tried)  # tried on every device
    before = low, high, least, most
    fixed_batch = brief.settled or brief.goal.global_batch_tokens is not None
    if chosen is None:
        low = low if fixed_batch else min(low, WIDEST_WINDOW[0])
    else:
        place, counted = chosen.place, float(c.counted[chosen.place])
        tokens = chosen.steps * float(c.step_tokens[place])
        if not fixed_batch:
            # By how many half octaves the batch for these tokens lies above the batch for the recommended tokens.
            usual, wanted = recommended_batch(c.scale[place], np.array([brief.ratio * counted, tokens]))
            octaves = 2 * math.log2(wanted / usual)
            if octaves < low - 0.5:
                low = min(low, max(math.floor(octaves) - _FURTHER, WIDEST_WINDOW[0]))
            if octaves > high + 0.5:
                high = max(high, min(math.ceil(octaves) + _FURTHER, WIDEST_WINDOW[1]))
        if goal.depth is None:
            depth, own = int(c.depth[place]), space.device(place).brief.depths
            # With a fixed number of tokens, a deeper model always scores better, so only the limits restrict the depth.
            if depth == own[-1] and (goal.tokens is None or not brief.limited):
                # More tokens than recommended belong to a larger model. At equal compute, parameters grow with the
                # square root of that surplus, and depth with their cube root. One jump saves searches in between.
                deeper = max(_DEEPER, _BEYOND * (tokens / (counted * brief.ratio)) ** (1 / 6))
                most = max(most, min(math.ceil(deeper * depth), MOST_DEPTH))
            least = 1 if depth == own[0] else least
    return None if (low, high, least, most) == before else space.widened((low, high), (least, most))


def select(
    space: SearchSpace,
    limits: Limits,
    *,
    spot: bool | None = None,
    allowed: np.ndarray | None = None,
    candidates: Candidates | None = None,
    cautious: bool = True,
) -> Selection | None:
    """Return the run that the goal prefers within the limits, or None if no run stays within them.

    Each configuration runs for the tokens that the goal fixes, or as long as the limits allow. `allowed` is a mask of
    candidates; `candidates` and `spot` replace the space's own; `cautious` is as in `best_of`. If all runs see too few
    tokens, the best of these runs is returned.
    """
    chosen_from = space.candidates if candidates is None else candidates
    spot = space.goal.spot != "none" if spot is None else spot
    # Leave out at once what does not fit and unwanted spot machines, which saves computing their tokens.
    standing = chosen_from.fits & (spot | ~chosen_from.spot)
    places = np.nonzero(standing if allowed is None else standing & allowed)[0]
    if not len(places):
        return None
    runs = runs_of(chosen_from, places, limits, spot=spot)
    return best_standing(space, chosen_from, runs, limits, cautious=cautious)


def best_standing(
    space: SearchSpace, candidates: Candidates, runs: Runs, limits: Limits, *, cautious: bool = True
) -> Selection | None:
    """Return the best run that breaks no rule, or else the best run that only sees too few tokens, or else None."""
    for violation in (NOTHING, Violation.THIN):
        standing = runs.rows(runs.violation == violation)
        if len(standing):
            return selection(standing, best_of(space, candidates, standing, limits, cautious=cautious))
    return None


def best_of(space: SearchSpace, candidates: Candidates, runs: Runs, limits: Limits, *, cautious: bool = True) -> int:
    """Return the row of the run that the goal prefers; the price of waiting counts as part of the dollars.

    If `cautious`, a machine on which nobody has published a run counts at its cautious end: slower, dearer, and by its
    score for as many tokens as it would then train on. Otherwise the luckiest of many estimates would win.
    """
    goal, brief = space.goal, space.brief
    rows = np.arange(len(runs))
    factor = candidates.machines.cautions[candidates.offer[runs.place]] if cautious else np.ones(len(runs))
    seconds, score = runs.seconds * factor, runs.score
    if not brief.settled and (unsure := np.flatnonzero(factor > 1)).size:
        slower = runs.steps[unsure] / factor[unsure]
        score = score.copy()
        score[unsure] = Costs(candidates.rows(runs.place[unsure])).scores(slower[:, None])[:, 0]
    if goal.tokens is not None and goal.depth is None and (not brief.limited or goal.objective != "loss"):
        # Only the depth whose recommended tokens are nearest to the requested tokens counts.
        off = np.abs(np.log(goal.tokens / candidates.counted[runs.place] / brief.ratio))
        rows = rows[off <= off.min() + 1e-9]
    usd = _with_waiting(limits, runs.paid, factor, seconds)
    if goal.objective != "loss":
        return int(rows[np.lexsort(_keys(goal, seconds[rows], usd[rows]))[0]])
    unlimited = UNLIMITED_SECONDS[space.candidates.machines.devices[0].profile.device_type]
    if not brief.limited and (runs.seconds[rows] <= unlimited).any():
        rows = rows[runs.seconds[rows] <= unlimited]
    rows = rows[score[rows] <= LEVEL * score[rows].min()]
    cheap = rows[usd[rows] <= ALIKE_USD * usd[rows].min()]
    return int(cheap[np.lexsort((seconds[cheap], candidates.parameters[runs.place[cheap]]))[0]])


def _with_waiting(
    limits: Limits, paid: np.ndarray, cautious: np.ndarray, seconds: np.ndarray, within: np.ndarray | bool = True
) -> np.ndarray:
    """Return the dollars of runs with the price of waiting.

    Without a budget, this price is set by the cheapest of the runs `within` the limits.
    """
    known = paid[np.isfinite(paid) & within]
    if limits.budget_usd is None and len(known):
        limits = replace(limits, budget_usd=float(known.min()))
    return paid * cautious + limits.waiting_usd(seconds)


def _keys(goal: Goal, seconds: np.ndarray, usd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sort keys of runs that do the same work, the last one first."""
    return (usd, seconds) if goal.objective == "time" else (seconds, usd)


def sorted_by_preference(goal: Goal, runs: Sequence[Run]) -> list[Run]:
    """Return runs of one piece of work on different offers, the one that `best_of` would take first.

    Runs that break a limit come last, of them those that break one limit alone first, and then those that exceed it
    least; an unknown cost comes after every known one. Raises AdvisorError (exit 2) if there is a budget and no price
    is known.
    """
    if goal.budget_usd is not None and all(run.offer.usd_per_hour is None for run in runs):
        raise price_missing(runs[0].offer)
    cautious = np.array([caution(require_gpu(run.offer.gpu), run.offer.gpus) for run in runs])
    seconds = cautious * [run.total_seconds.value for run in runs]
    paid = np.array([math.inf if run.cost_usd is None else run.cost_usd.value for run in runs])
    broken = np.array([bool(run.standing.against) for run in runs])
    limits = Limits(budget_usd=goal.budget_usd, usd_per_waiting_hour=waiting_price(goal))
    usd = _with_waiting(limits, paid, cautious, seconds, ~broken)
    asked = Limits.of(goal)
    over = [
        max(asked.overruns(asked.counted(run.total_seconds), asked.counted(run.cost_usd) if run.cost_usd else math.inf))
        if run.standing.against else 0.0
        for run in runs
    ]  # fmt: skip
    against = np.array([len(run.standing.against) for run in runs])
    return [runs[at] for at in np.lexsort((*_keys(goal, seconds, usd), np.array(over), against))]


def selection(runs: Runs, row: int) -> Selection:
    """Return one row of some runs."""
    return Selection(
        place=int(runs.place[row]),
        steps=int(runs.steps[row]),
        seconds=float(runs.seconds[row]),
        usd=float(runs.usd[row]),
        score=float(runs.score[row]),
        violation=Violation(int(runs.violation[row])),
    )
