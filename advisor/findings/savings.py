"""What acting on a finding would save over the whole planned run, in hours and dollars. Pure."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from advisor.findings import series
from advisor.findings.case import Case
from advisor.findings.run_facts import planned_steps, price
from advisor.findings.run_metrics import FROM_CLOCK, lifetime_seconds, main_column, positive, step_times, telemetry
from advisor.readers.run_table import Status
from advisor.records import Basis, Estimate
from advisor.units import HOUR

_LEAST_HOURS = 1 / 60  # a saving of less than a minute and less than this is not worth anybody's reading
_LEAST_USD = 0.05
_GO_ON = (Status.INCOMPLETE, Status.UNKNOWN)  # where no word of the log says that the run has ended


class Saved(TypedDict):
    """The two fields of a Finding, to be passed on with **."""

    saved_hours: Estimate | None
    saved_usd: Estimate | None


NOTHING_KNOWN: Saved = {"saved_hours": None, "saved_usd": None}


def worth_saying(hours: Estimate | None, usd: Estimate | None) -> bool:
    """Whether a saving is a minute or five cents at least; False where none is known."""
    return (hours is not None and hours.value >= _LEAST_HOURS) or (usd is not None and usd.value >= _LEAST_USD)


def steps_covered(case: Case) -> float | None:
    """Steps between the first and the last that the main phase's log prints, both counted; None without steps."""
    step = series.finite(main_column(case.run, "step"))
    return float(step.max() - step.min()) + 1 if len(step) else None


def spent_seconds(case: Case) -> float | None:
    """Seconds that the run took so far, pauses included: by the clock where there is one, else by the sum of its steps.

    A clock of hundredths of a minute, or one that starts late, misses steps that were timed one by one; time stamps
    miss the start-up that a log's own total has: the longer account counts. Where attempts are told apart, the hours
    between them in which nobody ran anything are no part of it.
    """
    if case.run.attempts and (lived := lifetime_seconds(case.run)):
        return lived
    times, steps, total = step_times(case), steps_covered(case), positive(case, "total_seconds")
    timed = float(times.seconds.sum()) if times is not None and times.source != FROM_CLOCK else 0.0
    elapsed, stamps = (series.finite(main_column(case.run, name)) for name in ("elapsed_seconds", "unix_seconds"))
    if len(elapsed) > 1 and elapsed.max() > elapsed.min():
        return max(float(elapsed.max()), timed)
    if len(stamps) > 1 and stamps.max() > stamps.min():
        return max(float(stamps.max() - stamps.min()), total or 0.0)
    if times is None or steps is None or times.source == FROM_CLOCK:
        return total or _watched_seconds(case)  # as the log sums itself up, else as long as readings were taken
    # rows that were not printed cost as much as those that were, but each printed pause happened once
    typical = series.median(times.seconds)
    return float(times.seconds.sum()) + max(0.0, steps - len(times.seconds)) * typical


def _watched_seconds(case: Case) -> float | None:
    """From the first to the last reading of the devices; None without them."""
    stamps = series.finite(telemetry(case, "unix_seconds"))
    return float(stamps.max() - stamps.min()) or None if len(stamps) > 1 else None


def whole_run_seconds(case: Case) -> float | None:
    """Seconds of the whole planned run at the pace so far; None where no pace is known.

    Without a number of planned steps, or of steps at all, the run is what was done.
    """
    spent, done = spent_seconds(case), steps_covered(case)
    if spent is None or not done:
        return spent
    return spent * max(1.0, (planned_steps(case) or done) / done)


def stake_seconds(case: Case) -> float | None:
    """Seconds that acting can save: of a run that is over what it took, of one that may go on what it will take."""
    return whole_run_seconds(case) if case.run.status in _GO_ON else spent_seconds(case)


def saved_share(case: Case, share: float, low: float | None = None, high: float | None = None) -> Saved:
    """What is saved if this share (0…1) of the run's time went away; measured, so without an interval unless given."""
    basis = Basis.MEASURED if low is None and high is None else Basis.EXTRAPOLATED
    ends = [share if end is None else end for end in (low, high)]
    return saved_of(case, Estimate(value=share, low=min(ends), high=max(ends), basis=basis))


def saved_of(case: Case, share: Estimate) -> Saved:
    """As `saved_share` for an estimated share of the run's time; shares outside 0…1 are cut off."""
    whole = stake_seconds(case)
    if whole is None or not np.isfinite(share.value):
        return NOTHING_KNOWN
    value, low, high = (min(1.0, max(0.0, x)) * whole / HOUR for x in (share.value, share.low, share.high))
    hours = Estimate(value=value, low=low, high=high, basis=share.basis)
    usd_per_hour = price(case)
    return {"saved_hours": hours, "saved_usd": hours.scaled(usd_per_hour) if usd_per_hour is not None else None}


def saved_by_speedup(case: Case, factor: Estimate) -> Saved:
    """What is saved if every step went `factor` times as fast: 1 − 1/factor of the time."""
    value, low, high = (1 - 1 / max(1.0, x) for x in (factor.value, factor.low, factor.high))
    return saved_of(case, Estimate(value=value, low=low, high=high, basis=factor.basis))
