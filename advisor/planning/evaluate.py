"""Token budgets for every configuration, their bills, and what stands against each: all on arrays.

What comes out is small: of the runs that keep every rule those that no other on the same machine beats, and of those
that break exactly one those that come near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag

import numpy as np

from advisor.planning.candidates import Candidates
from advisor.planning.costs import Costs
from advisor.planning.goal import Limits
from advisor.planning.pareto import best_by_group
from advisor.prediction.profile import FIT_MARGIN

RATIO_MULTIPLES = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # token budgets tried, of the recommended one
LEAST_STEPS = 20  # below this nothing is learnt and the schedule means nothing: the limit is too tight
THINNEST = 0.1  # of the recommended tokens per parameter: far off the flat optimum, where the score is a guess
_ROWS_AT_ONCE = 8192  # with all their budgets they stay in a core's cache
_NEAR = 1.5  # times over a limit that still counts as a near miss


class Violation(IntFlag):
    """What stands against a run; several may."""

    MEMORY = 1
    TIME = 2
    MONEY = 4
    THIN = 8  # too few tokens per parameter, or too few steps
    BATCH = 16  # another global batch is nearer to what the laws recommend for these tokens
    SPOT = 32  # a machine that may be taken back, and the goal does not want one
    NOTICE = 64  # a machine that is taken back before the run can save


NOTHING = Violation(0)
_MISSED = [int(v) for v in (Violation.MEMORY, Violation.TIME, Violation.MONEY, Violation.SPOT, Violation.NOTICE)]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Runs as columns of shape (n,): a place among the candidates, steps, and what they come to."""

    place: np.ndarray
    steps: np.ndarray
    seconds: np.ndarray
    usd: np.ndarray  # NaN where unknown
    score: np.ndarray
    loss: np.ndarray
    violation: np.ndarray  # Violation, as integers
    overrun: np.ndarray  # time or money over its limit, whichever is more

    def __len__(self) -> int:
        return len(self.place)

    def rows(self, places: np.ndarray) -> Runs:
        """The runs at these places, a boolean mask or indices."""
        return Runs(**{name: getattr(self, name)[places] for name in Runs.__dataclass_fields__})

    @property
    def paid(self) -> np.ndarray:
        """Dollars, 0 where they are unknown: what orders runs."""
        return np.where(np.isnan(self.usd), 0.0, self.usd)


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The outcome for all candidates."""

    standing: Runs  # keep every rule; per offer those that no other beats in time, cost and score
    thin: Runs  # the same of those with nothing but thinness against them
    missed: Runs  # exactly one of memory, time, money, spot or notice against them, and not by far
    candidates: int  # time, memory, cost, score and loss of all of these were computed


def evaluate(candidates: Candidates, limits: Limits, *, spot: bool) -> Evaluated:
    """Evaluate every configuration at every token budget; `spot` says whether spot machines may be chosen.

    Token budgets: the one the goal settles, else the multiples of the recommended one and the most that keeps the
    limits.
    """
    standing, thin, missed, count = [], [], [], 0
    for places in _chunks(candidates):
        runs = runs_of(candidates, places, limits, spot=spot, multiples=RATIO_MULTIPLES)
        count += len(runs)
        standing.append(_fronts(candidates, runs.rows(runs.violation == 0)))
        thin.append(_fronts(candidates, runs.rows(runs.violation == Violation.THIN)))
        usable = FIT_MARGIN * np.array([d.profile.device_memory_bytes or np.inf for d in candidates.devices])
        over = candidates.memory.high[runs.place] / usable[candidates.device[runs.place]]
        near = (runs.overrun <= _NEAR) & ~(over > _NEAR)  # what a CPU or an unknown card holds is over nothing
        missed.append(runs.rows(np.isin(runs.violation, _MISSED) & near))
    return Evaluated(standing=_joined(standing), thin=_joined(thin), missed=_joined(missed), candidates=count)


def runs_of(
    candidates: Candidates, places: np.ndarray, limits: Limits, *, spot: bool, multiples: Sequence[float] = ()
) -> Runs:
    """The runs of the candidates at these places, one for each token budget: without `multiples` as much as is settled
    or as the limits allow.
    """
    costs = Costs(candidates.rows(places))
    settled = costs.settled_steps()
    steps = _budgets(costs, limits, multiples) if settled is None else settled
    return runs_at(costs, places, steps, limits, spot=spot)


def runs_at(costs: Costs, places: np.ndarray, steps: np.ndarray, limits: Limits, *, spot: bool) -> Runs:
    """The runs of so many steps, shape (n, k), with all that stands against each; `places` name the rows.

    Settled work is never too little.
    """
    part, settled = costs.candidates, costs.candidates.devices[0].brief.settled
    seconds = costs.seconds(steps)
    usd = costs.usd(seconds, steps)
    late, dear = costs.overruns(steps, limits) if limits.sure else limits.overruns(seconds, usd)
    violation = np.where(part.fits, 0, int(Violation.MEMORY))[:, None] + np.where(late > 1, int(Violation.TIME), 0)
    violation += np.where(dear > 1, int(Violation.MONEY), 0)
    if not settled:
        violation += np.where(steps < least_steps(costs), int(Violation.THIN), 0)
    violation += np.where(costs.batch_is_nearest(steps), 0, int(Violation.BATCH))
    if not spot:
        violation += np.where(part.of_offers("spot").astype(bool), int(Violation.SPOT), 0)[:, None]
    if (taken := costs.taken_before_saving(steps)) is not None:
        violation += np.where(taken, int(Violation.NOTICE), 0)
    columns = {"steps": steps, "seconds": seconds, "usd": usd, "score": costs.scores(steps),
               "loss": costs.losses(steps), "violation": violation, "overrun": np.maximum(late, dear)}  # fmt: skip
    flat = {name: np.broadcast_to(column, steps.shape).ravel() for name, column in columns.items()}
    return Runs(place=np.repeat(places, steps.shape[1]), **flat)


def _chunks(candidates: Candidates) -> list[np.ndarray]:
    """Places of whole offers, about _ROWS_AT_ONCE together."""
    starts = np.nonzero(np.diff(candidates.offer, prepend=-1))[0]
    full = np.diff(starts // _ROWS_AT_ONCE, prepend=-1) > 0
    return np.split(np.arange(len(candidates)), starts[full][1:])


def least_steps(costs: Costs) -> np.ndarray:
    """The fewest steps worth doing, shape (n, 1): of all, and by tokens per parameter where there are as many data."""
    enough = np.ceil(THINNEST * costs.ratio * costs.counted / costs.step_tokens)
    return np.maximum(LEAST_STEPS, np.minimum(enough, costs.most_by_data))


def _budgets(costs: Costs, limits: Limits, multiples: Sequence[float]) -> np.ndarray:
    """Steps for each multiple of the recommended tokens, and the most the limits allow: shape (n, k)."""
    most = np.maximum(costs.most_steps(limits), LEAST_STEPS)
    wanted = costs.ratio * costs.counted * np.array(multiples)[None, :] / costs.step_tokens
    steps = np.minimum(np.maximum(LEAST_STEPS, np.rint(wanted)), costs.most_by_data)
    return np.concatenate([steps, most], axis=1)


def _fronts(candidates: Candidates, runs: Runs) -> Runs:
    """Of each offer the runs that no other beats: time and cost go together there, so two columns decide."""
    if not len(runs):
        return runs
    return runs.rows(best_by_group(candidates.offer[runs.place].astype(float), runs.seconds, runs.score))


def _joined(parts: Sequence[Runs]) -> Runs:
    names = Runs.__dataclass_fields__
    return Runs(**{name: np.concatenate([getattr(runs, name) for runs in parts]) for name in names})
