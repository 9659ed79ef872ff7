"""The rest of a run: time, money, final loss, whether to stop now, and the cost of the same run on other devices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.findings.case import Case
from advisor.findings.curves import curve, main_rows
from advisor.findings.durations import spent_seconds, steps_covered
from advisor.findings.loss_forecast import LossForecast, forecast_loss
from advisor.findings.make_case import appetite, predict_as_logged
from advisor.findings.run_facts import (
    COMPLETE_SHARE,
    begins_late,
    nats_per_unit,
    number,
    planned_steps,
    price,
    steps_done,
)
from advisor.findings.run_metrics import FROM_CLOCK, step_times
from advisor.findings.savings import mean_step_seconds
from advisor.findings.schedule import schedules_of
from advisor.findings.series import finite, median, period_of
from advisor.laws.intervals import Z80
from advisor.prediction.intervals import known, product, sum_independent, sum_shared
from advisor.prediction.profile import Profile
from advisor.readers.run_table import Status
from advisor.records import Basis, Estimate, Workload
from advisor.units import HOUR, format_estimate, format_number, format_seconds, format_usd

_PAUSE_SPREAD = 0.3  # of evaluations and checkpoints if fewer than three were timed
_MOST_STEPS = 5_000_000  # of a credible plan, because its schedule is computed step by step


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The targets that the owner of a run has stated; None if not stated."""

    final_loss: float | None = None  # in the unit the log prints
    usd: float | None = None  # of the whole run
    hours: float | None = None


@dataclass(frozen=True, kw_only=True)
class ForecastPlace:
    """Another place to run: the profile of a device, the number of devices, and the price of one per hour (or None)."""

    profile: Profile
    gpus: int = 1
    usd_per_gpu_hour: float | None = None


@dataclass(frozen=True, kw_only=True)
class OnOtherGpu:
    """The prediction for the same steps on other devices; None if it is impossible or no price is known."""

    key: str
    name: str
    gpus: int
    fits: bool | None
    step_seconds: Estimate | None
    whole_hours: Estimate | None
    whole_usd: Estimate | None
    rest_hours: Estimate | None  # of the remaining steps
    rest_usd: Estimate | None
    note: str = ""  # why there is no prediction, in words


@dataclass(frozen=True, kw_only=True)
class StopAdvice:
    """Whether to stop now, by the stated targets and by what the log already shows."""

    stop: bool
    reasons: tuple[str, ...]  # for stopping; empty if there are none
    saved_hours: Estimate | None = None  # by leaving out the rest
    saved_usd: Estimate | None = None


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A partial run with the forecast of its rest and its totals; None if a value cannot be forecast."""

    steps_done: float | None
    steps_planned: float | None
    spent_hours: float | None
    spent_usd: float | None
    step_seconds: Estimate | None  # what a step to come costs: the mean, long stalls capped; `measured` has the median
    rest_hours: Estimate | None  # with evaluations and checkpoints
    rest_usd: Estimate | None
    total_hours: Estimate | None
    total_usd: Estimate | None
    loss: LossForecast
    advice: StopAdvice
    elsewhere: tuple[OnOtherGpu, ...] = ()


def forecast(case: Case, targets: Targets | None = None, places: Sequence[ForecastPlace] = ()) -> Forecast:
    """Return what is left of a run and what it will have cost, from the log and from what the case knows.

    The rest is the remaining steps at the mean pace, plus evaluations and checkpoints at their own pace. The final loss
    is forecast once a quarter of the steps is done (`loss_forecast`).
    """
    done, planned, usd = steps_done(case.run), planned_steps(case), price(case)
    left = _steps_left(case)
    pace, spent, rest = mean_step_seconds(case, left or 0.0), spent_seconds(case), rest_seconds(case)
    covered, before = steps_covered(case), 0.0
    if begins_late(case.run) and spent and done and covered:  # earlier steps took as long as those in the log
        before = spent * (done / covered - 1)
    total = sum_shared(known(spent + before), rest) if rest is not None and spent is not None else None
    rest_hours, total_hours = _scaled(rest, 1 / HOUR), _scaled(total, 1 / HOUR)
    loss = final_loss(case)
    rest_usd, total_usd = _scaled(rest_hours, usd), _scaled(total_hours, usd)
    advice = stop_advice(case, targets or Targets(), loss, rest_hours, total_hours, usd)
    return Forecast(
        steps_done=done,
        steps_planned=planned,
        spent_hours=spent / HOUR if spent is not None else None,
        spent_usd=spent / HOUR * usd if spent is not None and usd is not None else None,
        step_seconds=pace,
        rest_hours=rest_hours,
        rest_usd=rest_usd,
        total_hours=total_hours,
        total_usd=total_usd,
        loss=loss,
        advice=advice,
        elsewhere=tuple(elsewhere(case, place) for place in places),
    )


def _steps_left(case: Case) -> float | None:
    done, planned = steps_done(case.run), planned_steps(case)
    if planned is None or done is None:
        return None
    return 0.0 if case.run.status is Status.COMPLETED else max(0.0, planned - done)  # completed: by its own rule


def rest_seconds(case: Case) -> Estimate | None:
    """Return the seconds of the steps that are left, with their pauses; None if pace or plan is unknown."""
    left, done, spent = _steps_left(case), steps_done(case.run), spent_seconds(case)
    pace, times = mean_step_seconds(case, left or 0.0), step_times(case)
    if pace is not None and left is not None:  # the remaining steps at the mean pace, and the remaining pauses
        with_pauses = times is not None and times.source == FROM_CLOCK  # time stamps include them
        pauses = () if with_pauses else [_pauses_left(case, name, left) for name in ("eval", "checkpoint")]
        return sum_independent(pace.scaled(left), *pauses) if pauses else pace.scaled(left)
    if not (left and spent and done):
        return None
    # no step is timed: at the pace of the whole so far
    spread = math.exp(_PAUSE_SPREAD)
    mean = Estimate(value=spent, low=spent / spread, high=spent * spread, basis=Basis.MEASURED)
    return mean.scaled(left / done)


def _scaled(estimate: Estimate | None, factor: float | None) -> Estimate | None:
    return estimate.scaled(factor) if estimate is not None and factor is not None else None


def final_loss(case: Case) -> LossForecast:
    """Return the training loss at the last planned step, or the reason in words why it is not predicted."""
    planned, nats, losses = planned_steps(case), nats_per_unit(case.run), curve(case.run, "loss")
    done, reason = steps_done(case.run) or 0.0, ""
    if case.run.status is Status.COMPLETED and done < COMPLETE_SHARE * (planned or math.inf):
        reason = "the run is over"
    elif planned is None or planned < 10:
        reason = "the number of steps planned is not known"
    elif planned > _MOST_STEPS:
        reason = f"{planned:,.0f} planned steps are more than any run has"
    elif nats is None:
        reason = "the loss is not a mean per token"
    elif np.nan_to_num(case.run.column("loss_is_nan")[main_rows(case.run)]).any():
        reason = "no law describes a run whose losses are not finite"
    elif done >= COMPLETE_SHARE * planned:
        reason = "all steps are done: the log has the loss"
    elif not len(losses):
        reason = "the log has no training loss"
    if reason or planned is None or nats is None:
        return LossForecast(final_loss=None, reason=reason)
    return forecast_loss(losses, schedules_of(case, round(planned)), nats=nats)


def _pauses_left(case: Case, kind: str, left: float) -> Estimate:
    """Return the seconds of the remaining evaluations or checkpoints by those timed so far, or 0 if there are none."""
    timed = curve(case.run, f"{kind}_seconds")
    if not len(timed):
        return known(0.0)
    period = period_of(timed.step)
    every = period.every if period else number(case.run.facts, f"{kind}_every_steps")
    done = steps_done(case.run) or 0.0
    count = left / every if every and every > 0 else len(timed) * left / max(done, 1.0)
    middle = median(timed.value)
    half = _PAUSE_SPREAD
    if len(timed) >= 3 and middle > 0:
        half = Z80 * float(np.std(np.log(np.maximum(timed.value, 1e-9)))) / math.sqrt(len(timed))
    ends = middle * math.exp(-half), middle * math.exp(half)
    return Estimate(value=middle, low=ends[0], high=ends[1], basis=Basis.MEASURED).scaled(float(np.floor(count + 1e-9)))


def stop_advice(
    case: Case,
    targets: Targets,
    loss: LossForecast,
    rest_hours: Estimate | None,
    total_hours: Estimate | None,
    usd_per_hour: float | None,
) -> StopAdvice:
    """Return the advice to stop if the run is broken, or if a stated target is out of reach or already reached.

    A target is out of reach if even the favourable end of the 80 % interval misses it.
    """
    bad = np.nan_to_num(case.run.column("loss_is_nan")[main_rows(case.run)]) > 0
    reasons = ["the newest losses are not finite"] if len(bad) and bad[-3:].all() else []
    target, evals = targets.final_loss, curve(case.run, "eval_loss").value
    now = evals[-1:] if len(evals) else curve(case.run, "loss").value[-20:]
    if target is not None and len(now) and median(now) <= target:
        reasons.append(f"the target loss of {target:.4g} is reached: {median(now):.4g}")
    elif target is not None and loss.final_loss is not None and loss.final_loss.low > target:
        reasons.append(f"the final loss will be {loss.final_loss.low:.4g} at best, {target:.4g} was wanted")
    if targets.hours is not None and total_hours is not None and total_hours.low > targets.hours:
        reasons.append(f"the run takes {total_hours.low:.3g} h at least, {targets.hours:.3g} h were allowed")
    total_usd = _scaled(total_hours, usd_per_hour)
    if targets.usd is not None and total_usd is not None and total_usd.low > targets.usd:
        reasons.append(f"the run costs ${total_usd.low:,.4g} at least, ${targets.usd:,.4g} were allowed")
    stop = bool(reasons) and (rest_hours is None or rest_hours.value > 0)
    return StopAdvice(
        stop=stop,
        reasons=tuple(reasons),
        saved_hours=rest_hours if stop else None,
        saved_usd=_scaled(rest_hours, usd_per_hour) if stop else None,
    )


def limits(case: Case, targets: Targets, outlook: Forecast) -> list[tuple[str, str]]:
    """Return each stated target or limit, and whether the run kept it, will keep it, or may."""
    over = case.run.status not in (Status.RUNNING, Status.INCOMPLETE, Status.NO_END)
    held_out = finite(case.run.column("eval_loss"))
    last = float(held_out[-1]) if len(held_out) else case.run.last_loss
    asked = (
        ("loss", targets.final_loss, last if over else None, outlook.loss.final_loss, format_number, 1.0),
        ("deadline", targets.hours, outlook.spent_hours, outlook.total_hours, format_seconds, HOUR),
        ("budget", targets.usd, outlook.spent_usd, outlook.total_usd, format_usd, 1.0),
    )
    answers = []
    for name, limit, so_far, at_end, shown, factor in asked:
        if limit is None:
            continue
        # what a run has spent beyond its limit is missed, whatever is still to come
        known_now = so_far is not None and (over or so_far > limit)
        found = known(so_far) if known_now and so_far is not None else at_end
        answer = "not known"
        if found is not None:
            kept = "missed" if found.low > limit else "met" if found.high <= limit else "open"
            value = format_estimate(found.scaled(factor), shown)
            answer = f"{'' if known_now or kept == 'open' else 'will be '}{kept}, {value}"
        answers.append((f"{name} {shown(limit * factor)}", answer))
    return answers


def elsewhere(case: Case, place: ForecastPlace) -> OnOtherGpu:
    """Return the whole run and its rest on other devices, by the profile's prediction of the same workload.

    The global batch stays the same, so accumulation shrinks with more devices. Evaluations and checkpoints take the
    same share of the steps as here. Without a workload (the shape is unknown) there is no prediction.
    """
    blank = OnOtherGpu(key=place.profile.key, name=place.profile.name, gpus=place.gpus, fits=None, step_seconds=None,
                      whole_hours=None, whole_usd=None, rest_hours=None, rest_usd=None)  # fmt: skip
    if case.workload is None:
        return dataclasses.replace(blank, note="the model's shape is not known")
    moved = moved_workload(case.workload, place)
    if moved is None:
        return dataclasses.replace(blank, note=f"the global batch cannot be split over {place.gpus} devices")
    # what its program asks for beyond the prediction, it asks for on any device
    predicted = predict_as_logged(place.profile, [moved], appetite(case))[0]
    planned, done = planned_steps(case) or steps_done(case.run), steps_done(case.run) or 0.0
    blank = dataclasses.replace(blank, fits=predicted.fits, step_seconds=predicted.step_seconds)
    if predicted.step_seconds is None or planned is None:
        missing = "step time" if predicted.step_seconds is None else "number of steps"
        return dataclasses.replace(blank, note=f"the {missing} is not known")
    pauses = overhead(case)
    whole = product(predicted.step_seconds.scaled(planned / HOUR), pauses)
    rest = product(predicted.step_seconds.scaled(max(0.0, planned - done) / HOUR), pauses)
    usd = place.usd_per_gpu_hour * place.gpus if place.usd_per_gpu_hour is not None else None
    return dataclasses.replace(
        blank,
        whole_hours=whole,
        whole_usd=_scaled(whole, usd),
        rest_hours=rest,
        rest_usd=_scaled(rest, usd),
        note="" if predicted.fits is not False else "does not fit into the GPU's memory at this micro-batch",
    )


def moved_workload(work: Workload, place: ForecastPlace) -> Workload | None:
    """Return the same optimizer step on the place's devices, or None if it cannot be split into whole micro-batches."""
    sequences = work.micro_batch * work.grad_accum * work.gpus
    if sequences % place.gpus:
        return None
    per_device = sequences // place.gpus
    fitting = [b for b in range(1, min(work.micro_batch, per_device) + 1) if per_device % b == 0]
    micro = max(fitting)
    return dataclasses.replace(
        work, gpu=place.profile.key, gpus=place.gpus, micro_batch=micro, grad_accum=per_device // micro
    )


def overhead(case: Case) -> Estimate:
    """Return wall clock over step time so far, with evaluations and checkpoints; 1 if the log has no such times."""
    pauses = sum(float(finite(case.run.column(f"{kind}_seconds")).sum()) for kind in ("eval", "checkpoint"))
    pace, done = mean_step_seconds(case), steps_done(case.run)
    if pace is None or not done or not pauses:
        return known(1.0)
    return known(1 + pauses / (pace.value * done))
