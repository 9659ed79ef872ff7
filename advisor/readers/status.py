"""Decides how a run ended, and why, by a list of rules with the surest first.

The log's own words and plan come first (`status_of`). If the log ends without a message, other signs of its end decide:
other runs of the log, a progress bar, an estimate of the time left (`shown_complete`). A log of several runs ended as
its last run did (`of_all_runs`). A tracker's record is surer than the rows (`by_tracker`). Last come files beside the
log: a plan, or what another file of the run says (`by_plan`, `by_other_log`).
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from advisor.readers.run_table import NOT_FOUND, Event, RunPart, RunTable, Status

# kinds that can end a run; the others only describe its end
CAUSES = {
    "out_of_memory": (Status.OUT_OF_MEMORY, "out of memory"),
    "host_memory": (Status.OUT_OF_MEMORY, "host memory (not the GPU's) ran out"),
    "disk_full": (Status.CRASHED, "the disk was full"),
    "data_worker": (Status.CRASHED, "a worker of the data loader was killed"),
    "nccl_timeout": (Status.CRASHED, "a collective operation timed out"),
    "nccl_error": (Status.CRASHED, "communication failed"),
    "diverged": (Status.DIVERGED, "the numbers diverged"),
    "interrupt": (Status.STOPPED, "interrupted by its user"),
    "exception": (Status.CRASHED, "crashed"),
    "killed": (Status.KILLED, "killed from outside"),
}
# messages of launchers and other ranks after something else has ended the run
CONSEQUENCES = {
    "child_failed": (Status.CRASHED, "a process failed"),
    "signal": (Status.KILLED, "ended by a signal"),
}
FAILURES = frozenset({*CAUSES, *CONSEQUENCES, "time_limit"})
# signs that the run reached its end; the last three show only that something else began or that nothing failed
ENDINGS = ("stopped", "early_stop", "finished", "total_time", "afterwards", "outcome", "exited")
_IF_ALL_WAS_DONE = ("outcome", "exited")  # do not count if the run was meant to go further
DECISIVE = FAILURES | set(ENDINGS) | {"checkpoint"}  # kinds for which it matters whether records follow (`rows_after`)
MOSTLY_NAN = 0.5  # share of the last losses from which a run cannot recover
# a rank may print one more record after another rank has failed
ROWS_OF_A_DEAD_RUN = 1
_ROWS_OF_AN_END = {"early_stop": 1}  # Keras prints this before it prints the last epoch
_FROM_OUTSIDE = (1, 2, 9, 15)  # hang-up, interrupt, kill, terminate; a program itself causes an abort or a bad address
_INTERRUPT = 2  # control-C
_OF_SHELLS, _SIGNALS = 128, 31
_FOLLOWERS = ("nccl_error", "nccl_timeout")  # the other ranks lose contact with the failed one
_ABORTED = re.compile(r"\bAborted\b|core dumped|terminate called|DistBackendError")  # by the watchdog of a time-out
# what a run may print after it has reached its last step
_WEAK = ("signal", "child_failed", "killed", "interrupt", *_FOLLOWERS)
_NUMBERS = re.compile(r"[\d.,:]+")
_TRAINED = re.compile(r"[Tt]rain|TRAIN|[Tt]un(?:ing|ed)|[Ee]poch|runtime|[^\x00-\x7f]{3}")  # or words in another script
_FINAL = re.compile(r"\b[Ff]inal\b")
_Judged = TypeVar("_Judged", RunTable, RunPart)
_OPEN = (Status.NO_END, Status.INCOMPLETE)
NO_WORDS = "a table of numbers does not say how its run ended, nor how many steps it was to do"


def status_of(
    events: Sequence[Event],
    last_step: float | None,
    planned_steps: float | None,
    nan_share: float,
    *,
    slack: float = 1.0,
    unit: str = "step",
    at_the_end: str = "",
) -> tuple[Status, str]:
    """Return how the run ended and why, in words.

    `last_step` is the step of the last record and `planned_steps` the planned number (None: unknown). `slack` is how
    far before that the last record may be (steps that count from 0, records of every tenth step), and `unit` names
    both. `nan_share` is the share of non-finite losses among the last records. `at_the_end` says in words what else
    shows that the last record is the end. Events of `DECISIVE` kinds have the number `rows_after`; an event followed by
    more than one record did not end the run. A time limit explains all signals around it, and a failure explains
    launchers' messages.
    """
    # the record after a failure is from a dead rank, unless the run has been resumed since
    resumed = max((event.line or 0 for event in events if event.kind == "restart"), default=0)
    ending = [
        event
        for event in events
        if event.kind in FAILURES
        and _is_last(event, last_step, 0 if (event.line or resumed) < resumed else ROWS_OF_A_DEAD_RUN)
    ]
    reached = _reached_end(last_step, planned_steps, slack)
    said = _ends_said(events, last_step)
    cause = _cause(ending)
    # a bar that counted further than the last record, but not to the end, shows that the run did not reach it
    if cause is not None and last_step is not None and last_step < (cause.step or 0.0) < (planned_steps or 0.0):
        reached = False
    if cause is not None and not _survived(cause, ending, said, reached, last_step):
        # a bar may have counted further than the last record
        reached_step = max(last_step, cause.step or 0.0) if last_step is not None and unit == "step" else last_step
        if last_step is None and "bar_steps" in cause.numbers:
            reached_step, planned_steps, unit = cause.step, planned_steps or cause.numbers["bar_total"], "step"
        status, words = _explained(cause, nan_share, _when(reached_step, planned_steps, unit))
        # the last exception, if it differs from the first, is often all that a user has seen
        latest = next((event for event in reversed(ending) if event.kind == "exception"), cause)
        same = cause.kind != "exception" or latest.text.partition(" [")[0] == cause.text.partition(" [")[0]
        return status, words if same else f"{words}; in the end {latest.text}"
    if nan_share >= MOSTLY_NAN:
        return Status.DIVERGED, "the last losses are NaN or infinite"
    if said is not None and said.kind == "stopped":
        return Status.STOPPED, f"stopped by its own rule: {said.text}"
    if said is not None and said.kind == "early_stop":
        return Status.COMPLETED, f"ended early by its own rule: {said.text}"
    if said is not None and (said.kind not in _IF_ALL_WAS_DONE or reached is not False):
        summary = said.text.startswith("{")  # a record of many numbers, none of which says why
        return Status.COMPLETED, "the log sums the training up" if summary else f"the log says so: {said.text}"
    if reached:
        return Status.COMPLETED, f"reached {_place(last_step, planned_steps, unit)}"
    if reached is False:
        ended = " though the program ended in order" if said is not None and said.kind == "exited" else ""
        return Status.INCOMPLETE, f"the log ends at {_place(last_step, planned_steps, unit)}{ended}"
    if at_the_end:
        return Status.COMPLETED, at_the_end
    if last_step is None and (begun := [event for event in events if event.kind == "prepared"]):
        return (
            Status.INCOMPLETE,
            f"the log ends before the first record; the last of its preparations: {begun[-1].text}",
        )
    if last_step is None:
        return Status.NO_END, "nothing in the log says how far it was to go, nor how it ended"
    return Status.NO_END, (
        f"the log has no end message and does not say how many {unit}s were planned, so the run may be complete, cut "
        "off or still running"
    )


def _ends_said(events: Sequence[Event], last_step: float | None) -> Event | None:
    """Return the surest statement that the run is over: no record follows it, and it is not repeated during the run."""
    ends = [e for e in events if e.kind in ENDINGS or (e.kind == "checkpoint" and _FINAL.search(e.text) is not None)]
    last = [event for event in ends if _is_last(event, last_step, _ROWS_OF_AN_END.get(event.kind, 0))]
    others = {(event.kind, _words(event)) for event in events if event not in last}
    own = [event for event in last if (event.kind, _words(event)) not in others]
    kinds = (*ENDINGS, "checkpoint")
    return min(own, key=lambda event: (kinds.index(event.kind), -(event.line or 0)), default=None)


def _words(event: Event) -> str:
    return _NUMBERS.sub("", event.text)


def _survived(
    cause: Event, ending: Sequence[Event], said: Event | None, reached: bool | None, last_step: float | None
) -> bool:
    """Return whether a run was over before an apparent cause of its end, or reached its end in spite of it.

    A shell's message about a command in its script is final, because the script prints its last words in any case.
    """
    if _BY_SHELL.search(cause.text):
        return False
    if said is None or said.kind not in ("finished", "early_stop"):
        return cause.kind in _WEAK and reached is True
    if last_step is None and _TRAINED.search(said.text) is None:
        return False  # a wrapper says this about its commands, whatever became of them
    if cause.kind in _WEAK and said.kind == "finished":
        return (said.line or 0) < (cause.line or 0)  # after an interrupt, the handler prints last words
    return (said.line or 0) > max(event.line or 0 for event in ending)


def _place(last: float | None, planned: float | None, unit: str) -> str:
    """Return `step 90 of 100`, or as much of it as is known."""
    reached = f"no {unit}" if last is None else f"{unit} {last:.10g}"
    return f"{reached} of {planned:.10g}" if planned else reached


def _when(last: float | None, planned: float | None, unit: str) -> str:
    return f"before the first {unit}" if last is None else f"after {_place(last, planned, unit)}"


def _is_last(event: Event, last_step: float | None, rows: int) -> bool:
    """Return whether the run did not go on after this event, so that at most `rows` records follow."""
    if "rows_after" in event.numbers:
        return event.numbers["rows_after"] <= rows
    return event.step is None or last_step is None or event.step >= last_step


def _reached_end(last_step: float | None, planned_steps: float | None, slack: float) -> bool | None:
    """Return whether the last record is close enough to the planned end; None if no end is known."""
    if planned_steps is None or planned_steps <= 0:
        return None
    return last_step is not None and last_step >= planned_steps - slack


_BY_SHELL = re.compile(r"\bline \d+:\s+\d+ (?:Killed|Terminated|Aborted|Segmentation fault)")
_GONE = re.compile(r"(?:\w+\.)*(?:EOFError|BrokenPipeError|ConnectionResetError|ConnectionRefusedError)\b")
_PLACE = re.compile(r" \[[^\]]+:\d+")  # where a traceback ends


def _cause(ending: Sequence[Event]) -> Event | None:
    limit = next((event for event in ending if event.kind == "time_limit"), None)
    own = [event for event in ending if event.kind in CAUSES]
    if limit is not None:
        before = [e for e in own if (e.line or 0) < (limit.line or 0) and _could_have_ended(e)]
        return before[0] if before else limit
    leaders = [event for event in own if event.kind not in _FOLLOWERS and not follows_timeout(event, own)]
    if any(event.kind == "host_memory" for event in leaders):  # that event says why it was killed
        leaders = [event for event in leaders if event.kind != "killed"]
    # after an interrupt, processes also report that the others are gone
    if any(event.kind == "interrupt" for event in leaders):
        leaders = [event for event in leaders if _GONE.match(event.text) is None]
    # a shell continues after a command that it could not find
    leaders = [event for event in leaders if not event.text.endswith(NOT_FOUND)] or leaders
    for group in (leaders, own, [e for e in ending if e.kind == "child_failed"], ending):
        if group:
            return group[0]
    return None


def follows_timeout(event: Event, events: Sequence[Event]) -> bool:
    """Return whether an exception is how the watchdog ends the processes whose collective operation timed out."""
    if event.kind != "exception" or _ABORTED.search(event.text) is None:
        return False
    return any(other.kind == "nccl_timeout" and (other.line or 0) <= (event.line or 0) for other in events)


def _could_have_ended(event: Event) -> bool:
    """Return whether an event before the scheduler's limit may have ended the run; a tool's complaint does not."""
    if event.kind == "exception":
        return _PLACE.search(event.text) is not None
    return event.kind not in (*_FOLLOWERS, "killed")


def _explained(cause: Event, nan_share: float, place: str) -> tuple[Status, str]:
    if cause.kind == "time_limit":
        status, words = Status.TIME_LIMIT, "the scheduler's time limit"
    else:
        status, words = {**CAUSES, **CONSEQUENCES}[cause.kind]
    signal = _signal_of(cause.numbers.get("exitcode", 0)) if cause.kind == "child_failed" else 0
    if signal > 0:
        status = Status.KILLED if signal in _FROM_OUTSIDE else Status.CRASHED
        words = f"a process was ended by signal {signal:.0f}"
    if _INTERRUPT in (signal, cause.numbers.get("signal") if cause.kind == "signal" else None):
        status, words = Status.STOPPED, "interrupted by its user"
    if nan_share >= MOSTLY_NAN and status in (Status.CRASHED, Status.KILLED):
        return Status.DIVERGED, f"the last losses are NaN or infinite; then {words}: {cause.text}"
    return status, f"{words} {place}: {cause.text}"


def _signal_of(exitcode: float) -> float:
    """Return the signal in an exit code, as Python (below 0) or a shell (above 128) writes it; 0 if there is none."""
    if exitcode < 0:
        return -exitcode
    return exitcode - _OF_SHELLS if _OF_SHELLS < exitcode <= _OF_SHELLS + _SIGNALS else 0.0


# What the last rows of a run show about its end if no message and no plan states it.

FEWEST_GAPS = 5  # gaps between evaluations, enough to show their interval
FEWEST_ROWS = 10  # fewest rows of a run for which a round last number counts
BY_CHANCE = 0.005  # share of possible cuts that are as round; every hundredth step is too common
ROUND = "is a round number, at which few runs are cut"


def at_the_end(table: RunTable, phase: int, events: Sequence[Event]) -> str:
    """Say in words what shows that the last record of a phase is the run's end; "" if nothing does."""
    saved = [e for e in events if e.kind in ("checkpoint", "afterwards") and e.numbers.get("rows_after") == 0]
    words = _evaluated_out_of_turn(table, phase)
    if not words and saved and (number := _ends_round(table, phase)):
        words = f"{number}, and after it the log says: {saved[-1].text}"
    return words


def _evaluated_out_of_turn(table: RunTable, phase: int) -> str:
    """Say that the last step was evaluated although no evaluation was due, as programs do at their end; else ""."""
    if not table.counts_steps:
        return ""
    # an evaluation after the last record with a loss also belongs to this run
    rest = table.phases[phase + 1].first_row if phase + 1 < len(table.phases) else len(table)
    part = slice(table.phases[phase].first_row, rest)
    steps, evaluated = table.column("step")[part], np.isfinite(table.column("eval_loss")[part])
    gaps = np.diff(steps[evaluated])
    if len(gaps) < FEWEST_GAPS or steps[evaluated][-1] != np.nanmax(steps):
        return ""
    last, every = float(steps[evaluated][-1]), float(np.median(gaps[:-1]))
    # an evaluation lost in a restart makes a double gap
    out_of_turn = every > 0 and np.all(gaps[:-1] % every == 0) and 0 < gaps[-1] < every
    words = f"its last step, {last:.10g}, was evaluated out of turn (else every {every:.10g} steps), as at an end"
    return words if out_of_turn else ""


def _ends_round(table: RunTable, phase: int) -> str:
    """Say that the last step or epoch is a round number, at which few runs are cut; else ""."""
    unit = "step" if table.counts_steps else "epoch"
    counted = table.column(unit)[table.phases[phase].rows]
    counted = np.unique(counted[np.isfinite(counted)])
    if len(counted) < FEWEST_ROWS or np.any(counted != np.round(counted)):
        return ""
    first, last, stride = int(counted[0]), int(counted[-1]), int(np.median(np.diff(counted)))
    ends = {last, last + 1} if first in (0, stride - 1) and not table.steps_by_bar else {last}
    end = max(ends, key=grain)
    if stride / grain(end) > BY_CHANCE:
        return ""
    counts = "" if end == last else f", counted from 0, is the {end:,}th: it"
    return f"its last {unit} {last:,}{counts} {ROUND}"


def grain(count: int) -> int:
    """Return the largest of 1, 2, 5, 10, 20, 50 … that divides a count; for 3,000 it is 1,000."""
    grains = [m * 10**k for k in range(len(str(count))) for m in (1, 2, 5)]
    return max((grain for grain in grains if count and count % grain == 0), default=1)


# What shows an end if the log has no message about it and no plan.

FEWEST_ALIKE = 3  # runs that end where another one did; of two runs, one may have been cut there


def ended_alike(parts: list[RunPart]) -> list[RunPart]:
    """Mark runs without an end message as completed if each went exactly as far as another run of the log."""
    silent = [part for part in parts if part.phase is not None and part.status is Status.NO_END]
    far = Counter((part.first_step, part.last_step) for part in silent)
    went = all(first is not None and last is not None and last > first for first, last in far)
    if len(silent) < FEWEST_ALIKE or not went or min(far.values()) == 1:
        return parts

    def words(part: RunPart) -> str:
        others = far[part.first_step, part.last_step] - 1
        ended = "runs of this log do" if others > 1 else "run of this log does"
        return f"it ends at step {part.last_step:.10g}, as {others} other {ended}"

    return [shown_complete(part, words(part)) if part in silent else part for part in parts]


def shown_complete(part: RunPart, words: str) -> RunPart:
    """Return the run as completed for the reason in `words`, if its own messages and plan do not say how it ended."""
    told = part.phase is None or part.status is not Status.NO_END
    return part if told or not words else dataclasses.replace(part, status=Status.COMPLETED, status_reason=words)


# A log of several runs.

_FAILED = (Status.CRASHED, Status.OUT_OF_MEMORY, Status.KILLED, Status.TIME_LIMIT, Status.STOPPED, Status.DIVERGED)


def rejudged(table: RunTable, parts: Sequence[RunPart]) -> RunTable:
    """Return the table with these runs, and judge the whole log again if their status changed."""
    judged = [(part.status, part.status_reason) for part in parts]
    if judged == [(part.status, part.status_reason) for part in table.runs]:
        return dataclasses.replace(table, runs=tuple(parts))
    status, reason = of_all_runs(parts)
    return dataclasses.replace(table, runs=tuple(parts), status=status, status_reason=reason)


def of_all_runs(parts: Sequence[RunPart]) -> tuple[Status, str]:
    """Return how a log of several runs ended: as its last, unless that neither trained nor failed."""
    last = parts[-1]
    trained = [part for part in parts if part.phase is not None]
    if len(parts) == 1 or not trained:
        return last.status, last.status_reason
    if last.phase is not None or last.status in _FAILED:
        return last.status, f"{last.name} of {len(parts)}: {last.status_reason}"
    before = trained[-1]
    if last.status is Status.COMPLETED and before.status in _OPEN:  # its last words came after a banner
        return last.status, last.status_reason
    if before.status is Status.COMPLETED and last.status is not Status.INCOMPLETE:  # it has no sign of a training
        return before.status, f"{before.name} of {len(parts)}: {before.status_reason}; what came after did not train"
    return Status.INCOMPLETE, f"started again after {before.name} ({before.status_reason}), without a record since"


# What other sources than the log's words and rows say.


def by_tracker(table: RunTable, status: Status | None, words: str) -> RunTable:
    """Return the table with the end that a tracker or trainer recorded, unless losses diverged, which it ignores."""
    if status is None or table.status is Status.DIVERGED:
        return table
    last = [dataclasses.replace(run, status=status, status_reason=words) for run in table.runs[-1:]]
    return dataclasses.replace(table, status=status, status_reason=words, runs=(*table.runs[:-1], *last))


def is_open(table: RunTable) -> bool:
    """Return whether the log itself does not say how the run ended, or only hints at it."""
    return table.status in _OPEN or ROUND in table.status_reason


def without_words(table: RunTable) -> RunTable:
    """Return a table of numbers with the reason why no end is recorded: it could not have said how the run ended."""
    if table.events:
        return table

    def opened(part: _Judged) -> _Judged:
        return dataclasses.replace(part, status_reason=NO_WORDS) if part.status is Status.NO_END else part

    return dataclasses.replace(opened(table), runs=tuple(map(opened, table.runs)))


def by_plan(facts: dict[str, Any], table: RunTable) -> RunTable:
    """Return the table with all facts, judged again if only these facts state the planned steps."""
    known = "planned_steps" in table.facts
    table = dataclasses.replace(table, facts=facts)
    planned, last = facts.get("planned_steps"), table.last_step
    if known or not is_open(table) or not isinstance(planned, int | float) or last is None:
        return table
    status, reason = status_of((), last, planned, 0.0)
    return dataclasses.replace(table, status=status, status_reason=reason)


def may_be_ended_by(table: RunTable, other: RunTable) -> bool:
    """Return whether another file may say how this log's run ended: it fails, where the log itself states no end."""
    failed = any(event.kind in FAILURES for event in other.events)
    return failed and is_open(table) and other.status not in (*_OPEN, Status.COMPLETED)


def counts_apart(table: RunTable, other: RunTable) -> tuple[float, float] | None:
    """Return the numbers of steps to which two files count, or None if they are equal or not both known."""
    bar = next((event.numbers["bar_total"] for event in other.events if "bar_total" in event.numbers), None)
    planned, its_planned = table.facts.get("planned_steps"), other.facts.get("planned_steps") or bar
    return (planned, its_planned) if planned and its_planned and planned != its_planned else None


def by_other_log(table: RunTable, other: RunTable) -> RunTable:
    """Return the table with the end stated in another file of the run (its stderr), if the log itself states none."""
    if not may_be_ended_by(table, other):
        return table
    failures = [event for event in other.events if event.kind in FAILURES]
    name = Path(other.source).name
    reason, note = other.status_reason, f"how the run ended is in {name}"
    planned, its_planned = (one.facts.get("planned_steps") for one in (table, other))
    its_last, unit = other.last_step if len(other) else None, "step" if other.counts_steps else "row"
    bar = next((event for event in failures if "bar_steps" in event.numbers), None)
    if its_last is None and bar is not None:
        its_last, its_planned, unit = bar.step, its_planned or bar.numbers["bar_total"], "step"
    # The log knows how far the run was, unless the other file has a later step of the same count.
    last, apart = table.last_step, counts_apart(table, other)
    if len(table) and (apart or last is None or (its_last or 0) < last):
        place = f" {_when(last, planned, 'step' if table.counts_steps else 'row')}" if last is not None else ""
        reason = reason.replace(f" {_when(its_last, its_planned, unit)}", place)
        failures = [dataclasses.replace(event, step=None) for event in failures]
    if apart:
        note += f", which counts to {apart[1]:,.0f} steps, and the log to {apart[0]:,.0f}: is it of the same run?"
    return dataclasses.replace(
        table,
        status=other.status,
        status_reason=f"{reason} ({name})",
        events=(*table.events, *failures),
        notes=(*table.notes, note),
    )
