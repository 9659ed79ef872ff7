"""Other work on the machine, detected by the run's own reference kernel. Its slowdown is not the run's fault.

The trainer times a fixed small kernel between steps on a CPU (`witness` records). If that kernel takes much longer than
in its fastest readings, something else uses the cores. Other detectors then judge the quiet steps only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Verdict, finding, lacking, seen
from advisor.findings.run_metrics import StepTimes
from advisor.units import format_number, format_percent, format_seconds

_BUSY = 1.5  # times the fastest readings: on an otherwise idle shared host, readings scatter by ±20 %
_QUIETEST = 0.10  # the quantile that counts as quiet, because a single lucky reading does not
_FEW_STEPS = 5
REPORTED = 0.02  # of the time; less is not worth reporting
DISTURBED = 0.05  # of the time; the run's clock then says little about the run
_STOLEN = 0.05  # of the CPU time, given to other guests by the hypervisor


@dataclass(frozen=True, kw_only=True)
class MachineReadings:
    """Times of the reference kernel, in order of their steps."""

    step: np.ndarray
    seconds: np.ndarray
    quiet_seconds: float  # its time when nothing else runs

    @property
    def busy(self) -> np.ndarray:
        """Return which readings found other work on the machine."""
        return self.seconds > _BUSY * self.quiet_seconds

    def busy_at(self, steps: np.ndarray) -> np.ndarray:
        """Return which steps have other work in the reading before or after them."""
        after = np.searchsorted(self.step, steps)
        before = np.maximum(after - 1, 0)
        return self.busy[before] | self.busy[np.minimum(after, len(self.step) - 1)]


def readings(case: Case) -> MachineReadings | None:
    """Return the run's witness records, or None if there are none. The calibration's reading counts if it is faster."""
    facts = case.run.facts
    steps, seconds = facts.get("witness_steps"), facts.get("witness_seconds")
    if not isinstance(steps, list) or not isinstance(seconds, list) or not steps or len(steps) != len(seconds):
        return None
    at, place = np.unique(np.array(steps, dtype=float), return_inverse=True)
    took = np.zeros(len(at))
    np.maximum.at(took, place, seconds)  # the slowest of several readings after one step
    # A plan's own calibration counts, so that a run has one figure with its plan and with its device's profile.
    calibrated = [case.plan.reference_seconds if case.plan else facts.get("witness_quiet_seconds")]
    calibrated += [case.profile.reference_seconds if case.profile and not case.plan else None]
    quiet = min([float(np.quantile(took, _QUIETEST)), *(reading for reading in calibrated if reading)])
    return MachineReadings(step=at, seconds=took, quiet_seconds=quiet) if quiet > 0 else None


def quiet_times(case: Case) -> StepTimes | None:
    """Return the step times without steps slowed by other work on the machine, or all of them if this is unknown."""
    times, kernel = run_metrics.step_times(case), readings(case)
    if times is None or kernel is None or not kernel.busy.any():
        return times
    calm = ~kernel.busy_at(times.step)
    seconds = times.seconds[calm]
    start = series.steady_start(seconds) if len(seconds) else 0
    return dataclasses.replace(times, row=times.row[calm], step=times.step[calm], seconds=seconds, start=start)


def lost_seconds(case: Case) -> float:
    """Return how many seconds longer steps took with other work on the machine than without; 0 if unknown.

    Faster steps count too: if steps only scatter, as many are faster as slower, and nothing is lost.
    """
    times, kernel = run_metrics.step_times(case), readings(case)
    if times is None or kernel is None or times.source != run_metrics.PRINTED:
        return 0.0
    # Compilation, and what a first step takes longer, is no other program's doing.
    attempts = case.run.attempts
    first = times.start if attempts and attempts[0].compile_seconds is not None else min(1, len(attempts))
    slowed = times.seconds[first:][kernel.busy_at(times.step[first:])]
    if not len(slowed) or series.median(slowed) <= (normal := _normal_seconds(case, times)):
        return 0.0
    return max(0.0, float((slowed - normal).sum())) * times.stride


def disturbed_share(case: Case) -> float:
    """Return the share of the time in steps that other programs took; 0 if unknown."""
    times = run_metrics.step_times(case)
    whole = 0.0 if times is None else float(times.seconds.sum()) * times.stride
    return lost_seconds(case) / whole if whole > 0 else 0.0


def undisturbed_times(case: Case) -> StepTimes | None:
    """Return the times of the steps without other work on the machine. Returns None if there are too few of them."""
    times, kernel = quiet_times(case), readings(case)
    few = _FEW_STEPS if kernel is not None and kernel.busy.any() else 1
    return times if times is not None and len(times.steady_seconds) >= few else None


def slowdown(case: Case) -> float:
    """Return the factor by which the median step is longer than on a quiet machine; 1 if unknown."""
    times, kernel = run_metrics.step_times(case), readings(case)
    if times is None or kernel is None or not kernel.busy.any():
        return 1.0
    return max(1.0, series.median(times.steady_seconds) / _normal_seconds(case, times))


def _normal_seconds(case: Case, times: StepTimes) -> float:
    """Return a step's time on the quiet machine: the median of quiet steps, else an estimate from the readings."""
    quiet, kernel = undisturbed_times(case), readings(case)
    assert kernel is not None
    if quiet is not None:
        return series.median(quiet.steady_seconds)
    slower = max(1.0, series.median(kernel.seconds) / kernel.quiet_seconds)
    median = series.median(times.steady_seconds)
    promised = case.plan.chosen.step_seconds.value if case.plan else 0.0  # which a quiet machine seldom beats
    return max(median / slower, min(median, promised))


def detect_machine_busy(case: Case) -> Verdict:
    """Other work on the machine during the run, detected by the reference kernel that the trainer times."""
    times, kernel = run_metrics.step_times(case), readings(case)
    if times is None or kernel is None:
        return lacking("machine_busy", "a reference kernel timed between steps (our own trainer)")
    if not kernel.busy.any():
        return None
    lost, share = lost_seconds(case), disturbed_share(case)
    if share < REPORTED:
        return None
    slow, stolen = kernel.seconds[kernel.busy], case.run.facts.get("stolen_share")
    by_host = isinstance(stolen, float) and stolen > _STOLEN
    took = (
        f"a fixed test computation took {format_seconds(series.median(slow))} (median) in {len(slow)} of "
        f"{len(kernel.seconds)} readings, {format_seconds(kernel.quiet_seconds)} when quiet: "
        f"{format_number(series.median(slow) / kernel.quiet_seconds)}x"
    )
    quiet, slowed = undisturbed_times(case), times.seconds[kernel.busy_at(times.step)]
    of_steps = "the machine was never quiet, so the undisturbed step time is an estimate"
    if quiet is not None:
        both = (format_seconds(series.median(seconds)) for seconds in (slowed, quiet.steady_seconds))
        of_steps = f"steps during slow readings took {', the others '.join(both)} (medians)"
    return finding(
        "machine_busy",
        severity="warning" if share > DISTURBED else "note",
        # written as the same cause is where the run is compared with its plan
        title=f"Other programs on this machine cost {format_seconds.change(lost)[1:]} of the "
        f"{format_seconds(lost / share)} spent in steps ({format_percent(share)})",
        evidence=(seen(took, kernel.step[kernel.busy][0], kernel.step[kernel.busy][-1]), of_steps),
        confidence="high" if len(slow) > 2 else "medium",
        causes=f"other guests of the same host: {format_percent(stolen)} of the CPU time was stolen"
        if by_host
        else "other processes on the same cores",
        # no saving, because the reader cannot stop other people's work on the machine
    )
