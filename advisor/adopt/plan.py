"""Turns an adopted command and a limit into a run to start: micro-batch, steps, time, cost, memory. Pure.

The run keeps the command's own global batch, split over rows, calls and processes. A program may count rows and
accumulation per process, share accumulation among processes, or derive its micro-batches from a global batch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.adopt.fit import Batch, Fitted, batch_of, drift_of, fit_memory, memory_kind, seen_memory, time_of
from advisor.adopt.guard import grace_seconds
from advisor.adopt.self_test import CAPPED, DEAD, UNTESTED, WORKS, rows_of_all, tokens_of
from advisor.errors import AdvisorError
from advisor.laws.intervals import Z80, chance_below
from advisor.offer import OWN_MACHINE, Offer
from advisor.options import AdoptedGoal
from advisor.planning.costs import rent_usd
from advisor.planning.goal import Limits
from advisor.planning.infeasible import memory_with_chance
from advisor.prediction.intervals import sum_shared
from advisor.prediction.micro_batch import choose_row
from advisor.records import Basis, Bill, Estimate, WallClock
from advisor.store.adopted import LOG, PROBE, WHOLE_RUN, Adopted, AdoptedBurst, AdoptedPlan, Setting, tightest
from advisor.units import format_bytes, format_estimate, format_seconds, format_usd

_FARTHEST = 2.0  # times the measured rows; nothing beyond is planned
_ONCE_MORE = 1.15  # by which start-up and end differ between runs; arbitrary, imports come from a cache or a disk
_BUSY = 1.5  # times; the reference kernel of a run counts as slow from there on, too (findings/detectors/machine.py)
_LENGTHS = frozenset(("steps", "tokens", "epochs"))  # knobs that end a run


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way to split the global batch."""

    batch: Batch
    settings: tuple[Setting, ...]
    step_seconds: Estimate
    memory_bytes: Estimate | None


def batch_options(adopted: Adopted, gpus: int | None = None) -> list[Option]:
    """Returns every split of the command's global batch that its knobs can set and that is near the measured batches.

    `gpus` processes train together (None: the command's own number). The first split is the command's own, or the
    nearest to it. Raises AdvisorError if this number of processes cannot have that batch.
    """
    memory_seen, kind = seen_memory(adopted.bursts), memory_kind(adopted.bursts)
    memory = fit_memory(memory_seen) if memory_seen else None
    many = float(adopted.bursts[0].processes if gpus is None else gpus)
    time, base = time_of(adopted, many), batch_of(adopted.bursts[0])
    assert base is not None  # a batch with times was seen
    if many != base.processes:
        # Another number of processes needs a knob for it that no test contradicted.
        if (knob := adopted.recipe.knob("gpus")) is None:
            hint = "start it by torchrun --nproc-per-node 1 …, or name its own option: --knob gpus=--OPTION"
            raise AdvisorError(f"no known option starts it with {many:g} processes", hint, exit_code=2)
        lies = (v for v in adopted.verdicts if v.name == "gpus" and v.verdict not in (WORKS, UNTESTED))
        if (lie := next(lies, None)) is not None:
            raise AdvisorError(f"{knob.key} does not do what it says: {lie.words}", "leave --gpus out", exit_code=3)
    splits = list(_splits(adopted, base, time, many))
    if many != base.processes:
        splits.sort(key=lambda batch: abs(math.log(batch.rows / base.rows)))
    if not splits:
        raise AdvisorError(
            f"its batch of {base.rows * base.calls * base.processes:g} rows cannot stay with {many:g} processes: "
            "no working option sets the rows of each",
            "name the option: --knob micro_batch=--OPTION or grad_accum=--OPTION, and adopt it again",
            exit_code=3,
        )
    each = many if kind == "resident" else 1.0  # processes share the memory of the host, and have a GPU each
    return [
        Option(batch=batch, settings=_settings(adopted, base, batch), step_seconds=time.estimate(batch),
               memory_bytes=memory.estimate(batch).scaled(each) if memory else None)
        for batch in splits
    ]  # fmt: skip


def _splits(adopted: Adopted, base: Batch, time: Fitted, many: float) -> Iterator[Batch]:
    """Yields the batches of each of so many processes that make up the command's own global batch."""
    together, own = round(base.rows * base.calls * base.processes), many == base.processes
    # A program without a knob for accumulation may keep its global batch: then bursts that set only the micro-batch had
    # as many rows per step.
    alone = [rows_of_all(burst) for burst in _setting_only(adopted, "micro_batch") if burst.shape]
    first = adopted.bursts[0]
    follows = adopted.recipe.knob("grad_accum") is None and first.shape is not None and {*alone} == {rows_of_all(first)}
    sets_calls = adopted.working("grad_accum") is not None or follows
    if own:
        yield base
    most, least = max(b.rows for b in time.seen) * _FARTHEST, min(b.rows for b in time.seen) / _FARTHEST
    least *= _FARTHEST if own else 1.0
    sets_rows = adopted.working("micro_batch") is not None
    for rows in map(float, range(1, together + 1)) if sets_rows else (base.rows,):
        batch = replace(base, rows=rows, calls=together / (rows * many), processes=many)
        near = batch != base and least <= rows <= most and batch.calls.is_integer()
        can_be = near and (sets_calls or batch.calls == base.calls)
        if can_be and all(float(setting.value).is_integer() for setting in _settings(adopted, base, batch)):
            yield batch


def _settings(adopted: Adopted, base: Batch, batch: Batch) -> tuple[Setting, ...]:
    """Returns the settings for a batch, with the number of processes first."""
    found = []
    micro, accum, first = adopted.working("micro_batch"), adopted.working("grad_accum"), adopted.bursts[0]
    if batch.processes != base.processes:
        found.append(Setting(name="gpus", value=batch.processes))
    if batch.rows != base.rows:
        assert micro is not None and micro.value  # the knob sets the rows
        found.append(Setting(name="micro_batch", value=micro.value * batch.rows / base.rows))
    if accum is not None and accum.value:
        # Bursts with other numbers of processes tell whether these share accumulation, as in nanoGPT.
        calls = {b.shape.calls * b.processes for b in _setting_only(adopted, "gpus") if b.shape is not None}
        shared = first.shape is not None and calls == {first.shape.calls * first.processes}
        value = accum.value * batch.calls * (batch.processes / base.processes if shared else 1.0) / base.calls
        if value != accum.value:
            found.append(Setting(name="grad_accum", value=value))
    return tuple(found)


def _setting_only(adopted: Adopted, name: str) -> list[AdoptedBurst]:
    """Returns the bursts that set only this knob."""
    return [burst for burst in adopted.bursts if [setting.name for setting in burst.values] == [name]]


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
    many, on_cpu = round(chosen.batch.processes), adopted.device_key == "cpu"
    usd = 0.0 if goal.usd_per_gpu_hour is None and on_cpu else goal.usd_per_gpu_hour
    if usd is not None and not on_cpu:  # processes on a CPU share one machine
        usd *= many
    if goal.budget_usd is not None and not usd:
        raise AdvisorError("a budget needs a price", "state it: --price 2.50", exit_code=2)
    source = "given" if usd else OWN_MACHINE if on_cpu else "no price was given"
    offer = Offer(gpu=adopted.device_key, gpus=many, provider=None, spot=False, usd_per_hour=usd, source=source)
    limit = tightest(goal.deadline_seconds, goal.budget_usd, usd)
    # Rows and tokens of one step of all processes; None if neither the probe nor a knob states them.
    shape, tokens = base.shape, tokens_of(base)
    rows = rows_of_all(base) if shape is not None else None
    steps, why = _steps(adopted, goal, chosen.step_seconds, fixed, limit, rows, tokens)
    stepping = chosen.step_seconds.scaled(steps)
    total = sum_shared(fixed, stepping)
    bill = Bill(wall_clock=WallClock(startup_seconds=startup, steps_seconds=stepping, checkpoints_seconds=ending,
                                     total_seconds=total), cost_usd=rent_usd(total, offer))  # fmt: skip
    limits = Limits(deadline_seconds=goal.deadline_seconds, budget_usd=goal.budget_usd)
    late, dear = limits.broken(total, bill.cost_usd)
    if late or dear:
        most = format_seconds(goal.deadline_seconds) if late else format_usd(goal.budget_usd)
        hint = "fewer steps, or leave them open: the limit alone says how many"
        raise AdvisorError(f"it takes {format_estimate(total, format_seconds)}, more than {most}", hint, exit_code=3)
    length: tuple[Setting, ...] = ()  # the setting that makes the command do this many steps
    if adopted.works("steps"):
        length = (Setting(name="steps", value=steps),)
    elif adopted.works("tokens") and tokens:
        length = (Setting(name="tokens", value=round(steps * tokens)),)
    if shape is not None:  # what one process receives
        each = shape.tokens and shape.tokens * base.processes / chosen.batch.processes
        shape = replace(shape, rows=chosen.batch.rows, calls=round(chosen.batch.calls), tokens=each)
    # The command as it is ends after these steps if they are its own and no burst contradicted.
    contradicted = {verdict.name for verdict in adopted.verdicts if verdict.verdict in (DEAD, CAPPED)}
    own = replace(goal, usd_per_gpu_hour=None, gpus=None, memory_bytes=None) == AdoptedGoal()
    ends = bool(length) or (own and not contradicted & _LENGTHS)
    # if only its lines count its steps, each step must print one
    lines = (Setting(name="log_every", value=1.0),) if adopted.by_log and not base.step_printed else ()
    drift = drift_of(adopted.bursts)
    return AdoptedPlan(
        id=plan_id, created=created, trainer=adopted.name, command=adopted.command, folder=adopted.folder,
        resume_args=adopted.recipe.resume_args, values=(*chosen.settings, *length, *lines), offer=offer, shape=shape,
        steps=steps, steps_are_set=bool(length), rows_per_step=rows, tokens_per_step=tokens, bill=bill,
        step_seconds=chosen.step_seconds, memory_bytes=chosen.memory_bytes, memory_kind=memory_kind(adopted.bursts),
        max_seconds=goal.deadline_seconds, max_usd=goal.budget_usd, basis=LOG if adopted.by_log else PROBE,
        reasons=(why, _why_this_batch(adopted, options, chosen)),
        warnings=(*_too_full(chosen, goal), *_warnings(adopted, chosen, ending, ends, limit)),
        reference_seconds=drift.reference_seconds, drift_exponent=drift.exponent,
    )  # fmt: skip


def _choose(options: Sequence[Option], goal: AdoptedGoal) -> Option:
    """Chooses by our rule for micro-batches; raises AdvisorError if none fits the memory."""
    room = math.inf if goal.memory_bytes is None else goal.memory_bytes
    needs = [o.memory_bytes for o in options]
    fits = [one is None or one.high <= room for one in needs]
    if not any(fits):  # the likeliest to fit, if that is at least as likely as not
        least = min((one for one in needs if one is not None), key=lambda one: one.high)
        fits = [one == least and least.value <= room for one in needs]
    rates = np.array([1 / o.step_seconds.value for o in options])  # every split has the same global batch
    sizes = np.unique([o.batch.rows for o in options], return_inverse=True)[1]
    if (row := choose_row(rates, sizes, np.array(fits))) is None:
        hint = "a smaller batch, or a shorter sequence, in the command itself"
        message = f"needs about {format_estimate(least, format_bytes)} of the {format_bytes(room)} that there are"
        raise AdvisorError(f"no split of its batch fits in memory: the smallest {message}", hint, exit_code=3)
    best, own = options[row], options[0]
    # keep the user's own choice unless another is clearly better
    return own if fits[0] and best.step_seconds.high >= own.step_seconds.value else best


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
        # The given data, times the epochs.
        what, requested, each = ("tokens", goal.tokens, tokens) if goal.tokens else ("samples", goal.rows or 0, rows)
        if each is None and goal.tokens:
            raise AdvisorError("the tokens of this program cannot be counted", "--steps or --samples", exit_code=2)
        if each is None:
            hint = "--steps, or name the option: --knob micro_batch=--OPTION"
            raise AdvisorError("nothing says how many samples a step has", hint, exit_code=2)
        steps = math.ceil(requested * (1.0 if goal.epochs is None else goal.epochs) / each)
        often = f"{goal.epochs:g} epochs of " if goal.epochs is not None else ""
        return steps, f"{often}{requested:,} {what} are {steps:,} steps of {each:,.0f}"
    if goal.epochs is not None:
        return _steps_of_epochs(adopted, goal.epochs, "were asked for")
    if limit is not None:
        steps = math.floor((limit - fixed.high) / step.high)
        if steps < 1:
            least = format_seconds(fixed.high + step.high)
            hint = f"start, one step and the end take up to {least}"
            raise AdvisorError(f"no step ends within {format_seconds(limit)}", hint, exit_code=3)
        return steps, f"as many steps as surely end within {format_seconds(limit)}"
    # What the command itself says.
    given = {knob.name: (knob.key, knob.value) for knob in adopted.recipe.knobs if knob.value and knob.value > 0}
    if "steps" in given:
        key, value = given["steps"]
        return int(value), f"{key} {value:g} is what the command says"
    if "tokens" in given and tokens:
        key, value = given["tokens"]
        steps = math.floor(value / tokens)
        return steps, f"{key} {value:g}, as the command says, are {steps:,} steps of {tokens:,.0f}"
    if "epochs" in given and adopted.bursts[0].step_epochs:
        key, value = given["epochs"]
        return _steps_of_epochs(adopted, value, f"are what {key} says")
    hint = "--deadline 3h, --budget with --price, --steps, --epochs, --tokens or --samples"
    raise AdvisorError("nothing says how long to train", hint, exit_code=2)


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
    own, batch = batch_of(adopted.bursts[0]), chosen.batch
    if own is not None and batch.processes != own.processes:
        alone = time_of(adopted).estimate(own)
        before, after = (format_estimate(seconds, format_seconds) for seconds in (alone, chosen.step_seconds))
        return (
            f"{batch.processes:g} processes as asked, each {batch.calls:g} x {batch.rows:g} rows: the same global "
            f"batch in {after} a step, {before} with {own.processes:g}"
        )
    if len(options) == 1:
        return f"batch unchanged: {_why_no_split(adopted, batch)}"
    if not chosen.settings:
        ways = f"{len(options)} ways to split its global batch"
        return f"the command's own micro-batch stays: of {ways} none is clearly faster"
    faster = 1 - chosen.step_seconds.value / options[0].step_seconds.value
    return f"a micro-batch of {batch.rows:g} takes {faster:.0%} off a step at the same global batch"


def _why_no_split(adopted: Adopted, batch: Batch) -> str:
    """Returns why its global batch is split in no other way."""
    names = {"micro_batch": "micro-batch", "grad_accum": "gradient accumulation"}
    if doubtful := [v.words for v in adopted.verdicts if v.name in names and v.verdict != WORKS]:
        return doubtful[0]
    if missing := [words for name, words in names.items() if adopted.recipe.knob(name) is None]:
        return f"no option sets {' and '.join(missing)}"
    rows = batch.rows * batch.calls * batch.processes
    return f"no other micro-batch divides its {rows:g} rows a step and is near a measured one"


def _too_full(chosen: Option, goal: AdoptedGoal) -> Iterator[str]:
    needs, room = chosen.memory_bytes, goal.memory_bytes
    if needs is not None and room is not None and needs.high > room:
        chance = chance_below(room, needs.value, needs.low, needs.high)
        less = "a smaller batch or a shorter sequence in the command needs less"
        yield f"{memory_with_chance(needs, room, chance)}; {less}"


def _warnings(
    adopted: Adopted, chosen: Option, ending: Estimate | None, steps_are_set: bool, limit: float | None
) -> Iterator[str]:
    # Equal steps that took so different times: something else must have used the machine.
    steps: dict[Batch | None, list[float]] = {}
    for burst in adopted.bursts:
        if burst.measured and burst.source != WHOLE_RUN:
            steps.setdefault(batch_of(burst), []).extend(burst.step_seconds)
    ends = (tuple(map(float, np.quantile(seconds, (0.1, 0.9)))) for seconds in steps.values())
    shortest, longest = max(ends, key=lambda pair: pair[1] / pair[0])
    estimate, busy = chosen.step_seconds, ""
    if longest > _BUSY * shortest:
        busy = f"equal steps took {format_seconds(shortest)} to {format_seconds(longest)}"
    elif estimate.basis is Basis.MEASURED and estimate.high > _BUSY * estimate.value:
        busy = "the times of its batches contradict each other"
    if busy:
        yield (
            f"something else used the machine during the measurement: {busy}, hence the wide interval. Find it with "
            "`top`, and adopt again when the machine is quiet"
        )
    yield from (f"{v.name}: {v.words}" for v in adopted.verdicts if v.verdict not in (WORKS, UNTESTED))
    many = chosen.batch.processes
    if many not in {burst.processes for burst in adopted.bursts if burst.measured}:
        yield f"{many:g} processes were never measured, hence the wide interval"
    if not steps_are_set:
        wrong = (v.name for v in adopted.verdicts if v.verdict in (DEAD, CAPPED) and v.name in _LENGTHS)
        key = next((knob.key for name in wrong for knob in adopted.recipe.knobs if knob.name == name), None)
        why = f"{key} did not end a burst as it should" if key else "nothing sets its number of steps"
        yield (f"{why}: it is ended by SIGTERM when its time is up, and its learning rate may not have decayed")
    if adopted.by_log:
        yield (
            "the probe cannot be loaded: times and steps are those of its own log, what a step holds is what its "
            "options say, and the intervals are wider"
        )
    if ending is None:
        yield "the save at the end was not measured, and its time is not included"
    if limit is not None:
        early = ending.high if ending is not None else 0.0
        yield (
            f"at {format_seconds(limit - early)} it is asked to end, and killed {format_seconds(grace_seconds(early))} "
            "later: only a step or a save longer than any before can pass its limit, by at most "
            f"{format_seconds(grace_seconds(early) - early)}"
        )
    yield "the time includes only the evaluations and checkpoints that the test runs had"
