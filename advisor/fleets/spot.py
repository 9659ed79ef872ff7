"""When a run that may be interrupted should wait for spot machines, and when it should rent on demand instead.

Spot machines come and go as a chain with two states, whose rates are estimated from what was seen so far. With these
rates the cheapest policy that surely ends in time follows by dynamic programming, backwards from the deadline: it waits
while there is slack, rents on demand early enough, and goes back to spot machines where that still pays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

WAIT, SPOT, ON_DEMAND = 0, 1, 2  # what to do in a step of time, and what is running at its start
# Before anything was seen: spot machines last three hours, and are away for as long. Weight of two such times.
_PRIOR_HOURS, PRIOR_TIMES = 3.0, 2.0
_LATE = 1e9  # the cost of a future in which the work is not done in time


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How often spot machines come and go, per hour."""

    comes: float  # while there are none
    goes: float  # while there are some


def rates_of(seen: Sequence[bool], step_hours: float) -> Rates:
    """Estimate the rates from whether spot machines were there at each step so far, newest last."""
    up = np.asarray(seen, dtype=bool)
    there, away = float(up[:-1].sum()) * step_hours, float((~up[:-1]).sum()) * step_hours
    came, went = float((~up[:-1] & up[1:]).sum()), float((up[:-1] & ~up[1:]).sum())
    return Rates(
        comes=(came + PRIOR_TIMES) / (away + PRIOR_TIMES * _PRIOR_HOURS),
        goes=(went + PRIOR_TIMES) / (there + PRIOR_TIMES * _PRIOR_HOURS),
    )


class Policy:
    """The cheapest way to finish the work before the deadline, at given rates."""

    def __init__(
        self, *, work_hours: float, hours_left: float, overhead_hours: float, spot_share: float, rates: Rates,
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
        up_stays, down_stays = math.exp(-rates.goes * step_hours), math.exp(-rates.comes * step_hours)
        # By spot there now: the chances that there are none, and some, in the next step.
        away, there = np.array([[down_stays], [1 - up_stays]]), np.array([[1 - down_stays], [up_stays]])
        same = np.clip(np.arange(most + 1) - 1, 0, most)
        new = np.arange(most + 1) + self._start - 1
        too_much = np.where(new > most, _LATE, 0.0)
        new = np.clip(new, 0, most)
        later = np.full((2, 3, most + 1), _LATE)  # by: spot there, what runs, work left
        later[:, :, 0] = 0.0
        self._choice = np.zeros((self._steps + 1, 2, 3, most + 1), dtype=np.int8)
        value = np.full((2, 3, 3, most + 1), _LATE)  # by: spot there, what runs, what is done, work left
        for left in range(1, self._steps + 1):
            # What the next step is worth if this machine runs in it: a spot machine may be gone by then.
            # Where waiting costs the same, the run goes on.
            value[:, :, WAIT] = (away * later[0, WAIT] + there * later[1, WAIT] + 1e-9)[:, None]
            after = {ON_DEMAND: away * later[0, ON_DEMAND] + there * later[1, ON_DEMAND] + step_hours,
                     SPOT: away * later[0, WAIT] + there * later[1, SPOT] + spot_share * step_hours}  # fmt: skip
            for action, worth in after.items():
                value[:, :, action] = (worth[:, new] + too_much)[:, None]
                value[:, action, action] = worth[:, same]
            value[0, :, SPOT] = _LATE
            choice = value.argmin(axis=2)
            now = np.take_along_axis(value, choice[:, :, None], axis=2)[:, :, 0]
            self._choice[left] = np.where(now >= _LATE / 2, ON_DEMAND, choice)  # too late, and as little as possible
            now[:, :, 0] = 0.0
            later = np.minimum(now, _LATE)

    def action(self, *, hours_left: float, work_left: int, spot_there: bool, running: int) -> int:
        """Return what to do in the next step: wait, run on a spot machine, or on demand.

        `work_left` is in steps, with what is left of the start of the machine that runs.
        """
        left = min(self._steps, math.floor(hours_left / self.step_hours + 1e-9))
        return int(self._choice[left, int(spot_there), running, min(work_left, self._choice.shape[-1] - 1)])

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
        for left, up in zip(range(self._steps, 0, -1), there, strict=False):
            open_ = (work > 0) & (left <= begins)
            if not (work > 0).any():
                break
            running[(running == SPOT) & ~up] = WAIT
            action = self._choice[left, up.astype(int), running, np.minimum(work, most)].astype(int)
            action[work > most] = ON_DEMAND
            action[~open_] = WAIT
            work += np.where(action != WAIT, np.where(action != running, self._start, 0) - 1, 0)
            on[action[open_], np.flatnonzero(open_)] += step
            hours[open_] += step
            running = action
        rest = np.maximum(work, 0) * step
        return hours + rest, on[SPOT], on[ON_DEMAND] + rest


def chain(
    comes: np.ndarray | float, goes: np.ndarray | float, step_hours: float, futures: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield for each step in which futures spot machines are there; each future may have rates of its own."""
    up = rng.random(futures) < comes / (comes + goes)
    stays_up, stays_away = np.exp(-np.asarray(goes) * step_hours), np.exp(-np.asarray(comes) * step_hours)
    while True:
        yield up
        up = up ^ (rng.random(futures) >= np.where(up, stays_up, stays_away))
