"""Search for the best run, and decide by the goal which of many runs is the best."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from advisor.hardware.catalog import require_gpu
from advisor.offer import Offer
from advisor.options import MOST_DEPTH, Goal
from advisor.planning.candidates import WIDEST_WINDOW, Candidates
from advisor.planning.costs import Costs
from advisor.planning.evaluate import NOTHING, Runs, Violation, runs_of
from advisor.planning.goal import UNLIMITED_SECONDS, Limits, price_missing, waiting_price
from advisor.planning.offers import within_a_node
from advisor.planning.recipe import Window, batch_octaves
from advisor.planning.search_space import SearchSpace, open_space
from advisor.prediction.comm import caution
from advisor.prediction.profile import Profile
from advisor.records import Estimate
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
    space, chosen = _search(near, profiles, data_meta, today, enough=math.inf if near == goal else HOPELESS_SECONDS)
    if near == goal:
        return space, chosen
    # One node is enough for a run of a few days, unless the deadline leaves much of the budget unspent.
    late, dear = space.limits.patient.overruns(chosen.seconds, chosen.usd) if chosen else (USED_UP, 0.0)
    short = chosen is not None and chosen.seconds <= LONG_SECONDS
    if short and (late < USED_UP or space.limits.budget_usd is None or not dear < USED_UP):
        return replace(space, goal=replace(space.goal, counts=goal.counts)), chosen
    return _search(goal, profiles, data_meta, today)


def _search(
    goal: Goal,
    profiles: Sequence[Profile],
    data_meta: TokenMeta | None,
    today: datetime.date | None,
    enough: float = math.inf,
) -> tuple[SearchSpace, Selection | None]:
    """Return the searched space and the best run for exactly the goal's numbers of GPUs.

    The space is widened until the chosen run lies inside it: its best global batch was tried, and its depth is neither
    the deepest nor the shallowest. The space is also widened if no run stays within the limits, but not any more once a
    chosen run takes `enough` seconds.
    """
    space = open_space(goal, profiles, data_meta, today)
    chosen = select(space, space.limits)
    while chosen is None or chosen.seconds < enough:
        wanted = _wanted_window(space, chosen), _wanted_depths(space, chosen)
        if wanted == (space.window, space.depths):
            break
        space = space.widened(*wanted)
        chosen = select(space, space.limits)
    return space, chosen


def _wanted_depths(space: SearchSpace, chosen: Selection | None) -> tuple[int, int]:
    """Return the range of depths that all devices have, or a wider one if the choice lies at its device's end."""
    least, most = space.depths
    if chosen is None or space.goal.depth is not None:
        return least, most
    depth, tried = int(space.candidates.depth[chosen.place]), space.device(chosen.place).brief.depths
    # With a fixed number of tokens, a deeper model always scores better, so only the limits restrict the depth.
    ended = space.goal.tokens is not None and space.brief.limited
    if depth == tried[-1] and not ended:
        # More tokens than recommended belong to a larger model. At equal compute, parameters grow with the square root
        # of that surplus, and depth with their cube root. One jump there saves searches that end at the deepest again.
        place = chosen.place
        tokens = chosen.steps * float(space.candidates.step_tokens[place])
        surplus = tokens / (float(space.candidates.counted[place]) * space.brief.ratio)
        deeper = max(_DEEPER, _BEYOND * surplus ** (1 / 6))
        most = max(most, min(math.ceil(deeper * depth), MOST_DEPTH))
    return 1 if depth == tried[0] else least, most


def _wanted_window(space: SearchSpace, chosen: Selection | None) -> Window:
    """Return the space's window of global batches, or a wider one if the batch for the choice lies outside."""
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
    """Return the run that the goal prefers within the limits, or None if no run stays within them.

    Each configuration runs for the tokens that the goal fixes, or as long as the limits allow. `allowed` is a mask of
    candidates; `candidates` and `spot` replace the space's own. If all runs see too few tokens, the best of these runs
    is returned.
    """
    chosen_from = space.candidates if candidates is None else candidates
    spot = space.spot if spot is None else spot
    # Leave out at once what does not fit and unwanted spot machines, which saves computing their tokens.
    standing = chosen_from.fits & (spot | ~chosen_from.spot)
    places = np.nonzero(standing if allowed is None else standing & allowed)[0]
    if not len(places):
        return None
    runs = runs_of(chosen_from, places, limits, spot=spot)
    return best_standing(space, chosen_from, runs, limits)


def best_standing(space: SearchSpace, candidates: Candidates, runs: Runs, limits: Limits) -> Selection | None:
    """Return the best run that breaks no rule, or else the best run that only sees too few tokens, or else None."""
    for violation in (NOTHING, Violation.THIN):
        standing = runs.rows(runs.violation == violation)
        if len(standing):
            return selection(standing, best_of(space, candidates, standing, limits))
    return None


def best_of(space: SearchSpace, candidates: Candidates, runs: Runs, limits: Limits) -> int:
    """Return the row of the run that the goal prefers; the price of waiting counts as part of the dollars.

    A machine on which nobody has published a run counts at its cautious end: slower, dearer, and by its score for as
    many tokens as it would then train on. Otherwise the luckiest of many estimates would win.
    """
    goal, brief = space.goal, space.brief
    rows = np.arange(len(runs))
    cautious = cautions(candidates)[candidates.offer[runs.place]]
    seconds, score = runs.seconds * cautious, runs.score
    if not brief.settled and (unsure := np.flatnonzero(cautious > 1)).size:
        slower = runs.steps[unsure] / cautious[unsure]
        score = score.copy()
        score[unsure] = Costs(candidates.rows(runs.place[unsure])).scores(slower[:, None])[:, 0]
    if goal.tokens is not None and goal.depth is None and (not brief.limited or goal.objective != "loss"):
        # Only the depth whose recommended tokens are nearest to the requested tokens counts.
        off = np.abs(np.log(goal.tokens / candidates.counted[runs.place] / brief.ratio))
        rows = rows[off <= off.min() + 1e-9]
    if limits.budget_usd is None:  # without a budget, the cheapest run sets the price of waiting
        limits = replace(limits, budget_usd=float(runs.paid.min()))
    usd = runs.paid * cautious + limits.waiting_usd(seconds)
    if goal.objective == "cost":
        return int(rows[np.lexsort((seconds[rows], usd[rows]))[0]])
    if goal.objective == "time":
        return int(rows[np.lexsort((usd[rows], seconds[rows]))[0]])
    unlimited = UNLIMITED_SECONDS[space.candidates.machines.devices[0].profile.device_type]
    if not brief.limited and (runs.seconds[rows] <= unlimited).any():
        rows = rows[runs.seconds[rows] <= unlimited]
    rows = rows[score[rows] <= LEVEL * score[rows].min()]
    cheap = rows[usd[rows] <= ALIKE_USD * usd[rows].min()]
    return int(cheap[np.lexsort((seconds[cheap], candidates.parameters[runs.place[cheap]]))[0]])


class OfferedRun(Protocol):
    """A run on one offer, as plans with other software have it."""

    @property
    def offer(self) -> Offer: ...
    @property
    def keeps(self) -> tuple[bool, bool]: ...  # whether it is within the deadline, and within the budget
    @property
    def seconds(self) -> Estimate: ...
    @property
    def usd(self) -> Estimate | None: ...


_Offered = TypeVar("_Offered", bound=OfferedRun)


def sorted_by_preference(goal: Goal, runs: Sequence[_Offered]) -> list[_Offered]:
    """Return runs of one piece of work on different offers, the one that `best_of` would take first.

    Runs that break a limit come last, and an unknown cost after every known one. Raises AdvisorError (exit 2) if there
    is a budget and no price is known.
    """
    if goal.budget_usd is not None and all(run.offer.usd_per_hour is None for run in runs):
        raise price_missing(runs[0].offer)
    cheapest = min((run.usd.value for run in runs if run.usd is not None and all(run.keeps)), default=None)
    waiting = Limits(budget_usd=goal.budget_usd or cheapest, usd_per_waiting_hour=waiting_price(goal))

    def rank(run: _Offered) -> tuple[bool, float, float]:
        cautious = caution(require_gpu(run.offer.gpu), run.offer.gpus)
        dollars, seconds = 0.0, run.seconds.value * cautious
        if goal.objective != "time":
            dollars = run.usd.value * cautious + float(waiting.waiting_usd(seconds)) if run.usd else math.inf
        return not all(run.keeps), dollars, seconds

    return sorted(runs, key=rank)


def cautions(candidates: Candidates) -> np.ndarray:
    """Return `comm.caution` of each offer."""
    machines = candidates.machines
    pairs = zip(machines.owners, machines.offers, strict=True)
    return np.array([caution(device.profile.spec, offer.gpus) for device, offer in pairs])


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
