"""Scores a run against its prediction and splits the gap between them into causes. Pure.

A run of any trainer can be scored, even if it is still running, was stopped or died. A value that the log does not
contain, or that cannot be judged yet, is None and gets no score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case
from advisor.findings.curves import curve
from advisor.findings.detectors.machine import REPORTED, disturbed_share, lost_seconds, readings
from advisor.findings.durations import lifetime_seconds
from advisor.findings.measured import joules
from advisor.findings.run_facts import nats_per_unit, number, planned_steps, print_gap, steps_done
from advisor.hardware.offers import OWN_MACHINE
from advisor.history import time_spent as spent_on
from advisor.history.progress import mfu_now
from advisor.history.time_spent import drift_factor, reference_seconds, time_spent
from advisor.prediction.power import JOULES_PER_KWH, SITE_FACTOR
from advisor.prediction.wallclock import run_seconds
from advisor.readers.run_table import RunTable, Status
from advisor.records import Estimate, Plan, Run
from advisor.units import format_number, format_seconds
from trainer.schema import Outcome

_ONGOING = (Status.NO_END, Status.INCOMPLETE, Status.RUNNING)  # or the run ended without a final record
_SAME = 0.01  # a smaller relative difference is rounding
# words in the source of a value that mean what PyTorch's allocator handed out; "memory" alone may be nvidia-smi's
_ALLOCATED = ("alloc", "active")
_COVERED = 0.05  # share of a run's time by which another program's readings may be too short or too long


@dataclass(frozen=True, kw_only=True)
class Score:
    """One quantity, predicted and actual. A value is None if not predicted, unknown, or of a run cut short."""

    quantity: str
    predicted: Estimate | None
    actual: float | None

    @property
    def error(self) -> float | None:
        """Return (actual - predicted) / predicted; None for a predicted 0, as the cost of one's own machine."""
        if self.predicted is None or self.actual is None or self.predicted.value == 0:
            return None
        return self.actual / self.predicted.value - 1

    @property
    def inside_interval(self) -> bool | None:
        if self.predicted is None or self.actual is None or self.error is None:
            return None
        return self.predicted.contains(self.actual)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A part of the gap between predicted and actual wall clock, in seconds. Positive if it made the run longer."""

    name: str
    seconds: float
    note: str


@dataclass(frozen=True, kw_only=True)
class ScoredRun:
    """Everything that `advisor compare` says about one run."""

    run_id: str
    device_key: str
    outcome: str | None  # None if the run is running, or died without a final record
    reason: str | None
    attempts: int
    steps: int | None  # completed steps; None if the log only numbers its rows
    steps_planned: int | None
    complete: bool  # the run did what was planned, so that its totals can be scored
    departures: tuple[str, ...]  # differences from the planned run; if there are any, nothing is scored
    scores: tuple[Score, ...]
    reference_seconds: float | None  # of the reference kernel at the median step; None if unknown
    drift_factor: float | None  # how much slower the machine was than during calibration; None if unknown
    gap_seconds: float | None  # actual minus predicted wall clock; None if there is no plan or no clock
    causes: tuple[Cause, ...]
    disturbed_share: float  # of the time in steps, which other programs took; 0 if unknown
    goes_on: bool | None = None  # whether a run without an outcome still runs; None if only its log is known
    cut_short: Mapping[str, float] = field(default_factory=dict)  # time and cost of a run that did not complete

    def score(self, quantity: str) -> Score:
        """Return the score of one quantity. Raises KeyError if there is none."""
        return {score.quantity: score for score in self.scores}[quantity]

    def actual(self, quantity: str) -> float | None:
        """Return the actual value of one quantity. Raises KeyError if there is none."""
        return self.score(quantity).actual


def score_run(
    case: Case,
    plan: Plan | None,
    *,
    run_id: str,
    device_key: str,
    usd_per_hour: float | None = None,
    energy_kwh: float | None = None,
) -> ScoredRun:
    """Compare a run with its plan. Without a plan, only the actual values are returned.

    `case` holds what the log says, and nothing from the plan. `usd_per_hour` is what was really paid for all devices
    together, `energy_kwh` what telemetry metered.
    """
    run = case.run
    departures: list[str] = []
    if plan is not None:  # where the log declares a different run than the planned one, nothing is scored
        shape, gpus = plan.config.model, plan.workload.gpus
        meant = {
            "step_tokens": (plan.config.tokens_per_step(gpus), "tokens a step"),
            "world_size": (gpus, "devices"),
            "depth": (shape.depth, "blocks"),
            "width": (shape.width, "of width"),
            "seq_len": (shape.seq_len, "tokens of context"),
        }
        for name, (intended, words) in meant.items():
            logged = number(run.facts, name)
            if logged and abs(logged / intended - 1) > _SAME:
                departures.append(f"{logged:,.10g} {words} in the log, {intended:,.10g} in the plan")
    steps = steps_done(run)
    planned = plan.config.steps if plan else planned_steps(case)
    last = run.attempts[-1] if run.attempts else None  # else from the log; None if active or died silently
    shown = (None, None) if run.status in _ONGOING else (run.status.value, run.status_reason)
    outcome, reason = (last.outcome, last.reason) if last is not None else shown
    # Must be exactly the planned steps. Other trainers may not print the last steps, or may do one more.
    far = None if steps is None or planned is None else abs(steps - planned)
    complete = outcome == Outcome.COMPLETED and far is not None and far <= (0 if run.attempts else print_gap(run))
    reference = reference_seconds(run)
    drift = drift_factor(reference, plan)
    held = None if departures else plan
    promised = held.chosen if held else None
    actual, wall = _actual(case, held, drift), lifetime_seconds(case)
    totals = {"wall_clock_seconds": wall, "cost_usd": wall and _cost(wall, usd_per_hour, energy_kwh, held)}
    if complete:  # only a complete run's totals are scored
        actual |= {**totals, "energy_kwh": energy_kwh, "loss": _final_loss(run)}
    gap = wall - run_seconds(promised.bill.wall_clock).value if promised and wall is not None else None
    return ScoredRun(
        run_id=run_id,
        device_key=device_key,
        outcome=outcome,
        reason=reason,
        attempts=max(1, len(run.attempts)),
        steps=None if steps is None else int(steps),
        steps_planned=None if planned is None else int(planned),
        complete=complete,
        departures=tuple(departures),
        cut_short={} if complete else {name: value for name, value in totals.items() if value is not None},
        scores=tuple(
            Score(quantity=name, predicted=_promise(promised, name), actual=actual.get(name)) for name in QUANTITIES
        ),
        reference_seconds=reference,
        drift_factor=drift,
        gap_seconds=gap,
        disturbed_share=0.0 if plan is None else disturbed_share(replace(case, plan=plan)),
        causes=tuple(_causes(case, held, drift, gap, steps)) if held and gap is not None and steps is not None else (),
    )


QUANTITIES = (
    *("step_seconds", "step_seconds_drift_corrected", "tokens_per_second", "mfu", "peak_allocated_bytes"),
    *("peak_reserved_bytes", "wall_clock_seconds", "cost_usd", "energy_kwh", "loss"),
)


def _actual(case: Case, plan: Plan | None, drift: float | None) -> dict[str, float | None]:
    """Return the values that a run has even if it ended early."""
    run, step, pace = case.run, run_metrics.step_seconds(case), run_metrics.pace(case)
    rate = pace.tokens_per_second if pace else None
    source = run.provenance.get("memory_bytes", "").lower()
    allocated = run.framework is not None or any(word in source for word in _ALLOCATED)
    host = str(run.facts.get("gpu", "")).lower() == "cpu"
    peaks = {name: series.finite(run.column(name)) for name in ("memory_bytes", "resident_bytes", "reserved_bytes")}
    most = {name: float(values.max()) if len(values) else None for name, values in peaks.items()}
    return {
        "step_seconds": step,
        "step_seconds_drift_corrected": step / drift if step and drift else None,
        "tokens_per_second": rate,
        "mfu": mfu_now(plan, rate),
        "peak_allocated_bytes": most["memory_bytes"] if allocated else None,
        "peak_reserved_bytes": most["resident_bytes" if host else "reserved_bytes"],
    }


def _final_loss(run: RunTable) -> float | None:
    """Return the validation loss after the last step, in nats per token. Returns None if it was not measured then."""
    evals, unit = curve(run, "eval_loss"), nats_per_unit(run, "eval_loss_unit")
    step, trained = run_metrics.main_column(run, "step"), np.isfinite(run_metrics.main_column(run, "loss_is_nan"))
    trained |= np.isfinite(run_metrics.main_column(run, "loss"))
    last = series.finite(step[trained])
    if unit is None or not len(evals) or not len(last) or not run.counts_steps or evals.step[-1] < last.max():
        return None
    return float(evals.value[-1]) * unit


def _cost(wall: float, usd_per_hour: float | None, energy_kwh: float | None, plan: Plan | None) -> float | None:
    """Return the dollars of the run: rent as paid (else as planned), plus metered energy at the goal's tariff."""
    price = usd_per_hour if usd_per_hour is not None else (plan.offer.usd_per_hour if plan else None)
    rented = plan is not None and bool(plan.goal.own) and plan.offer.source != OWN_MACHINE
    tariff = plan.goal.usd_per_kwh if plan is not None and not rented else None  # rent includes the energy
    if price is None or (tariff and energy_kwh is None):
        return None
    site_kwh = 0.0 if energy_kwh is None else energy_kwh * SITE_FACTOR.value  # telemetry meters the GPUs alone
    return wall / 3600 * price + (site_kwh * tariff if tariff else 0.0)


def _promise(promised: Run | None, quantity: str) -> Estimate | None:
    if promised is None:
        return None
    if quantity == "wall_clock_seconds":
        return run_seconds(promised.bill.wall_clock)
    if quantity == "cost_usd" and promised.cost_usd is not None:
        # a run folder has no record of the time for ordering a machine and for downloads
        share = run_seconds(promised.bill.wall_clock).value / promised.total_seconds.value
        return promised.cost_usd.scaled(share)
    name = quantity.removesuffix("_drift_corrected")
    parts = (promised.prediction, promised.bill, promised.standing)
    return next(getattr(part, name) for part in parts if hasattr(part, name))


def _causes(case: Case, plan: Plan, drift: float | None, gap: float, steps: float) -> list[Cause]:
    """Split the gap into parts that sum to it. The last part is what no other part explains."""
    with_plan = replace(case, plan=plan)
    run, spent, clock = case.run, time_spent(with_plan), plan.bill.wall_clock
    step, median = clock.steps_seconds.value / plan.config.steps, run_metrics.step_seconds(case)
    parts: dict[str, tuple[float, str]] = {}
    plain = spent.plain_steps if spent is not None else (steps * median if median is not None else None)
    if plain is not None:
        parts["machine drift"], taken = (0.0, "unknown: no reference kernel was timed"), "included"
        if readings(with_plan) is not None:  # the figure of the finding `machine_busy`
            taken, parts = (
                "taken out",
                {"other programs": (lost_seconds(with_plan), "beside other programs on the machine")},
            )
            if drift and disturbed_share(with_plan) < REPORTED:  # else readings are slow because of other programs
                speed = f"{format_number(drift)} times the calibration's step time"
                parts["machine drift"] = steps * step * (drift - 1), speed
        note = f"{steps:.0f} steps at {format_seconds(step)} predicted, machine drift {taken}"
        parts["steps slower"] = plain - steps * step - sum(seconds for seconds, _ in parts.values()), note
    evals, saves = spent_on.evals_seconds(run), spent_on.checkpoints_seconds(run)
    assert clock.startup_seconds and clock.compile_seconds and clock.evals_seconds and clock.checkpoints_seconds
    if spent is not None or len(curve(run, "eval_seconds")):
        parts["evals"] = evals - clock.evals_seconds.value, ""
    if spent is not None or saves:
        parts["checkpoints"] = saves - clock.checkpoints_seconds.value, ""
    left_out = plan.config.steps - steps
    parts["steps not run"] = 0.0 - left_out * step, f"{left_out:.0f} of {plan.config.steps}"
    rest = "start-up, stalls and what else the log does not tell"
    if spent is not None:  # the log tells the times of processes
        times = f"{spent.stall_count} steps over {spent_on.STALL:g} times the median" if spent.stall_count else "none"
        parts |= {
            "start-up": (spent.startup - clock.startup_seconds.value, "until the second step"),
            "compile": (spent.compile - clock.compile_seconds.value, "time beyond steady steps"),
            "stalls": (spent.stalls, times),
            "restarts": (spent.restarts + spent.lost, f"{format_seconds(spent.lost)} of work lost"),
        }
        rest = "speed checks, logging, shutdown"
    causes = [Cause(name=name, seconds=parts[name][0], note=parts[name][1]) for name in _ORDER if name in parts]
    explained = sum(seconds for seconds, _ in parts.values())
    return [*causes, Cause(name="unexplained", seconds=gap - explained, note=rest)]


_ORDER = (
    *(
        "steps slower",
        "machine drift",
        "other programs",
        "start-up",
        "compile",
        "evals",
        "checkpoints",
        "stalls",
        "restarts",
    ),
    "steps not run",
)


def run_kwh(run: RunTable) -> float | None:
    """Return the energy of a run's devices in kWh. Returns None if it was not metered over the whole run.

    With GPUs it is the energy of the GPUs alone, as in predictions; otherwise it is the host's. The telemetry of our
    trainer lasts as long as its run. Another program's readings may cover only a part of the run, or an hour before it.
    """
    telemetry = run.telemetry or run.host_telemetry
    if telemetry is None:
        return None
    clock, seconds = telemetry.get("unix_seconds", np.empty(0)), lifetime_seconds(Case(run=run))
    clock = clock[np.isfinite(clock)]
    covers = seconds and len(clock) > 1 and abs(np.ptp(clock) / seconds - 1) <= _COVERED
    if not run.attempts and not covers:
        return None
    return measured_kwh(telemetry)


def measured_kwh(telemetry: Mapping[str, np.ndarray]) -> float | None:
    """Return the energy of all devices over their readings (`TELEMETRY_COLUMNS`) in kWh. Returns None if unknown.

    A device's energy counter gives the difference of its readings. Without a counter, power × time is summed without
    the gaps (sources §6.4). Counters restart with the driver, so only increases are counted.
    """
    clock = telemetry.get("unix_seconds", np.empty(0))
    unread = np.full(len(clock), np.nan)
    counter, power = telemetry.get("energy_joules", unread), telemetry.get("power_watts", unread)
    device = np.nan_to_num(telemetry.get("gpu", unread), nan=-1.0)
    used = [joules(clock[mine], counter[mine], power[mine]) for mine in (device == d for d in np.unique(device))]
    metered = [value for value in used if value is not None]
    return sum(metered) / JOULES_PER_KWH if metered else None
