"""Several analysed runs against each other: at equal tokens, time and dollars, and only at equal learning-rate phase.

Runs that differ in nothing declared are seeds of one group. Differences carry bootstrap intervals: over seeds where a
group has two at least, else over the rows about the point, which know a run's own noise but not that of seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.analysis import Analysis
from advisor.errors import AdvisorError
from advisor.findings import measured
from advisor.findings.curves import curve
from advisor.findings.learning_rate import phase_of_schedule
from advisor.findings.shown import Point, points
from advisor.laws.phase import phase_problem
from advisor.records import Basis, Estimate

AXES = ("tokens", "hours", "usd")
_WINDOW = 0.02  # of a run's rows about a point: one row is noise
_LEAST_ROWS = 5
_DRAWS = 2000
_SLOWER = 0.02  # a regression of speed smaller than this is no regression
# What makes two runs one experiment: everything declared but the seed, the name and the date.
_SAME = (
    *("family", "depth", "width", "heads", "vocab_size", "seq_len", "micro_batch", "grad_accum", "world_size"),
    *("planned_steps", "learning_rate", "warmup_steps", "optimizer", "precision", "compile", "gpu", "weight_decay"),
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one configuration: its seeds."""

    name: str
    runs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One group's training loss minus the first group's, at one point all runs reached."""

    axis: str  # tokens | hours | usd; step where tokens are not known
    at: float
    group: str
    baseline_loss: float
    loss: float
    difference: Estimate
    comparable: bool
    verdict: str  # in words


@dataclass(frozen=True, kw_only=True)
class SpeedChange:
    """One group's tokens per second over the first group's."""

    group: str
    ratio: Estimate
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """The comparison of several runs; the first group is what the others are held against."""

    groups: tuple[Group, ...]
    differences: tuple[Difference, ...]
    speeds: tuple[SpeedChange, ...]
    notes: tuple[str, ...]


def contrast(analyses: Sequence[Analysis], *, seed: int = 0) -> Contrast:
    """Compare two or more analysed runs; raises AdvisorError when fewer than two have enough rows with a loss."""
    rows = [len(curve(one.run, "loss")) for one in analyses]
    usable = [one for one, count in zip(analyses, rows, strict=True) if count >= _LEAST_ROWS]
    short = [f"{one.run.source} has {_too_few(count)}" for one, count in zip(analyses, rows, strict=True)
             if count < _LEAST_ROWS]  # fmt: skip
    if len(usable) < 2:
        raise AdvisorError(
            f"cannot compare: {'; '.join(short) or 'only one log was given'}. A comparison needs two logs of "
            f"{_LEAST_ROWS} rows with a training loss each: single rows differ by noise alone",
            "give logs of longer runs, or let the run log more often; advisor analyze judges each one alone",
        )
    notes = [f"{text}: left out" for text in short] + _rate_notes(usable)
    members = _grouped(usable)
    if len(members) == 1:
        members = {chr(ord("A") + place): [one] for place, one in enumerate(usable)}
        notes.append("the runs declare the same configuration: each is held against the first, by its own noise alone")
    draw = np.random.default_rng(seed)
    differences = []
    for axis in AXES:
        curves = {id(one): _placed(points(one.case, "loss", most=10**9), axis) for one in usable}
        if any(found is None for found in curves.values()):
            notes.append(f"not compared at equal {axis}: not every log tells them")
            if axis != "tokens":
                continue
            axis, curves = "step", {id(one): _placed(points(one.case, "loss", most=10**9), "step") for one in usable}
        differences += _along(axis, members, curves, draw)
    return Contrast(
        groups=tuple(Group(name=name, runs=tuple(one.run.source for one in runs)) for name, runs in members.items()),
        differences=tuple(differences),
        speeds=tuple(_speeds(members, draw)),
        notes=tuple(notes),
    )


def _too_few(rows: int) -> str:
    if not rows:
        return "no training loss"
    return f"{rows} row{'s' if rows > 1 else ''} with a training loss, fewer than {_LEAST_ROWS}"


def _rate_notes(analyses: Sequence[Analysis]) -> list[str]:
    """That equal learning-rate phases could not be checked, and why."""
    silent = [one.run.source for one in analyses if not np.isfinite(one.run.column("learning_rate")).any()]
    if not silent:
        return []
    who = "no log" if len(silent) == len(analyses) else ", ".join(silent)
    verb = "tells" if len(silent) == len(analyses) else "does not tell" if len(silent) == 1 else "do not tell"
    return [f"{who} {verb} the learning rate of its steps: whether the runs were at the same point of their schedules, "
            "where alone losses compare, is not known"]  # fmt: skip


def _grouped(analyses: Sequence[Analysis]) -> dict[str, list[Analysis]]:
    """Runs by what they declare; a run that declares hardly anything is a group of its own."""
    groups: dict[tuple, list[Analysis]] = {}
    for number, one in enumerate(analyses):
        declared = tuple(str(one.run.facts.get(name)) for name in _SAME)
        known = sum(value != "None" for value in declared)
        groups.setdefault(declared if known >= 4 else (str(number),), []).append(one)
    return {chr(ord("A") + place): runs for place, runs in enumerate(groups.values())}


def _placed(found: list[Point], axis: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Place on the axis, loss and step of each row; None where the axis is not known."""
    rows = [(getattr(point, axis), point.value, point.step) for point in found]
    if not rows or any(place is None for place, _, _ in rows):
        return None
    place, loss, step = (np.array(column, float) for column in zip(*rows, strict=True))
    return place, loss, step


def _along(axis: str, members: dict[str, list[Analysis]], curves: dict, draw: np.random.Generator) -> list[Difference]:
    reached = min(float(place[-1]) for place, _, _ in curves.values())
    if reached <= 0:
        return []
    (_, base), *others = members.items()
    found = []
    for share in (0.25, 0.5, 0.75, 1.0):
        at = share * reached
        for name, runs in others:
            found.append(_difference(axis, at, name, base, runs, curves, draw))
    return found


def _difference(
    axis: str, at: float, name: str, base: list[Analysis], runs: list[Analysis], curves: dict, draw: np.random.Generator
) -> Difference:
    before = [_window(curves[id(one)], at) for one in base]
    after = [_window(curves[id(one)], at) for one in runs]
    gaps = _bootstrap(after, draw) - _bootstrap(before, draw)
    value = _mean(after) - _mean(before)
    low, high = (float(end) for end in np.quantile(gaps, (0.1, 0.9)))
    difference = Estimate(value=value, low=min(low, value), high=max(high, value), basis=Basis.MEASURED)
    problem = _phase_problem([*base, *runs], curves, at)
    return Difference(
        axis=axis,
        at=at,
        group=name,
        baseline_loss=_mean(before),
        loss=_mean(after),
        difference=difference,
        comparable=problem is None,
        verdict=problem or _loss_verdict(difference),
    )


def _window(curve_: tuple[np.ndarray, np.ndarray, np.ndarray], at: float) -> np.ndarray:
    """The losses of the rows up to a place: the last 2 % of what was seen by then, five at least."""
    place, loss, _ = curve_
    end = max(1, int(np.searchsorted(place, at * (1 + 1e-9), side="right")))
    return loss[max(0, end - max(_LEAST_ROWS, int(_WINDOW * end))) : end]


def _mean(windows: list[np.ndarray]) -> float:
    return float(np.mean([window.mean() for window in windows]))


def _bootstrap(windows: list[np.ndarray], draw: np.random.Generator) -> np.ndarray:
    """Means of resampled seeds, or of resampled rows where there is one seed: shape (draws,)."""
    values = np.array([window.mean() for window in windows]) if len(windows) > 1 else windows[0]
    return values[draw.integers(0, len(values), (_DRAWS, len(values)))].mean(axis=1)


def _loss_verdict(difference: Estimate) -> str:
    if difference.low > 0:
        return "worse"
    return "better" if difference.high < 0 else "no difference beyond the noise"


def _phase_problem(runs: list[Analysis], curves: dict, at: float) -> str | None:
    """Why the losses at a place must not be compared; None where they may."""
    shares = []
    for one in runs:
        place, _, step = curves[id(one)]
        here = step[max(0, int(np.searchsorted(place, at * (1 + 1e-9), side="right")) - 1)]
        shares.append(phase_of_schedule(one.run, float(here)))
    return phase_problem(shares)


def _speeds(members: dict[str, list[Analysis]], draw: np.random.Generator) -> list[SpeedChange]:
    (_, base), *others = members.items()
    reference = _rates(base)
    found = []
    for name, runs in others:
        rates = _rates(runs)
        if reference is None or rates is None:
            continue
        ratios = _medians(rates, draw) / _medians(reference, draw)
        value = float(np.median(rates) / np.median(reference))
        low, high = (float(end) for end in np.quantile(ratios, (0.1, 0.9)))
        ratio = Estimate(value=value, low=min(low, value), high=max(high, value), basis=Basis.MEASURED)
        found.append(SpeedChange(group=name, ratio=ratio, verdict=_speed_verdict(ratio)))
    return found


def _rates(runs: list[Analysis]) -> np.ndarray | None:
    """Tokens per second of steady steps, all runs of a group together; None where a log has none."""
    found = []
    for one in runs:
        times, pace = measured.step_times(one.case), measured.pace(one.case)
        if times is None or pace is None or not len(times.steady_seconds):
            return None
        scale = pace.tokens_per_second * np.median(times.steady_seconds)
        found.append(scale / times.steady_seconds)
    return np.concatenate(found)


def _medians(values: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Medians of resampled values, at most a thousand of them: shape (200,)."""
    some = values if len(values) <= 1000 else draw.choice(values, 1000, replace=False)
    return np.median(some[draw.integers(0, len(some), (200, len(some)))], axis=1)


def _speed_verdict(ratio: Estimate) -> str:
    if ratio.high < 1 - _SLOWER:
        return "regression: slower"
    return "faster" if ratio.low > 1 + _SLOWER else "the same speed within 2 %"
