"""Computes progress, remaining time and final cost of a run from its log records and its plan. Pure.

The time left is remaining steps × expected step time, plus the remaining evaluations and checkpoints. The expected step
time begins as the plan's and becomes the run's own as steps are seen (both weighted by certainty, in logarithms).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.laws.intervals import Z80
from advisor.laws.pace import DRIFT_FLOOR, FEW_STEPS, drift_spread, log_spread, mean_error, mean_seconds
from advisor.prediction.intervals import known, sum_independent, sum_shared
from advisor.prediction.wallclock import planned_checkpoints, planned_evals, run_seconds
from advisor.readers.lifetime import process_seconds
from advisor.records import Basis, Estimate, Plan
from advisor.run_records import LaunchRecord
from advisor.units import HOUR
from trainer.budget import MOST_USED, NEW_LIMITS, Spent
from trainer.runlog import loss_so_far
from trainer.schema import RunConfig

if TYPE_CHECKING:
    from advisor.prediction.trajectory import Trajectory

KEPT_STEPS = 2000  # of the newest attempt: enough to see slow drift, and quick to read every second
NOW_STEPS = 20  # the throughput now is the mean of these
PACE_STEPS = 100  # the expected step time uses the median of these

# Assumptions for what the run itself does not show yet, stated so that they can be questioned:
WARM_UP_STEPS = 10  # not counted as slow steps, because compiling and cold caches do not recur (sources §7.3)
SURPRISE = 3.0  # if the run is further than this many standard deviations from the plan, the plan is ignored
EVENT_SPREAD = 0.3  # of evaluations and checkpoints that have not been timed yet
FORWARD_FRACTION = 1 / 3  # of a step: the backward pass costs twice the forward pass (sources §1.2)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A run at one moment. None means unknown: no step is logged, no price is known, or the run is over."""

    run_id: str
    state: str  # never started | running | finished | died
    outcome: str | None  # None unless the run has finished
    reason: str | None
    attempt: int
    step: int
    steps: int
    tokens: int = 0
    tokens_planned: int = 0
    loss: float | None = None
    loss_so_far: float | None = None  # as in the list of runs and in comparisons
    eval_loss: float | None = None
    loss_expected: Estimate | None = None  # by the plan: training loss at this step
    step_seconds: float | None  # median of the newest steps
    step_seconds_predicted: Estimate | None = None  # by the plan
    tokens_per_second: float | None = None  # now: mean of the newest steps; at the median step once the run is over
    tokens_per_second_predicted: Estimate | None = None  # by the plan
    mfu: float | None = None
    elapsed_seconds: float  # lifetimes of the processes of all attempts
    eta_seconds: Estimate | None  # until completion; None if the run is over
    total_seconds_predicted: Estimate | None  # by the plan
    usd_per_hour: float | None
    usd_so_far: float | None
    usd_at_end: Estimate | None = None
    usd_predicted: Estimate | None = None  # by the plan
    guard_seconds_left: float | None = None  # until a time or dollar limit stops the run
    stops_early: bool = False  # a limit is expected to stop the run before its end
    checkpoint_step: int | None = None
    message: str | None = None  # the newest warning
    more_hours: float | None = (
        None  # limit, over all attempts, for the rest as expected; None if it can resume as it is
    )


@dataclass(frozen=True, kw_only=True)
class _Life:
    """One attempt in the log."""

    session: str
    seconds: float
    usd_per_hour: float | None  # None if the attempt states no price; then the caller's price counts


@dataclass(frozen=True, kw_only=True)
class _Account:
    """The totals of all attempts."""

    seconds: float
    usd: float | None  # None if no price is known
    usd_per_hour: float | None  # of the newest attempt


class History:
    """What a log has shown so far. Records are added as they come, so that watching a long run stays cheap."""

    def __init__(self) -> None:
        self.header: dict[str, Any] | None = None
        self.step: dict[str, Any] | None = None  # the newest step record
        self.step_seconds: deque[float] = deque(maxlen=KEPT_STEPS)  # of the newest attempt
        self.losses: dict[int, float] = {}  # by step
        self.evals: dict[int, dict[str, Any]] = {}
        self.checkpoints: list[dict[str, Any]] = []
        self.warning: str | None = None
        self.earlier: list[_Life] = []  # the attempts before the newest one
        self.final: dict[str, Any] | None = None  # the final record of the newest attempt
        self.last_time: float | None = None

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Add records in the order of the log."""
        for record in records:
            if take := _TAKES.get(record["kind"]):  # other kinds have nothing to do with progress
                take(self, record)
            self.last_time = record["time"]

    def attempt_seconds(self, now: float | None) -> float:
        """Return the newest attempt's lifetime: to its final record, else to `now`, else (None) to its last record."""
        until = now if now is not None else self.last_time
        if self.header is None or until is None:
            return 0.0
        return process_seconds(self.header, self.final, until)

    def newest(self, now: float | None) -> _Life:
        """Return the newest attempt as the log describes it."""
        assert self.header is not None
        session = self.header.get("session") or f"attempt-{len(self.earlier) + 1}"
        return _Life(session=session, seconds=self.attempt_seconds(now), usd_per_hour=self.header.get("usd_per_hour"))

    def _header(self, record: dict[str, Any]) -> None:
        if self.header is not None:
            self.earlier.append(self.newest(None))
        self.header, self.final, self.warning = record, None, None
        self.step_seconds.clear()
        done = record.get("resumed_from_step") or 0
        self.evals = {step: seen for step, seen in self.evals.items() if step <= done}
        self.losses = {step: loss for step, loss in self.losses.items() if step <= done}
        if self.step is not None and self.step["step"] > done:  # lost with the attempt and to be repeated
            self.step = {**self.step, "step": done, "tokens": done * (record.get("tokens_per_step") or 0)}

    def _step(self, record: dict[str, Any]) -> None:
        self.step = record
        self.step_seconds.append(record["seconds"])
        self.losses[record["step"]] = record["loss"]

    def _message(self, record: dict[str, Any]) -> None:
        if record.get("level") == "warning":
            self.warning = record["text"]
        elif record["text"].startswith(NEW_LIMITS):
            self.warning = None  # most likely it was about the old limit

    def _final(self, record: dict[str, Any]) -> None:
        self.final = record
        if self.warning is not None and self.warning.startswith(MOST_USED):
            self.warning = None  # nothing more is used


_TAKES: dict[str, Callable[[History, dict[str, Any]], object]] = {
    "header": History._header,
    "step": History._step,
    "eval": lambda history, record: history.evals.update({record["step"]: record}),
    "checkpoint": lambda history, record: history.checkpoints.append(record),
    "message": History._message,
    "final": History._final,
}


def make_progress(
    history: History,
    config: RunConfig,
    *,
    run_id: str,
    state: str,
    outcome: str | None = None,
    reason: str | None = None,
    attempt: int = 1,
    plan: Plan | None = None,
    course: Trajectory | None = None,
    launch: LaunchRecord | None = None,
    spent: Spent = Spent(),  # noqa: B008 - frozen
    now: float,
) -> Progress:
    """Return the progress of a run. `now` is Unix seconds; `state` and `outcome` come from the folder's status.
    `course` is the loss that the plan expects during the run, and `spent` is what the run's budget file counts."""
    step = history.step["step"] if history.step else (history.header or {}).get("resumed_from_step") or 0
    tokens_per_step = (history.header or {}).get("tokens_per_step")
    tokens_per_step = tokens_per_step or config.tokens_per_step(plan.workload.gpus if plan else 1)
    pace = pace_seconds(list(history.step_seconds), plan.chosen.step_seconds if plan else None, config.steps - step)
    over = state != "running"
    seconds = recent_median(history.step_seconds)
    # Now is a mean, which other programs slow; the median of all steps is compared with the plan at the end.
    newest = list(islice(reversed(history.step_seconds), NOW_STEPS))
    each = seconds if over else (sum(newest) / len(newest) if newest else None)
    rate = tokens_per_step / each if each else None
    price = launch.usd_per_hour if launch is not None else (plan.offer.usd_per_hour if plan else None)
    used = account(history, launch, spent, price, now if not over else None)
    rest = eta_seconds(history, config, step, pace, plan, used.seconds)
    room = _guard_seconds_left(config, used)  # shows if a run that is over has no room for another step
    eta, guard_left = (None, None) if over else (rest, room)
    needed = spent.needed_seconds or 0.0
    short = over and room is not None and room <= needed
    # what the rest takes at the pace seen, starting once more; at least two attempts at a step
    began = (history.header or {}).get("startup_seconds") or (used.seconds if history.step is None else 0.0)
    enough = needed + began + (rest.value if rest is not None else 0.0)
    return Progress(
        run_id=run_id,
        state=state,
        outcome=outcome,
        reason=reason,
        attempt=attempt,
        step=step,
        steps=config.steps,
        tokens=step * tokens_per_step,
        tokens_planned=config.steps * tokens_per_step,
        loss=history.step.get("loss") if history.step else None,
        loss_so_far=loss_so_far(reversed(history.losses.values()), len(history.losses)),
        eval_loss=history.evals[max(history.evals)]["loss"] if history.evals else None,
        loss_expected=course.at(step) if course is not None and step else None,
        step_seconds=seconds,
        step_seconds_predicted=plan.chosen.step_seconds if plan else None,
        tokens_per_second=rate,
        tokens_per_second_predicted=plan.chosen.tokens_per_second if plan else None,
        mfu=mfu_now(plan, rate),
        elapsed_seconds=used.seconds,
        eta_seconds=eta,
        total_seconds_predicted=run_seconds(plan.bill.wall_clock) if plan else None,
        usd_per_hour=used.usd_per_hour,
        usd_so_far=used.usd,
        usd_at_end=_usd_at_end(used, eta, guard_left),
        usd_predicted=plan.bill.cost_usd if plan else None,
        guard_seconds_left=guard_left,
        stops_early=guard_left is not None and eta is not None and eta.value > guard_left,
        checkpoint_step=history.checkpoints[-1]["step"] if history.checkpoints else None,
        message=history.warning,
        more_hours=(used.seconds + max(2 * needed, enough)) / HOUR if short else None,
    )


def recent_median(step_seconds: Sequence[float]) -> float | None:
    """Return the median seconds of the newest steps, which one slow step cannot change; None if there are none."""
    newest = list(islice(reversed(step_seconds), PACE_STEPS))
    return statistics.median(newest) if newest else None


def pace_seconds(step_seconds: Sequence[float], planned: Estimate | None, left: int) -> Estimate | None:
    """Return the expected seconds per step of the `left` steps, from the steps seen and the plan's prediction.

    Two values are averaged in logarithms by inverse variance. One is the median of the newest steps, raised by what
    slow steps have added so far; its standard error comes from their spread. The other is the plan, unless the run
    contradicts it. The interval includes the expected drift. Returns None if both are missing.
    """
    median = recent_median(step_seconds)
    if median is None or median <= 0:
        return planned
    seen = median * straggler_factor(step_seconds)
    newest = np.array(step_seconds)[-PACE_STEPS:]
    error = mean_error(newest)
    center, variance = math.log(seen), error * error
    if planned is not None and planned.low > 0:
        plan_error = max(math.log(planned.high / planned.low) / (2 * Z80), DRIFT_FLOOR)
        distance = center - math.log(planned.value)
        if abs(distance) < SURPRISE * math.hypot(error, plan_error):
            weight = variance / (variance + plan_error * plan_error)  # of the plan in the average
            center -= weight * distance
            variance *= 1 - weight
    half = Z80 * math.sqrt(variance + drift_spread(np.array(step_seconds), left) ** 2)
    basis = Basis.MEASURED if len(newest) >= FEW_STEPS or planned is None else planned.basis
    value = math.exp(center)
    return Estimate(value=value, low=value * math.exp(-half), high=value * math.exp(half), basis=basis)


def straggler_factor(step_seconds: Sequence[float]) -> float:
    """Return the ratio of mean to median step so far, at least 1. Totals consist of means, since slow steps recur."""
    seconds = np.array(step_seconds)[WARM_UP_STEPS:]
    if len(seconds) < WARM_UP_STEPS:
        return 1.0
    median = float(np.median(seconds))
    return max(1.0, mean_seconds(seconds) / median) if median > 0 else 1.0


def eta_seconds(
    history: History,
    config: RunConfig,
    step: int,
    pace: Estimate | None,
    plan: Plan | None,
    elapsed: float,
) -> Estimate | None:
    """Return the seconds until completion: steps left × pace, evaluations and checkpoints, and the rest of start-up."""
    if pace is None:
        return None
    left, clock = max(0, config.steps - step), plan.bill.wall_clock if plan is not None else None
    count = max(0, planned_evals(config) - len(history.evals))
    seen = [record["seconds"] for record in history.evals.values()]
    if not count:
        evals = known(0.0)
    elif seen:
        evals = _around(seen).scaled(count)
    elif plan is not None and clock is not None and clock.evals_seconds and clock.evals_seconds.value > 0:
        evals = clock.evals_seconds.scaled(count / planned_evals(plan.config))
    else:
        passes = math.ceil(config.eval.tokens / (config.micro_batch * config.model.seq_len)) / config.grad_accum
        guess = pace.value * FORWARD_FRACTION * passes * count
        ends = guess * (1 - EVENT_SPREAD), guess * (1 + EVENT_SPREAD)
        evals = Estimate(value=guess, low=ends[0], high=ends[1], basis=Basis.PRIOR)
    # evaluations consist of the same passes, so whatever slows steps also slows evaluations
    total = sum_shared(pace.scaled(left), evals)
    whole = planned_checkpoints(config, config.steps * pace.value)
    count, saved = math.ceil(whole * left / config.steps), [record["seconds"] for record in history.checkpoints]
    rest = [known(0.0)]  # neither seen nor planned; the first one will be timed
    if saved:
        rest = [_around(saved).scaled(count)]
    elif clock is not None and clock.checkpoints_seconds and whole:
        rest = [clock.checkpoints_seconds.scaled(count / whole)]
    if history.header is None and clock is not None and (estimate := clock.startup_seconds):
        # the part of the start-up that is left
        value, low, high = (max(0.0, end - elapsed) for end in (estimate.value, estimate.low, estimate.high))
        rest.append(Estimate(value=value, low=low, high=high, basis=estimate.basis))
    return sum_independent(total, *rest)


def account(
    history: History, launch: LaunchRecord | None, spent: Spent, price: float | None, now: float | None
) -> _Account:
    """Return the totals of all attempts, each at the price of its own machine. `now` is None if no process runs.

    `budget.json` is the account. The log adds the running attempt's time so far, and attempts that are missing from
    `budget.json` here, since that file arrives last or may be lost.
    """
    launched = None if launch is None else datetime.fromisoformat(launch.launched_at).timestamp()
    unlogged = launched is not None and (history.last_time is None or history.last_time < launched)
    since = launched if unlogged and now is not None else None  # when an attempt began that has logged nothing yet
    logged = list(history.earlier)
    if history.header is not None:
        logged.append(history.newest(now if since is None else None))
    running = logged[-1] if logged and now is not None else None
    if since is not None and now is not None:
        running = _Life(session="now", seconds=max(0.0, now - since), usd_per_hour=price)
    known_lives = {life.session: life for life in logged if life is not running}
    for attempt in spent.attempts:
        # what the budget file booked since the launch is left out: the clock already measures that time
        if attempt.session in known_lives or since is None or attempt.began < since - 1.0:
            known_lives[attempt.session] = _Life(
                session=attempt.session, seconds=attempt.seconds, usd_per_hour=attempt.usd_per_hour
            )
    if running is not None:
        known_lives[running.session] = running
    lives = known_lives.values()
    prices = [price if life.usd_per_hour is None else life.usd_per_hour for life in lives]
    paid = [life.seconds * each / 3600 for life, each in zip(lives, prices, strict=True) if each is not None]
    whole = len(paid) == len(lives) and (bool(lives) or price is not None)
    return _Account(
        seconds=sum(life.seconds for life in lives),
        usd=sum(paid) if whole else None,
        usd_per_hour=price if running is None or running.usd_per_hour is None else running.usd_per_hour,
    )


def mfu_now(plan: Plan | None, tokens_per_second: float | None) -> float | None:
    """Return the MFU at this rate, computed from the plan's own MFU and tokens per second."""
    if plan is None or plan.prediction.mfu is None or tokens_per_second is None:
        return None
    return plan.prediction.mfu.value * tokens_per_second / plan.chosen.tokens_per_second.value


def _around(seen: Sequence[float]) -> Estimate:
    value = statistics.median(seen)
    half = Z80 * (log_spread(np.array(seen)) if len(seen) >= 3 else EVENT_SPREAD / Z80)
    return Estimate(value=value, low=value * math.exp(-half), high=value * math.exp(half), basis=Basis.MEASURED)


def _guard_seconds_left(config: RunConfig, used: _Account) -> float | None:
    """Return the seconds until the first limit. Dollars are counted at the price of the running attempt."""
    stop, left = config.stop, []
    if stop.max_seconds is not None:
        left.append(stop.max_seconds - used.seconds)
    if stop.max_usd is not None and used.usd is not None and used.usd_per_hour:
        left.append((stop.max_usd - used.usd) / used.usd_per_hour * 3600)
    return max(0.0, min(left)) if left else None


def _usd_at_end(used: _Account, eta: Estimate | None, guard_left: float | None) -> Estimate | None:
    """Return the dollars at the end of the run, or at its limit if the limit comes first."""
    if used.usd is None or used.usd_per_hour is None:
        return None
    if eta is None:
        return known(used.usd)
    cap = math.inf if guard_left is None else guard_left
    left = Estimate(value=min(eta.value, cap), low=min(eta.low, cap), high=min(eta.high, cap), basis=eta.basis)
    return sum_shared(known(used.usd), left.scaled(used.usd_per_hour / 3600))
