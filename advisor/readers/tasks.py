"""Reads a wrapper's list of tasks (`[3/24] width 512 | started at …`, `[3/24] … DONE`), which log elsewhere.

This is used only if no record of a training was found. Each task has a number over the same total, and words about its
start or end. Other words must show that the tasks are trainings and not steps of an installation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.readers.cells import duration_seconds
from advisor.readers.events import EventScanner, numbered_lines
from advisor.readers.run_table import Event, RunPart, RunTable, Status
from advisor.readers.sniff import NO_LOGS
from advisor.readers.stamps import moment
from advisor.readers.status import status_of
from advisor.readers.yaml_rows import regex

NAME = "tasks"
FEWEST = 3  # tasks in a list
MOST_TASKS = 10_000
_LIKE = 0.16  # score above that of an error message and below that of two training records
_EDGES = " \t|:,;-–—=>#*.✓✔✅❌✗✘()[]"


@dataclass(kw_only=True)
class _Task:
    number: int
    name: str
    first_line: int
    last_line: int
    began: float | None = None  # unix seconds of its stamp
    ended: float | None = None
    seconds: float | None = None  # as its last line states
    well: bool | None = None  # None if nothing says that it has ended
    said: str = ""


def score(head: bytes, path: Path) -> float:
    """Return how surely a file is a list of trainings that something started one by one."""
    if path.suffix.lower() in NO_LOGS or not regex("of_trainings").search(head):
        return 0.0
    tasks, _ = _tasks(enumerate(head.split(b"\n"), 1))
    return _LIKE if len(tasks) >= FEWEST else 0.0


def read(path: Path) -> RunTable:
    """Read the list as a log of runs without records. Raises AdvisorError if it cannot be opened."""
    scanner = EventScanner()
    tasks, total = _tasks(numbered_lines(path, scanner))
    if not tasks:
        raise AdvisorError(
            f"{path} holds no list of tasks", "a list has lines like `[3/24] … started` and `[3/24] … done`, from 1 on"
        )
    parts = tuple(_part(task, following) for task, following in zip(tasks, [*tasks[1:], None], strict=True))
    events = tuple(event for event in scanner.finish() if not _of_a_task(event, tasks))
    status, reason = _whole(tasks, total, events)
    return RunTable(
        source=str(path),
        format=NAME,
        framework=None,
        columns={},
        provenance={},
        events=(Event(kind="tasks", text=f"{len(tasks)} of {total} tasks were started"), *events),
        status=status,
        status_reason=reason,
        runs=parts,
        notes=(
            "a list of tasks: what each of them printed is elsewhere, nothing of their training can be judged here",
        ),
    )


def _of_a_task(event: Event, tasks: list[_Task]) -> bool:
    """Return whether an event is the list's own statement about one of its tasks."""
    return any(task.first_line <= (event.line or 0) <= task.last_line for task in tasks if task.well is not None)


def _tasks(lines: Iterable[tuple[int, bytes]]) -> tuple[list[_Task], int]:
    """Return the tasks that the lines mention, in order, and their planned number; none if the lines are not a list."""
    tasks: dict[int, _Task] = {}
    totals: dict[int, int] = {}
    for at, line in lines:
        if (match := regex("task_number").search(line[:400])) is None or regex("no_task").search(line[:400]):
            continue
        number, total = int(match["number"]), int(match["total"])
        begun, well, badly = (regex(f"task_{how}").search(line) is not None for how in ("begun", "done", "failed"))
        if not (begun or well or badly) or not 1 <= number <= total or total < 2 or len(tasks) >= MOST_TASKS:
            continue
        totals[total] = totals.get(total, 0) + 1
        task = tasks.get(number)
        if task is None:
            task = tasks[number] = _Task(number=number, name=_name(match["rest"]), first_line=at, last_line=at)
            task.began = moment(line)
        task.last_line = at
        if well or badly:
            task.well, task.said = not badly, line.decode("utf-8", "replace").strip()[:200]
            task.seconds = _seconds(line)
            task.ended = moment(line) if at > task.first_line else None
    found = list(tasks.values())
    numbers = [task.number for task in found]
    if len(totals) != 1 or numbers != list(range(1, len(found) + 1)):
        return [], 0
    return found, next(iter(totals))


def _name(rest: bytes) -> str:
    """Return a task's name from its first line: the text after its number, up to the words about its start."""
    text = rest.decode("utf-8", "replace").lstrip(_EDGES)
    stop = regex("task_begun").search(text.encode())
    own = text.encode()[: stop.start()].decode("utf-8", "replace") if stop and stop.start() > 0 else text
    return " ".join(own.split()).strip(_EDGES)[:80]


def _seconds(line: bytes) -> float | None:
    match = regex("task_time").search(line)
    return duration_seconds(match[1].decode()) if match else None


def _part(task: _Task, following: _Task | None) -> RunPart:
    status = {True: Status.COMPLETED, False: Status.CRASHED, None: Status.INCOMPLETE}[task.well]
    until = task.ended if task.ended is not None else following.began if following and task.well is not None else None
    clock = until - task.began if until is not None and task.began is not None and until >= task.began else None
    return RunPart(
        name=f"{task.number}: {task.name}" if task.name else f"task {task.number}",
        status=status,
        status_reason=f"the list says so: {task.said}" if task.said else "the list says nothing of its end",
        first_line=task.first_line,
        last_line=following.first_line - 1 if following else None,
        elsewhere=True,
        declared_seconds=task.seconds,
        clock_seconds=clock,
        clock="time stamps of the list" if clock is not None else "",
    )


def _whole(tasks: list[_Task], total: int, events: Sequence[Event]) -> tuple[Status, str]:
    """Return how the list ended. About a task it says only what its process did."""
    ended, failed = [t for t in tasks if t.well is not None], [t for t in tasks if t.well is False]
    words = f"{len(ended)} of {total} tasks ended" + (f", {len(failed)} of them failed" if failed else "")
    if len(ended) == total:
        return (Status.CRASHED if len(failed) == total else Status.COMPLETED), words
    place = f"the list ends in task {tasks[-1].number} of {total}; {words}"
    status, reason = status_of(events, None, None, 0.0)
    if status in (Status.UNKNOWN, Status.COMPLETED):
        return Status.INCOMPLETE, place
    return status, f"{place}; {reason}"
