"""The records of a fleet: runs, pools of GPUs, teams, and the schedule. Times are hours since the fleet's start."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from advisor.records import Estimate


class PoolKind(StrEnum):
    """How the GPUs of a pool are had."""

    OWNED = "owned"
    RESERVATION = "reservation"  # a block with a start, an end and a price before it starts
    ON_DEMAND = "on-demand"
    SPOT = "spot"  # may be taken back at any time


@dataclass(frozen=True, kw_only=True)
class Pool:
    """GPUs of one type from one source."""

    name: str
    kind: PoolKind
    gpu: str  # catalog key
    gpus: int | None  # at once; of a reservation in one block; None: no limit
    from_hours: float = 0.0
    until_hours: float = math.inf
    usd_per_gpu_hour: float | None = 0.0  # while in use; None: unknown, so that nothing can run here
    upfront_usd: float = 0.0  # of one block
    most_blocks: int = 1  # blocks of a reservation that can be bought
    bought_blocks: int = 0  # of these, already paid for
    refund_share: float = 0.0  # of a block's price that comes back for hours in which all its GPUs idle
    availability: float = 1.0  # share of the time in which spot machines can be had
    up_hours: float = math.inf  # mean time until a spot machine is taken back
    queue_hours: float = 0.0  # median wait before a run starts
    provider: str | None = None
    list_price: bool = False  # its price comes from the price list, which has one for each number of GPUs
    engine: str | None = None  # where its runs are started, as after `launch --on`; None: they are only planned

    @property
    def hours(self) -> float:
        """Return the hours for which the GPUs can be used."""
        return self.until_hours - self.from_hours

    def capacity(self, blocks: float) -> float:
        """Return the GPUs at once with so many blocks; only reservations count blocks."""
        if self.gpus is None:
            return math.inf
        return self.gpus * blocks if self.kind is PoolKind.RESERVATION else float(self.gpus)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to do a run: a number of GPUs of a pool, with the time that the planner predicts."""

    pool: str
    gpus: int
    hours: Estimate  # 80 % interval, without waiting for the machine; of spot machines with the time that they lose
    work_hours: float  # of these, expected without interruptions
    usd: float  # expected, of the hours in use
    deviation: float  # standard deviation of the log of the hours

    def hours_at(self, deviations: float) -> float:
        """Return the hours that many standard deviations above the median."""
        return self.hours.value * math.exp(deviations * self.deviation)


@dataclass(frozen=True, kw_only=True)
class FleetRun:
    """One run of a fleet, or one of several copies in a sweep."""

    name: str
    group: str  # the entry of the file; copies of a sweep share it
    earliest_hours: float = 0.0
    deadline_hours: float = math.inf
    usd_per_day: float = 0.0  # value lost for each day until it is done
    usd_per_late_day: float = 0.0  # further loss for each day after the deadline
    must: bool = False  # the deadline has to be kept; the loss is then only a price that no plan pays if it can
    priority: int = 0
    team: str | None = None
    interruptible: bool = True
    ways: tuple[Way, ...]

    def loss_usd(self, end_hours: float) -> float:
        """Return the value lost by an end at this time."""
        waited = max(0.0, end_hours - self.earliest_hours) * self.usd_per_day
        return (waited + max(0.0, end_hours - self.deadline_hours) * self.usd_per_late_day) / 24.0


@dataclass(frozen=True, kw_only=True)
class Errors:
    """How predicted times err: (log of actual - log of predicted) / the way's deviation."""

    # Share of the variance that all runs on one type of GPU have in common: an error of its speed moves them all.
    # Judgement; of recorded jobs it is 0.1 to 0.7 by owner, 0.4 on average (benchmarks/fleet_replay.py).
    common_share: float = 0.75
    quantiles: tuple[float, ...] = ()  # of the errors, at equal steps from 0 to 1; empty: a normal distribution


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Everything that a plan of many runs starts from."""

    name: str
    starts: str  # ISO 8601
    runs: tuple[FleetRun, ...]
    pools: tuple[Pool, ...]
    budgets_usd: dict[str, float] = field(default_factory=dict)  # by team; "" is everybody
    probability: float = 0.9  # with which each deadline is to be met
    errors: Errors = Errors()

    def pool(self, name: str) -> Pool:
        return next(pool for pool in self.pools if pool.name == name)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One run in the schedule."""

    run: str
    pool: str
    gpus: int
    start_hours: float
    end_hours: float  # planned: the predicted time at the quantile that keeps the deadline's probability
    usd: float  # expected


@dataclass(frozen=True, kw_only=True)
class Purchase:
    """Blocks of a reservation to buy."""

    pool: str
    blocks: int
    usd: float
    used_share: float  # of the GPU-hours bought
    break_even_share: float | None  # use from which the block is cheaper than the next best; None: nothing else has it


@dataclass(frozen=True, kw_only=True)
class Room:
    """By how many standard deviations above the median the times of runs with a deadline are planned."""

    common: float = 0.0  # the errors that a run has in common with those before it: so long it keeps its GPUs
    own: float = 0.0  # all its errors: so much time it has from its start until its deadline


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The least that any schedule costs, by a relaxation in which runs may be divided, and the worth of capacity."""

    usd: float
    blocks: dict[str, int]
    gpu_worth_usd: dict[str, float]  # by pool: what one more GPU over the pool's whole time saves
    scarce_usd_per_gpu_hour: dict[str, tuple[tuple[float, float], ...]]  # by pool: (start of a slot, worth in it)
    ways: dict[str, tuple[str, int]]  # by run: the pool and GPUs in which the relaxation does most of it


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What drawn futures say of one run."""

    run: str
    probability: float | None  # of its deadline; None: it has none
    start_hours: float  # median
    end_hours: Estimate  # median; of 10 futures 1 ends before the low end and 9 by the high end
    usd: Estimate  # average, and the interval of 8 of 10 futures


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A plan of a fleet."""

    placements: tuple[Placement, ...]
    left_out: dict[str, str]  # runs that are in no pool, with the reason
    blocks: dict[str, int]
    usd: float  # expected dollars, reservations included
    loss_usd: float  # value lost by waiting and lateness, without deadlines that must be kept
    late: tuple[str, ...]  # runs that would miss such a deadline at their planned times
    bound: Bound

    @property
    def objective_usd(self) -> float:
        return self.usd + self.loss_usd

    @property
    def gap(self) -> float | None:
        """Return how far the schedule is above the bound, as a share of it; None if not every run is done in time."""
        if self.late or self.left_out:
            return None
        return self.objective_usd / self.bound.usd - 1.0 if self.bound.usd > 0 else 0.0
