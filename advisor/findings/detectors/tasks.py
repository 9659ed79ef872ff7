"""Lists of tasks: which failed, and which ended so early beside the others that nothing can have been trained."""

from __future__ import annotations

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.readers.run_table import RunPart, Status
from advisor.units import format_seconds

_FEWEST_TIMED = 4
_SHORT = 0.1  # of the longest task's time


def _tasks(case: Case) -> list[RunPart]:
    return [part for part in case.run.runs if part.elsewhere]


def detect_failed_tasks(case: Case) -> Verdict:
    """Tasks of a list that the list itself calls failed."""
    tasks = _tasks(case)
    if not tasks:
        return Insufficient(code="failed_tasks", missing="a list of tasks")
    failed = [task for task in tasks if task.status is Status.CRASHED]
    if not failed:
        return None
    return Finding(
        code="failed_tasks",
        severity=Severity.WARNING,
        title=f"{len(failed)} of {len(tasks)} tasks failed",
        evidence=tuple(Evidence(text=f"{task.name}: {task.status_reason}") for task in failed[:10]),
        confidence=Confidence.HIGH,
        causes=("each task's own log says why: this list does not",),
        actions=("read the logs of the failed tasks, and run those alone again",),
        threshold="the list's own word",
    )


def detect_short_tasks(case: Case) -> Verdict:
    """Tasks that ended well by the list's word, and far sooner than others of it."""
    timed = [(task, seconds) for task in _tasks(case) if (seconds := task.declared_seconds or task.clock_seconds)]
    if len(timed) < _FEWEST_TIMED:
        return Insufficient(code="short_tasks", missing="a list of tasks with their times")
    longest = max(seconds for _, seconds in timed)
    short = [(task, s) for task, s in timed if s < _SHORT * longest and task.status is Status.COMPLETED]
    if not short:
        return None
    return Finding(
        code="short_tasks",
        severity=Severity.NOTE,
        title=f"{len(short)} of {len(timed)} tasks ended in less than a tenth of the longest one's time",
        evidence=(
            *(Evidence(text=f"{task.name}: {format_seconds(seconds)}") for task, seconds in short[:10]),
            Evidence(text=f"the longest took {format_seconds(longest)}"),
        ),
        confidence=Confidence.LOW,
        causes=("they failed inside: the list says no more than that their process ended", "they are smaller tasks"),
        actions=("read the end of their own logs before their results are used",),
        threshold=f"{_SHORT:.0%} of the longest, of {_FEWEST_TIMED} timed tasks or more",
    )
