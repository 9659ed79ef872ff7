"""Time that is not training: waiting for data, recurring pauses, and epochs that took many times as long as others."""

from __future__ import annotations

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Verdict, finding, lacking, seen
from advisor.findings.curves import Curve, curve, main_rows
from advisor.findings.detectors.machine import quiet_times
from advisor.findings.durations import main_part, spent_seconds
from advisor.findings.run_facts import planned_steps, positive, steps_done
from advisor.findings.run_metrics import FROM_CLOCK, Pauses, pauses, step_times, waits
from advisor.findings.savings import GO_ON, priced, saved_share
from advisor.readers.clock import BAR
from advisor.readers.run_table import RunTable, Status
from advisor.records import Basis, Estimate
from advisor.units import HOUR, format_percent, format_seconds

_DATA_SHARE = 0.05  # data_time / step (sources §7.5)
_DEAR_SHARE, _BAD_SHARE = 0.15, 0.5  # loaders of images usually take a tenth of the time

_SIZES, _LARGER_BATCH = ("step_samples", "memory_bytes", "reserved_bytes"), 1.1  # times that of the steps before

_PAUSE_COST = 0.01  # of the time; less is not worth reporting
_DEAR_PAUSE = 0.05
_DEAR_BY_CHOICE = 0.20  # evaluations and checkpoints are intended (and frequent pauses are either of them)
_GC_SECONDS = (0.05, 2.0)  # a full collection of Python's garbage stops a step for about half a second (sources §7.3)

_FEWEST = 4  # epochs; with fewer, nothing is usual
_TIMES = 3.0  # the median epoch
_LEAST_SECONDS = 600.0  # lost in total; less is not worth reporting
_SHARE = 0.1  # of the time
_FIRST = 1  # epochs at the start, in which caches fill and kernels are compiled


def detect_data_stall(case: Case) -> Verdict:
    """Waiting for data, as timed by the log."""
    times = run_metrics.step_times(case)
    waited = waits(case, times) if times is not None else None
    if waited is None:
        return lacking("data_stall", "step times" if times is None else "data_seconds per step")
    if waited.share <= _DATA_SHARE:
        return None
    beside = ", beside the seconds of the step, which leave it out" if waited.beside else ""
    return finding(
        "data_stall",
        severity="error" if waited.share > _BAD_SHARE else "warning" if waited.share > _DEAR_SHARE else "note",
        title=f"{format_percent(waited.share)} of the time is spent waiting for data",
        evidence=f"data_seconds: mean {format_seconds(waited.mean)} per step, "
        f"95th percentile {format_seconds(waited.high)}{beside}",
        saved=saved_share(case, waited.share),
    )


def detect_lasting_slowdown(case: Case) -> Verdict:
    """Steps that became slower once and stayed so, although the batch did not grow."""
    times = quiet_times(case)  # slowdowns by other work on the machine are another finding
    if times is None:
        return lacking("slower_for_good", "step times")
    slow = run_metrics.lasting_slowdown(times)
    if slow is None:
        return None
    # later steps may hold more tokens or samples, or more memory, than those before
    tokens = curve(case.run, "tokens")
    step_tokens = np.diff(tokens.value) / np.maximum(np.diff(tokens.step), 1e-9)
    for size in (Curve(step=tokens.step[1:], value=step_tokens), *(curve(case.run, name) for name in _SIZES)):
        sooner, later = (series.median(size.value[side]) for side in (size.step < slow.step, size.step > slow.step))
        if later > _LARGER_BATCH * sooner:
            return None
    done, planned = steps_done(case.run) or slow.step, planned_steps(case) or 0.0
    left = max(0.0, planned - done) if case.run.status in GO_ON else 0.0
    lost = (slow.excess_seconds + left * (slow.after_seconds - slow.before_seconds)) / HOUR
    cost = priced(case, Estimate(value=lost, low=0.8 * lost, high=1.2 * lost, basis=Basis.MEASURED))
    longer = format_seconds.printed(slow.after_seconds) / format_seconds.printed(slow.before_seconds)
    waited = case.run.column("data_seconds")[times.row]
    before, after = (series.median(waited[side]) for side in (times.step < slow.step, times.step >= slow.step))
    known = np.isfinite(before + after)
    waiting = f"waiting for data {format_seconds(before)} before, {format_seconds(after)} after" if known else ""
    return finding(
        "slower_for_good",
        severity="warning" if slow.excess_seconds > _DEAR_PAUSE * (spent_seconds(case) or 0.0) else "note",
        title=f"Steps take {format_seconds(slow.after_seconds)} instead of {format_seconds(slow.before_seconds)} since "
        f"step {slow.step:,g}",
        evidence=(seen(f"steps take {longer:.3g} times as long, up to the end of the log", slow.step), waiting),
        saved=cost,
    )


def detect_periodic_pauses(case: Case) -> Verdict:
    """Slow steps that recur, matched to evaluations, checkpoints and garbage collection."""
    times, spent = quiet_times(case), spent_seconds(case)  # slowdowns by other work on the machine are another finding
    if times is None or times.source == FROM_CLOCK or not spent:
        return lacking("periodic_pauses", "step times printed by the run itself")
    slow = pauses(times)
    if slow is None or slow.period is None or (share := float(slow.excess_seconds.sum()) / spent) < _PAUSE_COST:
        return None
    cause, actions = _pause_cause(case, slow, slow.period.every)
    asked_for = cause.startswith(("evaluation", "checkpoint", "cause unknown"))
    regular = f"{len(slow.step)} pauses, {format_percent(slow.period.regular)} of the gaps regular"
    return finding(
        "periodic_pauses",
        severity="warning" if share > (_DEAR_BY_CHOICE if asked_for else _DEAR_PAUSE) else "note",
        title=f"Every {slow.period.every:g} steps one takes {format_seconds(series.median(slow.excess_seconds))} "
        f"longer: {format_percent(share)} of the time ({cause})",
        evidence=seen(regular, slow.step[0], slow.step[-1]),
        confidence="high" if cause != "cause unknown" else "medium",
        causes=cause,
        actions=actions,
        # nobody saves all of it: half as often saves half
        saved=saved_share(case, share / 2, share / 4, share),
    )


def _pause_cause(case: Case, slow: Pauses, every: float) -> tuple[str, tuple[str, ...]]:
    """Return what happens at these steps: by the log's own evaluations and checkpoints, its settings, or the length."""
    near = max(1.0, 0.02 * min(every, float(np.median(np.diff(slow.step)))))

    def comes_with(steps: np.ndarray, setting: str) -> bool:
        """Return True if most pauses are next to one of these steps, or occur as often as is configured."""
        declared, others = positive(case.run.facts, setting), np.sort(steps[np.isfinite(steps)])
        if len(others):
            place = np.clip(np.searchsorted(others, slow.step), 1, max(1, len(others) - 1))
            beside = [others[np.minimum(place, len(others) - 1)], others[place - 1]]
            gap = np.minimum(*(np.abs(other - slow.step) for other in beside))
            if float((gap <= near).mean()) >= 0.6:
                return True
        return declared is not None and abs(declared / every - 1) < 0.02

    by_eval = comes_with(evaluations(case.run), "eval_every_steps")
    by_save = comes_with(saves(case.run), "checkpoint_every_steps")
    if by_eval and by_save:
        return "evaluation and checkpoint", (f"evaluate and save every {2 * every:g} steps, on fewer tokens",)
    if by_eval:
        fewer = "evaluate on fewer tokens, without generating samples"
        return "evaluation", (f"evaluate every {2 * every:g} steps", fewer)
    if by_save:
        return "checkpoint", (f"save every {2 * every:g} steps", "write checkpoints asynchronously")
    if _GC_SECONDS[0] <= float(np.median(slow.excess_seconds)) <= _GC_SECONDS[1]:
        freeze = "gc.freeze() and gc.disable() after start-up, gc.collect() rarely"
        return "perhaps Python's garbage collection", (freeze,)
    return "cause unknown", ("log evaluations and checkpoints with their seconds",)


def evaluations(run: RunTable) -> np.ndarray:
    """Return the steps at which the run evaluated."""
    return run.column("step")[np.isfinite(run.column("eval_loss")) | np.isfinite(run.column("eval_seconds"))]


def saves(run: RunTable) -> np.ndarray:
    """Return the steps at which the run wrote checkpoints."""
    events = [event.step for event in run.events if event.kind == "checkpoint" and event.step is not None]
    return np.array([*events, *run.column("step")[np.isfinite(run.column("checkpoint_seconds"))]])


def detect_long_epochs(case: Case) -> Verdict:
    """Epochs that took many times as long as their neighbours, or a last epoch that never ended."""
    epochs = _epoch_seconds(case)
    if len(epochs) < _FEWEST:
        return lacking("long_epochs", f"the seconds of {_FEWEST} epochs")
    usual, done = series.median(epochs.value), float(epochs.value.sum())
    long = (epochs.value > _TIMES * usual) & (np.arange(len(epochs)) >= _FIRST)
    excess = np.where(long, epochs.value - usual, 0.0)
    # for a run that did not end well: what a progress bar counted after the last whole epoch
    part, hung = main_part(case.run), 0.0
    if part is not None and part.clock == BAR and part.clock_seconds and case.run.status is not Status.COMPLETED:
        # the bar does not say whether it covers the last epoch or the whole run, so the smaller reading counts
        beyond = part.clock_seconds - usual - (done if part.clock_seconds >= done else 0.0)
        hung = beyond if beyond > (_TIMES - 1) * usual else 0.0
    lost = float(excess.sum()) + hung
    whole = max(done + hung, spent_seconds(case) or 0.0)
    if lost < _LEAST_SECONDS or lost < _SHARE * whole:
        return None
    worst = int(np.argmax(excess))
    if hung > excess[worst]:
        said = f"A progress bar counts {format_seconds(hung)} more after epoch {epochs.step[-1]:g}"
    else:
        said = f"Epoch {epochs.step[worst]:g} took {format_seconds(float(epochs.value[worst]))}"
    shown = [f"epoch {epochs.step[i]:g}: {format_seconds(float(epochs.value[i]))}" for i in np.flatnonzero(long)[:5]]
    return finding(
        "long_epochs",
        severity="note" if hung > excess.sum() else "warning",
        title=f"{said}, where most take {format_seconds(usual)}: {format_seconds(lost)} lost in all",
        evidence=(*shown, f"the lost time is {format_percent(lost / whole)} of {whole / HOUR:.3g} hours"),
        confidence="high" if len(epochs) >= 2 * _FEWEST else "medium",
        saved=saved_share(case, lost / whole, 0.5 * lost / whole, lost / whole),
    )


def _epoch_seconds(case: Case) -> Curve:
    """Return the seconds of each epoch at its number: as printed, or by time stamps if each row is an epoch."""
    rows = main_rows(case.run)
    epoch, seconds = case.run.column("epoch")[rows], case.run.column("epoch_seconds")[rows]
    times = step_times(case)
    one_each = np.isfinite(epoch).all() and len(np.unique(epoch)) == len(epoch)
    if not np.isfinite(seconds).any() and one_each and times is not None and times.source == FROM_CLOCK:
        passed = np.diff(curve(case.run, "step").step, prepend=np.nan)  # such times are per step
        seconds = np.full(len(rows), np.nan)
        seconds[np.searchsorted(rows, times.row)] = times.seconds
        seconds *= passed if len(passed) == len(rows) else np.nan
    good = np.isfinite(seconds) & (seconds > 0)
    number = np.where(np.isfinite(epoch), epoch, np.arange(1.0, len(rows) + 1))
    return Curve(step=number[good], value=seconds[good])
