"""Turns limits on dollars, hours and loss into the trainer's own stop conditions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from advisor.errors import AdvisorError
from advisor.records import Plan
from advisor.run_records import Guards
from advisor.store.adopted import tightest
from advisor.trainers.known import workload_of_config
from advisor.units import HOUR, format_moment
from trainer.schema import DataConfig, LossStop, RunConfig, StopConfig, to_dict

# A hung job costs as much as a working one. Evaluations on a shared disk, garbage collection or other load never make a
# step take this many times the usual step. StopConfig.hang_seconds is the minimum. This factor is a judgement.
HANG_FACTOR = 20.0


@dataclass(frozen=True, kw_only=True)
class GuardLimits:
    """The limits that may end a run early. None: the limit of the plan, or the former limit of a resumed run."""

    max_usd: float | None = None
    max_hours: float | None = None
    loss: Sequence[LossStop] | None = None
    from_plan: bool = True  # False: None means no limit, as with --no-limits


NO_DATA = "no data given: this run would train on random tokens"
_NO_DATA_HINT = (
    "prepare your text, `advisor data prepare FILES --out DIR`, and plan again with --data DIR; "
    "for a speed test on random tokens type --synthetic (in a run.yaml: data.synthetic: true)"
)


def refuse_without_data(data: DataConfig) -> None:
    """Raise AdvisorError for a run without data, unless random tokens were requested.

    Every job and every export calls this, so that no way to start a run can forget it.
    """
    if data.path is None and not data.synthetic:
        raise AdvisorError(NO_DATA, _NO_DATA_HINT)


def refuse_edited(plan: Plan) -> None:
    """Raise AdvisorError if the run in a plan file was edited and no longer matches the prediction."""
    work, goal = plan.workload, plan.goal
    # Each setting of a workload by its name.
    run, predicted = (
        {**to_dict(each.shape), **{name: value for name, value in to_dict(each).items() if name != "shape"}}
        for each in (workload_of_config(plan.config, work.gpu, work.gpus), work)
    )
    pairs = [("steps", plan.config.steps, plan.chosen.steps), *((name, run[name], predicted[name]) for name in run)]
    changed = [f"{name} {_plain(one)} against {_plain(other)}" for name, one, other in pairs if one != other]
    # the plan's basis also limits the GPUs on which the run can be
    keys = {plan.offer.gpu} if plan.search else {*goal.gpu.split(","), *(machine.gpu for machine in goal.own)}
    counts = {plan.offer.gpus} if plan.search else {*goal.counts, goal.gpus}
    if work.gpu not in keys and "any" not in keys:
        changed.append(f"GPU {work.gpu} against {' or '.join(sorted(keys))}")
    if work.gpus not in counts:
        changed.append(f"{work.gpus} GPUs against {' or '.join(map(str, sorted(counts)))}")
    if changed:
        raise AdvisorError(
            f"the run differs from what was predicted: {', '.join(changed)}",
            "plan again with these as options (advisor plan --help), or launch the `run:` part alone as a run.yaml, "
            "which has no predictions",
        )


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def with_limits_of(plan: Plan | None, limits: GuardLimits) -> GuardLimits:
    """Return the limits of a start: those that were asked for, and otherwise the budget and the deadline of the plan.

    Every way to start or to export a plan calls this, so that none can forget the limits. A machine without a price has
    no budget. If the deadline is a moment, the time left until then counts. Raises AdvisorError if that is past.
    """
    if plan is None or not limits.from_plan:
        return limits
    usd, hours = limits.max_usd, limits.max_hours
    if usd is None and plan.offer.usd_per_hour:
        usd = plan.goal.budget_usd
    if hours is None and plan.goal.deadline_seconds is not None:
        hours = plan.goal.deadline_seconds / HOUR
        if plan.goal.deadline_at is not None:
            hours = (datetime.fromisoformat(plan.goal.deadline_at) - datetime.now(UTC)).total_seconds() / HOUR
            if hours <= 0:
                message = f"the deadline of this plan, {format_moment(plan.goal.deadline_at)}, is past"
                raise AdvisorError(message, "plan again, or launch it with another limit: --deadline 8h")
    return replace(limits, max_usd=usd, max_hours=hours)


def make_guards(config: RunConfig, limits: GuardLimits, *, usd_per_hour: float | None) -> Guards:
    """Combine the requested limits with those in the configuration; the tightest time limit wins.

    `usd_per_hour` is the price of all devices together. Raises AdvisorError (exit 2) for limits that are not positive,
    and for a limit in dollars without a price.
    """
    max_usd = config.stop.max_usd if limits.max_usd is None else _positive("--budget", limits.max_usd)
    seconds = _with_price(_hours_in_seconds(config.stop, limits.max_hours), max_usd, usd_per_hour)
    loss = (*config.stop.loss, *(limits.loss or ()))
    return Guards(max_usd=max_usd, max_hours=limits.max_hours, max_seconds=seconds, loss=loss)


def guarded(
    config: RunConfig, guards: Guards, *, usd_per_hour: float | None, step_seconds: float | None = None
) -> RunConfig:
    """Return the configuration with the guards as its stop conditions; `step_seconds` is the expected time of a step.

    A limit in dollars stays one, because the trainer counts each attempt at its own price.
    """
    stop = config.stop
    return replace(
        config,
        stop=replace(
            stop,
            max_seconds=_hours_in_seconds(stop, guards.max_hours),
            max_usd=guards.max_usd,
            usd_per_hour=stop.usd_per_hour if usd_per_hour is None else usd_per_hour,
            hang_factor=HANG_FACTOR if stop.hang_factor is None else stop.hang_factor,
            step_seconds=stop.step_seconds if step_seconds is None else step_seconds,
            loss=guards.loss,
        ),
    )


def limit_seconds(stop: StopConfig) -> float | None:
    """Return the tightest time limit in seconds, with dollars at the configuration's price; None if it has no limit."""
    return _with_price(stop.max_seconds, stop.max_usd, stop.usd_per_hour)


def _with_price(max_seconds: float | None, max_usd: float | None, usd_per_hour: float | None) -> float | None:
    if max_usd is not None and usd_per_hour is None:
        hint = "plan again with --price USD_PER_HOUR, or limit the time: --deadline"
        raise AdvisorError("--budget needs a price, and this plan has none", hint, exit_code=2)
    return tightest(max_seconds, max_usd, usd_per_hour)


def parse_loss_stop(text: str) -> LossStop:
    """Read "STEP:LOSS", as in 500:4.2 (stop if the training loss so far is above 4.2 at or after step 500)."""
    step, _, above = text.partition(":")
    try:
        stop = LossStop(step=int(step.replace("_", "")), above=float(above))
    except ValueError:
        stop = None
    if stop is None or stop.step < 1 or not math.isfinite(stop.above):
        example = "write it like 500:4.2, to stop if the loss is above 4.2 at step 500 or later"
        raise AdvisorError(f"{text!r} is not STEP:LOSS", example, exit_code=2)
    return stop


def _hours_in_seconds(stop: StopConfig, max_hours: float | None) -> float | None:
    """Return the tighter of the two time limits."""
    if max_hours is None:
        return stop.max_seconds
    return min(_positive("--deadline", max_hours) * HOUR, math.inf if stop.max_seconds is None else stop.max_seconds)


def _positive(flag: str, value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise AdvisorError(f"{flag}: {value:g} is not above zero", "leave it out for no limit", exit_code=2)
    return value
