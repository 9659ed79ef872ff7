"""Curves of a run for the learning detectors, with their noise: one phase, one rank, by step, without gaps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.findings.case import answered_once
from advisor.findings.series import NORMAL_MAD, mad, rolling_median
from advisor.readers.run_table import RunTable


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Values by steps, all finite and equally long. `counted` is False if the steps only number the rows."""

    step: np.ndarray
    value: np.ndarray
    counted: bool = True

    def __len__(self) -> int:
        return len(self.value)

    def since(self, step: float) -> Curve:
        """Return the part from `step` on."""
        keep = self.step >= step
        return Curve(step=self.step[keep], value=self.value[keep], counted=self.counted)


@answered_once
def main_rows(run: RunTable) -> np.ndarray:
    """Return the indices of the main phase's rows of the lowest rank, in the file's order."""
    rows = np.arange(len(run))
    if run.phases:
        rows = rows[run.phases[run.main_phase].rows]
    rank = run.column("rank")[rows]
    if np.isfinite(rank).any():
        rows = rows[~(rank > np.nanmin(rank))]
    return rows


def curve(run: RunTable, name: str) -> Curve:
    """Return the finite values of one column in the main phase by steps, or an empty curve if the log has none.

    Rows without a step are numbered in their order, and the curve is then not `counted`.
    """
    rows = main_rows(run)
    value, step = run.column(name)[rows], run.column("step")[rows]
    printed = np.isfinite(value)
    placed = bool(np.isfinite(step[printed]).any())
    keep = printed & np.isfinite(step) if placed else printed
    place = step[keep] if placed else np.arange(1, keep.sum() + 1, dtype=float)
    return Curve(step=place, value=value[keep], counted=placed and run.counts_steps)


def rate_curve(run: RunTable) -> Curve:
    """Return learning rates, or shares of the peak if the log prints only these, for the shape of a schedule."""
    printed = curve(run, "learning_rate")
    return printed if len(printed) else curve(run, "learning_rate_share")


# the parts of an optimizer step that logs time
PARTS = (
    *("data_seconds", "forward_seconds", "backward_seconds", "grad_norm_seconds", "clip_seconds"),
    *("optimizer_seconds", "flush_seconds", "generation_seconds", "reward_seconds", "log_prob_seconds"),
    *("reference_seconds", "update_seconds", "critic_seconds", "sync_seconds", "waiting_seconds"),
)


def sum_of_parts(run: RunTable) -> np.ndarray:
    """Return the sum of each row's timed parts in seconds; NaN without forward and backward, the largest parts."""
    parts = np.stack([run.column(name) for name in PARTS])
    whole = np.isfinite(run.column("forward_seconds")) & np.isfinite(run.column("backward_seconds"))
    return np.where(whole, np.nansum(parts, axis=0), np.nan)


def trailing_median(values: np.ndarray, window: int) -> np.ndarray:
    """Return the median of each value and the `window - 1` (made odd) values before it, or fewer at the start."""
    half = max(0, window // 2)
    return rolling_median(np.concatenate([np.full(half, np.nan), values]), 2 * half + 1)[: len(values)]


def spread(values: np.ndarray) -> float:
    """Return the standard deviation by the median absolute deviation, which ignores outliers; 0 for no values."""
    return mad(values) / NORMAL_MAD if len(values) else 0.0


def row_noise(values: np.ndarray) -> float:
    """Return the standard deviation of single rows around their smooth curve; 0 for fewer than five rows."""
    if len(values) < 5:
        return 0.0
    width = 9 if len(values) >= 9 else 5
    half = width // 2
    # a median of `width` rows moves with each of these rows, which makes the residuals smaller by about this factor
    return spread((values - rolling_median(values, width))[half : len(values) - half]) / math.sqrt(1 - 1 / width)


def tail(values: np.ndarray, share: float = 0.1, least: int = 5) -> np.ndarray:
    """Return the last `share` of the values, but at least `least` values."""
    return values[-max(least, int(len(values) * share)) :]


def head(values: np.ndarray, share: float = 0.1, least: int = 5) -> np.ndarray:
    """Return the first `share` of the values, but at least `least` values."""
    return values[: max(least, int(len(values) * share))]
