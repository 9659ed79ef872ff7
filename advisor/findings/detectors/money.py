"""What is paid for and not used: time outside the steps, idle devices, work done twice, too few or many checkpoints."""

from __future__ import annotations

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Verdict, finding, lacking, seen, texts
from advisor.findings.curves import curve
from advisor.findings.durations import WALL_CLOCKS, durations, seconds_in_steps, spent_seconds, steps_covered
from advisor.findings.run_facts import number, planned_steps, price, restarts, steps_done
from advisor.findings.run_metrics import seconds_beside
from advisor.findings.savings import mean_step_seconds, priced, saved_share
from advisor.prediction.wallclock import BETWEEN_FAILURES, daly_interval_seconds, state_bytes
from advisor.records import Basis, Estimate
from advisor.units import HOUR, format_bytes, format_percent, format_seconds, format_usd

_GOODPUT = 0.90  # of the wall clock in steps: a well run training reaches this (sources §6.3)

_BETWEEN_STEPS = (
    ("eval_seconds", "evaluation", "evaluate less often or on fewer tokens"),
    ("checkpoint_seconds", "checkpoint", "checkpoint less often, or write in the background"),
)
_PART_OF_REST = 0.2  # of the time outside the steps: less than this does not explain it
_BAD_GOODPUT = 0.80  # start-up and evaluations of short runs take a tenth or more
_LEAST_WALL_SECONDS = 60.0  # a run that starts and stops within a minute is a test
_IDLE_SHARE = 0.05
_IDLE_DEAR = 0.25  # of the observed time: before and after a job, readings are naturally idle
_HELD_BYTES = 1e9  # more than a driver's context
_TWICE, _TWICE_LEAST = 0.01, 0.001  # of the steps: a warning, a note

_WRITE_BYTES_PER_SECOND = 6e8  # if none was measured (predict/profile.py: 0.2 to 2 GB/s)

_MOST_OF_RUN = 0.5  # with a longer time between checkpoints, the run has only its last one
_FACTOR = 3.0  # off Daly's interval in either direction, because the optimum is flat
_OVERHEAD = 0.02  # of the run spent writing; less is not worth reporting
_LEAST_WRITING_SECONDS = 30.0  # that fewer checkpoints save in the whole run; less is not worth reporting either


def detect_cost(case: Case) -> Verdict:
    """Data that are missing to compute dollars."""
    if price(case) is None and not run_metrics.on_cpu(case):
        why = case.notes.get("price") or "or the name of a GPU in the price lists"
        return lacking("cost", f"the price per hour (--price, {why})")
    if spent_seconds(case) is None:
        return lacking("cost", "step times or time stamps, to tell hours and dollars")
    return None


def detect_goodput(case: Case) -> Verdict:
    """A low share of the wall clock in steps: the rest is start-up, evaluations, checkpoints and waiting."""
    times, covered = run_metrics.step_times(case), steps_covered(case)
    if times is None or times.source == run_metrics.FROM_CLOCK or covered is None or not case.run.counts_steps:
        return lacking("goodput", "step times beside the wall clock")
    wall = next((clock.seconds for clock in durations(case) if clock.basis in WALL_CLOCKS), None)
    if wall is None:
        return lacking("goodput", "the wall clock: time stamps, elapsed or total seconds")
    waited = seconds_beside(case) * covered  # steps and their waiting for data are training, however slow
    working = seconds_in_steps(case, times, covered)
    share = working / wall
    if share >= _GOODPUT or len(times.steady_seconds) < 20 or wall < _LEAST_WALL_SECONDS:
        return None
    cost = f"{said} so far" if (said := _dollars(case, wall - working)) else ""
    parts, causes, actions, rest = [], [], [], wall - working
    for name, words, fewer in _BETWEEN_STEPS:
        seconds = series.finite(case.run.column(name))
        counted = f"{len(seconds)} {words}{'s' if len(seconds) > 1 else ''}"
        parts += [f"{counted} took {format_seconds(float(seconds.sum()))}"] if len(seconds) else []
        # what the log times, and is little, is not why
        if not len(seconds) or seconds.sum() > _PART_OF_REST * rest:
            causes.append(f"{words}s")
            actions.append(fewer if len(seconds) else f"log {name}")
    causes += texts()["goodput"]["causes"]
    steps = f"{covered:g} steps of {format_seconds(working / covered)} (mean) are {format_seconds(working)}"
    return finding(
        "goodput",
        causes=causes,
        actions=actions or texts()["goodput"]["actions"],
        severity="warning" if share < _BAD_GOODPUT else "note",
        title=f"{format_percent(1 - share)} of the wall clock is not training: {format_seconds(wall - working)}{cost}",
        evidence=(f"{steps} of {format_seconds(wall)}{', waiting for data included' if waited else ''}", *parts),
        saved=saved_share(case, _GOODPUT - share, 0.0, 1 - share),
    )


def _dollars(case: Case, seconds: float) -> str:
    usd = price(case)
    return f", {format_usd(seconds / HOUR * usd)}" if usd else ""


def detect_idle_device(case: Case) -> Verdict:
    """Stretches of minutes in which nothing ran on a GPU that was being paid for."""
    if run_metrics.on_cpu(case):
        return None
    busy, clock = run_metrics.telemetry(case, "utilization"), run_metrics.telemetry(case, "unix_seconds")
    if not len(busy) or len(clock) != len(busy):
        return lacking("idle_device", "GPU telemetry: utilisation with time stamps")
    watched, stretches = float(np.nanmax(clock) - np.nanmin(clock)), run_metrics.idle_stretches(case)
    # when no GPU had work; a GPU without work beside working GPUs is another finding
    numbers = run_metrics.telemetry(case, "gpu")
    count = max(1, len(np.unique(series.finite(numbers)))) if len(numbers) == len(clock) else 1
    idle, without_work, since = 0.0, 0, 0.0
    for moment, change in sorted((float(clock[rows[i]]), by) for rows in stretches for i, by in ((0, 1), (-1, -1))):
        idle += moment - since if without_work == count else 0.0
        without_work, since = without_work + change, moment
    if watched <= 0 or idle / watched < _IDLE_SHARE:
        return None
    used, rows = run_metrics.telemetry(case, "memory_used_bytes"), np.concatenate(stretches)
    held = series.median(used[rows]) if len(used) > rows.max() else 0.0
    waits = f"{format_bytes(held)} stay allocated meanwhile: a process waits (a server, a hung rank)"
    return finding(
        "idle_device",
        severity="warning" if idle / watched > _IDLE_DEAR else "note",
        title=f"Nothing ran on the GPU for {format_seconds(idle)}{_dollars(case, idle)}: "
        f"{format_percent(idle / watched)} of the time watched",
        evidence=(
            f"utilisation at most 2 % for {format_seconds(run_metrics.IDLE_SECONDS)} or longer",
            waits if held > _HELD_BYTES else "",
        ),
        saved=saved_share(case, idle / watched),
    )


def detect_work_done_twice(case: Case) -> Verdict:
    """Steps that a restart threw away and repeated."""
    if not len(case.run):
        return lacking("work_done_twice", "steps, to see which were done again")
    again = restarts(case.run)
    # steps between the point where a restart resumed and the point that the attempt before had reached
    ends = [(event.numbers.get("first_step"), event.numbers.get("last_step")) for event in again]
    lost = sum(max(0.0, last - first + 1) for first, last in ends if first is not None and last is not None)
    mean, covered = mean_step_seconds(case), steps_covered(case)
    if not again or not covered or lost <= max(len(again), _TWICE_LEAST * covered):
        return None  # a step that the restart only prints again does not count
    took = f" ({format_seconds(lost * mean.value)}{_dollars(case, lost * mean.value)})" if mean else ""
    return finding(
        "work_done_twice",
        severity="warning" if lost >= _TWICE * covered else "note",
        title=f"{lost:g} steps were done twice in {len(again)} restart{'s' if len(again) > 1 else ''}{took}",
        evidence=[seen(event.text, event.step) for event in again[:5]],
        saved=saved_share(case, lost / (covered + lost)),
    )


def _between_checkpoints(case: Case) -> tuple[float | None, float | None, bool]:
    """Return seconds of work between two checkpoints, seconds to write one, and whether the log times the writing."""
    events, step_pace = [e for e in case.run.events if e.kind == "checkpoint"], mean_step_seconds(case)
    written, every = curve(case.run, "checkpoint_seconds"), number(case.run.facts, "checkpoint_every_steps")
    # the step of a checkpoint: of the row that times it, as its line says, or else the last step before that line
    said = sorted({step for e in events if (step := e.numbers.get("step", e.step)) is not None})
    steps = list(written.step) if len(written) or not said else said
    gap = float(np.median(np.diff(steps))) if len(steps) > 1 else max(0.0, every or 0.0)  # some say "never" as -1
    interval = (gap * step_pace.value or None) if gap and step_pace else None  # zero time means that it is unknown
    seconds = [e.numbers["seconds"] for e in events if e.numbers.get("seconds")] or list(written.value)
    if seconds:
        write = float(np.median(seconds))
        return interval, write if write > 0 else None, True  # at 0 s the clock stood still
    sizes, size = [e.numbers["bytes"] for e in events if e.numbers.get("bytes")], None
    if sizes:
        size = float(np.median(sizes))
    elif case.workload is not None:
        size = state_bytes(case.workload.shape, case.workload.optimizer)
    elif (count := number(case.run.facts, "parameters")) is not None:
        size = 12 * count  # fp32 weights and both moments
    return interval, size / _WRITE_BYTES_PER_SECOND if size else None, False


def _expected_loss(run_seconds: float, interval_seconds: float) -> Estimate:
    """Return the hours of work lost to interruptions: (run / M) interruptions that lose half an interval each."""

    def hours(mean: float) -> float:
        return min(run_seconds / mean, 50.0) * min(interval_seconds, run_seconds) / 2 / 3600

    return Estimate(
        value=hours(BETWEEN_FAILURES.value),
        low=hours(BETWEEN_FAILURES.high),
        high=hours(BETWEEN_FAILURES.low),
        basis=Basis.PRIOR,
    )


def detect_checkpoint_interval(case: Case) -> Verdict:
    """Checkpoints much rarer or more frequent than Daly's interval, with the cost of the difference."""
    (interval, write, timed), pace = _between_checkpoints(case), mean_step_seconds(case)
    seconds = pace.value * (planned_steps(case) or steps_done(case.run) or 0.0) if pace else 0.0
    if interval is None or write is None or pace is None or seconds <= 0:
        return lacking("checkpoint_interval", "steps of two checkpoints and seconds per step")
    best = float(daly_interval_seconds(write, BETWEEN_FAILURES.value))
    overhead = write / interval
    # many ranks may write at once, so an estimated time of writing does not show that it costs much
    writing = (overhead - write / best) * seconds
    often = timed and interval < best / _FACTOR and overhead > _OVERHEAD and writing > _LEAST_WRITING_SECONDS
    lost, least = _expected_loss(seconds, interval), _expected_loss(seconds, best)
    rare = interval > best * _FACTOR and lost.value - least.value > 0.02 * seconds / 3600
    if not often and not rare:
        return None
    measured = Estimate(value=writing, low=0.8 * writing, high=1.2 * writing, basis=Basis.MEASURED).scaled(1 / HOUR)
    word = "too frequent" if often else "too rare"
    return finding(
        "checkpoints_too_frequent" if often else "checkpoints_too_rare",
        text="checkpoint_interval",
        severity="warning" if often else "note",  # possible losses are a choice, but writing is paid for
        title=f"Checkpoints every {format_seconds(interval)} are {word}: Daly's interval is {format_seconds(best)}",
        evidence=(
            f"writing takes {format_seconds(write)}, {format_percent(overhead)} of the time",
            f"an interruption loses {format_seconds(interval / 2)} on average",
        ),
        actions=f"checkpoint every {min(best, _MOST_OF_RUN * seconds) / pace.value:,.0f} steps",
        saved=priced(case, measured if often else lost.scaled(1 - least.value / lost.value)),
    )
