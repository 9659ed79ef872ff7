"""Turns an adopted command and a limit into a run to start: micro-batch, steps, time, cost, memory. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from advisor.adopt.empirical import Batch
from advisor.adopt.guard import grace_seconds
from advisor.adopt.self_test import CAPPED, DEAD, rows_of_all, tokens_of
from advisor.adopt.session import batch_of, drift_of, memory_kind
from advisor.adopt.splits import Option, batch_options, time_of
from advisor.errors import AdvisorError
from advisor.laws.intervals import Z80
from advisor.options import AdoptedGoal
from advisor.prediction.intervals import sum_shared
from advisor.prediction.micro_batch import ENOUGH
from advisor.records import Basis, Estimate
from advisor.store.adopted import (
    LOG,
    PROBE,
    WHOLE_RUN,
    Adopted,
    AdoptedPlan,
    Setting,
    tightest,
)
from advisor.units import HOUR, format_estimate, format_seconds, format_usd

_ONCE_MORE = 1.15  # by which start-up and end differ between runs; arbitrary, imports come from a cache or a disk
_BUSY = 1.5  # times; the reference kernel of a run counts as slow from there on, too (findings/detectors/machine.py)


def make_plan(adopted: Adopted, goal: AdoptedGoal, *, plan_id: str, created: str) -> AdoptedPlan:
    """Returns the plan of a run that keeps the command's own global batch; raises AdvisorError if nothing fits.

    The upper ends of the intervals stay within deadline and budget, because a run that a limit ends has not decayed its
    learning rate.
    """
    base = adopted.bursts[0]
    options = batch_options(adopted, goal.gpus)
    chosen = _choose(options, goal)
    startup = _once_more([b.startup_seconds for b in adopted.bursts])
    ending = _once_more([b.ending_seconds for b in adopted.bursts])
    assert startup is not None  # the base burst has steps
    fixed = startup if ending is None else sum_shared(startup, ending)  # their errors come from the same machine
    usd_per_hour = goal.usd_per_gpu_hour  # of all its GPUs; processes on a CPU share one machine
    if usd_per_hour is not None and adopted.device_key != "cpu":
        usd_per_hour *= goal.gpus or adopted.gpus
    if goal.budget_usd is not None and not usd_per_hour:
        raise AdvisorError("a budget needs a price", "--price DOLLARS_PER_GPU_HOUR", exit_code=2)
    limit = tightest(goal.deadline_seconds, goal.budget_usd, usd_per_hour)
    # Rows and tokens of one step of all processes; None if neither the probe nor a knob states them.
    shape, tokens = base.shape, tokens_of(base)
    rows = rows_of_all(base) if shape is not None else None
    steps, why = _steps(adopted, goal, chosen.step_seconds, fixed, limit, rows, tokens)
    total = sum_shared(fixed, chosen.step_seconds.scaled(steps))
    if limit is not None and total.value > limit:
        by_budget = goal.budget_usd is not None and goal.deadline_seconds is None
        most = format_usd(goal.budget_usd) if by_budget else format_seconds(limit)
        hint = "fewer steps, or leave them open: the limit alone says how many"
        raise AdvisorError(f"it takes {format_estimate(total, format_seconds)}, more than {most}", hint, exit_code=3)
    length: tuple[Setting, ...] = ()  # the setting that makes the command do this many steps
    if adopted.works("steps"):
        length = (Setting(name="steps", value=steps),)
    elif adopted.works("tokens") and tokens:
        length = (Setting(name="tokens", value=round(steps * tokens)),)
    split = shape  # what one process receives
    if shape is not None:
        each = shape.tokens and shape.tokens * base.processes / chosen.batch.processes
        split = replace(shape, rows=chosen.batch.rows, calls=round(chosen.batch.calls), tokens=each)
    # The command as it is ends after these steps if they are its own and no burst contradicted.
    contradicted = {verdict.name for verdict in adopted.verdicts if verdict.verdict in (DEAD, CAPPED)}
    own = replace(goal, usd_per_gpu_hour=None, gpus=None, memory_bytes=None) == AdoptedGoal()
    ends = bool(length) or (own and not contradicted & {"steps", "tokens", "epochs"})
    # if only its lines count its steps, each step must print one
    lines = (Setting(name="log_every", value=1.0),) if adopted.by_log and not base.step_printed else ()
    drift = drift_of(adopted.bursts)
    return AdoptedPlan(
        id=plan_id, created=created, trainer=adopted.name, command=adopted.command, folder=adopted.folder,
        environment=adopted.environment, resume_args=adopted.recipe.resume_args,
        values=(*chosen.settings, *length, *lines), device_key=adopted.device_key, gpus=round(chosen.batch.processes),
        shape=split, steps=steps, steps_are_set=bool(length), rows_per_step=rows, tokens_per_step=tokens,
        startup_seconds=startup, step_seconds=chosen.step_seconds, ending_seconds=ending, total_seconds=total,
        usd_per_hour=usd_per_hour, cost_usd=total.scaled(usd_per_hour / HOUR) if usd_per_hour is not None else None,
        memory_bytes=chosen.memory_bytes, memory_kind=memory_kind(adopted.bursts), max_seconds=goal.deadline_seconds,
        max_usd=goal.budget_usd, reasons=(why, _why_this_batch(adopted, options, chosen)),
        warnings=tuple(_warnings(adopted, chosen, ending, ends, limit)),
        software=f"torch {adopted.torch}" if adopted.torch else None, basis=LOG if adopted.by_log else PROBE,
        reference_seconds=drift.reference_seconds, drift_exponent=drift.exponent,
    )  # fmt: skip


def _choose(options: Sequence[Option], goal: AdoptedGoal) -> Option:
    """Chooses by our rule for micro-batches; raises AdvisorError if none fits the memory."""
    room = goal.memory_bytes
    fitting = [o for o in options if room is None or o.memory_bytes is None or o.memory_bytes.high <= room]
    if not fitting:
        hint = "a smaller batch, or a shorter sequence, in the command itself"
        raise AdvisorError("no split of its batch fits the memory", hint, exit_code=3)
    enough = min(o.step_seconds.value for o in fitting) / ENOUGH
    best = min((o for o in fitting if o.step_seconds.value <= enough), key=lambda o: o.batch.rows)
    own = options[0]
    # keep the user's own choice unless another is clearly better
    return own if own in fitting and best.step_seconds.high >= own.step_seconds.value else best


def _steps(
    adopted: Adopted,
    goal: AdoptedGoal,
    step: Estimate,
    fixed: Estimate,
    limit: float | None,
    rows: float | None,
    tokens: float | None,
) -> tuple[int, str]:
    """Returns the number of steps and the reason for it."""
    if goal.steps is not None:
        return goal.steps, f"{goal.steps:,} steps were asked for"
    if goal.tokens is not None or goal.rows is not None:
        return _steps_of_data(goal, rows, tokens)
    if goal.epochs is not None:
        return _steps_of_epochs(adopted, goal.epochs, "were asked for")
    if limit is not None:
        steps = math.floor((limit - fixed.high) / step.high)
        if steps < 1:
            least = format_seconds(fixed.high + step.high)
            hint = f"start, one step and the end take up to {least}"
            raise AdvisorError(f"not one step ends within {format_seconds(limit)}", hint, exit_code=3)
        return steps, f"as many steps as surely end within {format_seconds(limit)}"
    knob = adopted.recipe.knob("steps")
    if knob is not None and knob.value and knob.value > 0:
        return int(knob.value), f"{knob.key} {knob.value:g} is what the command says"
    in_tokens, in_epochs = adopted.recipe.knob("tokens"), adopted.recipe.knob("epochs")
    if in_tokens is not None and in_tokens.value and tokens:
        steps = math.floor(in_tokens.value / tokens)
        return steps, f"{in_tokens.key} {in_tokens.value:g}, as the command says, are {steps:,} steps of {tokens:,.0f}"
    if in_epochs is not None and in_epochs.value and in_epochs.value > 0 and adopted.bursts[0].step_epochs:
        return _steps_of_epochs(adopted, in_epochs.value, f"are what {in_epochs.key} says")
    hint = "--deadline 3h, --budget with --price, --steps, --epochs, --tokens or --samples"
    raise AdvisorError("how long is it to train?", hint, exit_code=2)


def _steps_of_data(goal: AdoptedGoal, rows: float | None, tokens: float | None) -> tuple[int, str]:
    """Returns the steps for the given tokens or samples, times the epochs."""
    if goal.tokens is not None:
        each, what, asked = tokens, "tokens", goal.tokens
        if each is None:
            raise AdvisorError("this program has no tokens that could be counted", "--steps or --samples", exit_code=2)
    else:
        each, what, asked = rows, "samples", goal.rows or 0
        if each is None:
            hint = "--steps, or name the option: --knob micro_batch=--OPTION"
            raise AdvisorError("nothing says how many samples a step has", hint, exit_code=2)
    times = goal.epochs if goal.epochs is not None else 1.0
    steps = math.ceil(asked * times / each)
    often = f"{goal.epochs:g} epochs of " if goal.epochs is not None else ""
    return steps, f"{often}{asked:,} {what} are {steps:,} steps of {each:,.0f}"


def _steps_of_epochs(adopted: Adopted, epochs: float, why: str) -> tuple[int, str]:
    """Returns the steps for the given epochs of the command's own data."""
    each = adopted.bursts[0].step_epochs
    if each is None:
        hint = "say what an epoch holds: --epochs 3 --samples 60000, or --tokens"
        raise AdvisorError("its log does not say how many steps an epoch of its data has", hint, exit_code=2)
    in_one = round(1 / each) if each < 1 else 1 / each  # whole, because it is printed with only four digits
    steps = math.ceil(epochs * in_one)
    return steps, f"{epochs:g} epochs {why}: by its log one has {in_one:,g} steps, so that they are {steps:,}"


def _once_more(seen: Sequence[float | None]) -> Estimate | None:
    """Returns the expected duration of something that took these seconds before; None if it was never seen."""
    if not (seconds := [each for each in seen if each is not None]):
        return None
    value = statistics.median(seconds)
    spread = max(_ONCE_MORE, math.exp(Z80 * statistics.pstdev([math.log(s) for s in seconds]))) if value > 0 else 1.0
    return Estimate(value=value, low=value / spread, high=value * spread, basis=Basis.MEASURED)


def _why_this_batch(adopted: Adopted, options: Sequence[Option], chosen: Option) -> str:
    own = batch_of(adopted.bursts[0])
    if own is not None and chosen.batch.processes != own.processes:
        alone = time_of(adopted).estimate(own)
        before, after = (format_estimate(seconds, format_seconds) for seconds in (alone, chosen.step_seconds))
        each = f"{chosen.batch.calls:g} x {chosen.batch.rows:g} rows"
        return (
            f"{chosen.batch.processes:g} processes as asked, each {each}: the same global batch in {after} a step, "
            f"{before} with {own.processes:g}"
        )
    if len(options) == 1:
        words = [v.words for v in adopted.verdicts if v.name in ("micro_batch", "grad_accum") and v.verdict != "works"]
        return f"batch unchanged: {words[0] if words else 'no option sets micro-batch and gradient accumulation'}"
    if not chosen.settings:
        return f"its own micro-batch stays: none of {len(options)} splits of its global batch is surely faster"
    faster = 1 - chosen.step_seconds.value / options[0].step_seconds.value
    return f"a micro-batch of {chosen.batch.rows:g} takes {faster:.0%} off a step at the same global batch"


def _other_work(adopted: Adopted, chosen: Option) -> Iterator[str]:
    """Yields a warning if equal steps took so different times that something else must have used the machine."""
    steps: dict[Batch | None, list[float]] = {}
    for burst in adopted.bursts:
        if burst.measured and burst.source != WHOLE_RUN:
            steps.setdefault(batch_of(burst), []).extend(burst.step_seconds)
    shortest, longest = max(
        (tuple(np.quantile(seconds, (0.1, 0.9))) for seconds in steps.values()), key=lambda ends: ends[1] / ends[0]
    )
    estimate = chosen.step_seconds
    if longest > _BUSY * shortest:
        seen = f"steps of one batch took {format_seconds(float(shortest))} to {format_seconds(float(longest))}"
    elif estimate.basis is Basis.MEASURED and estimate.high > _BUSY * estimate.value:
        seen = "the times of its batches contradict each other"
    else:
        return
    yield (
        f"something else used the machine while it was measured: {seen}, and the interval is as wide as that leaves "
        "it. Look with top, and adopt it again when the machine is quiet"
    )


def _warnings(
    adopted: Adopted, chosen: Option, ending: Estimate | None, steps_knob: bool, limit: float | None
) -> list[str]:
    said = list(_other_work(adopted, chosen))
    said += [f"{v.name}: {v.words}" for v in adopted.verdicts if v.verdict not in ("works", "untested")]
    many = chosen.batch.processes
    if many not in {burst.processes for burst in adopted.bursts if burst.measured}:
        said.append(f"{many:g} processes were never measured: the interval is as wide as that leaves it")
    if not steps_knob:
        said.append(
            "nothing sets its number of steps: it is ended by SIGTERM when its time is up, and its learning rate may "
            "not have decayed"
        )
    if adopted.by_log:
        said.append(
            "the probe cannot be loaded: times and steps are those of its own log, what a step holds is what its "
            "options say, and the intervals are wider"
        )
    if ending is None:
        said.append("the save at the end was not measured, and its time is not included")
    if limit is not None:
        early = ending.high if ending is not None else 0.0
        said.append(
            f"at {format_seconds(limit - early)} it is asked to end, and killed {format_seconds(grace_seconds(early))} "
            "later: only a step or a save longer than any before can pass its limit, by at most "
            f"{format_seconds(grace_seconds(early) - early)}"
        )
    said.append("the time includes evaluations and checkpoints only as far as the bursts met them")
    return said
