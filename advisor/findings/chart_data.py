"""The data that a report shows of a run: curves thinned for a screen, the parts of a step, a few rows of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.findings import measured, run_metrics, series
from advisor.findings.case import Case
from advisor.findings.curves import PARTS, Curve, curve, main_rows, rate_curve, sum_of_parts
from advisor.findings.run_facts import price, step_tokens
from advisor.findings.savings import mean_step_seconds
from advisor.laws.annealing import SAME_PHASE
from advisor.readers.run_table import RunTable
from trainer.runlog import recent_rows

MOST_POINTS = 600  # of a curve; a screen shows fewer
_LEAST_SMOOTHED = 3  # rows of a running median; with fewer, each row stays as it is
TABLE_COLUMNS = (
    *("step", "epoch", "tokens", "loss", "eval_loss", "learning_rate", "grad_norm", "seconds", "tokens_per_second"),
    *("mfu", "memory_bytes"),
)


@dataclass(frozen=True, kw_only=True)
class ChartPoint:
    """One point of a curve by steps, tokens, hours and dollars; None if the log does not state a value."""

    step: float
    tokens: float | None
    hours: float | None
    usd: float | None
    value: float


@dataclass(frozen=True, kw_only=True)
class ChartMark:
    """The place on the axes where something begins. The value of its point is the step."""

    at: ChartPoint
    words: str


@dataclass(frozen=True, kw_only=True)
class PartOfStep:
    """One phase of a step."""

    name: str
    seconds: float  # median
    share: float  # of the whole step


def points(case: Case, name: str, most: int = MOST_POINTS, smooth: float = 0.0) -> list[ChartPoint]:
    """Return a column's finite values in the main phase, thinned but with the extremes of each stretch.

    `smooth` is the share of rows in a running median that is taken first; 0 leaves the values as printed.
    """
    return _placed(case, curve(case.run, name), most, smooth)


def loss_so_far_points(case: Case, most: int = MOST_POINTS) -> list[ChartPoint]:
    """Return the mean training loss of the last rows at each row, as the list of runs and comparisons show it."""
    losses = curve(case.run, "loss")
    level = [losses.value[max(0, end - recent_rows(end)) : end].mean() for end in range(1, len(losses) + 1)]
    return _placed(case, Curve(step=losses.step, value=np.array(level)), most)


def step_points(case: Case, most: int = MOST_POINTS, smooth: float = 0.0) -> list[ChartPoint]:
    """Return the seconds of each step, from the times that the log has."""
    times = run_metrics.step_times(case)
    return [] if times is None else _placed(case, Curve(step=times.step, value=times.seconds), most, smooth)


def mfu_points(case: Case, most: int = MOST_POINTS, smooth: float = 0.0) -> list[ChartPoint]:
    """Return the MFU at each step, from exact FLOPs and the GPU's dense peak, else as logged."""
    per_rate, rates = mfu_per_rate(case), measured.rates(case)
    if per_rate is None:
        return points(case, "mfu", most, smooth)
    return _placed(case, Curve(step=rates.step, value=rates.value * per_rate), most, smooth)


def learning_rate_points(case: Case, most: int = MOST_POINTS, smooth: float = 0.0) -> list[ChartPoint]:
    """Return learning rates as a share of the run's peak, the only scale on which all logs print them."""
    shares = _rate_shares(case.run)
    return _placed(case, shares, most, smooth) if len(shares) else []


def telemetry_at_steps(case: Case, name: str, most: int = MOST_POINTS, smooth: float = 0.0) -> list[ChartPoint]:
    """Return a column of telemetry at the steps trained at that time, as the mean of all GPUs. It is empty if telemetry
    and log share no clock."""
    values, clock = run_metrics.telemetry(case, name), run_metrics.telemetry(case, "unix_seconds")
    if not len(values) or len(clock) != len(values):
        return []
    known = np.isfinite(values) & np.isfinite(clock)
    times, place = np.unique(clock[known], return_inverse=True)
    means = np.bincount(place, weights=values[known]) / np.bincount(place)
    for column in ("unix_seconds", "elapsed_seconds"):
        own = curve(case.run, column)
        during = (times >= own.value[0]) & (times <= own.value[-1]) if len(own) > 1 else np.zeros(len(times), bool)
        if during.any():
            steps = np.interp(times[during], own.value, own.step)
            return _placed(case, Curve(step=steps, value=means[during]), most, smooth)
    return []


def columns_with_curves(case: Case) -> list[str]:
    """Return the columns with at least two values in this run's main phase."""
    return [name for name in case.run.columns if len(curve(case.run, name)) > 1]


def phase_marks(case: Case) -> list[ChartMark]:
    """Return where the learning rate's warm-up ends and where its decay begins, according to the logged schedule."""
    shares = _rate_shares(case.run)
    high = np.flatnonzero(shares.value >= 1 - SAME_PHASE) if len(shares) else np.empty(0, dtype=int)
    marks = []
    if len(high) and shares.value[0] < 1 - SAME_PHASE:
        marks.append((float(shares.step[high[0]]), "warm-up ends"))
    if len(high) and shares.value[-1] < 1 - SAME_PHASE:
        marks.append((float(shares.step[high[-1]]), "the learning rate falls from here"))
    return place_marks(case, marks)


def place_marks(case: Case, marks: Sequence[tuple[float, str]]) -> list[ChartMark]:
    """Return marks at these steps with their texts, placed on every axis."""
    steps = np.array([step for step, _ in marks])
    placed = _placed(case, Curve(step=steps, value=steps), max(1, len(marks)))
    return [ChartMark(at=at, words=words) for at, (_, words) in zip(placed, marks, strict=True)]


def _rate_shares(run: RunTable) -> Curve:
    """Return the learning rates divided by the highest rate, or an empty curve if no rate is above zero."""
    rates = rate_curve(run)
    top = float(rates.value.max()) if len(rates) else 0.0
    nothing = np.empty(0)
    return Curve(step=rates.step, value=rates.value / top) if top > 0 else Curve(step=nothing, value=nothing)


def _placed(case: Case, printed: Curve, most: int, smooth: float = 0.0) -> list[ChartPoint]:
    """Return the points of a curve on every axis, thinned."""
    drawn = printed.value
    if smooth > 0:
        drawn = series.rolling_median(drawn, max(_LEAST_SMOOTHED, round(smooth * len(drawn))))
    keep = _extremes(drawn, most)
    steps, values = printed.step[keep], drawn[keep]
    counted, per_step, usd_per_hour = curve(case.run, "tokens"), step_tokens(case), price(case)
    tokens = np.interp(steps, counted.step, counted.value) if len(counted) > 1 else None
    if tokens is None and per_step is not None:
        tokens = steps * per_step
    # hours since the start: by the clock if there is one, or else by the sum of step times
    typical, hours = mean_step_seconds(case), None
    clocks = [(name, curve(case.run, name)) for name in ("elapsed_seconds", "unix_seconds")]
    for name, clock in [(name, clock) for name, clock in clocks if len(clock) > 1][:1]:
        start = clock.value[0] if name == "unix_seconds" else 0.0
        hours = np.interp(steps, clock.step, clock.value - start) / 3600
    if hours is None and typical is not None:
        seen = series.finite(run_metrics.main_column(case.run, "step"))  # a validation loss begins later than the run
        hours = (steps - np.minimum(steps[:1], seen[0] if len(seen) else np.inf)) * typical.value / 3600
    return [
        ChartPoint(
            step=float(step),
            tokens=None if tokens is None else float(tokens[i]),
            hours=None if hours is None else float(hours[i]),
            usd=None if hours is None or usd_per_hour is None else float(hours[i]) * usd_per_hour,
            value=float(value),
        )
        for i, (step, value) in enumerate(zip(steps, values, strict=True))
    ]


def rate_points(case: Case, most: int = MOST_POINTS) -> list[ChartPoint]:
    """Return tokens per second by steps, thinned."""
    rates = measured.rates(case)
    return _placed(case, rates, most) if len(rates) else []


def mfu_per_rate(case: Case) -> float | None:
    """Return the MFU of one token per second, by which a rate is multiplied, or None if shape or GPU is unknown."""
    speed, share = run_metrics.pace(case), run_metrics.mfu(case)
    return share / speed.tokens_per_second if speed is not None and share is not None else None


def parts_of_step(case: Case) -> list[PartOfStep]:
    """Return the median seconds of the timed phases of a step, and the rest of the step."""
    times = run_metrics.step_times(case)
    whole = run_metrics.step_seconds(case)
    if times is not None and times.source in (run_metrics.FROM_RATE, run_metrics.FROM_SAMPLES, run_metrics.FROM_PARTS):
        # a rate may be an average over other steps than those with timed parts
        summed = series.finite(sum_of_parts(case.run)[main_rows(case.run)])
        whole = series.median(summed[series.steady_start(summed) :]) if len(summed) else whole
    parts: list[PartOfStep] = []
    for name in PARTS:
        values = series.finite(run_metrics.main_column(case.run, name))
        if len(values) and whole:
            seconds = series.median(values[series.steady_start(values) :])
            label = name.removesuffix("_seconds")
            if label == "waiting":  # in turn with generation, the trainer waits for as long as that takes
                seconds = max(0.0, seconds - sum(part.seconds for part in parts if part.name == "generation"))
            parts.append(PartOfStep(name=label, seconds=seconds, share=seconds / whole))
    if parts and whole:
        left = whole - sum(part.seconds for part in parts)
        if left > 0:
            parts.append(PartOfStep(name="not accounted for", seconds=left, share=left / whole))
    return parts


def few_rows(run: RunTable, most: int) -> tuple[list[str], np.ndarray]:
    """Return the columns that are not empty, and evenly spaced rows of the main phase with a loss: (rows, columns)."""
    names = [name for name in TABLE_COLUMNS if np.isfinite(run.column(name)).any()]
    rows = main_rows(run)
    with_loss = rows[np.isfinite(run.column("loss")[rows])]
    rows = with_loss if len(with_loss) else rows
    if not names or not len(rows):
        return [], np.empty((0, 0))
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int))]
    return names, np.stack([run.column(name)[chosen] for name in names], axis=1)


def telemetry_points(run: RunTable, name: str, most: int = MOST_POINTS) -> list[tuple[float, float, int]]:
    """Return hours since the first reading, value and GPU, thinned like curves."""
    telemetry = run.telemetry or {}
    values, times = telemetry.get(name), telemetry.get("unix_seconds")
    if values is None or times is None or not np.isfinite(values).any():
        return []
    cards = telemetry.get("gpu", np.zeros(len(values)))
    cards = np.where(np.isfinite(cards), cards, 0)
    readings = []
    for card in np.unique(cards):
        rows = np.flatnonzero((cards == card) & np.isfinite(values) & np.isfinite(times))
        rows = rows[_extremes(values[rows], most)]
        readings += [(float((times[i] - np.nanmin(times)) / 3600), float(values[i]), int(card)) for i in rows]
    return readings


def _extremes(values: np.ndarray, most: int) -> np.ndarray:
    """Return the indices of both ends and of the highest and lowest value in each of most/2 stretches, in order."""
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most // 2 + 1).astype(int)
    kept = {0, len(values) - 1}
    for start, end in zip(edges[:-1], edges[1:], strict=True):
        stretch = values[start:end]
        kept |= {start + int(stretch.argmin()), start + int(stretch.argmax())}
    return np.array(sorted(kept))
