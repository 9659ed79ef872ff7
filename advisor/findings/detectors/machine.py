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
_COST = 0.02  # of the time; less is not worth reporting
_DEAR = 0.05
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
    calibrated = [case.plan.reference_seconds if case.plan else facts.get("witness_quiet_seconds")]
    calibrated += [case.profile.reference_seconds if case.profile else None]
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
    slowed = times.seconds[kernel.busy_at(times.step)]
    if not len(slowed) or series.median(slowed) <= (normal := _normal_seconds(case, times)):
        return 0.0
    return max(0.0, float((slowed - normal).sum())) * times.stride


def slowdown(case: Case) -> float:
    """Return the factor by which the median step is longer than on a quiet machine; 1 if unknown."""
    times, kernel = run_metrics.step_times(case), readings(case)
    if times is None or kernel is None or not kernel.busy.any():
        return 1.0
    return max(1.0, series.median(times.steady_seconds) / _normal_seconds(case, times))


def _normal_seconds(case: Case, times: StepTimes) -> float:
    """Return a step's time on the quiet machine: the median of quiet steps, else the median over the slowdown."""
    quiet, kernel = quiet_times(case), readings(case)
    assert quiet is not None and kernel is not None
    if len(quiet.steady_seconds) >= _FEW_STEPS:
        return series.median(quiet.steady_seconds)
    slower = max(1.0, series.median(kernel.seconds) / kernel.quiet_seconds)
    return series.median(times.steady_seconds) / slower


def detect_machine_busy(case: Case) -> Verdict:
    """Other work on the machine during the run, detected by the reference kernel that the trainer times."""
    times, kernel = run_metrics.step_times(case), readings(case)
    if times is None or kernel is None:
        return lacking("machine_busy", "a reference kernel timed between steps (our own trainer)")
    if not kernel.busy.any():
        return None
    lost, whole = lost_seconds(case), float(times.seconds.sum()) * times.stride
    share = lost / whole if whole > 0 else 0.0
    if share < _COST:
        return None
    slow, stolen = kernel.seconds[kernel.busy], case.run.facts.get("stolen_share")
    by_host = isinstance(stolen, float) and stolen > _STOLEN
    took = (
        f"a fixed test computation took {format_seconds(series.median(slow))} (median) in {len(slow)} of "
        f"{len(kernel.seconds)} readings, {format_seconds(kernel.quiet_seconds)} when quiet: "
        f"{format_number(series.median(slow) / kernel.quiet_seconds)}x"
    )
    quiet, slowed = quiet_times(case), times.seconds[kernel.busy_at(times.step)]
    beside = "the machine was never quiet, so the undisturbed step time is an estimate"
    if quiet is not None and len(quiet.steady_seconds) >= _FEW_STEPS:
        mean = f"{format_seconds(series.median(slowed))} (mean {format_seconds(float(slowed.mean()))})"
        beside = (
            f"steps during slow readings took {mean}, the others {format_seconds(series.median(quiet.steady_seconds))}"
        )
    return finding(
        "machine_busy",
        severity="warning" if share > _DEAR else "note",
        title=f"Other programs cost {format_seconds(lost)} of the {format_seconds(whole)} in steps "
        f"({format_percent(share)})",
        evidence=(seen(took, kernel.step[kernel.busy][0], kernel.step[kernel.busy][-1]), beside),
        confidence="high" if len(slow) > 2 else "medium",
        causes=f"other guests of the same host: {format_percent(stolen)} of the CPU time was stolen"
        if by_host
        else "other processes on the same cores",
        # no saving, because the reader cannot stop other people's work on the machine
    )
