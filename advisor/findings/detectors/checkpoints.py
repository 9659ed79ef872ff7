"""Checkpoints: none, too rare, too frequent, too large; and what an interruption is expected to cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import curve, main_rows
from advisor.findings.run_facts import has_words, number, parameters, planned_steps, price, print_gap, steps_done
from advisor.findings.spend import mean_step_seconds
from advisor.laws import flops
from advisor.prediction.wallclock import BETWEEN_FAILURES, daly_interval_seconds
from advisor.readers.run_table import Event
from advisor.records import Basis, Estimate
from advisor.units import format_bytes, format_seconds, format_usd

_WRITE_BYTES_PER_SECOND = 6e8  # where none was measured (predict/profile.py: 0.2 to 2 GB/s)
_LONG_HOURS = 1.0  # so long without a word of one is worth a question
_DAY = 24 * 3600.0  # so long without one is asking for it
_BEGUN_BEFORE = 10  # print gaps above 0 at which a log begins: the run did not begin there
_MOST_OF_RUN = 0.5  # longer between two checkpoints, the run has none but its last
_FACTOR = 3.0  # off Daly's interval each way: the optimum is flat
_OVERHEAD = 0.02  # of the run spent writing: less is not worth a word
_DISK_BYTES = 500e9
_TELLS_ALL = "training-advisor"  # our own log writes every checkpoint down


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """What a run's log and settings say of its checkpoints. None: not said."""

    count: int
    interval_seconds: float | None  # of work between two
    write_seconds: float | None
    size_bytes: float | None  # of one
    certain: bool  # whether the log would have said so


def checkpoints_of(case: Case) -> Checkpoints:
    """Checkpoints by events, by their column and by what was configured."""
    run, step_pace = case.run, mean_step_seconds(case)
    events = [e for e in run.events if e.kind == "checkpoint"]
    written = curve(run, "checkpoint_seconds")
    steps = sorted({step for e in events if (step := _step_of(e)) is not None}) or list(written.step)
    every = number(run.facts, "checkpoint_every_steps")
    every = max(0.0, every) if every is not None else None  # some say "never" as -1
    gap = float(np.median(np.diff(steps))) if len(steps) > 1 else (every or None)
    sizes = [e.numbers["bytes"] for e in events if e.numbers.get("bytes")]
    size = float(np.median(sizes)) if sizes else _size(case)
    seconds = [e.numbers["seconds"] for e in events if e.numbers.get("seconds")] or list(written.value)
    write = float(np.median(seconds)) if seconds else (size / _WRITE_BYTES_PER_SECOND if size else None)
    if write is not None and write <= 0:
        write = None  # a clock that stood still
    count = max(len(steps) or len(events), len(written))
    done = steps_done(run)
    if not count and every and done:
        count = int(min(done // every, 1e9))
    certain = every is not None or run.format == _TELLS_ALL
    interval = (gap * step_pace.value or None) if gap and step_pace else None  # no time at all is none that is known
    return Checkpoints(count=count, interval_seconds=interval, write_seconds=write, size_bytes=size, certain=certain)


def _step_of(event: Event) -> float | None:
    """The step a checkpoint is of: as its line says, else the last one before that line."""
    return event.numbers.get("step", event.step)


def _size(case: Case) -> float | None:
    """Bytes of a resumable checkpoint: fp32 weights and moments, 12 per parameter (Muon's matrices 8)."""
    size = parameters(case)
    if size is None:
        return None
    muon = case.workload is not None and case.workload.optimizer == "muon"
    return 12 * size - (4 * flops.block_matrix_parameters(case.workload.shape) if muon and case.workload else 0)


def _run_seconds(case: Case) -> float | None:
    step_pace, steps = mean_step_seconds(case), planned_steps(case) or steps_done(case.run)
    return step_pace.value * steps if step_pace and steps else None


def _went_on(case: Case) -> bool:
    """Whether a start took up a later step than the first there is: from a checkpoint, though no line speaks of one."""
    steps = case.run.column("step")
    first = float(np.nanmin(steps)) if np.isfinite(steps).any() else 0.0
    if first > _BEGUN_BEFORE * max(1.0, print_gap(case.run)):
        return True
    return any(event.kind == "restart" and event.numbers.get("first_step", first) > first for event in case.run.events)


def detect_no_checkpoint(case: Case) -> Verdict:
    """A run without a checkpoint: one interruption loses everything, in hours and dollars."""
    seconds = _run_seconds(case)
    if seconds is None or not len(main_rows(case.run)):
        return Insufficient(code="no_checkpoint", missing="steps and seconds per step")
    checkpoints = checkpoints_of(case)
    done = seconds * (steps_done(case.run) or 0.0) / (planned_steps(case) or steps_done(case.run) or 1.0)
    certain = checkpoints.certain  # else the log may only not speak of them
    if checkpoints.count or (not certain and (done < _LONG_HOURS * 3600 or _went_on(case))):
        return None
    if not certain and not has_words(case.run):
        return Insufficient(code="no_checkpoint", missing="a log or configuration that speaks of checkpoints")
    configured = checkpoints.interval_seconds or number(case.run.facts, "checkpoint_every_seconds")
    if configured and (configured < seconds or not checkpoints.interval_seconds):
        return None  # the first one is still to come, or the run is shorter than what it may lose
    hours = _expected_loss(seconds, seconds)
    usd = price(case)
    steps = planned_steps(case) or steps_done(case.run) or 0.0
    money = "" if usd is None else f" and {format_usd(usd * seconds / 3600)}"
    best = float(daly_interval_seconds(checkpoints.write_seconds or 30.0, BETWEEN_FAILURES.value))
    best = min(best, _MOST_OF_RUN * seconds)
    disk = f", {format_bytes(checkpoints.size_bytes)} each" if checkpoints.size_bytes else ""
    return Finding(
        code="no_checkpoint",
        severity=_severity(seconds) if certain else Severity.NOTE,
        title=f"No checkpoint in a run of {format_seconds(seconds)}: an interruption loses all of it"
        if certain
        else f"The log speaks of no checkpoint in {format_seconds(done)}",
        evidence=(
            Evidence(text="the settings write none" if certain else "the log mentions none"),
            Evidence(text=f"at stake: {steps:,.0f} steps, {format_seconds(seconds)}{money}"),
            Evidence(
                text=f"interruptions every 1 to 14 days cost {hours.low:.2g} to {hours.high:.2g} hours on average"
            ),
        ),
        confidence=Confidence.HIGH if certain else Confidence.LOW,
        causes=("checkpoints are not configured, or only at the end",)
        if certain
        else ("checkpoints are off", "or the log does not mention them"),
        actions=(f"write one every {format_seconds(best)}{disk}, keep the last two",),
        saved_hours=hours if certain else None,
        saved_usd=hours.scaled(usd) if usd is not None and certain else None,
        threshold=f"settings that write none, else {_LONG_HOURS:g} h without one; expected loss run² / (2 · mean time "
        "between failures), §6.1",
    )


def _severity(seconds: float) -> Severity:
    """By what is at stake: a short run is simply started again."""
    if seconds > _DAY:
        return Severity.ERROR
    return Severity.WARNING if seconds > _LONG_HOURS * 3600 else Severity.NOTE


def _expected_loss(run_seconds: float, interval_seconds: float) -> Estimate:
    """Hours of work lost to interruptions: (run / M) interruptions, each losing half an interval on average."""

    def hours(mean: float) -> float:
        return min(run_seconds / mean, 50.0) * min(interval_seconds, run_seconds) / 2 / 3600

    return Estimate(
        value=hours(BETWEEN_FAILURES.value),
        low=hours(BETWEEN_FAILURES.high),
        high=hours(BETWEEN_FAILURES.low),
        basis=Basis.PRIOR,
    )


def detect_checkpoint_interval(case: Case) -> Verdict:
    """Checkpoints much rarer or more frequent than Daly's interval, with what the difference costs."""
    checkpoints, seconds = checkpoints_of(case), _run_seconds(case)
    if checkpoints.interval_seconds is None or checkpoints.write_seconds is None or seconds is None:
        return Insufficient(code="checkpoint_interval", missing="steps of two checkpoints and seconds per step")
    best = float(daly_interval_seconds(checkpoints.write_seconds, BETWEEN_FAILURES.value))
    overhead = checkpoints.write_seconds / checkpoints.interval_seconds
    often = checkpoints.interval_seconds < best / _FACTOR and overhead > _OVERHEAD
    lost, least = _expected_loss(seconds, checkpoints.interval_seconds), _expected_loss(seconds, best)
    rare = checkpoints.interval_seconds > best * _FACTOR and lost.value - least.value > 0.02 * seconds / 3600
    if not often and not rare:
        return None
    writing = (overhead - checkpoints.write_seconds / best) * seconds / 3600
    saved = _range(writing) if often else lost.scaled(1 - least.value / lost.value)
    usd = price(case)
    word = "too frequent" if often else "too rare"
    return Finding(
        code="checkpoints_too_frequent" if often else "checkpoints_too_rare",
        severity=Severity.WARNING if often else Severity.NOTE,  # what may come is a choice, what is written is paid
        title=f"Checkpoints every {format_seconds(checkpoints.interval_seconds)} are {word}: Daly's interval is "
        f"{format_seconds(best)}",
        evidence=(
            Evidence(text=f"writing takes {format_seconds(checkpoints.write_seconds)}, {overhead:.1%} of the time"),
            Evidence(text=f"an interruption loses {format_seconds(checkpoints.interval_seconds / 2)} on average"),
        ),
        confidence=Confidence.MEDIUM,
        causes=("an interval in steps that was set for another step time",),
        actions=(f"checkpoint every {min(best, _MOST_OF_RUN * seconds) / _step_seconds(case):,.0f} steps",),
        saved_hours=saved,
        saved_usd=saved.scaled(usd) if usd is not None else None,
        threshold=f"{_FACTOR:g}× off Daly 2006, τ = √(2δM)·(…) − δ, M 5 days (1 to 14; sources §6.1-6.2)",
    )


def _step_seconds(case: Case) -> float:
    step_pace = mean_step_seconds(case)
    assert step_pace is not None  # judged before
    return step_pace.value


def _range(hours: float) -> Estimate:
    return Estimate(value=hours, low=0.8 * hours, high=1.2 * hours, basis=Basis.MEASURED)


def detect_checkpoint_disk(case: Case) -> Verdict:
    """Checkpoints that together take much disk, by their size and number."""
    checkpoints = checkpoints_of(case)
    if checkpoints.size_bytes is None or not checkpoints.count:
        return Insufficient(code="checkpoint_disk", missing="checkpoints and the model's parameters")
    total = checkpoints.size_bytes * checkpoints.count
    if total < _DISK_BYTES:
        return None
    return Finding(
        code="checkpoint_disk",
        severity=Severity.NOTE,
        title=f"{checkpoints.count} checkpoints of {format_bytes(checkpoints.size_bytes)} are {format_bytes(total)} "
        "if all are kept",
        evidence=(Evidence(text="12 bytes per parameter: fp32 weights and two moments"),),
        confidence=Confidence.MEDIUM,
        causes=("every checkpoint is kept",),
        actions=("keep the last two resumable ones, and of the others the weights only (a third)",),
        threshold=f"over {format_bytes(_DISK_BYTES)} in all",
    )
