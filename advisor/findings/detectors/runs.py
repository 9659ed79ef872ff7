"""Logs of several runs: how many, what went wrong in runs other than the longest, and identical runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from advisor.findings.case import Case, Finding, Severity, Verdict, finding, lacking, seen, texts
from advisor.findings.curves import curve, row_noise
from advisor.findings.detectors.held_out import detect_overfitting
from advisor.findings.detectors.learning_rate import detect_learning_rate_zero
from advisor.findings.detectors.loss import detect_loss_divergence, detect_loss_not_finite
from advisor.findings.detectors.nothing_learnt import detect_frozen, detect_no_learning
from advisor.findings.durations import file_seconds, spent_seconds
from advisor.findings.run_facts import (
    COMPLETE_SHARE,
    has_level,
    nats_per_unit,
    number,
    planned_steps,
    print_gap,
    restarts,
    steps_done,
    vocabulary,
)
from advisor.findings.savings import cost_of_steps
from advisor.laws.initial_loss import FAULT_BELOW, uniform_loss
from advisor.readers.run_table import Phase, RunTable, Status
from advisor.units import format_centre, format_number, format_percent, format_seconds, format_usd

_FEWEST_ROWS = 3
_FAILED = (Status.CRASHED, Status.OUT_OF_MEMORY, Status.KILLED, Status.TIME_LIMIT, Status.DIVERGED)

_MANY_STARTS = 3
_SAME_ROWS = 5  # losses equal to the last printed digit: neither chance nor another setting
_SAME_SHARE = 0.8
_COPIED, _COPIED_STEPS = 1.8, 10  # records of each step, in so many steps
_NOISES = 6.0  # standard deviations of a row: the level of another run
# the finding about the end of the run says that steps are missing, and why
_SAID = (Status.OUT_OF_MEMORY, Status.TIME_LIMIT, Status.DIVERGED, Status.CRASHED, Status.KILLED)
_STARTED_SECONDS = 1800.0  # a start takes less time
_FEWEST = 5  # rows before and after a restart
_LOST = 0.5  # of all progress so far
# the detectors for each run but the longest: they only need its loss
_ASKED: tuple[Callable[[Case], Verdict], ...] = (
    *(detect_loss_not_finite, detect_loss_divergence, detect_learning_rate_zero, detect_no_learning, detect_frozen),
    detect_overfitting,
)


def _parts(run: RunTable) -> list[tuple[int, Phase]]:
    """Return the phases with enough rows to be called a run, with their numbers."""
    return [(n, p) for n, p in enumerate(run.phases) if p.last_row - p.first_row + 1 >= _FEWEST_ROWS]


def detect_several_runs(case: Case) -> Verdict:
    """More than one run or stage in a log: which one was judged, and what the others did."""
    parts = _parts(case.run)
    if not len(case.run):
        return lacking("several_runs", "rows with a training loss")
    if len(parts) < 2:
        return None
    main, rows = _called(case.run, case.run.main_phase), []
    for at, phase in parts[:20]:
        known = _losses(case.run, phase)
        losses = f", loss {format_number(known[0])} → {format_number(known[-1])}" if len(known) else ""
        rows.append(f"{_called(case.run, at)}: {phase.last_row - phase.first_row + 1} rows{losses}")
    return finding(
        "several_runs",
        title=f"The log holds {len(parts)} runs or stages; judged is the longest, “{main}”",
        evidence=rows,
    )


def _called(run: RunTable, number: int) -> str:
    """Return the name of a phase in the table of runs."""
    return next((part.name for part in run.runs if part.phase == number), run.phases[number].name)


def detect_failed_runs(case: Case) -> Verdict:
    """A log of several runs or starts, of which many failed or ended before their first step."""
    parts = list(case.run.runs)
    # the last of them may be starting while the log is read
    over = [part for part in parts if part is not parts[-1] or part.status in _FAILED]
    never = [part for part in over if part.phase is None and part.status is not Status.COMPLETED]
    failed = [part for part in parts if part.phase is not None and part.status in _FAILED]
    count = len(never) + len(failed)
    if len(parts) < _MANY_STARTS or count < 2:
        return None if case.run.runs else lacking("failed_runs", "several runs in one log")
    ended = "failed" if failed else "ended before their first step"
    early = f", {len(never)} of them before their first step" if failed and never else ""
    bad = count >= _MANY_STARTS and len(failed) > len(parts) / 2
    worst_first = sorted((*failed, *never), key=lambda part: part.status not in _FAILED)
    return finding(
        "failed_runs",
        severity="error" if bad else "warning" if count >= _MANY_STARTS else "note",
        title=f"{count} of {len(parts)} runs in this log {ended}{early}",
        evidence=[f"{part.name}: {part.status_reason}" for part in worst_first[:10]],
    )


def detect_other_runs(case: Case) -> Verdict:
    """Problems in runs of a log other than the one that is judged in full."""
    parts = [(n, phase) for n, phase in _parts(case.run) if n != case.run.main_phase]
    if not parts:
        return None if len(case.run) else lacking("other_runs", "rows with a training loss")
    wrong: list[tuple[str, Finding]] = []
    facts = {name: value for name, value in case.run.facts.items() if name != "eval_losses"}  # of the main run
    for at, _ in parts:
        alone = dataclasses.replace(case, run=dataclasses.replace(case.run, main_phase=at, facts=facts))
        found = [v for ask in _ASKED if isinstance(v := ask(alone), Finding) and v.severity is Severity.ERROR]
        wrong += [(_called(case.run, at), found[0])] if found else []
    if not wrong:
        return None
    first = wrong[0][1]
    return finding(
        "other_runs",
        title=f"{len(wrong)} of the log's {len(parts)} other runs went wrong: “{wrong[0][0]}”: {first.title}",
        evidence=[f"{name}: {finding.title}" for name, finding in wrong[:10]],
        causes=first.causes,
        actions=first.actions,
        confidence=first.confidence,
    )


def detect_same_results(case: Case) -> Verdict:
    """Runs whose losses agree to the last digit, so that what was varied between them had no effect."""
    parts = [
        (_called(case.run, at), values)
        for at, phase in _parts(case.run)
        if len(values := _losses(case.run, phase)) >= _SAME_ROWS
    ]
    if len(parts) < 2:
        return lacking("same_results", "two runs in one log") if not len(case.run) else None
    alike: list[tuple[np.ndarray, list[str]]] = []  # losses with the names of the runs that have them
    for name, values in parts:
        for first, names in alike:
            both = min(len(first), len(values))
            if both >= _SAME_SHARE * max(len(first), len(values)) and np.array_equal(first[:both], values[:both]):
                names.append(name)
                break
        else:
            alike.append((values, [name]))
    groups = [names for _, names in alike if len(names) > 1]
    if not groups:
        return None
    twice = sum(map(len, groups))
    return finding(
        "same_results",
        title=f"{twice} of {len(parts)} runs that trained have the losses of another one to the last digit",
        evidence=[", ".join(names) for names in groups],
    )


def detect_copies(case: Case) -> Verdict:
    """Several processes that print each step into one log, each with a loss of its own; or one run printed again."""
    event = next((event for event in case.run.events if event.kind == "copies"), None)
    if event is not None:
        count = event.numbers["count"]
        title = f"{count:g} processes print each step, each with a loss of its own: ranks of one run, or copies"
        return finding("copies_of_one_run", title=title, evidence=event.text)
    run = case.run
    if not len(run):
        return lacking("copies_of_one_run", "rows with a training loss")
    # records of a step, of which the table has one
    trained = [np.isfinite(run.column("loss_is_nan")[phase.rows]) for phase in run.phases]
    steps = [run.column("step")[phase.rows][rows] for phase, rows in zip(run.phases, trained, strict=True)]
    distinct = sum(len(np.unique(of_phase)) for of_phase in steps)
    # bars are drawn several times at each step, mostly in one line
    of_bars = run.lines is not None and len(np.unique(run.lines)) < len(run)
    if not run.counts_steps or distinct < _COPIED_STEPS or run.rows < _COPIED * distinct or of_bars:
        return None
    why = "copies of one run, or ranks that all print"
    if run.duplicates:
        why = f"{run.duplicates:,} records repeat others to the last digit"
    return finding(
        "copies_of_one_run",
        title=f"Each step is in the log {run.rows / distinct:.2g} times: {why}",
        evidence=f"the log has {run.rows:,} records of {distinct:,} steps",
    )


def _losses(run: RunTable, phase: Phase) -> np.ndarray:
    loss = run.column("loss")[phase.rows]
    return loss[np.isfinite(loss)]


def detect_steps_missing(case: Case) -> Verdict:
    """Fewer or more steps than declared: a run that ended early, or went on too long."""
    status, planned, done = case.run.status, planned_steps(case), steps_done(case.run)
    if status is Status.RUNNING or status in _SAID:
        return None
    ended = f"status {status.words}: {case.run.status_reason or 'no word in the log'}"
    if planned and done is None and status is Status.INCOMPLETE and not len(case.run):
        ran = spent_seconds(case) or file_seconds(case) or 0.0
        went_on = ran > _STARTED_SECONDS  # in this case its steps are only not printed
        none = f"The log prints none of {planned:,.0f} steps, although it goes on for {format_seconds(ran)}"
        return finding(
            "steps_missing",
            text="steps_never_began",
            severity="note" if went_on else "warning",
            title=none if went_on else f"The log ends before the first of {planned:,.0f} steps",
            evidence="settings, but neither a step nor an error",
        )
    if done is None and number(case.run.facts, "planned_steps") == 0:
        return finding("steps_missing", text="no_steps_planned", evidence="0 optimization steps in all")
    if planned is None or done is None:
        missing = lacking("steps_missing", "the number of steps planned, and steps in the log")
        return _epochs_missing(case, ended) or missing
    if done > planned * (2 - COMPLETE_SHARE) + 1:
        return finding(
            "steps_missing",
            text="steps_beyond_planned",
            title=f"The log goes to step {done:,.0f}, beyond the {planned:,.0f} declared",
            evidence=seen(f"the log has {done / planned:.2f}× the declared steps", last=done),
        )
    intended = status in (Status.STOPPED, Status.COMPLETED)
    early = intended and any(event.kind == "early_stop" for event in case.run.events)  # the plan was only a limit
    if early or done + print_gap(case.run) >= COMPLETE_SHARE * planned:
        return None
    # Its status says how the run ended. An incomplete log is no fault of the run, because it may have been copied while
    # the run went on. A run that says that it is over has nothing left to do.
    hours, usd = (None, None) if status is Status.COMPLETED else cost_of_steps(case, planned - done, to_come=True)
    rest = f"; the rest takes about {format_centre(hours.scaled(3600), format_seconds)}" if hours else ""
    money = f" and {format_centre(usd, format_usd)}" if usd else ""
    limited = ("you, or a limit on time, tokens or loss, ended the run",)
    cut = () if intended else texts()["epochs_missing"]["actions"][:1]
    return finding(
        "steps_missing",
        title=f"The log ends after {done:,.0f} of {planned:,.0f} steps ({format_percent(done / planned)}){rest}{money}",
        evidence=seen(ended, last=done),
        causes=limited if intended else texts()["epochs_missing"]["causes"],
        actions=(*cut, *texts()["steps_missing"]["actions"]),
    )


def _epochs_missing(case: Case, ended: str) -> Finding | None:
    """Return the same finding by epochs, if the log counts no steps."""
    planned, epochs = number(case.run.facts, "planned_epochs"), curve(case.run, "epoch").value
    if planned is None or not len(epochs) or case.run.status is Status.COMPLETED:
        return None
    whole = bool(np.all(epochs == np.round(epochs)))
    from_zero = whole and epochs.min() == 0
    done = float(epochs.max()) + from_zero
    counted = ", counted from 0" if from_zero else f" ({format_percent(done / planned)})"
    title = f"The log ends in epoch {epochs.max():.3g} of {planned:g}{counted}"
    if done >= planned * COMPLETE_SHARE - (1 if whole else 0):
        return None
    return finding("steps_missing", text="epochs_missing", title=title, evidence=ended)


def detect_resume_lost(case: Case) -> Verdict:
    """A resumed run whose loss is not where it had been: its weights were not loaded, or other weights were loaded."""
    losses, again = curve(case.run, "loss"), restarts(case.run)
    if not len(losses) or not has_level(case, losses):
        return lacking("resume_lost", "a training loss, none of a policy")
    step, vocab, unit = number(case.run.facts, "resumed_from_step"), vocabulary(case), nats_per_unit(case.run)
    resumed = [event.numbers.get("first_step") for event in again] + ([step + 1] if step else [])
    found = []  # the levels before and after each restart that lost most of the progress
    for at in resumed:
        if at is not None and losses.counted:
            left, right = losses.value[losses.step < at][-_FEWEST:], losses.value[losses.step >= at][:_FEWEST]
            if len(left) == _FEWEST and len(right):
                before, after = float(np.median(left)), float(np.median(right))
                learnt = float(losses.value[0]) - before
                lost = after - before > max(_LOST * learnt, _NOISES * row_noise(losses.value), 0.0)
                found += [(after - before, at, after, f"loss {after:.4g} after the restart, {before:.4g} before")]
                found = found if lost and learnt > 0 else found[:-1]
    if not found:
        if not step or vocab is None or unit is None:
            return None if again else lacking("resume_lost", "a restart, with losses before and after it")
        since = losses.value[losses.step > step] if losses.counted else losses.value
        if not len(since) or losses.step[-len(since)] > step + 2 * _FEWEST:
            return None  # no row since the restart
        first = float(since[0])
        if first * unit < uniform_loss(vocab) - FAULT_BELOW:
            return None
        found = [(0.0, step, first, f"first loss {first:.4g}; knowing nothing gives ln {vocab:,}")]
    _, at, after, text = max(found, key=lambda jump: jump[0])
    return finding(
        "resume_lost",
        title=f"The loss is {after:.4g} after the restart at step {at:g}: what had been learnt is not there",
        evidence=seen(text, at),
    )
