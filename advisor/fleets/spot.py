"""When a run that may be interrupted should wait for spot machines, and when it should rent on demand instead.

The longer spot machines have been there, or away, the longer they stay so: in 27 recorded zones of GPUs alike. With
these rates the cheapest policy that surely ends in time follows by dynamic programming, backwards from the deadline: it
waits while there is slack, rents on demand early enough, and goes back to spot machines where that still pays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

WAIT, SPOT, ON_DEMAND = 0, 1, 2  # what to do in a step of time, and what is running at its start
AGES = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])  # hours since machines last came or went: ends of intervals
_WIDTHS = np.diff(AGES, prepend=0.0)
PRIOR_TIMES = 5.0  # weight of the recorded zones, in comings or goings of machines
_LATE = 1e9  # the cost of a future in which the work is not done in time

# Rates are arrays: how often, per hour, machines come while there are none (first row) and go while there are some, in
# each interval of ages. These are of all zones of GPUs in skypilot-org/spot-traces (benchmarks/spot_policy.py).
RECORDED = np.array([[1.62, 0.79, 0.72, 0.44, 0.29, 0.22, 0.14, 0.043],
                     [1.37, 0.88, 0.65, 0.37, 0.23, 0.15, 0.10, 0.042]])  # fmt: skip


def hours_by_age(rates: np.ndarray) -> np.ndarray:
    """Return how many hours machines are away, and there, at each interval of ages, on average of all times."""
    first = rates[..., :-1]
    begins = np.insert(np.exp(-np.cumsum(first * _WIDTHS, axis=-1)), 0, 1.0, axis=-1)  # the share that gets so far
    return begins * np.concatenate([-np.expm1(-first * _WIDTHS) / first, 1 / rates[..., -1:]], axis=-1)


def lasting(away_hours: np.ndarray | float, up_hours: np.ndarray | float) -> np.ndarray:
    """Return the recorded rates, scaled so that machines are away, and there, for so many hours on average."""
    factors, scaled = np.geomspace(1e4, 1e-4, 161), []
    for rates, hours in zip(RECORDED, (away_hours, up_hours), strict=True):
        means = hours_by_age(factors[:, None] * rates).sum(axis=-1)
        scaled.append(np.exp(np.interp(np.log(hours), np.log(means), np.log(factors)))[..., None] * rates)
    return np.stack(scaled, axis=-2)


def interval_of(age_hours: np.ndarray | float) -> np.ndarray:
    """Return the interval of `AGES` in which an age lies."""
    return np.searchsorted(AGES, np.asarray(age_hours) + 1e-9, side="right")


class Policy:
    """The cheapest way to finish the work before the deadline, at given rates.

    A run that waits gets the first machine that comes; it cannot wait until a machine has been there for longer.
    """

    def __init__(
        self, *, work_hours: float, hours_left: float, overhead_hours: float, spot_share: float, rates: np.ndarray,
        step_hours: float,
    ):  # fmt: skip
        """`overhead_hours` pass at each start of a machine; `spot_share` is the spot price over the on-demand price.

        All times are rounded to steps. Costs are in on-demand hours. Raises ValueError if the work cannot be done.
        """
        self.step_hours = step_hours
        self._start = math.ceil(overhead_hours / step_hours - 1e-9)
        self._steps = math.floor(hours_left / step_hours + 1e-9)
        self._work = math.ceil(work_hours / step_hours - 1e-9)
        if self._work + self._start > self._steps:
            raise ValueError("the work does not fit before the deadline, even without any interruption")
        # Work left includes what is left of a start. It grows by a start at each new machine.
        most = self._work + 2 * self._start + 2
        chances, ages = _chances(rates, step_hours), len(AGES) + 1
        # Costs from now on, by whether machines are there and since when, and by the work left.
        waiting = np.full((2 * ages, most + 1), _LATE)
        waiting[:, 0] = 0.0
        rented, on_spot = waiting, waiting[ages:]
        self._choice = np.zeros((self._steps + 1, 3, 2 * ages, most + 1), dtype=np.int8)
        for left in range(1, self._steps + 1):
            # What the next step is worth if this machine runs in it: a spot machine may be gone by then.
            # Where waiting costs the same, the run goes on.
            wait = chances @ waiting + 1e-9
            rent = chances @ rented + step_hours
            spot = chances[ages:, :ages] @ waiting[:ages] + chances[ages:, ages:] @ on_spot + spot_share * step_hours
            takes_first = wait.copy()
            takes_first[ages:] = _LATE
            begin_spot, begin_rent = _with_more(spot, self._start - 1), _with_more(rent, self._start - 1)
            costs = {WAIT: (takes_first, begin_spot, begin_rent), SPOT: (wait, _with_more(spot, -1), begin_rent),
                     ON_DEMAND: (wait, begin_spot, _with_more(rent, -1))}  # fmt: skip
            now = []
            for running, (none, on_machine, on_demand) in costs.items():
                choice, best = self._choice[left, running], np.minimum(none, on_demand)
                choice[on_demand < none] = ON_DEMAND
                choice[ages:][on_machine < best[ages:]] = SPOT
                best[ages:] = np.minimum(best[ages:], on_machine)
                choice[best >= _LATE / 2] = ON_DEMAND  # too late, and as little as possible
                best[:, 0] = 0.0
                now.append(np.minimum(best, _LATE))
            waiting, on_spot, rented = now[WAIT], now[SPOT][ages:], now[ON_DEMAND]

    def action(
        self, *, hours_left: float, work_left: int, spot_there: bool, running: int, age_hours: float = 0.0
    ) -> int:
        """Return what to do in the next step: wait, run on a spot machine, or on demand.

        `work_left` is in steps, with what is left of the start of the machine that runs. `age_hours` are those since
        spot machines came, or went.
        """
        left = min(self._steps, math.floor(hours_left / self.step_hours + 1e-9))
        at = int(interval_of(age_hours)) + spot_there * (len(AGES) + 1)
        return int(self._choice[left, running, at, min(work_left, self._choice.shape[-1] - 1)])

    def followed(
        self, work_hours: np.ndarray, there: Iterable[np.ndarray], hours_left: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Follow the policy through several futures at once, in each of which the work takes so many hours.

        `there` says for each step in which of them spot machines are there. `hours_left` are those until the deadline
        when the work may begin (None: all of the policy's).

        Returns the hours until the end, those on spot machines and those on demand. Work that does not fit before the
        deadline goes on demand until it is done.
        """
        futures, step, most = len(work_hours), self.step_hours, self._choice.shape[-1] - 1
        work = np.ceil(work_hours / step - 1e-9).astype(int)
        begins = np.full(futures, self._steps)
        if hours_left is not None:
            begins = np.clip(np.floor(hours_left / step + 1e-9), 0, self._steps).astype(int)
        work += np.where(begins == 0, self._start, 0)  # too late from the first moment
        running = np.zeros(futures, dtype=int)
        hours, on = np.zeros(futures), np.zeros((3, futures))
        before, age = np.zeros(futures, dtype=bool), np.zeros(futures)
        for left, up in zip(range(self._steps, 0, -1), there, strict=False):
            open_ = (work > 0) & (left <= begins)
            if not (work > 0).any():
                break
            before, age = up, np.where(up == before, age + step, 0.0)
            running[(running == SPOT) & ~up] = WAIT
            at = interval_of(age) + up * (len(AGES) + 1)
            action = self._choice[left, running, at, np.minimum(work, most)].astype(int)
            action[work > most] = ON_DEMAND
            action[~open_] = WAIT
            work += np.where(action != WAIT, np.where(action != running, self._start, 0) - 1, 0)
            on[action[open_], np.flatnonzero(open_)] += step
            hours[open_] += step
            running = action
        rest = np.maximum(work, 0) * step
        return hours + rest, on[SPOT], on[ON_DEMAND] + rest


def _with_more(costs: np.ndarray, steps: int) -> np.ndarray:
    """Return the costs by the work left before it grew by so many steps, or shrank by one."""
    if steps < 0:
        return np.concatenate([costs[:, :1], costs[:, :-1]], axis=1)
    late = np.full((len(costs), steps), _LATE)
    return np.concatenate([costs[:, steps:], late], axis=1)


def _chances(rates: np.ndarray, step_hours: float) -> np.ndarray:
    """Return how likely each interval of ages without machines, and then with some, is in the next step, by row."""
    ages = len(AGES) + 1
    goes_on = np.append(np.minimum(1.0, step_hours / _WIDTHS), 0.0)  # to the next interval
    chances = np.zeros((2 * ages, 2 * ages))
    for first, other, per_hour in ((0, ages, rates[0]), (ages, 0, rates[1])):
        stays, rows = np.exp(-per_hour * step_hours), np.arange(first, first + ages)
        chances[rows, other] = 1 - stays
        chances[rows, rows] += stays * (1 - goes_on)
        chances[rows[:-1], rows[1:]] += (stays * goes_on)[:-1]
    return chances


def drawn(rates: np.ndarray, step_hours: float, futures: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield for each step in which futures spot machines are there; each future may have rates of its own."""
    rates, here = np.broadcast_to(rates, (futures, 2, len(AGES) + 1)), np.arange(futures)
    # It has been as it is at the first moment for as long as at any moment of all times.
    until = hours_by_age(rates).reshape(futures, -1).cumsum(axis=1)
    at = (rng.random(futures)[:, None] * until[:, -1:] > until[:, :-1]).sum(axis=1)
    up, age = at > len(AGES), np.append(0.0, AGES)[at % (len(AGES) + 1)]
    stays = np.exp(-rates * step_hours)
    while True:
        yield up
        changes = rng.random(futures) >= stays[here, up.astype(int), interval_of(age)]
        up, age = up ^ changes, np.where(changes, 0.0, age + step_hours)
