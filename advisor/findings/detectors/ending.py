"""How a run ended, where it did not end well: what to do next, and what the rest would take.

A log that merely stops before its planned end is `comparison.detect_steps_missing`.
"""

from __future__ import annotations

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.run_facts import has_words, last_checkpoint, planned_steps, price, steps_done
from advisor.findings.run_metrics import step_seconds
from advisor.findings.savings import main_part, whole_run_seconds
from advisor.readers.run_table import Event, RunPart, Status
from advisor.units import HOUR, format_percent, format_seconds, format_usd


def _last(case: Case, *kinds: str) -> Event | None:
    """The last event of these kinds."""
    events = [event for event in case.run.events if event.kind in kinds]
    return events[-1] if events else None


def unsaid(case: Case, code: str) -> Insufficient | None:
    """That a log of numbers alone cannot tell of errors; None where it could, and says nothing of this one."""
    if has_words(case.run):
        return None
    return Insufficient(code=code, missing="what the program printed (stdout and stderr)")


def _where(case: Case) -> str:
    """At which step of how many the run ended, in words; empty where the log has no steps."""
    done, planned = steps_done(case.run), planned_steps(case)
    ended = next((part for part in reversed(case.run.runs) if part.status is case.run.status), None)
    if ended is not None and len(case.run.runs) > 1 and ended.last_step not in (None, done):
        return f" at step {ended.last_step:g} of {ended.name}"  # the longest run is judged, another one was ended
    if done is None:
        # a file of errors alone may belong to a run that trained for days
        return "" if len(case.run) else ", no step read"
    return f" at step {done:g}" + (f" of {planned:g} ({format_percent(done / planned)})" if planned else "")


def _evidence(case: Case, event: Event | None) -> tuple[Evidence, ...]:
    last_words = [Evidence(text=event.text, first_step=event.step, last_step=event.step)] if event else []
    if not last_words and case.run.status_reason:
        last_words.append(Evidence(text=case.run.status_reason))
    return (*last_words, *_rest(case))


def _rest(case: Case) -> tuple[Evidence, ...]:
    """What the missing steps would take at the pace so far."""
    seconds = remaining_seconds(case)
    if not seconds:
        return ()
    usd = price(case)
    cost = f", {format_usd(seconds / HOUR * usd)}" if usd else ""
    return (Evidence(text=f"the missing steps would take {format_seconds(seconds)}{cost} at the pace so far"),)


def remaining_seconds(case: Case) -> float | None:
    """Seconds of the steps that are missing, pauses included in proportion; None where pace or plan is unknown."""
    done, planned = steps_done(case.run), planned_steps(case)
    if done is None or not planned or done >= planned:
        return None
    whole, plain = whole_run_seconds(case), step_seconds(case)
    if whole is not None:
        return whole * (planned - done) / planned
    return plain * (planned - done) if plain else None


def detect_nccl_timeout(case: Case) -> Verdict:
    """A collective operation that timed out: one rank never came, the others only waited."""
    event = _last(case, "nccl_timeout")
    if event is None:
        return unsaid(case, "nccl_timeout")
    fatal = case.run.status not in (Status.COMPLETED, Status.TIME_LIMIT)
    return Finding(
        code="nccl_timeout",
        severity=Severity.ERROR if fatal else Severity.WARNING,
        title=f"Communication between the GPUs timed out{_where(case)}: whoever reports it only waited",
        evidence=_evidence(case, event),
        confidence=Confidence.HIGH,
        causes=(
            "one rank crashed, ran out of memory or hangs: its own last lines say why",
            "one rank does something alone (evaluation, checkpoint, download) for longer than the time-out",
            "ranks disagree about the number of batches",
            "a broken link or GPU",
        ),
        actions=(
            "read the log of every rank; the first one to stop is the cause",
            "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 shows who was where",
            "init_process_group(timeout=...) only where a rank is known to work alone for long",
        ),
        threshold="the framework's own message",
    )


def detect_time_limit(case: Case) -> Verdict:
    """Cut off by the scheduler: how much longer a job must be asked for."""
    event = _last(case, "time_limit")
    if event is None and case.run.status is not Status.TIME_LIMIT:
        return unsaid(case, "time_limit")
    if case.run.status is Status.COMPLETED:
        return None
    rest, pace, done, saved = remaining_seconds(case), step_seconds(case), steps_done(case.run), last_checkpoint(case)
    left = (planned_steps(case) or 0.0) - (done or 0.0)
    again = (done - saved) * rest / left if rest and saved and done else 0.0
    of = f"what is left from the checkpoint of step {saved:g}" if saved else "the whole run"
    asked = rest + again if rest and saved else whole_run_seconds(case)
    lost: tuple[Evidence, ...] = ()
    if done and saved and pace and done > saved:
        words = f"{done - saved:,g} steps since the checkpoint of step {saved:,g} are lost"
        lost = (Evidence(text=f"{words}: {format_seconds((done - saved) * pace)}"),)
    return Finding(
        code="time_limit",
        severity=Severity.ERROR,
        title=f"The scheduler's time limit ended the run{_where(case)}",
        evidence=(*_evidence(case, event), *lost),
        confidence=Confidence.HIGH,
        causes=("the job asked for less time than its steps take",),
        actions=(
            f"ask for {format_seconds(asked * 1.1)} ({of}, and a tenth)"
            if rest and asked
            else "ask for more time, or plan fewer steps",
            "checkpoint before the limit (SIGUSR1 or SIGTERM ahead of it) and resume in a chain of jobs",
        ),
        threshold="the scheduler's own message; messages of signal 15 after it are its consequence",
    )


def detect_exception(case: Case) -> Verdict:
    """Ended by an exception or a failed process."""
    if case.run.status is not Status.CRASHED or _last(case, "nccl_timeout"):
        return _later_failure(case) or unsaid(case, "crashed")
    event = _last(case, "exception", "disk_full", "nccl_error", "child_failed")
    full = event is not None and event.kind == "disk_full"
    worker = event is not None and _lost_worker(event.text)
    if worker:
        return _worker_killed(case, event)
    main = main_part(case.run)
    if main is not None and main.status is Status.COMPLETED:
        return _stage_failed(case, event, main)
    return Finding(
        code="crashed",
        severity=Severity.ERROR,
        title=("The disk was full" if full else "The run crashed") + _where(case),
        evidence=_evidence(case, event),
        confidence=Confidence.HIGH,
        causes=("the disk of checkpoints and logs is full",) if full else (),
        actions=(
            (
                "keep fewer checkpoints (checkpoint.keep: 2) or a larger disk",
                "the newest checkpoint may be torn: verify it",
            )
            if full
            else (
                "mend what the message names and "
                + ("resume from the newest checkpoint" if len(case.run) else "start again"),
            )
        ),
        threshold="the log's own message",
    )


def _stage_failed(case: Case, event: Event | None, main: RunPart) -> Finding:
    """A crash of a log whose training had come to its end: a later stage of the script, or another start."""
    return Finding(
        code="crashed",
        severity=Severity.ERROR,
        title=f"“{main.name}” is complete; what came after it in the same log crashed",
        evidence=_evidence(case, event),
        confidence=Confidence.HIGH,
        causes=("a later stage of the script (evaluation, the next model), or another start of it",),
        actions=("mend what the message names and start that stage alone: the training before it stands",),
        threshold="the log's own message, after the end of its longest run",
    )


def _later_failure(case: Case) -> Finding | None:
    """What failed in the same log although the training itself came to its end."""
    failed = [event for event in case.run.events if event.kind in ("exception", "child_failed")]
    if case.run.status is not Status.COMPLETED or not failed:
        return None
    return Finding(
        code="later_failure",
        severity=Severity.NOTE,
        title="The training came to its end; something else in the same log failed",
        evidence=tuple(Evidence(text=event.text, first_step=event.step) for event in failed[-3:]),
        confidence=Confidence.MEDIUM,
        causes=("a stage after the training, or an attempt before it",),
        actions=("look at the message: the trained weights are not touched by it",),
        threshold="an error in the log of a run that is complete",
    )


def _lost_worker(text: str) -> bool:
    """Whether the message is of a data loader whose worker died."""
    words = text.lower()
    return "dataloader worker" in words and (
        "killed" in words or "exited unexpectedly" in words or "bus error" in words
    )


def _worker_killed(case: Case, event: Event | None) -> Finding:
    return Finding(
        code="crashed",
        severity=Severity.ERROR,
        title=f"A worker of the data loader was killed{_where(case)}",
        evidence=_evidence(case, event),
        confidence=Confidence.HIGH,
        causes=(
            "the host or the container ran out of memory: each worker holds its own copy of the data",
            "shared memory (/dev/shm) is too small for the batches: containers have 64 MB unless told",
        ),
        actions=("fewer loader workers, memory-mapped data; docker run --shm-size=16g or --ipc=host",),
        threshold="the log's own message",
    )


def detect_killed(case: Case) -> Verdict:
    """Ended by a signal from outside: the machine's memory, preemption or a person."""
    host = _last(case, "host_memory")
    if case.run.status is not Status.KILLED and not (case.run.status is Status.OUT_OF_MEMORY and host):
        return unsaid(case, "killed")
    event = host or _last(case, "killed", "signal")
    words = event.text.lower() if event else case.run.status_reason.lower()
    signal = event.numbers.get("signal") if event else None
    memory = signal == 9 or any(word in words for word in ("oom", "out of memory", "memory"))
    preempted = any(word in words for word in ("preempt", "spot", "cancelled"))
    causes = (
        ("the host ran out of memory (loader workers, tokenising in memory)", "a person or a scheduler killed it")
        if memory
        else ("preemption or a cancelled job",)
        if preempted
        else ("preemption", "a closed terminal", "a person")
    )
    return Finding(
        code="killed",
        severity=Severity.ERROR,
        title=f"The run was killed from outside{_where(case)}",
        evidence=_evidence(case, event),
        confidence=Confidence.HIGH if event else Confidence.MEDIUM,
        causes=causes,
        actions=(
            ("fewer loader workers, memory-mapped tokens (advisor data prepare); watch the host's memory",)
            if memory
            else ("start it detached (advisor launch) and resume from the newest checkpoint",)
        ),
        threshold="the log's own message",
    )
