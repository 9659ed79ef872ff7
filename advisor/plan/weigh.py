"""Token budgets for every configuration, their bills, and what stands against each: all on arrays.

What comes out is small: of the runs that keep every rule those that no other on the same machine beats, and of those
that break exactly one those that come near.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

import numpy as np

from advisor.plan.bills import Bills, Limits
from advisor.plan.field import SOUND, Field
from advisor.plan.front import best_by_group
from advisor.plan.goal import MOST_EPOCHS, Brief
from advisor.plan.trial import LEAST_STEPS, THINNEST

RATIO_MULTIPLES = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # token budgets tried, of the recommended one
ROOMY = 0.85  # of the device's memory: what the conservative option keeps within at its interval's high end
_ROWS_AT_ONCE = 8192  # with all their budgets they stay in a core's cache
_NEAR = 1.5  # times over a limit that still counts as a near miss


class Against(IntFlag):
    """What stands against a run; several may."""

    MEMORY = 1
    TIME = 2
    MONEY = 4
    THIN = 8  # too few tokens per parameter, or too few steps
    BATCH = 16  # the global batch is far above what the laws recommend for these tokens
    SPOT = 32  # a machine that may be taken back, and the goal does not want one


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Runs as columns of shape (n,): a place in the field, steps, and what they come to."""

    place: np.ndarray
    steps: np.ndarray
    seconds: np.ndarray
    usd: np.ndarray
    score: np.ndarray
    loss: np.ndarray
    against: np.ndarray  # Against, as integers
    overrun: np.ndarray  # time or money over its limit, whichever is more

    def __len__(self) -> int:
        return len(self.place)

    def rows(self, places: np.ndarray) -> Pool:
        """The runs at these places, a boolean mask or indices."""
        return Pool(**{name: getattr(self, name)[places] for name in Pool.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """The outcome for a whole field."""

    standing: Pool  # keep every rule; per offer those that no other beats in time, cost and score
    thin: Pool  # the same of those with nothing but thinness against them
    missed: Pool  # exactly one of memory, time, money or spot against them, and not by far
    candidates: int  # time, memory, cost, score and loss of all of these were computed


def weigh(field: Field, limits: Limits, *, spot: bool, multiples: tuple[float, ...] = RATIO_MULTIPLES) -> Weighed:
    """Weigh every configuration at every token budget; `spot` says whether spot machines may be chosen.

    Token budgets: the one the goal settles, else the multiples of the recommended one and the most that keeps the
    limits.
    """
    standing, thin, missed, count = [], [], [], 0
    for start in range(0, len(field), _ROWS_AT_ONCE):
        places = np.arange(start, min(start + _ROWS_AT_ONCE, len(field)))
        part = field.rows(slice(start, start + _ROWS_AT_ONCE))
        pool = _pool(part, limits, places, spot, multiples)
        count += len(pool)
        standing.append(_fronts(field, pool.rows(pool.against == 0)))
        thin.append(_fronts(field, pool.rows(pool.against == Against.THIN)))
        missed.append(_missed(pool))
    return Weighed(standing=_joined(standing), thin=_joined(thin), missed=_joined(missed), candidates=count)


def promising(field: Field) -> np.ndarray:
    """Places of the configurations that no other of the same offer and depth beats, fitting and other ones apart.

    To beat is to be at least as fast with a global batch no larger: whatever the budgets, the others are never chosen.
    """
    rate = field.step_tokens / field.step.value
    group = (field.offer * 1024 + field.depth) * 2 + field.fits
    return np.sort(best_by_group(group, -rate, field.step_tokens))


def roomy(field: Field) -> np.ndarray:
    """Bool: what fits with memory to spare."""
    memory = np.array([d.profile.device_memory_bytes or np.inf for d in field.devices])[field.device]
    return field.fits & (field.memory.high <= ROOMY * memory)


def settled_tokens(brief: Brief, counted: np.ndarray) -> np.ndarray | None:
    """Training tokens where the goal settles them, as `trial.fixed_tokens`; None where the limits do."""
    if brief.goal.tokens is not None:
        return np.full_like(counted, brief.goal.tokens)
    if brief.settled:
        return np.maximum(1.0, np.rint(brief.ratio * counted))
    return None


def _pool(part: Field, limits: Limits, places: np.ndarray, spot: bool, multiples: tuple[float, ...]) -> Pool:
    bills, brief = Bills(part), part.devices[0].brief
    counted = part.counted[:, None]
    settled = settled_tokens(brief, counted)
    if settled is not None:
        steps = np.maximum(1.0, np.rint(settled / bills.step_tokens))
    else:
        steps = _budgets(bills, counted, limits, multiples)
    seconds = bills.seconds(steps)
    usd = bills.usd(seconds)
    if limits.sure:
        late, dear = bills.overruns(steps, limits)
    else:
        late = seconds / limits.deadline_seconds if limits.deadline_seconds else np.zeros_like(seconds)
        dear = usd / limits.budget_usd if limits.budget_usd else np.zeros_like(usd)
    against = np.where(part.fits, 0, int(Against.MEMORY))[:, None] + np.where(late > 1, int(Against.TIME), 0)
    against += np.where(dear > 1, int(Against.MONEY), 0)
    if settled is None:
        tokens = bills.tokens(steps)
        thin = (steps < LEAST_STEPS) | (tokens < THINNEST * bills.ratio * counted) & ~_exhausted(bills, steps)
        against += np.where(thin, int(Against.THIN), 0)
    against += np.where(bills.batch_is_sound(steps, brief, SOUND), 0, int(Against.BATCH))
    if not spot:
        taken_back = np.array([offer.spot for offer in part.offers])[part.offer][:, None]
        against += np.where(taken_back, int(Against.SPOT), 0)
    columns = {"steps": steps, "seconds": seconds, "usd": usd, "score": bills.scores(steps),
               "loss": bills.losses(steps), "against": against, "overrun": np.maximum(late, dear)}  # fmt: skip
    flat = {name: np.broadcast_to(column, steps.shape).ravel() for name, column in columns.items()}
    return Pool(place=np.repeat(places, steps.shape[1]), **flat)


def _budgets(bills: Bills, counted: np.ndarray, limits: Limits, multiples: tuple[float, ...]) -> np.ndarray:
    """Steps for each multiple of the recommended tokens, and the most the limits allow: shape (n, k)."""
    most = np.maximum(bills.most_steps(limits), LEAST_STEPS)
    wanted = bills.ratio * counted * np.array(multiples)[None, :] / bills.step_tokens
    steps = np.maximum(LEAST_STEPS, np.rint(wanted))
    if bills.unique_tokens:
        steps = np.minimum(steps, np.maximum(1.0, MOST_EPOCHS * bills.unique_tokens // bills.step_tokens))
    return np.concatenate([steps, most], axis=1)


def _exhausted(bills: Bills, steps: np.ndarray) -> np.ndarray:
    """Bool: the data end the run, not the limits."""
    if not bills.unique_tokens:
        return np.zeros_like(steps, dtype=bool)
    return bills.tokens(steps) + bills.step_tokens > MOST_EPOCHS * bills.unique_tokens


def _fronts(field: Field, pool: Pool) -> Pool:
    """Of each offer the runs that no other beats: time and cost go together there, so two columns decide."""
    if not len(pool):
        return pool
    return pool.rows(best_by_group(field.offer[pool.place].astype(float), pool.seconds, pool.score))


def _missed(pool: Pool) -> Pool:
    kinds = [int(kind) for kind in (Against.MEMORY, Against.TIME, Against.MONEY, Against.SPOT)]
    return pool.rows(np.isin(pool.against, kinds) & (pool.overrun <= _NEAR))


def _joined(pools: list[Pool]) -> Pool:
    names = Pool.__dataclass_fields__
    return Pool(**{name: np.concatenate([getattr(pool, name) for pool in pools]) for name in names})
