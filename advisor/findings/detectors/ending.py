"""Runs that did not end well: how they ended, what to do next, and what the rest would take.

If a log merely stops before its planned end, `runs.detect_steps_missing` reports it.
"""

from __future__ import annotations

import re
from typing import Any

from advisor.findings.case import Case, Evidence, Insufficient, Verdict, finding, lacking, seen, texts
from advisor.findings.durations import main_part, wait_after_end
from advisor.findings.forecast import rest_seconds
from advisor.findings.run_facts import has_words, last_checkpoint, planned_steps, price, steps_done
from advisor.findings.savings import mean_step_seconds, whole_run_seconds
from advisor.readers.run_table import Event, Status
from advisor.units import HOUR, format_count, format_percent, format_seconds, format_usd

# files that a program cannot write; one of data that it cannot read has another name
_UNWRITTEN = re.compile(
    r"FileExistsError|IsADirectoryError|PermissionError|Parent directory .* does not exist|failed writing file|"
    r"No such file or directory: '[^']*(?:\.pth?|\.ckpt|\.h5|\.keras|\.safetensors)'"
)


def _last(case: Case, *kinds: str) -> Event | None:
    """Return the last event of these kinds."""
    events = [event for event in case.run.events if event.kind in kinds]
    return events[-1] if events else None


def unsaid(case: Case, code: str) -> Insufficient | None:
    """Return that a log of numbers alone cannot show errors, or None if the log has words without this error."""
    if has_words(case.run):
        return None
    return lacking(code, "what the program printed (stdout and stderr)")


def _where(case: Case) -> str:
    """Return the step at which the run ended, and of how many, in words; empty if the log has no steps."""
    done, planned = steps_done(case.run), planned_steps(case)
    ended = next((part for part in reversed(case.run.runs) if part.status is case.run.status), None)
    if ended is not None and len(case.run.runs) > 1 and ended.phase is None:
        return f" before the first step of {ended.name}"
    if ended is not None and len(case.run.runs) > 1 and ended.last_step not in (None, done):
        return f" at step {ended.last_step:g} of {ended.name}"  # the longest run is judged, but another run ended
    if done is None:
        # a file with only errors may belong to a run that trained for days
        counted = next((e for e in case.run.events if "bar_steps" in e.numbers), None)
        if counted is not None:
            return f" at step {counted.numbers['bar_steps']:g} of {counted.numbers['bar_total']:g}"
        return "" if len(case.run) else ", no step read"
    of = f" of {format_count(planned)} ({format_percent(done / planned)})" if planned else ""
    return f" at step {format_count(done)}{of}"


def _evidence(case: Case, event: Event | None) -> list[Evidence | str]:
    """Return the last words of the run."""
    return [seen(event.text, event.step, event.step) if event else case.run.status_reason]


def detect_nccl_timeout(case: Case) -> Verdict:
    """A collective operation that timed out because one rank never came and the others waited for it."""
    title = f"Communication between the GPUs timed out{_where(case)}: whoever reports it only waited"
    event = _last(case, "nccl_timeout")
    before = [e for e in case.run.events if event is not None and (e.line or 0) < (event.line or 0)]
    if case.run.status is Status.STOPPED and any(e.kind == "interrupt" for e in before):
        return None  # the other ranks waited for the one that its user had stopped
    after_end, waited = wait_after_end(case)
    if after_end is not None:
        usd = price(case)
        cost = f" ({format_usd(waited / HOUR * usd)})" if waited and usd else ""
        took = f": {format_seconds(waited)} of waiting{cost} lost, nothing else" if waited else ": nothing is lost"
        title = f"The training is complete; after it the ranks waited for each other until the time-out{took}"
        evidence = seen(after_end.text, after_end.step, after_end.step)
        return finding("nccl_timeout", text="waited_after_end", title=title, evidence=evidence)
    if event is None:
        return unsaid(case, "nccl_timeout")
    severity = "warning" if case.run.status in (Status.COMPLETED, Status.TIME_LIMIT) else "error"  # it went on
    return finding("nccl_timeout", severity=severity, title=title, evidence=_evidence(case, event))


def detect_time_limit(case: Case) -> Verdict:
    """A run that the scheduler ended, with the longer time that the job must request."""
    event = _last(case, "time_limit")
    if event is None and case.run.status is not Status.TIME_LIMIT:
        return unsaid(case, "time_limit")
    if case.run.status is Status.COMPLETED:
        return None
    to_come, pace = rest_seconds(case), mean_step_seconds(case)
    done, saved = steps_done(case.run), last_checkpoint(case)
    rest = to_come.value if to_come is not None else 0.0
    left = (planned_steps(case) or 0.0) - (done or 0.0)
    steps_lost = max(0.0, done - saved) if done and saved else 0.0
    again = steps_lost * rest / left if rest and steps_lost else 0.0
    of = f"the rest, the {steps_lost:,g} lost steps" if again else "the rest" if saved else "the whole run"
    asked = rest + again if rest and saved else whole_run_seconds(case)
    lost = ""
    if saved and pace and steps_lost:
        lost = f"{steps_lost:,g} steps since the checkpoint of step {saved:,g} are lost: "
        lost += format_seconds(steps_lost * pace.value)
    ask = f"ask for {format_seconds(asked * 1.1)}: {of} and 10 % to spare" if rest and asked else ""
    return finding(
        "time_limit",
        title=f"The scheduler's time limit ended the run{_where(case)}",
        evidence=(*_evidence(case, event), lost),
        actions=(ask or "ask for more time, or plan fewer steps", *texts()["time_limit"]["actions"]),
    )


def detect_exception(case: Case) -> Verdict:
    """A run that ended by an exception or a failed process."""
    run, main = case.run, main_part(case.run)
    if run.status is not Status.CRASHED or _last(case, "nccl_timeout"):
        failed = [seen(e.text, e.step) for e in run.events if e.kind in ("exception", "child_failed")]
        # a failure in the same log, although the training itself was completed
        later = run.status is Status.COMPLETED and len(failed) > 0 and not _last(case, "nccl_timeout")
        return finding("later_failure", evidence=failed[-3:]) if later else unsaid(case, "crashed")
    event = _last(case, "exception", "disk_full", "nccl_error", "child_failed", "data_worker")
    if event is not None and event.kind == "exception":  # the first is the cause, as in the status
        event = next((e for e in run.events if e.kind == "exception" and e.text in run.status_reason), event)
    event, row = _last(case, "data_worker") or event, "crashed"
    title = f"The run crashed{_where(case)}"
    again = "start again"
    if len(run):
        unsaved = has_words(run) and last_checkpoint(case) is None
        again = "resume from the newest checkpoint" + (", or start anew if none was saved" if unsaved else "")
    known: dict[str, Any] = {"actions": f"mend what the message names and {again}"}
    if event is not None and event.kind == "data_worker":
        row, known, title = _row_of_worker(event.text), {}, f"A worker of the data loader was killed{_where(case)}"
    elif main is not None and main.status is Status.COMPLETED:  # a later stage of the script, or another start
        row, known = "stage_crashed", {}
        title = f"“{main.name}” is complete; what came after it in the same log crashed"
    elif event is not None and _UNWRITTEN.search(event.text) and len(run) and last_checkpoint(case) is None:
        row, known = "not_saved", {}
        title = f"The run crashed{_where(case)} as it wrote its files: it was not saved, and no checkpoint is named"
    elif event is not None and event.kind == "disk_full":
        row, known, title = "disk_full", {}, f"The disk was full{_where(case)}"
    elif event is not None and event.text.startswith("StopIteration"):
        row, known, title = "data_ended", {}, f"The data ended{_where(case)}, before the steps did"
    elif event is not None and (mend := next((row for sign, row in _MENDS if sign.search(event.text)), "")):
        row, known = mend, {"actions": f"{texts()[mend]['actions'][0]}, and {again}"}
    return finding("crashed", text=row, title=title, evidence=_evidence(case, event), **known)


# what a message shows to be wrong, and the row that says how to mend it
_MENDS = (
    (re.compile(r"cannot open shared object file"), "library_missing"),
    (re.compile(r"undefined symbol"), "library_of_another_build"),
    (re.compile(r"\bNo module named\b"), "module_missing"),
    (re.compile(r"no kernel image is available|driver version is insufficient|driver on your system is too old"),
     "driver_or_build"),
    (re.compile(r"^FileNotFoundError\b|No such file or directory"), "file_missing"),
    (re.compile(r"^PermissionError\b|Permission denied"), "not_permitted"),
)  # fmt: skip

# who says that memory ran out knows whose: of the job, of the container, or else of the machine
_LIMITS = (
    ("slurmstepd", "killed_by_limit_of_slurm"),
    ("srun", "killed_by_limit_of_slurm"),
    ("oomkilled", "killed_by_limit_of_container"),
)


def detect_killed(case: Case) -> Verdict:
    """A run that ended by a signal from outside: the machine's memory, preemption or a person."""
    host = _last(case, "host_memory")
    if case.run.status is not Status.KILLED and not (case.run.status is Status.OUT_OF_MEMORY and host):
        return unsaid(case, "killed")
    event = host or _last(case, "killed", "signal")
    words = event.text.lower() if event else case.run.status_reason.lower()
    signal = event.numbers.get("signal") if event else None
    # a shell says "Killed" of signal 9, which the kernel sends where memory runs out
    memory = signal == 9 or words == "killed" or any(word in words for word in ("oom", "memory"))
    preempted = any(word in words for word in ("preempt", "spot", "cancelled"))
    row = "perhaps_killed_by_memory" if memory else "preempted" if preempted else "killed"
    if host is not None:
        row = next((row for sign, row in _LIMITS if sign in words), "killed_by_memory")
    return finding(
        "killed",
        text=row,
        title=f"The run was killed {'for lack of host memory' if host else 'from outside'}{_where(case)}",
        evidence=_evidence(case, event),
        confidence="high" if event and not row.startswith("perhaps") else "medium",
    )


def _row_of_worker(text: str) -> str:
    """Return the row of texts for what ended a worker: signal 9, too little shared memory, or a crash of its own."""
    words = text.lower()
    if "bus error" in words or "shared memory object" in words:
        return "data_worker_shm"
    if "segmentation" in words or "aborted" in words:
        return "data_worker_crashed"
    return "data_worker_killed" if "signal: killed" in words else "data_worker_lost"
