"""How a run ended, and why: one ladder of rules, the surest first.

The log's own words and plan come first (`status_of`). A run whose log ends without a word is judged by what else shows
its end: other runs of the log, a progress bar, an estimate of the time left (`shown_complete`). A log of several runs
ended as its last did (`of_all_runs`). What a tracker recorded is surer than its rows (`by_tracker`). Last comes what
lies beside the log: a plan, or what another file of the run says (`by_plan`, `by_other_log`).
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from advisor.readers.run_table import NOT_FOUND, Event, RunPart, RunTable, Status

# kinds that can end a run; the others only describe it
CAUSES = {
    "out_of_memory": (Status.OUT_OF_MEMORY, "out of memory"),
    "host_memory": (Status.OUT_OF_MEMORY, "the machine's own memory ran out"),
    "disk_full": (Status.CRASHED, "the disk was full"),
    "nccl_timeout": (Status.CRASHED, "a collective operation timed out"),
    "nccl_error": (Status.CRASHED, "communication failed"),
    "diverged": (Status.DIVERGED, "the numbers diverged"),
    "interrupt": (Status.STOPPED, "interrupted by its user"),
    "exception": (Status.CRASHED, "crashed"),
    "killed": (Status.KILLED, "killed from outside"),
}
# what launchers and other ranks say when something else has already ended the run
CONSEQUENCES = {
    "child_failed": (Status.CRASHED, "a process failed"),
    "signal": (Status.KILLED, "ended by a signal"),
}
FAILURES = frozenset({*CAUSES, *CONSEQUENCES, "time_limit"})
# what says that the run came to its end; the last three only that something else has begun, or that nothing failed
ENDINGS = ("stopped", "early_stop", "finished", "total_time", "afterwards", "outcome", "exited")
_IF_ALL_WAS_DONE = ("outcome", "exited")  # say nothing of a run that was to go further
DECISIVE = FAILURES | set(ENDINGS) | {"checkpoint"}  # kinds of which it matters whether records follow: `rows_after`
MOSTLY_NAN = 0.5  # of the losses asked about: a run that cannot recover
# a rank may print one record more after another rank failed
ROWS_OF_A_DEAD_RUN = 1
_ROWS_OF_AN_END = {"early_stop": 1}  # Keras says so before it prints the epoch that was the last
_FROM_OUTSIDE = (1, 2, 9, 15)  # hang-up, interrupt, kill, terminate; an abort or a bad address is the program's own
_INTERRUPT = 2  # control-C
_OF_SHELLS, _SIGNALS = 128, 31
_FOLLOWERS = ("nccl_error", "nccl_timeout")  # other ranks lose the one that failed
# what a run that has reached its last step may well print afterwards
_WEAK = ("signal", "child_failed", "killed", "interrupt", *_FOLLOWERS)
_NUMBERS = re.compile(r"[\d.,:]+")
_TRAINED = re.compile(r"[Tt]rain|TRAIN|[Tt]un(?:ing|ed)|[Ee]poch|runtime|[^\x00-\x7f]{3}")  # or in another script
_FINAL = re.compile(r"\b[Ff]inal\b")
_OPEN = (Status.UNKNOWN, Status.INCOMPLETE)
NO_END = "the log ends without an end message"
NO_PLAN = "how many {unit}s there were to be it does not say, nor whether the run went on"


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
    """How the run ended and why, in words.

    `last_step` is the step of the last record, `planned_steps` how many there were to be (None: unknown), `slack` how
    far before it the last record may be (steps that count from 0, records of every tenth step), `unit` what both count;
    `nan_share` is the share of losses that are not finite among the last records, `at_the_end` what else shows that the
    last record is that of the end, in words. Events of `DECISIVE` kinds carry the number `rows_after`: what more than
    one record follows did not end the run. A scheduler's time limit explains every signal around it; a failure explains
    the launcher's messages.
    """
    # the record behind a failure is that of a dead rank, unless the run was resumed since
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
    if cause is not None and not _survived(cause, ending, said, reached, last_step):
        # a bar may have counted on behind the last record
        reached_step = max(last_step, cause.step or 0.0) if last_step is not None and unit == "step" else last_step
        status, words = _explained(cause, nan_share, _when(reached_step, planned_steps, unit))
        return status, words + _in_the_end(cause, ending)
    if nan_share >= MOSTLY_NAN:
        return Status.DIVERGED, "the last losses are NaN or infinite"
    if said is not None and said.kind == "stopped":
        return Status.STOPPED, f"stopped by its own rule: {said.text}"
    if said is not None and said.kind == "early_stop":
        return Status.COMPLETED, f"ended early by its own rule: {said.text}"
    if said is not None and (said.kind not in _IF_ALL_WAS_DONE or reached is not False):
        return Status.COMPLETED, f"the log says so: {said.text}"
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
        return Status.UNKNOWN, "nothing in the log says how far it was to go, nor how it ended"
    return Status.INCOMPLETE, f"{NO_END}; {NO_PLAN.format(unit=unit)}"


def _ends_said(events: Sequence[Event], last_step: float | None) -> Event | None:
    """What says most surely that the run is over: no record follows, and it is not said again and again on the way."""
    last = [e for e in events if _says_end(e) and _is_last(e, last_step, _ROWS_OF_AN_END.get(e.kind, 0))]
    others = {(event.kind, _words(event)) for event in events if event not in last}
    own = [event for event in last if (event.kind, _words(event)) not in others]
    kinds = (*ENDINGS, "checkpoint")
    return min(own, key=lambda event: (kinds.index(event.kind), -(event.line or 0)), default=None)


def _says_end(event: Event) -> bool:
    return event.kind in ENDINGS or (event.kind == "checkpoint" and _FINAL.search(event.text) is not None)


def _words(event: Event) -> str:
    return _NUMBERS.sub("", event.text)


def _survived(
    cause: Event, ending: Sequence[Event], said: Event | None, reached: bool | None, last_step: float | None
) -> bool:
    """Whether a run was over before what looks like a cause of its end, or went on to its end in spite of it.

    What a shell says of a command of its script is final: the script goes on to its last words in any case.
    """
    if _BY_SHELL.search(cause.text):
        return False
    if said is None or said.kind not in ("finished", "early_stop"):
        return cause.kind in _WEAK and reached is True
    if last_step is None and _TRAINED.search(said.text) is None:
        return False  # a wrapper says so of its commands, whatever became of them
    if cause.kind in _WEAK and said.kind == "finished":
        return (said.line or 0) < (cause.line or 0)  # behind an interrupt stand the last words of whoever caught it
    return (said.line or 0) > max(event.line or 0 for event in ending)


def _place(last: float | None, planned: float | None, unit: str) -> str:
    """`step 90 of 100`, or what of it is known."""
    reached = f"no {unit}" if last is None else f"{unit} {last:.10g}"
    return f"{reached} of {planned:.10g}" if planned else reached


def _when(last: float | None, planned: float | None, unit: str) -> str:
    return f"before the first {unit}" if last is None else f"after {_place(last, planned, unit)}"


def _is_last(event: Event, last_step: float | None, rows: int) -> bool:
    """Whether the run did not go on after this event: at most `rows` records follow."""
    if "rows_after" in event.numbers:
        return event.numbers["rows_after"] <= rows
    return event.step is None or last_step is None or event.step >= last_step


def _reached_end(last_step: float | None, planned_steps: float | None, slack: float) -> bool | None:
    """Whether the last record is as good as the planned last one; None: unknown."""
    if planned_steps is None or planned_steps <= 0:
        return None
    return last_step is not None and last_step >= planned_steps - slack


_BY_SHELL = re.compile(r"\bline \d+:\s+\d+ (?:Killed|Terminated|Aborted|Segmentation fault)")
_PLACE = re.compile(r" \[[^\]]+:\d+")  # where a traceback ends


def _cause(ending: Sequence[Event]) -> Event | None:
    limit = next((event for event in ending if event.kind == "time_limit"), None)
    own = [event for event in ending if event.kind in CAUSES]
    if limit is not None:
        before = [e for e in own if (e.line or 0) < (limit.line or 0) and _could_have_ended(e)]
        return before[0] if before else limit
    leaders = [event for event in own if event.kind not in _FOLLOWERS]
    if any(event.kind == "host_memory" for event in leaders):  # who killed it says why
        leaders = [event for event in leaders if event.kind != "killed"]
    # a shell goes on behind what it could not find
    leaders = [event for event in leaders if not event.text.endswith(NOT_FOUND)] or leaders
    for group in (leaders, own, [e for e in ending if e.kind == "child_failed"], ending):
        if group:
            return group[0]
    return None


def _could_have_ended(event: Event) -> bool:
    """Whether a run that its scheduler's limit found may have been over before; a tool's complaint ends no program."""
    if event.kind == "exception":
        return _PLACE.search(event.text) is not None
    return event.kind not in (*_FOLLOWERS, "killed")


def _in_the_end(cause: Event, ending: Sequence[Event]) -> str:
    """The last exception, where it is another one than the first: often all that a user has seen."""
    last = next((event for event in reversed(ending) if event.kind == "exception"), cause)
    same = cause.kind != "exception" or last.text.partition(" [")[0] == cause.text.partition(" [")[0]
    return "" if same else f"; in the end {last.text}"


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
    """The signal that an exit code tells of, as Python (below zero) or a shell (beyond 128) writes it; 0: of none."""
    if exitcode < 0:
        return -exitcode
    return exitcode - _OF_SHELLS if _OF_SHELLS < exitcode <= _OF_SHELLS + _SIGNALS else 0.0


# What the last rows of a run show of its end where no word and no plan tells of one.

FEWEST_GAPS = 5  # between evaluations that show how often they are due
FEWEST_ROWS = 10  # of a run whose last number says something by being round
BY_CHANCE = 0.005  # of the places where a run may be cut are as round: every hundredth step is none that says something
ROUND = "is a round number, where few runs are cut"


def at_the_end(table: RunTable, phase: int, events: Sequence[Event]) -> str:
    """What shows that the last record of a phase is that of the run's end, in words; empty where nothing does."""
    saved = [e for e in events if e.kind in ("checkpoint", "afterwards") and e.numbers.get("rows_after") == 0]
    words = _evaluated_out_of_turn(table, phase)
    if not words and saved and (number := _ends_round(table, phase)):
        words = f"{number}, and behind it stands: {saved[-1].text}"
    return words


def _evaluated_out_of_turn(table: RunTable, phase: int) -> str:
    """That the last step was evaluated though none was due, as programs do at their end."""
    if not table.counts_steps:
        return ""
    # what is evaluated behind the last record with a loss is of this run too
    rest = table.phases[phase + 1].first_row if phase + 1 < len(table.phases) else len(table)
    part = slice(table.phases[phase].first_row, rest)
    steps, evaluated = table.column("step")[part], np.isfinite(table.column("eval_loss")[part])
    gaps = np.diff(steps[evaluated])
    if len(gaps) < FEWEST_GAPS or steps[evaluated][-1] != np.nanmax(steps):
        return ""
    last, every = float(steps[evaluated][-1]), float(np.median(gaps[:-1]))
    # one that a restart lost makes a gap of two
    out_of_turn = every > 0 and np.all(gaps[:-1] % every == 0) and 0 < gaps[-1] < every
    words = f"evaluated out of turn at the last step {last:.10g}, as at an end: else every {every:.10g}"
    return words if out_of_turn else ""


def _ends_round(table: RunTable, phase: int) -> str:
    """That the last step or epoch is a round number, where few runs are cut."""
    unit = "step" if table.counts_steps else "epoch"
    counted = table.column(unit)[table.phases[phase].rows]
    counted = np.unique(counted[np.isfinite(counted)])
    if len(counted) < FEWEST_ROWS or np.any(counted != np.round(counted)):
        return ""
    first, last, stride = int(counted[0]), int(counted[-1]), int(np.median(np.diff(counted)))
    ends = {last, last + 1} if first in (0, stride - 1) else {last}
    end = max(ends, key=grain)
    if stride / grain(end) > BY_CHANCE:
        return ""
    counts = "" if end == last else f", counted from 0, is the {end:,}th: it"
    return f"its last {unit} {last:,}{counts} {ROUND}"


def grain(count: int) -> int:
    """The largest of 1, 2, 5, 10, 20, 50 … that divides a count: 3,000 is 3 of 1,000."""
    grains = [m * 10**k for k in range(len(str(count))) for m in (1, 2, 5)]
    return max((grain for grain in grains if count and count % grain == 0), default=1)


# What shows an end where the log has no word and no plan of it.

FEWEST_ALIKE = 3  # runs that end where another did; of two one may have been cut there


def ended_alike(parts: list[RunPart]) -> list[RunPart]:
    """Runs without a word of their end that each came exactly as far as another of the log: to where it was to go."""
    silent = [part for part in parts if part.phase is not None and NO_END in part.status_reason]
    far = Counter((part.first_step, part.last_step) for part in silent)
    went = all(first is not None and last is not None and last > first for first, last in far)
    if len(silent) < FEWEST_ALIKE or not went or min(far.values()) == 1:
        return parts

    def words(part: RunPart) -> str:
        others = far[part.first_step, part.last_step] - 1
        return f"ends at step {part.last_step:.10g}, as {others} other run{'s' * (others > 1)} of this log"

    return [shown_complete(part, words(part)) if part in silent else part for part in parts]


def shown_complete(part: RunPart, words: str) -> RunPart:
    """The run as completed by what `words` say shows its end, where neither words nor a plan of its own tell of one."""
    told = part.phase is None or part.status is not Status.INCOMPLETE or NO_END not in part.status_reason
    return part if told or not words else dataclasses.replace(part, status=Status.COMPLETED, status_reason=words)


# A log of several runs.

_FAILED = (Status.CRASHED, Status.OUT_OF_MEMORY, Status.KILLED, Status.TIME_LIMIT, Status.STOPPED, Status.DIVERGED)


def rejudged(table: RunTable, parts: Sequence[RunPart]) -> RunTable:
    """The table with its runs judged anew, and so the whole."""
    judged = [(part.status, part.status_reason) for part in parts]
    if judged == [(part.status, part.status_reason) for part in table.runs]:
        return dataclasses.replace(table, runs=tuple(parts))
    status, reason = of_all_runs(parts)
    return dataclasses.replace(table, runs=tuple(parts), status=status, status_reason=reason)


def of_all_runs(parts: Sequence[RunPart]) -> tuple[Status, str]:
    """How a log of several runs ended: as its last, a start that came to nothing aside unless it failed."""
    last = parts[-1]
    trained = [part for part in parts if part.phase is not None]
    if len(parts) == 1 or not trained:
        return last.status, last.status_reason
    if last.phase is not None or last.status in _FAILED:
        return last.status, f"{last.name} of {len(parts)}: {last.status_reason}"
    before = trained[-1]
    if last.status is Status.COMPLETED and before.status is Status.INCOMPLETE:  # its last words came behind a banner
        return last.status, last.status_reason
    if before.status is Status.COMPLETED and last.status is not Status.INCOMPLETE:  # no sign of a training in it
        return before.status, f"{before.name} of {len(parts)}: {before.status_reason}; what came after did not train"
    return Status.INCOMPLETE, f"started again after {before.name} ({before.status_reason}), without a record since"


# What is known from elsewhere than the log's words and rows.


def by_tracker(table: RunTable, status: Status | None, words: str) -> RunTable:
    """Return the table with the end that a tracker or trainer recorded; a loss that became NaN it calls finished."""
    if status is None or table.status is Status.DIVERGED:
        return table
    last = [dataclasses.replace(run, status=status, status_reason=words) for run in table.runs[-1:]]
    return dataclasses.replace(table, status=status, status_reason=words, runs=(*table.runs[:-1], *last))


def is_open(table: RunTable) -> bool:
    """Whether the log itself does not say how the run ended, or only hints at it."""
    return table.status in _OPEN or ROUND in table.status_reason


def by_plan(facts: dict[str, Any], table: RunTable) -> RunTable:
    """Return the table with all facts; it is judged anew if only these say how many steps there were to be."""
    known = "planned_steps" in table.facts
    table = dataclasses.replace(table, facts=facts)
    planned, last = facts.get("planned_steps"), table.last_step
    if known or not is_open(table) or not isinstance(planned, int | float) or last is None:
        return table
    status, reason = status_of((), last, planned, 0.0)
    return dataclasses.replace(table, status=status, status_reason=reason)


def by_other_log(table: RunTable, other: RunTable) -> RunTable:
    """Return the table with the end that another file of the run tells (its stderr), if the log itself tells none."""
    failures = [event for event in other.events if event.kind in FAILURES]
    if not is_open(table) or other.status in (*_OPEN, Status.COMPLETED) or not failures:
        return table
    name = Path(other.source).name
    return dataclasses.replace(
        table,
        status=other.status,
        status_reason=f"{other.status_reason} ({name})",
        events=(*table.events, *failures),
        notes=(*table.notes, f"how the run ended is in {name}"),
    )
