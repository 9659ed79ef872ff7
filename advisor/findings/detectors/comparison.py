"""Logs that hold more than one run, and steps that were not run."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import curve, main_rows, row_noise
from advisor.findings.run_facts import COMPLETE_SHARE, number, planned_steps, print_gap, steps_done
from advisor.findings.savings import file_seconds, spent_seconds
from advisor.findings.spend import cost_of_steps
from advisor.readers.run_table import RunTable, Status
from advisor.units import format_centre, format_seconds, format_usd

_SAME_TOKENS = 0.05  # relative change of tokens per step that is no rounding
_RATE_JUMP = 3.0  # times from one row to the next: no schedule does that after its warm-up
_NOISES = 6.0  # standard deviations of a row: another run's level
# the finding of how the run ended says that steps are missing, and why
_SAID = (Status.OUT_OF_MEMORY, Status.TIME_LIMIT, Status.DIVERGED, Status.CRASHED, Status.KILLED)
_STARTED_SECONDS = 1800.0  # a start takes less
_OTHER_LEVEL = 0.15  # of all that was learnt by then


def detect_merged_runs(case: Case) -> Verdict:
    """One curve that is of two runs: tokens per step that shrink, a rate and a loss that jump in the middle of it.

    Runs whose steps begin anew are told apart by their reader (`several_runs`).
    """
    run = case.run
    if not len(main_rows(run)):
        return Insufficient(code="merged_runs", missing="rows with steps")
    signs = [*_step_tokens_change(run), *_jump_of_rate_and_loss(run)]
    if not signs:
        return None
    return Finding(
        code="merged_runs",
        # a batch may change by schedule, a rate start again: only both are another run
        severity=Severity.WARNING if len(signs) > 1 else Severity.NOTE,
        title=f"The log {'holds' if len(signs) > 1 else 'may hold'} more than one run: {signs[0].text}",
        evidence=tuple(signs),
        confidence=Confidence.HIGH if len(signs) > 1 else Confidence.MEDIUM,
        causes=("logs of several runs appended to one file", "a run resumed with another configuration"),
        actions=("analyse each run on its own; one curve over all of them means nothing",),
        threshold="tokens per step down by 5 %, or up with a jump; rate × 3 with another level of the loss",
    )


def _step_tokens_change(run: RunTable) -> list[Evidence]:
    """A lasting change of tokens per step that is neither a restart nor a batch-size ramp."""
    rows = main_rows(run)
    tokens, step = run.column("tokens")[rows], run.column("step")[rows]
    good = np.isfinite(tokens) & np.isfinite(step)
    step, gained = step[good], np.diff(tokens[good])
    passed = np.diff(step)
    if len(passed) < 20 or (passed <= 0).any():
        return []
    ratio = gained / passed
    first, last = float(np.median(ratio[: len(ratio) // 4])), float(np.median(ratio[-len(ratio) // 4 :]))
    levels = np.unique(np.round(ratio / max(first, 1e-9), 2))
    if first <= 0 or abs(last / first - 1) <= _SAME_TOKENS or len(levels) > 3:  # many levels: a ramp
        return []
    if last > first and not _jump_of_rate_and_loss(run):
        return []  # a batch or a sequence that grows is a schedule's
    place = int(np.argmax(np.abs(ratio / first - 1) > _SAME_TOKENS))
    text = f"tokens per step change from {first:,.6g} to {last:,.6g} at step {step[place]:g}"
    return [Evidence(text=text, first_step=float(step[place]))]


def _jump_of_rate_and_loss(run: RunTable) -> list[Evidence]:
    """Rows where the learning rate jumps as no schedule does and the loss changes level with it."""
    rates, losses = curve(run, "learning_rate"), curve(run, "loss")
    if len(rates) < 40 or len(losses) < 40:
        return []
    positive = rates.value > 0
    step, value = rates.step[positive], rates.value[positive]
    change = np.abs(np.diff(np.log(value)))
    jumps = []
    noise = row_noise(losses.value)
    places = [int(i) for i in np.flatnonzero(change > np.log(_RATE_JUMP)) if 20 <= i < len(value) - 20]
    for before, after in pairwise([*places, len(value) - 1]):
        if after - before < 5 or value[before + 1] < value[before]:
            continue  # schedules drop the rate, and the loss falls with it
        at = float(step[before + 1])
        left = losses.value[losses.step < at][-10:]
        right = losses.value[losses.step >= at][:10]
        if len(left) and len(right) and _another_level(losses.value, left, right, noise):
            text = (
                f"learning rate {value[before]:.3g} → {value[before + 1]:.3g} and loss {np.median(left):.4g} → "
                f"{np.median(right):.4g} at step {at:g}"
            )
            jumps.append(Evidence(text=text, first_step=at))
    return jumps


def _another_level(values: np.ndarray, left: np.ndarray, right: np.ndarray, noise: float) -> bool:
    """Whether the loss changes by more than noise and than a rate that starts again by schedule does to it."""
    change, learnt = abs(float(np.median(right) - np.median(left))), abs(float(values[0] - np.median(left)))
    return change > max(_NOISES * noise, _OTHER_LEVEL * learnt, 1e-9)


def detect_steps_missing(case: Case) -> Verdict:
    """Steps declared against steps done: a run that ended early, or went on too long."""
    if case.run.status is Status.RUNNING or case.run.status in _SAID:
        return None
    planned, done = planned_steps(case), steps_done(case.run)
    if planned and done is None and case.run.status is Status.INCOMPLETE and not len(case.run):
        return _never_began(case, planned)
    if planned is None or done is None:
        return _epochs_missing(case) or Insufficient(
            code="steps_missing", missing="the number of steps planned, and steps in the log"
        )
    if done > planned * (2 - COMPLETE_SHARE) + 1:
        return _too_many(done, planned)
    last_gap = print_gap(case.run)
    if done + last_gap >= COMPLETE_SHARE * planned:
        return None
    intended = case.run.status in (Status.STOPPED, Status.COMPLETED)
    if intended and any(event.kind == "early_stop" for event in case.run.events):
        return None  # nothing is missing: the plan was a limit
    # how it ended is said by its status; that a log ends is no fault of the run: it may have been copied while it went
    over = case.run.status is Status.COMPLETED  # by its own word: nothing is to come
    hours, usd = (None, None) if over else cost_of_steps(case, planned - done)
    rest = f"; the rest takes about {format_centre(hours.scaled(3600), format_seconds)}" if hours else ""
    money = f" and {format_centre(usd, format_usd)}" if usd else ""
    return Finding(
        code="steps_missing",
        severity=Severity.NOTE,
        title=f"The log ends at step {done:,.0f} of {planned:,.0f} ({done / planned:.1%}){rest}{money}",
        evidence=(
            Evidence(text=f"status {case.run.status.value}: {case.run.status_reason or 'no word in the log'}",
                     last_step=done),
        ),
        confidence=Confidence.HIGH,
        causes=("a limit of its own ended the run (time, tokens, loss)",)
        if intended
        else ("the run was ended from outside or crashed", "the log was copied while the run went on"),
        actions=("do not compare this loss with that of complete runs: the learning rate has not decayed",
                 "resume from the last checkpoint"),
        threshold=f"under {COMPLETE_SHARE:.1%} of the declared steps",
    )  # fmt: skip


def _epochs_missing(case: Case) -> Finding | None:
    """The same by epochs, where the log counts no steps."""
    planned, epochs = number(case.run.facts, "planned_epochs"), curve(case.run, "epoch").value
    if planned is None or not len(epochs) or case.run.status is Status.COMPLETED:
        return None
    whole = bool(np.all(epochs == np.round(epochs)))
    done = float(epochs.max()) + (1 if whole and epochs.min() == 0 else 0)
    if done >= planned * COMPLETE_SHARE - (1 if whole else 0):
        return None
    return Finding(
        code="steps_missing",
        severity=Severity.NOTE,
        title=f"The log ends at epoch {done:.3g} of {planned:g} ({done / planned:.1%})",
        evidence=(Evidence(text=f"status {case.run.status.value}: {case.run.status_reason or 'no word in the log'}"),),
        confidence=Confidence.MEDIUM,
        causes=("the run was ended from outside or crashed", "the log was copied while the run went on"),
        actions=("do not compare this loss with that of complete runs",),
        threshold=f"under {COMPLETE_SHARE:.1%} of the declared epochs",
    )


def _never_began(case: Case, planned: float) -> Finding:
    ran = spent_seconds(case) or file_seconds(case) or 0.0
    went_on = ran > _STARTED_SECONDS  # then its steps are only not printed
    return Finding(
        code="steps_missing",
        severity=Severity.NOTE if went_on else Severity.WARNING,
        title=f"The log prints none of {planned:,.0f} steps, although it goes on for {format_seconds(ran)}"
        if went_on
        else f"The log ends before the first of {planned:,.0f} steps",
        evidence=(Evidence(text="settings, but neither a step nor an error"),),
        confidence=Confidence.MEDIUM,
        causes=(
            "the run was still starting when the log was copied, or was killed without a word",
            "its steps are printed elsewhere",
        ),
        actions=("look whether the process lives and what it waits for (data, compilation, other ranks): py-spy dump",),
        threshold="steps planned, none printed",
    )


def _too_many(done: float, planned: float) -> Finding:
    return Finding(
        code="steps_missing",
        severity=Severity.NOTE,
        title=f"The log goes to step {done:,.0f}, beyond the {planned:,.0f} declared",
        evidence=(Evidence(text=f"{done / planned:.2f}× the declared steps", last_step=done),),
        confidence=Confidence.MEDIUM,
        causes=("steps counted in micro-batches and declared in optimizer steps", "a configuration of another run"),
        actions=("check what a step is in this log before trusting rates per step",),
        threshold="more steps than declared",
    )
