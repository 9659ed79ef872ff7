"""Device memory that keeps growing through a run, as a leak makes it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from advisor.findings import series
from advisor.findings.case import Case
from advisor.findings.curves import main_rows

GROWTH = 0.05  # of memory over the second half of the run
_EACH = 0.01  # from each eighth of the run to the next
ROWS = 50


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Bytes halfway through the run and at its end, and how many each step adds."""

    early: float
    late: float
    bytes_per_step: float


def memory_of(case: Case) -> tuple[np.ndarray, np.ndarray] | None:
    """Steps and device memory of the main phase's rows; None where too few rows print it."""
    rows = main_rows(case.run)
    for name in ("memory_bytes", "reserved_bytes"):
        values = case.run.column(name)[rows]
        if np.isfinite(values).sum() >= ROWS:
            return case.run.column("step")[rows], values
    return None


def memory_growth(case: Case) -> Growth | None:
    """The growth over the second half of the run, while the first may still fill caches; None where there is none."""
    recorded = memory_of(case)
    if recorded is None:
        return None
    half = len(recorded[1]) // 2
    step, used = (values[half:] for values in recorded)
    trend = series.theil_sen(step, used)
    quarters = [series.median(part) for part in np.array_split(used, 4)]
    early, late = quarters[0], quarters[-1]
    steady = all(later > (1 + _EACH) * sooner for sooner, later in pairwise(quarters))
    if trend is None or trend.low <= 0 or not late > (1 + GROWTH) * early or not steady:
        return None  # a peak that rises once, for a longer batch, is no leak
    return Growth(early=early, late=late, bytes_per_step=trend.slope)
