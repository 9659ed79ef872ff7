"""Choose token budgets for every configuration, compute their bills, and mark the rules that each run breaks.

The result is small: the runs that break no rule and are not beaten on the same machine, and near misses of one rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag

import numpy as np

from advisor.planning.candidates import Candidates
from advisor.planning.costs import Costs
from advisor.planning.goal import Limits
from advisor.prediction.intervals import Table, stacked
from advisor.prediction.loss import expected_loss
from advisor.prediction.profile import FIT_MARGIN

RATIO_MULTIPLES = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # token budgets to try, as factors of the recommended one
LEAST_STEPS = 20  # a run of fewer steps learns nothing, so the limits are too tight
THINNEST = 0.1  # share of the recommended tokens per parameter; with fewer tokens the score is a guess
_ROWS_AT_ONCE = 8192  # this many rows with all their budgets fit in a core's cache
_NEAR = 1.5  # a run within this factor of a limit is a near miss


class Violation(IntFlag):
    """The rules that a run breaks; several may be set."""

    MEMORY = 1
    TIME = 2
    MONEY = 4
    THIN = 8  # the run has too few tokens per parameter, or too few steps
    BATCH = 16  # another global batch is nearer to the recommendation for these tokens
    SPOT = 32  # the machine may be taken back, which the goal does not allow
    NOTICE = 64  # the machine may be taken back before the run can save


NOTHING = Violation(0)
_MISSED = [int(v) for v in (Violation.MEMORY, Violation.TIME, Violation.MONEY, Violation.SPOT, Violation.NOTICE)]


@dataclass(frozen=True, kw_only=True)
class Runs(Table):
    """Runs as columns of shape (n,)."""

    place: np.ndarray  # indices of the candidates
    steps: np.ndarray
    seconds: np.ndarray
    usd: np.ndarray  # NaN where unknown
    score: np.ndarray
    loss: np.ndarray
    violation: np.ndarray  # `Violation` as integers
    overrun: np.ndarray  # time or money divided by its limit, whichever is larger

    def __len__(self) -> int:
        return len(self.place)

    @property
    def paid(self) -> np.ndarray:
        """The dollars, with 0 where they are unknown."""
        return np.where(np.isnan(self.usd), 0.0, self.usd)


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The best runs and the near misses among all token budgets of all candidates."""

    standing: Runs  # break no rule; on each offer only those that no other beats in time, cost and score
    missed: Runs  # break exactly one rule about memory, time, money, spot or notice, and not by far
    candidates: int  # runs whose time, memory, cost, score and loss were computed


def evaluate(candidates: Candidates, limits: Limits, *, spot: bool) -> Evaluated:
    """Return the best runs and near misses of every configuration at every token budget; `spot` allows spot machines.

    The token budget is the one that the goal fixes. Otherwise the budgets are multiples of the recommended tokens and
    the most tokens within the limits.
    """
    standing, missed, count = [], [], 0
    usable = FIT_MARGIN * np.array([d.profile.device_memory_bytes or np.inf for d in candidates.machines.devices])
    # Work on whole offers, about _ROWS_AT_ONCE rows together.
    starts = np.nonzero(np.diff(candidates.offer, prepend=-1))[0]
    full = np.diff(starts // _ROWS_AT_ONCE, prepend=-1) > 0
    for places in np.split(np.arange(len(candidates)), starts[full][1:]):
        runs = runs_of(candidates, places, limits, spot=spot, multiples=RATIO_MULTIPLES)
        count += len(runs)
        good = runs.rows(runs.violation == 0)
        if len(good):  # on one offer cost follows from time, so time and score decide
            offers = candidates.offer[good.place].astype(float)
            good = good.rows(best_by_group(offers, good.seconds, good.score))
        standing.append(good)
        over = candidates.memory.high[runs.place] / usable[candidates.device[runs.place]]
        near = (runs.overrun <= _NEAR) & ~(over > _NEAR)  # unknown memory is never exceeded
        missed.append(runs.rows(np.isin(runs.violation, _MISSED) & near))

    return Evaluated(standing=stacked(standing), missed=stacked(missed), candidates=count)


def runs_of(
    candidates: Candidates, places: np.ndarray, limits: Limits, *, spot: bool, multiples: Sequence[float] = ()
) -> Runs:
    """Return the runs of the candidates at these places, one for each token budget.

    If the goal does not fix the tokens, the budgets are these `multiples` of the recommended tokens and the most tokens
    within the limits.
    """
    costs = Costs(candidates.rows(places))
    steps = costs.settled_steps()
    if steps is None:
        most = np.maximum(costs.most_steps(limits), LEAST_STEPS)
        wanted = costs.ratio * costs.counted * np.array(multiples)[None, :] / costs.step_tokens
        some = np.minimum(np.maximum(LEAST_STEPS, np.rint(wanted)), costs.most_by_data)
        steps = np.concatenate([some, most], axis=1)
    return runs_at(costs, places, steps, limits, spot=spot)


def runs_at(costs: Costs, places: np.ndarray, steps: np.ndarray, limits: Limits, *, spot: bool) -> Runs:
    """Return runs of this many steps, shape (n, k), with the rules that they break; `places` are their candidates.

    A run whose tokens the goal fixes never counts as too short.
    """
    part, settled = costs.candidates, costs.brief.settled
    seconds = costs.seconds(steps)
    usd = costs.usd(seconds, steps)
    late, dear = costs.overruns(steps, limits) if limits.sure else limits.overruns(seconds, usd)
    violation = np.where(part.fits, 0, int(Violation.MEMORY))[:, None] + np.where(late > 1, int(Violation.TIME), 0)
    violation += np.where(dear > 1, int(Violation.MONEY), 0)
    if not settled:
        violation += np.where(steps < least_steps(costs), int(Violation.THIN), 0)
    violation += np.where(costs.batch_is_nearest(steps), 0, int(Violation.BATCH))
    if not spot:
        violation += np.where(part.spot, int(Violation.SPOT), 0)[:, None]
    if (taken := costs.taken_before_saving(steps)) is not None:
        violation += np.where(taken, int(Violation.NOTICE), 0)
    losses = expected_loss(
        part.parameters[:, None], steps * costs.step_tokens, costs.brief.unique_tokens, costs.brief.vocab_size
    )
    columns = {"steps": steps, "seconds": seconds, "usd": usd, "score": costs.scores(steps),
               "loss": losses, "violation": violation, "overrun": np.maximum(late, dear)}  # fmt: skip
    flat = {name: np.broadcast_to(column, steps.shape).ravel() for name, column in columns.items()}
    return Runs(place=np.repeat(places, steps.shape[1]), **flat)


def least_steps(costs: Costs) -> np.ndarray:
    """Return the fewest useful steps, of shape (n, 1): LEAST_STEPS, and THINNEST of the tokens if the data suffice."""
    enough = np.ceil(THINNEST * costs.ratio * costs.counted / costs.step_tokens)
    return np.maximum(LEAST_STEPS, np.minimum(enough, costs.most_by_data))


_AT_ONCE = 256  # rows compared in one block; its memory grows with the square


def non_dominated(points: np.ndarray) -> np.ndarray:
    """Return the indices of the Pareto front of `points`, shape (n, k), ascending; lower is better in each column.

    A row is left out if another is at least as good in every column and better in one, or if it repeats an earlier row.
    """
    if not len(points):
        return np.zeros(0, dtype=int)
    order = np.lexsort((np.arange(len(points)), *points.T[::-1]))  # no row can beat an earlier one
    kept = np.zeros(0, dtype=int)
    for start in range(0, len(order), _AT_ONCE):
        some = order[start : start + _AT_ONCE]
        if len(kept):
            some = some[~beaten(points[some], points[kept]).any(axis=1)]
        # Within the block only earlier rows can beat a row. It does not matter whether they are beaten themselves.
        among = np.triu(beaten(points[some], points[some]).T, 1).any(axis=0)
        kept = np.concatenate([kept, some[~among]])
    return np.sort(kept)


def best_by_group(group: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the indices of the Pareto front of (first, second) within each group; all arrays have shape (n,)."""
    order = np.lexsort((second, first, group))
    rank = np.cumsum(np.diff(group[order], prepend=group[order[:1]]) != 0)
    # One running minimum serves all groups, because each group is shifted below all earlier ones. Equal values share
    # one rank.
    scaled = np.unique(second[order], return_inverse=True)[1].astype(float)
    least = np.minimum.accumulate(scaled - rank * (len(order) + 1))
    before = np.concatenate([[np.inf], least[:-1]])
    return order[(scaled - rank * (len(order) + 1)) < before]


def spread_out(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of at most `count` values, with both ends, spread evenly by their logarithms."""
    if len(values) <= count:
        return np.arange(len(values))
    logs = np.log(np.maximum(values, 1e-12))
    wanted = np.linspace(logs.min(), logs.max(), count)[1:-1]
    between = np.abs(logs[:, None] - wanted).argmin(axis=0)
    return np.array(sorted({int(values.argmin()), int(values.argmax()), *between.tolist()}))


def beaten(points: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return, in shape (n, m), whether the m-th row of `by` is at least as good as the n-th point in every column."""
    return np.logical_and.reduce([mine[None] <= own[:, None] for mine, own in zip(by.T, points.T, strict=True)])
