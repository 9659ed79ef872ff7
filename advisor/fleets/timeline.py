"""Who uses the GPUs of a pool when: finds the earliest start, and takes or frees GPUs."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

_TINY = 1e-9


class Timeline:
    """The GPUs in use of one pool over time, as steps."""

    def __init__(self, capacity: float, from_hours: float, until_hours: float):
        self._capacity, self._from, self._until = capacity, from_hours, until_hours
        self._times = [0.0]  # at which the use changes
        self._used = [0.0]  # from each time on

    def earliest(self, gpus: int, hours: float, not_before: float, until: float = math.inf) -> float | None:
        """Return the earliest start from which so many GPUs are free for so long, or None if there is none."""
        start = max(not_before, self._from)
        latest = min(until, self._until) + _TINY - hours
        if gpus > self._capacity or start > latest:
            return None
        if self._capacity == math.inf:
            return start
        times, used, most = self._times, self._used, self._capacity - gpus + _TINY
        steps, at = len(times), max(0, bisect_right(times, start) - 1)
        end = start + hours - _TINY
        while at < steps and times[at] < end:
            if used[at] > most:
                # Something is in the way: the next start is when that ends. The last step is free: every run ends.
                while used[at] > most:
                    at += 1
                start = times[at]
                if start > latest:
                    return None
                end = start + hours - _TINY
            at += 1
        return start

    def take(self, gpus: float, start: float, end: float) -> None:
        """Use so many GPUs from start to end; a negative number frees them."""
        if self._capacity == math.inf:
            return
        first, last = self._step(start), self._step(end)
        for at in range(first, last):
            self._used[at] += gpus
        for at in (last, first):  # a step at which nothing changes any more is dropped
            if at and self._used[at] == self._used[at - 1]:
                del self._times[at], self._used[at]

    def _step(self, time: float) -> int:
        """Return the index of the step that begins at this time, made if needed."""
        at = bisect_left(self._times, time - _TINY)
        if at == len(self._times) or abs(self._times[at] - time) > _TINY:
            self._times.insert(at, time)
            self._used.insert(at, self._used[at - 1] if at else 0.0)
        return at
