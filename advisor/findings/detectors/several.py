"""Logs of several runs: how many, what went wrong in those beside the longest, and runs that are one run twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.detectors.dead import detect_frozen
from advisor.findings.detectors.learning_rate import detect_learning_rate_zero
from advisor.findings.detectors.loss import detect_loss_divergence, detect_loss_not_finite
from advisor.findings.detectors.stagnation import detect_no_learning
from advisor.findings.run_facts import restarts
from advisor.findings.savings import main_part
from advisor.readers.run_table import Phase, RunTable, Status

_FEWEST_ROWS = 3
_FAILED = (Status.CRASHED, Status.OUT_OF_MEMORY, Status.KILLED, Status.TIME_LIMIT, Status.DIVERGED)
_MANY_STARTS = 3
_SAME_ROWS = 5  # losses equal to the last digit printed: no chance, and no other setting
_SAME_SHARE = 0.8
# what each run beside the longest is asked: its loss alone answers
_ASKED: tuple[Callable[[Case], Verdict], ...] = (
    *(detect_loss_not_finite, detect_loss_divergence, detect_learning_rate_zero, detect_no_learning, detect_frozen),
)


def _parts(run: RunTable) -> list[tuple[int, Phase]]:
    """The phases that hold enough rows to be called a run, with their numbers."""
    return [(n, p) for n, p in enumerate(run.phases) if p.last_row - p.first_row + 1 >= _FEWEST_ROWS]


def detect_several_runs(case: Case) -> Verdict:
    """More than one run or stage in a log: which was judged, and what the others did."""
    parts = _parts(case.run)
    if not len(case.run):
        return Insufficient(code="several_runs", missing="rows with a training loss")
    if len(parts) < 2:
        return None
    main = _called(case.run, case.run.main_phase)
    return Finding(
        code="several_runs",
        severity=Severity.NOTE,
        title=f"The log holds {len(parts)} runs or stages; judged is the longest, “{main}”",
        evidence=tuple(Evidence(text=_outline(case.run, number, phase)) for number, phase in parts[:20]),
        confidence=Confidence.HIGH,
        causes=("logs appended to one file, a sweep, stages of one script, or starts after a failure",),
        actions=("compare them with each other (advisor compare) rather than as one curve",),
        threshold="steps, epochs or clocks that begin anew",
    )


def _called(run: RunTable, number: int) -> str:
    """The name of a phase in the table of runs."""
    return next((part.name for part in run.runs if part.phase == number), run.phases[number].name)


def _outline(run: RunTable, number: int, phase: Phase) -> str:
    loss = run.column("loss")[phase.first_row : phase.last_row + 1]
    known = loss[np.isfinite(loss)]
    losses = f", loss {known[0]:.4g} → {known[-1]:.4g}" if len(known) else ""
    return f"{_called(run, number)}: {phase.last_row - phase.first_row + 1} rows{losses}"


def detect_restarts(case: Case) -> Verdict:
    """A run that was started again and again: how often, and why each start ended."""
    run = case.run
    main = main_part(run)
    printed = sum(event.kind == "restart" for event in run.events)
    twice = printed - len(restarts(run))
    starts = max(len(run.attempts), main.starts - twice if main is not None else 1, 1 + printed - twice)
    if not len(run) and not run.events:
        return Insufficient(code="many_restarts", missing="rows with steps, or what the program printed")
    if starts < _MANY_STARTS:
        return None
    ends = [f"start {n + 1}: {a.outcome or 'ended without a word'}" for n, a in enumerate(run.attempts)]
    ends += [event.text for event in restarts(run) if not run.attempts]
    return Finding(
        code="many_restarts",
        severity=Severity.NOTE,
        title=f"The run was started {starts} times",
        evidence=tuple(Evidence(text=text) for text in ends[:10]),
        confidence=Confidence.MEDIUM,
        causes=("time limits of the scheduler, preemption", "the same failure again: read the end of each start"),
        actions=("write checkpoints before the limit, and see that each start takes the run up where it ended",),
        threshold=f"{_MANY_STARTS} starts of one run",
    )


def detect_failed_runs(case: Case) -> Verdict:
    """Of many runs or starts in a log how many failed, or never came to a step: the last of them speaks for itself."""
    parts = [part for part in case.run.runs if not part.elsewhere]
    never = [part for part in parts if part.phase is None and part.status is not Status.COMPLETED]
    failed = [part for part in parts if part.phase is not None and part.status in _FAILED]
    told, of = _failures_told(case.run)
    if told < _MANY_STARTS and (len(parts) < _MANY_STARTS or len(never) + len(failed) < 2):
        return None if case.run.runs else Insufficient(code="failed_runs", missing="several runs in one log")
    most = told > len(never) + len(failed)
    count, whole = (told, of) if most else (len(never) + len(failed), len(parts))
    ended = "failed" if most or failed else "ended before their first step"
    early = f", {len(never)} of them before their first step" if failed and never and not most else ""
    bad = count >= _MANY_STARTS and (most or len(failed) > len(parts) / 2) and (whole is None or count > whole / 2)
    rows = [f"{part.name}: {part.status_reason}" for part in (*failed, *never)]
    rows = [event.text for event in case.run.events if event.kind == "failed_job"] if most else rows
    return Finding(
        code="failed_runs",
        severity=Severity.ERROR if bad else Severity.WARNING if count >= _MANY_STARTS else Severity.NOTE,
        title=f"{count}{f' of {whole}' if whole else ''} runs in this log {ended}{early}",
        evidence=tuple(Evidence(text=text) for text in rows[:10]),
        confidence=Confidence.HIGH,
        causes=("the same failure again and again: read the end of the first of them",),
        actions=(
            "mend what the first failure names before more runs are started",
            "results stand for the others alone",
        ),
        threshold=f"{_MANY_STARTS} runs in a log, two of which failed, or the log's own table of failures",
    )


def _failures_told(run: RunTable) -> tuple[int, int | None]:
    """How many jobs a log's own table or summary calls failed, and of how many where it says so."""
    told = [event for event in run.events if event.kind == "failed_job"]
    summed = [event for event in told if "jobs" in event.numbers]
    rows = int(sum(event.numbers.get("count", 1) for event in told if "jobs" not in event.numbers))
    most = max(summed, key=lambda event: event.numbers["jobs"], default=None)
    if most is None or most.numbers["jobs"] < rows:
        return rows, None
    return int(most.numbers["jobs"]), int(most.numbers["of"]) if "of" in most.numbers else None


def detect_other_runs(case: Case) -> Verdict:
    """What is wrong with the runs of a log beside the one that is judged in full."""
    parts = [(n, phase) for n, phase in _parts(case.run) if n != case.run.main_phase]
    if not parts:
        return None if len(case.run) else Insufficient(code="other_runs", missing="rows with a training loss")
    wrong: list[tuple[str, Finding]] = []
    for number, _ in parts:
        alone = dataclasses.replace(case, run=dataclasses.replace(case.run, main_phase=number))
        found = [v for ask in _ASKED if isinstance(v := ask(alone), Finding) and v.severity is Severity.ERROR]
        wrong += [(_called(case.run, number), found[0])] if found else []
    if not wrong:
        return None
    first = wrong[0][1]
    return Finding(
        code="other_runs",
        severity=Severity.WARNING,
        title=f"{len(wrong)} of the log's {len(parts)} other runs went wrong: “{wrong[0][0]}”: {first.title}",
        evidence=tuple(Evidence(text=f"{name}: {finding.title}") for name, finding in wrong[:10]),
        confidence=first.confidence,
        causes=first.causes,
        actions=first.actions,
        threshold="each run's own loss: not a number, diverged, flat or frozen",
    )


def detect_same_results(case: Case) -> Verdict:
    """Runs whose losses agree to the last digit: what was varied between them had no effect."""
    parts = [(phase, values) for _, phase in _parts(case.run) if len(values := _losses(case.run, phase)) >= _SAME_ROWS]
    if len(parts) < 2:
        return Insufficient(code="same_results", missing="two runs in one log") if not len(case.run) else None
    groups = [names for names in _alike(parts) if len(names) > 1]
    if not groups:
        return None
    twice = sum(map(len, groups))
    return Finding(
        code="same_results",
        severity=Severity.WARNING,
        title=f"{twice} of {len(parts)} runs have the losses of another one to the last digit",
        evidence=tuple(Evidence(text=", ".join(names)) for names in groups),
        confidence=Confidence.HIGH,
        causes=("the same seed and settings: what was varied does not reach the training", "a run printed twice"),
        actions=("print the settings that each run really uses; vary the seed to see the noise between runs",),
        threshold=f"all losses that both have are equal, {_SAME_ROWS} at least and {_SAME_SHARE:.0%} of the longer run",
    )


def _alike(parts: Sequence[tuple[Phase, np.ndarray]]) -> list[list[str]]:
    """Names of the runs, those of the same losses together."""
    groups: list[tuple[np.ndarray, list[str]]] = []
    for phase, values in parts:
        for first, names in groups:
            both = min(len(first), len(values))
            if both >= _SAME_SHARE * max(len(first), len(values)) and np.array_equal(first[:both], values[:both]):
                names.append(phase.name)
                break
        else:
            groups.append((values, [phase.name]))
    return [names for _, names in groups]


def _losses(run: RunTable, phase: Phase) -> np.ndarray:
    loss = run.column("loss")[phase.first_row : phase.last_row + 1]
    return loss[np.isfinite(loss)]
