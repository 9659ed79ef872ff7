"""Draws futures of a schedule: how likely each deadline is, what it costs, and how much better hindsight would be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from scipy.special import ndtri

from advisor.fleets.records import Fleet, Outlook, Pool, PoolKind, Schedule
from advisor.fleets.spot import Policy, Rates
from advisor.prediction.wallclock import RESTART_SECONDS
from advisor.records import Basis, Estimate, worst_basis
from advisor.units import HOUR

DRAWS = 500
# Share of the variance of a predicted time that all runs on one type of GPU have in common: an error of its speed moves
# them all. Judgement, scored on nobody's runs.
COMMON_SHARE = 0.75
QUEUE_DEVIATION = 1.0  # of the log of a wait; queue waits have long tails. Judgement
_STEP_HOURS, _MOST_STEPS = 0.25, 400  # of the policy for spot machines
RESTART_HOURS = RESTART_SECONDS / HOUR  # from a taken spot machine to training on the next, as in every plan


@dataclass(frozen=True, kw_only=True)
class Futures:
    """Drawn futures: arrays of shape (runs, draws), in the order of `runs`."""

    runs: tuple[str, ...]
    ends: np.ndarray  # hours
    usd: np.ndarray
    factors: np.ndarray  # of the predicted hours
    bases: tuple[Basis, ...]  # of the predicted hours, by run

    @property
    def total_usd(self) -> np.ndarray:
        """Return the dollars of all runs by draw, without blocks."""
        return self.usd.sum(axis=0)


def simulate(fleet: Fleet, planned: Schedule, *, draws: int = DRAWS, seed: int = 0) -> Futures:
    """Draw futures in which the runs keep their pools and the order of their planned starts.

    A run begins once it may and its GPUs are free, so that a late run delays those behind it. After a reservation's end
    a run goes on with GPUs at its price per hour, if these can be had at all, after a restart.
    """
    rng = np.random.default_rng(seed)
    runs, placements = {run.name: run for run in fleet.runs}, planned.placements
    pools = {pool.name: pool for pool in fleet.pools}
    even = ndtri((np.arange(draws) + 0.5) / draws)  # evenly drawn, so that chances scatter less
    shared = {gpu: rng.permutation(even) for gpu in sorted({pool.gpu for pool in fleet.pools})}
    free: dict[str, np.ndarray] = {}  # when each GPU of a pool is free: (draws, GPUs), sorted
    ends, usd, factors, bases = [], [], [], []
    for placement in placements:
        pool, run = pools[placement.pool], runs[placement.run]
        rng = np.random.default_rng([seed, crc32(run.name.encode())])  # the same futures in every schedule
        way = next(way for way in run.ways if (way.pool, way.gpus) == (placement.pool, placement.gpus))
        common, own = math.sqrt(COMMON_SHARE), math.sqrt(1 - COMMON_SHARE)
        factor = np.exp(way.deviation * (common * shared[pool.gpu] + own * rng.standard_normal(draws)))
        start = np.full(draws, max(run.earliest_hours, pool.from_hours))
        if pool.queue_hours:
            start = start + pool.queue_hours * np.exp(QUEUE_DEVIATION * rng.standard_normal(draws))
        if pool.gpus is not None:
            size = int(pool.capacity(pool.bought_blocks + planned.blocks.get(pool.name, 0)))
            state = free.setdefault(pool.name, np.full((draws, size), pool.from_hours))
            start = np.maximum(start, state[:, placement.gpus - 1])
        worked, paid = way.work_hours * factor, placement.usd * factor
        lost: np.ndarray | float = 0.0
        if pool.kind is PoolKind.SPOT:
            other = _on_demand_price(fleet, pool)
            if other is not None and run.deadline_hours < math.inf:
                taken, paid = _by_policy(worked, pool, other, run.deadline_hours - float(np.median(start)), rng)
                lost, paid = taken - worked, paid * placement.gpus
            else:
                lost = _interrupted(worked, pool.availability, pool.up_hours, rng)
        over = np.maximum(0.0, start + worked - pool.until_hours) if pool.until_hours < math.inf else np.zeros(draws)
        end = start + worked + lost + np.where(over > 0, RESTART_HOURS, 0.0)
        if pool.gpus is not None:
            state[:, : placement.gpus] = end[:, None]
            state.sort(axis=1)
        ends.append(end)
        usd.append(paid)
        factors.append(factor)
        bases.append(way.hours.basis)
    shape = (len(placements), draws)
    return Futures(
        runs=tuple(one.run for one in placements),
        ends=np.array(ends).reshape(shape), usd=np.array(usd).reshape(shape), factors=np.array(factors).reshape(shape),
        bases=tuple(bases),
    )  # fmt: skip


def _on_demand_price(fleet: Fleet, pool: Pool) -> float | None:
    """Return the price per hour of the same GPU on demand, or None if no pool rents it."""
    prices = [
        other.usd_per_gpu_hour
        for other in fleet.pools
        if other.gpu == pool.gpu and other.kind is PoolKind.ON_DEMAND and other.usd_per_gpu_hour
    ]
    return min(prices, default=None)


def _by_policy(
    worked: np.ndarray, pool: Pool, usd_on_demand: float, hours_left: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the hours that runs take on spot machines and where needed on demand, and the dollars for each GPU."""
    step = max(_STEP_HOURS, hours_left / _MOST_STEPS)
    up = pool.up_hours if pool.up_hours < math.inf else 1e6
    away = max(up * (1 - pool.availability) / pool.availability, 1e-3)
    rates, price = Rates(comes=1 / away, goes=1 / up), pool.usd_per_gpu_hour or 0.0
    longest = min(float(worked.max()), hours_left - 2 * RESTART_HOURS - 2 * step)
    if longest <= step:
        return worked + RESTART_HOURS, worked * usd_on_demand
    policy = Policy(work_hours=longest, hours_left=hours_left, overhead_hours=RESTART_HOURS,
                    spot_share=price / usd_on_demand, rates=rates, step_hours=step)  # fmt: skip
    hours, spot, on_demand = policy.drawn(worked, rates, rng)
    return hours, spot * price + on_demand * usd_on_demand


def _interrupted(worked: np.ndarray, availability: float, up_hours: float, rng: np.random.Generator) -> np.ndarray:
    """Return the hours that spot machines add: waiting while there are none, and restarts.

    A renewal model: machines last an exponential time, and the time without any is such that the share `availability`
    results.
    """
    times = rng.poisson(worked / up_hours) if up_hours < math.inf else np.zeros(len(worked), dtype=int)
    down = up_hours * (1 - availability) / availability if up_hours < math.inf and availability < 1 else 0.0
    waiting = rng.gamma(np.maximum(times, 1e-9), max(down, 1e-12)) if down else np.zeros(len(worked))
    first = np.where(rng.random(len(worked)) > availability, rng.exponential(max(down, 1e-12), len(worked)), 0.0)
    return np.where(times > 0, waiting, 0.0) + times * RESTART_HOURS + first


def outlooks(fleet: Fleet, futures: Futures) -> tuple[Outlook, ...]:
    """Return what the futures say of each run that is in the schedule."""
    runs = {run.name: run for run in fleet.runs}
    found = []
    for name, ends, usd, basis in zip(futures.runs, futures.ends, futures.usd, futures.bases, strict=True):
        run = runs[name]
        met = float(np.mean(ends <= run.deadline_hours)) if run.deadline_hours < math.inf else None
        found.append(Outlook(run=name, probability=met, end_hours=interval(ends, basis), usd=interval(usd, basis)))
    return tuple(found)


def interval(values: np.ndarray, *bases: Basis) -> Estimate:
    """Return the median of drawn values with the ends of 8 of 10, and the weakest of the bases that it rests on."""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return Estimate(value=middle, low=low, high=high, basis=worst_basis(*bases) if bases else Basis.PRIOR)
