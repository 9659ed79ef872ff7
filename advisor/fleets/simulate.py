"""Draws futures of a schedule: how likely each deadline is, what it costs, and how much better hindsight would be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from scipy.special import ndtr, ndtri

from advisor.fleets.records import Fleet, FleetRun, Outlook, Pool, PoolKind, Schedule, Way
from advisor.fleets.spot import ON_DEMAND, PRIOR_TIMES, WAIT, Policy, drawn, lasting
from advisor.prediction.wallclock import RESTART_SECONDS
from advisor.records import Basis, Estimate, worst_basis
from advisor.units import HOUR

DRAWS = 500
QUEUE_DEVIATION = 1.0  # of the log of a wait; queue waits have long tails. Judgement
# How far spot machines of the next days differ from those of the last ones: deviations of the log odds of their
# availability and of the log of their up time, and the shape of the gamma distribution of the time without any.
# Fitted to 20 recorded zones (benchmarks/fleet_replay.py).
ODDS_DEVIATION, UP_DEVIATION, AWAY_SHAPE = 1.0, 0.5, 0.5
_STEP_HOURS, _MOST_STEPS = 0.25, 400  # of the policy for spot machines
RESTART_HOURS = RESTART_SECONDS / HOUR  # from a taken spot machine to training on the next, as in every plan


@dataclass(frozen=True, kw_only=True)
class Futures:
    """Drawn futures: arrays of shape (runs, draws), in the order of `runs`."""

    runs: tuple[str, ...]
    starts: np.ndarray  # hours
    ends: np.ndarray
    usd: np.ndarray
    bases: tuple[Basis, ...]  # of the predicted hours, by run

    @property
    def total_usd(self) -> np.ndarray:
        """Return the dollars of all runs by draw, without blocks."""
        return self.usd.sum(axis=0)


class Chances:
    """Draws what is not known of a fleet's future: arrays with one value for each future."""

    def __init__(self, fleet: Fleet, draws: int = DRAWS, seed: int = 0):
        self.draws, self._seed, self.rng = draws, seed, np.random.default_rng(seed)
        self._errors = fleet.errors
        even = ndtri((np.arange(draws) + 0.5) / draws)  # evenly drawn, so that chances scatter less
        self._shared = {gpu: self.rng.permutation(even) for gpu in sorted({pool.gpu for pool in fleet.pools})}
        self.followed: dict[tuple[object, ...], tuple[np.ndarray, np.ndarray]] = {}  # on spot machines, in any schedule

    def factor(self, run: FleetRun, way: Way, gpu: str) -> np.ndarray:
        """Return the actual over the predicted hours of a run. What is drawn after it is of this run too."""
        self.rng = np.random.default_rng([self._seed, crc32(run.name.encode())])  # the same in every schedule
        common = self._errors.common_share
        error = math.sqrt(common) * self._shared[gpu] + math.sqrt(1 - common) * self.rng.standard_normal(self.draws)
        if quantiles := self._errors.quantiles:
            error = np.interp(ndtr(error), np.linspace(0.0, 1.0, len(quantiles)), quantiles)
        return np.exp(way.deviation * error)

    def waited(self, pool: Pool) -> np.ndarray:
        """Return the hours in the queue of a pool."""
        return pool.queue_hours * np.exp(QUEUE_DEVIATION * self.rng.standard_normal(self.draws))

    def _zones(self, pool: Pool) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean hours with spot machines, and without any: a zone is not as it was."""
        stated = min(pool.availability, 1 - 1e-6)
        odds = stated / (1 - stated) * np.exp(ODDS_DEVIATION * self.rng.standard_normal(self.draws))
        up = min(pool.up_hours, 1e6) * np.exp(UP_DEVIATION * self.rng.standard_normal(self.draws))
        return up, up / odds

    def machines(self, pool: Pool, step_hours: float, begins: np.ndarray) -> Iterator[np.ndarray]:
        """Yield for each step since a run may begin whether spot machines are there."""
        up, away = self._zones(pool)
        return drawn(lasting(away, up), step_hours, self.draws, self.rng)

    def lost(self, pool: Pool, worked: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Return the hours that spot machines add to so much work: waiting while there are none, and restarts.

        A renewal model: machines last an exponential time.
        """
        up, away = self._zones(pool)
        times = self.rng.poisson(worked / up)
        waiting = self.rng.gamma(np.maximum(times * AWAY_SHAPE, 1e-9), away / AWAY_SHAPE)
        first = np.where(self.rng.random(self.draws) < away / (up + away), self.rng.exponential(away), 0.0)
        return np.where(times > 0, waiting, 0.0) + times * RESTART_HOURS + first


def simulate(
    fleet: Fleet, planned: Schedule, *, draws: int = DRAWS, seed: int = 0, chances: Chances | None = None
) -> Futures:
    """Draw futures in which the runs keep their pools and the order of their planned starts.

    A run begins once it may and its GPUs are free, so that a late run delays those behind it. After a reservation's end
    a run goes on with GPUs at its price per hour, if these can be had at all, after a restart. `chances` may know what
    is drawn otherwise.
    """
    chances = chances or Chances(fleet, draws, seed)
    draws = chances.draws
    runs, placements = {run.name: run for run in fleet.runs}, planned.placements
    pools = {pool.name: pool for pool in fleet.pools}
    free: dict[str, np.ndarray] = {}  # when each GPU of a pool is free: (draws, GPUs), sorted
    starts, ends, usd, bases = [], [], [], []
    for placement in placements:
        pool, run = pools[placement.pool], runs[placement.run]
        way = next(way for way in run.ways if (way.pool, way.gpus) == (placement.pool, placement.gpus))
        factor = chances.factor(run, way, pool.gpu)
        start = np.full(draws, max(run.earliest_hours, pool.from_hours))
        if pool.queue_hours:
            start = start + chances.waited(pool)
        if pool.gpus is not None:
            size = int(pool.capacity(pool.bought_blocks + planned.blocks.get(pool.name, 0)))
            state = free.setdefault(pool.name, np.full((draws, size), pool.from_hours))
            start = np.maximum(start, state[:, placement.gpus - 1])
        worked, paid = way.work_hours * factor, placement.usd * factor
        lost: np.ndarray | float = 0.0
        if pool.kind is PoolKind.SPOT:
            other = on_demand_price(fleet, pool)
            if other is not None and run.deadline_hours < math.inf:
                key = run.name, pool.name, placement.gpus, start.tobytes()
                if key not in chances.followed:
                    chances.followed[key] = _by_policy(worked, pool, other, start, run.deadline_hours, chances)
                taken, paid = chances.followed[key]
                lost, paid = taken - worked, paid * placement.gpus
            else:
                lost = chances.lost(pool, worked, start)
        over = np.maximum(0.0, start + worked - pool.until_hours) if pool.until_hours < math.inf else np.zeros(draws)
        end = start + worked + lost + np.where(over > 0, RESTART_HOURS, 0.0)
        if pool.gpus is not None:
            state[:, : placement.gpus] = end[:, None]
            state.sort(axis=1)
        starts.append(start)
        ends.append(end)
        usd.append(paid)
        bases.append(way.hours.basis)
    shape = (len(placements), draws)
    return Futures(
        runs=tuple(one.run for one in placements), starts=np.array(starts).reshape(shape),
        ends=np.array(ends).reshape(shape), usd=np.array(usd).reshape(shape), bases=tuple(bases),
    )  # fmt: skip


def on_demand_price(fleet: Fleet, pool: Pool) -> float | None:
    """Return the price per hour of the same GPU on demand, or None if no pool rents it."""
    prices = [
        other.usd_per_gpu_hour
        for other in fleet.pools
        if other.gpu == pool.gpu and other.kind is PoolKind.ON_DEMAND and other.usd_per_gpu_hour
    ]
    return min(prices, default=None)


def _by_policy(
    worked: np.ndarray, pool: Pool, usd_on_demand: float, start: np.ndarray, deadline: float, chances: Chances
) -> tuple[np.ndarray, np.ndarray]:
    """Return the hours that runs take on spot machines and where needed on demand, and the dollars for each GPU."""
    hours_left, price = deadline - start, pool.usd_per_gpu_hour or 0.0
    longest = float(hours_left.max())
    step = max(_STEP_HOURS, longest / _MOST_STEPS)
    work = min(float(worked.max()), longest - 2 * RESTART_HOURS - 2 * step)
    if work <= step:
        return worked + RESTART_HOURS, worked * usd_on_demand
    policy = Policy(work_hours=work, hours_left=longest, overhead_hours=RESTART_HOURS,
                    spot_share=price / usd_on_demand, rates=rates_in(pool), step_hours=step)  # fmt: skip
    hours, spot, on_demand = policy.followed(worked, chances.machines(pool, step, start), hours_left)
    return hours, spot * price + on_demand * usd_on_demand


def rates_in(pool: Pool, taken: int = 0, had_hours: float = 0.0) -> np.ndarray:
    """Return the rates at which spot machines of a pool come and go: as stated, and as often as they were taken."""
    up = min(pool.up_hours, 1e6)
    away = max(up * (1 - pool.availability) / pool.availability, 1e-3)
    return lasting(away, (had_hours + PRIOR_TIMES * up) / (taken + PRIOR_TIMES))


def next_machine(
    spot_share: float, work_hours: float, hours_left: float, rates: np.ndarray, *,
    running: int = WAIT, spot_there: bool = True, age_hours: float = 0.0,
) -> int:  # fmt: skip
    """Return whether a run waits, or goes on on a spot machine or on demand, if spot machines are there or away now."""
    step = hours_left / _MOST_STEPS
    try:
        policy = Policy(work_hours=work_hours, hours_left=hours_left, overhead_hours=RESTART_HOURS,
                        spot_share=spot_share, rates=rates, step_hours=step)  # fmt: skip
    except (ValueError, ZeroDivisionError):  # it is late anyway
        return ON_DEMAND
    work = math.ceil(work_hours / step - 1e-9)
    return policy.action(hours_left=hours_left, work_left=work, spot_there=spot_there, running=running,
                         age_hours=age_hours)  # fmt: skip


def outlooks(fleet: Fleet, futures: Futures) -> tuple[Outlook, ...]:
    """Return what the futures say of each run that is in the schedule."""
    runs = {run.name: run for run in fleet.runs}
    found = []
    rows = zip(futures.runs, futures.starts, futures.ends, futures.usd, futures.bases, strict=True)
    for name, starts, ends, usd, basis in rows:
        run = runs[name]
        met = float(np.mean(ends <= run.deadline_hours)) if run.deadline_hours < math.inf else None
        found.append(
            Outlook(run=name, probability=met, start_hours=float(np.median(starts)), end_hours=interval(ends, basis),
                    usd=average(usd, basis))
        )  # fmt: skip
    return tuple(found)


def average(usd: np.ndarray, *bases: Basis) -> Estimate:
    """Return the average of drawn dollars, which adds up over runs, with the ends of 8 of 10."""
    return replace(interval(usd, *bases), value=float(usd.mean()))


def interval(values: np.ndarray, *bases: Basis) -> Estimate:
    """Return the median of drawn values with the ends of 8 of 10, and the weakest of the bases that it rests on."""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return Estimate(value=middle, low=low, high=high, basis=worst_basis(*bases) if bases else Basis.PRIOR)
