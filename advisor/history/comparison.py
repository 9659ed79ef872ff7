"""Compares runs at equal tokens, time, dollars and shares of their schedules.

Losses are compared on the same data and in the same learning-rate phase (`laws/phase`). Runs that differ in no declared
setting form one group of seeds. Differences carry bootstrap intervals. If a group has at least two seeds, these are
resampled. Otherwise the rows near the point are, which show a run's own noise but not that between seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.errors import AdvisorError
from advisor.findings import run_metrics
from advisor.findings.case import Case
from advisor.findings.chart_data import points as points_of
from advisor.findings.curves import curve, rate_curve
from advisor.findings.detectors.learning_rate import phase_of_schedule
from advisor.findings.detectors.machine import DISTURBED, disturbed_share, readings, undisturbed_times
from advisor.findings.run_facts import parameters, planned_steps
from advisor.findings.run_metrics import StepTimes
from advisor.findings.workload_of import infer
from advisor.laws import flops
from advisor.laws.annealing import phase_problem, same_phase
from advisor.readers.run_table import Status
from advisor.records import Basis, Estimate
from advisor.units import format_count, format_percent
from trainer.runlog import LEAST_ROWS, recent_rows

SHARES = (0.25, 0.5, 0.75, 1.0)
_EVERY_ROW = 10**9  # keeps every point of a curve
_SAME_SIZE = 1.1  # ratio of parameters up to which two models are the same one, counted in different ways
_DRAWS = 2000
_SLOWER = 0.02  # a smaller loss of speed is not a regression
# Runs belong to one experiment if these settings agree: everything declared but the seed, the name and the date.
_SAME = (
    *("family", "depth", "width", "heads", "vocab_size", "seq_len", "micro_batch", "grad_accum", "world_size"),
    *("planned_steps", "learning_rate", "warmup_steps", "optimizer", "precision", "compile", "gpu", "weight_decay"),
    "data_fingerprint",
)
_AXES = {  # of each axis, its name and what a log must state
    "tokens": ("tokens", "how many tokens each step took"),
    "hours": ("time", "when each step was done"),
    "usd": ("cost", "the price of an hour"),
    "schedule": ("shares of their schedules", "how many steps were planned"),
}
NO_SPEED = "no speed is compared"  # a note begins so
_FAR = 0.05  # of the longest run's steps: a shorter run would limit the comparison to its few steps


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one configuration that differ in their seeds."""

    name: str
    runs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ComparedStanding:
    """One run at one point of a comparison. A field is None if the run's log lacks the value."""

    run_id: str
    step: float
    tokens: float | None
    loss: float  # training loss, averaged over the last rows before the point
    rate_factor: float | None  # learning rate as a share of its peak
    seconds: float | None  # of the steps up to this point, if each was timed


@dataclass(frozen=True, kw_only=True)
class Point:
    """All runs at equal tokens (or steps, if tokens are unknown), or at an equal share of their own schedules."""

    at: str  # tokens | step | schedule
    value: float  # tokens, steps, or share of the planned steps
    runs: tuple[ComparedStanding, ...]
    comparable: bool
    problem: str | None  # why the losses at this point must not be compared; None if they may


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One group's training loss minus the first group's, at one point that all runs reached."""

    axis: str  # tokens | hours | usd | schedule; step if tokens are not known
    at: float
    group: str
    baseline_loss: float
    loss: float
    difference: Estimate
    comparable: bool
    verdict: str  # in words


@dataclass(frozen=True, kw_only=True)
class SpeedChange:
    """The ratio of one group's tokens per second to the first group's."""

    group: str
    ratio: Estimate  # without the steps that other programs slowed
    measured: float | None  # with them; None if other programs took little time of all these runs
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of several runs. All other groups are compared with the first one."""

    groups: tuple[Group, ...]
    points: tuple[Point, ...]
    differences: tuple[Difference, ...]
    speeds: tuple[SpeedChange, ...]
    notes: tuple[str, ...]

    def to_document(self) -> dict[str, object]:
        """Return what `--json` prints about several runs in addition to each run's own document."""
        names = ("groups", "differences", "speeds", "notes")
        return {"side_by_side": self.points, "comparison": {name: getattr(self, name) for name in names}}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Course:
    """All rows with a training loss, as arrays of equal length: position on an axis, loss and step."""

    place: np.ndarray
    loss: np.ndarray
    step: np.ndarray

    def rows_up_to(self, at: float) -> int:
        return max(1, int(np.searchsorted(self.place, at * (1 + 1e-9), side="right")))

    def step_at(self, at: float) -> float:
        return float(self.step[self.rows_up_to(at) - 1])

    def window(self, at: float) -> np.ndarray:
        """Return the losses of the last rows up to a position, whose mean is the loss so far."""
        end = self.rows_up_to(at)
        return self.loss[max(0, end - recent_rows(end)) : end]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Entrant:
    """One run of a comparison."""

    name: str
    case: Case
    courses: dict[str, _Course]  # by name of the axis

    @classmethod
    def of(cls, name: str, case: Case) -> _Entrant:
        rows, planned = points_of(case, "loss", most=_EVERY_ROW), planned_steps(case)
        loss, step = (np.array([getattr(row, field) for row in rows], float) for field in ("value", "step"))
        places = {"step": step} | ({"schedule": step / planned} if planned else {})
        for axis in ("tokens", "hours", "usd"):
            at = [getattr(row, axis) for row in rows]
            places |= {} if None in at else {axis: np.array(at, float)}
        courses = {axis: _Course(place=place, loss=loss, step=step) for axis, place in places.items()}
        return cls(name=name, case=case, courses=courses)


def _no_log_states(silent: Sequence[str], usable: Sequence[_Entrant]) -> str:
    """Return the beginning of a sentence about what these logs do not state."""
    if len(silent) == len(usable):
        return "no log states"
    return f"{', '.join(silent)} {'does' if len(silent) == 1 else 'do'} not state"


def compare_runs(cases: Sequence[Case], names: Sequence[str] = (), *, seed: int = 0) -> Comparison:
    """Compare two or more runs, which are called by `names` or else by their sources.

    Raises AdvisorError if fewer than two runs have enough rows with a training loss.
    """
    short, usable = [], []
    for name, case in zip(names or [case.run.source for case in cases], cases, strict=True):
        rows = len(curve(case.run, "loss"))
        if rows >= LEAST_ROWS:
            usable.append(_Entrant.of(name, case))
            continue
        few = f"{rows} row{'s' if rows > 1 else ''} with a training loss, fewer than {LEAST_ROWS}"
        short.append(f"{name} has {few if rows else 'no training loss'}")
    if len(usable) < 2:
        raise AdvisorError(
            f"cannot compare: {'; '.join(short) or 'only one log was given'}. A comparison needs two logs of "
            f"{LEAST_ROWS} rows with a training loss each: single rows differ by noise alone",
            "give logs of longer runs, or let the run log more often; advisor analyze judges each one alone",
        )
    notes = [f"{text}: left out" for text in short]
    # equal learning-rate phases cannot be checked where a log does not have the rates
    if silent := [entrant.name for entrant in usable if not len(rate_curve(entrant.case.run))]:
        rate = f"{_no_log_states(silent, usable)} the learning rate of its steps"
        notes.append(f"{rate}: whether the runs were at the same point of their schedules, where alone losses compare, "
                     "is not known")  # fmt: skip
    # groups by declared settings; a run that declares hardly any is a group of its own
    groups: dict[tuple, list[_Entrant]] = {}
    for number, entrant in enumerate(usable):
        declared = tuple(str(entrant.case.run.facts.get(name)) for name in _SAME)
        stated = sum(value != "None" for value in declared)
        groups.setdefault(declared if stated >= 4 else (str(number),), []).append(entrant)
    members = {chr(ord("A") + place): runs for place, runs in enumerate(groups.values())}
    if len(members) == 1:
        members = {chr(ord("A") + place): [entrant] for place, entrant in enumerate(usable)}
        notes.append("the runs declare the same configuration: each is compared with the first")
    for entrant in usable:
        if undisturbed_times(entrant.case) is None and (disturbed := _disturbed(entrant)):
            notes.append(f"{NO_SPEED}: {disturbed}, and hardly a step ran alone")
    shared = set.intersection(*(set(entrant.courses) for entrant in usable))
    axes = ["tokens" if "tokens" in shared else "step", *(a for a in ("hours", "usd", "schedule") if a in shared)]
    for axis, (name, needed) in _AXES.items():
        silent = [entrant.name for entrant in usable if axis not in entrant.courses]
        if silent and not (axis == "usd" and "hours" not in shared):  # then the time is what lacks
            notes.append(f"not compared at equal {name}: {_no_log_states(silent, usable)} {needed}")
    places, draw = [(axis, at) for axis in axes for at in _places(axis, usable)], np.random.default_rng(seed)
    points = []
    for axis, at in places:
        if axis in ("tokens", "step", "schedule"):
            problem = _problem(axis, at, usable, named=True)
            standings = tuple(_standing(entrant, axis, at) for entrant in usable)
            points.append(Point(at=axis, value=at, runs=standings, comparable=problem is None, problem=problem))
    return Comparison(
        groups=tuple(Group(name=name, runs=tuple(entrant.name for entrant in runs)) for name, runs in members.items()),
        points=tuple(points),
        differences=tuple(
            _difference(axis, at, name, members["A"], runs, draw)
            for axis, at in places
            for name, runs in list(members.items())[1:]
        ),
        speeds=tuple(_speeds(members, draw)),
        notes=tuple(notes),
    )


def compare_those_far_enough(cases: Sequence[Case], names: Sequence[str]) -> tuple[Comparison | None, list[str]]:
    """Compare the runs of a folder without those that ended early, and return which were left out."""
    reached = [case.run.last_step or 0.0 for case in cases]
    far = [one >= _FAR * max(reached) and len(curve(case.run, "loss")) > 0
           for one, case in zip(reached, cases, strict=True)]  # fmt: skip
    kept = [(case, name) for case, name, is_far in zip(cases, names, far, strict=True) if is_far]
    most = max(reached)
    words = [
        f"{name}: not compared, it went to {one:,.10g} where the longest went to {most:,.10g}"
        + (", because it broke off early" if planned_steps(case) and case.run.status is not Status.COMPLETED else "")
        for case, name, one, is_far in zip(cases, names, reached, far, strict=True)
        if not is_far
    ]
    if len(kept) < 2:
        return None, [*words, f"no other run came as far as {kept[0][1]}: nothing is compared"] if kept else words
    try:
        return compare_runs([case for case, _ in kept], [name for _, name in kept]), words
    except AdvisorError as error:
        return None, [*words, error.message]


def _places(axis: str, entrants: Sequence[_Entrant]) -> list[float]:
    """Return the points of comparison: quarters of what all runs reached, or of their schedules."""
    reached = min(float(entrant.courses[axis].place[-1]) for entrant in entrants)
    if axis == "schedule":
        return [share for share in SHARES if share <= reached * (1 + 1e-9)]
    return [share * reached for share in SHARES] if reached > 0 else []


def _standing(entrant: _Entrant, axis: str, at: float) -> ComparedStanding:
    course, run = entrant.courses[axis], entrant.case.run
    row, step = course.rows_up_to(at) - 1, course.step_at(at)
    tokens, times = entrant.courses.get("tokens"), curve(run, "seconds")
    timed = times.value[times.step <= step]
    return ComparedStanding(
        run_id=entrant.name,
        step=step,
        tokens=None if tokens is None else float(tokens.place[row]),
        loss=float(course.window(at).mean()),
        rate_factor=phase_of_schedule(run, step),
        seconds=float(timed.sum()) if len(timed) == row + 1 else None,
    )


def _problem(axis: str, at: float, entrants: Sequence[_Entrant], *, named: bool = False) -> str | None:
    """Say why the losses at a position must not be compared. Returns None if they may."""
    runs = [entrant.case.run for entrant in entrants]
    for fact, words in (("data_fingerprint", "trained on different data"), ("vocab_size", "of different vocabularies")):
        if len({run.facts[fact] for run in runs if run.facts.get(fact) is not None}) > 1:
            return words
    alike = {
        name: len({run.facts.get(name, object()) for run in runs}) == 1 for name in ("data_fingerprint", "vocab_size")
    }
    sizes = [_size(entrant.case) for entrant in entrants]
    known = [size for size in sizes if size]
    if not alike["data_fingerprint"] and len(known) > 1 and max(known) > _SAME_SIZE * min(known):
        least, most = format_count(min(known)), format_count(max(known))
        return f"models of {least} and {most} parameters, on data not known to be the same"
    programs = sorted({run.framework or run.format for run in runs})
    same_model = None not in sizes and len({round(math.log(size), 2) for size in known}) == 1
    if len(programs) > 1 and not alike["data_fingerprint"] and not (alike["vocab_size"] and same_model):
        return f"logs of different programs ({', '.join(programs)}): models, data and batches are not known to agree"
    if axis in ("hours", "usd") and (disturbed := next(filter(None, map(_disturbed, entrants)), None)):
        return disturbed
    shares = [phase_of_schedule(entrant.case.run, entrant.courses[axis].step_at(at)) for entrant in entrants]
    if axis == "schedule":
        return None if same_phase(shares) else "their schedules differ in form, not only in length"
    return phase_problem(shares, [entrant.name for entrant in entrants] if named else ())


def _disturbed(entrant: _Entrant) -> str | None:
    """Say how much of a run's time other programs took. Returns None if it was little or is unknown."""
    share = disturbed_share(entrant.case)
    words = f"other programs took {format_percent(share)} of the training time of {entrant.name}"
    return words if share > DISTURBED else None


def _size(case: Case) -> float | None:
    """Return the number of parameters, declared or computed from the sizes in the log. Returns None if unknown."""
    if (count := parameters(case)) is not None:
        return count
    workload = infer(case.run, {"gpu": "cpu"}).workload  # the count does not depend on the GPU
    return None if workload is None else float(flops.parameters(workload.shape))


def _difference(
    axis: str, at: float, name: str, base: list[_Entrant], runs: list[_Entrant], draw: np.random.Generator
) -> Difference:
    before = [entrant.courses[axis].window(at) for entrant in base]
    after = [entrant.courses[axis].window(at) for entrant in runs]
    gaps = _bootstrap(after, draw) - _bootstrap(before, draw)
    value = _mean(after) - _mean(before)
    low, high = (float(end) for end in np.quantile(gaps, (0.1, 0.9)))
    difference = Estimate(value=value, low=min(low, value), high=max(high, value), basis=Basis.MEASURED)
    problem = _problem(axis, at, [*base, *runs])
    verdict = "worse" if difference.low > 0 else "better" if difference.high < 0 else "no difference beyond the noise"
    return Difference(
        axis=axis,
        at=at,
        group=name,
        baseline_loss=_mean(before),
        loss=_mean(after),
        difference=difference,
        comparable=problem is None,
        verdict=problem or verdict,
    )


def _mean(windows: list[np.ndarray]) -> float:
    return float(np.mean([window.mean() for window in windows]))


def _bootstrap(windows: list[np.ndarray], draw: np.random.Generator) -> np.ndarray:
    """Return the means of resampled seeds, shape (draws,). With one seed, rows are resampled instead."""
    values = np.array([window.mean() for window in windows]) if len(windows) > 1 else windows[0]
    return values[draw.integers(0, len(values), (_DRAWS, len(values)))].mean(axis=1)


def _speeds(members: dict[str, list[_Entrant]], draw: np.random.Generator) -> list[SpeedChange]:
    (_, base), *others = members.items()
    reference, kernel = _rates(base), _quiet_seconds(base)
    changes = []
    for name, runs in others:
        rates = _rates(runs)
        if reference is None or rates is None:
            continue
        ratios = _medians(rates, draw) / _medians(reference, draw)
        value = float(np.median(rates) / np.median(reference))
        low, high = (float(end) for end in np.quantile(ratios, (0.1, 0.9)))
        # The machine may have been slower during one of the runs, as a kernel shows that is the same in both.
        here = _quiet_seconds(runs)
        machine = kernel / here if kernel and here else 1.0
        low, high = min(low, low / machine), max(high, high / machine)
        ratio = Estimate(value=value, low=min(low, value), high=max(high, value), basis=Basis.MEASURED)
        verdict = "faster" if ratio.low > 1 + _SLOWER else "the same speed within 2 %"
        verdict = "regression: slower" if ratio.high < 1 - _SLOWER else verdict
        changes.append(SpeedChange(group=name, ratio=ratio, measured=_measured(runs, base), verdict=verdict))
    return changes


def _measured(runs: list[_Entrant], base: list[_Entrant]) -> float | None:
    """Return the ratio of the median steps' speeds with what other programs took, or None if they took little."""
    rates, reference = (_rates(group, run_metrics.step_times) for group in (runs, base))
    if rates is None or reference is None or not any(_disturbed(entrant) for entrant in (*runs, *base)):
        return None
    return float(np.median(rates) / np.median(reference))


def _rates(runs: list[_Entrant], steps_of: Callable[[Case], StepTimes | None] = undisturbed_times) -> np.ndarray | None:
    """Return tokens per second of the steady steps of all runs in a group, without steps that other programs slowed.

    `steps_of` returns the steps of a run that count. Returns None if a log has no such steps.
    """
    rates = []
    for entrant in runs:
        times, counted = run_metrics.step_times(entrant.case), steps_of(entrant.case)
        pace = run_metrics.pace(entrant.case)
        if times is None or counted is None or pace is None:
            return None
        scale = pace.tokens_per_second * np.median(times.steady_seconds)
        rates.append(scale / counted.steady_seconds)
    return np.concatenate(rates)


def _quiet_seconds(runs: list[_Entrant]) -> float | None:
    """Return the time of the reference kernel beside the undisturbed steps of a group. Returns None if not timed."""
    kernels = [kernel for entrant in runs if (kernel := readings(entrant.case)) is not None]
    calm = np.concatenate([kernel.seconds[~kernel.busy] for kernel in kernels] or [np.empty(0)])
    return float(np.median(calm)) if len(calm) else None


def _medians(values: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return the medians of resampled values, shape (200,). At most a thousand values are used."""
    some = values if len(values) <= 1000 else draw.choice(values, 1000, replace=False)
    return np.median(some[draw.integers(0, len(some), (200, len(some)))], axis=1)
