"""One short run of a training command as a child process, ended when the probe has seen enough of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from advisor.adopt.command import Ready
from advisor.adopt.probe_log import ProbeFolder, probe_variables
from advisor.adopt.steady import LEAST_STEPS, warmup_steps
from advisor.errors import AdvisorError
from advisor.readers.read import read_run
from advisor.readers.run_table import RunTable, Status
from advisor.store.adopted import AdoptedBurst, Setting
from trainer.schema import Outcome

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 3.0  # from SIGTERM to SIGKILL: a burst has nothing to save
TIMED_OUT = "timed_out"
_OUTCOMES = {Status.OUT_OF_MEMORY: Outcome.OUT_OF_MEMORY, Status.DIVERGED: Outcome.DIVERGED}


@dataclass(frozen=True, kw_only=True)
class BurstLimits:
    """When a burst has said enough, and when it is given up."""

    steady_seconds: float = 2.0  # of timed steps
    least_steps: int = 6  # timed
    most_seconds: float = 120.0  # of the whole process
    to_its_end: bool = False  # it ends by itself: what saving takes is to be seen


def run_burst(
    ready: Ready,
    settings: Sequence[Setting],
    folder: Path,
    scratch: Path,
    limits: BurstLimits,
    environment: Mapping[str, str],
    shapes: int = 3,
) -> AdoptedBurst:
    """Run one burst in `folder`, with everything of ours in `scratch`; whatever happens to it is a value of the record.

    Raises AdvisorError when the command cannot be started at all.
    """
    probed, output = ProbeFolder(scratch), scratch / "output.log"
    inherited = {**environment, **ready.variables}
    variables = {**inherited, **probe_variables(scratch, shapes, inherited)}
    began, stamp = time.monotonic(), time.time()
    process = _start(ready.arguments, folder, output, variables)
    try:
        ended_by, peak = _watch(process, probed, limits, began)
    finally:
        _end(process)
    seconds = time.monotonic() - began
    probed.read_on()
    outcome, reason = _outcome(process.returncode, ended_by, output)
    return _burst(settings, probed, outcome, reason, seconds, stamp, peak, limits)


def _start(command: Sequence[str], folder: Path, output: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        with open(output, "wb") as out:
            return subprocess.Popen(
                command,
                cwd=folder,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise AdvisorError(
            f"cannot start {command[0]}: {error.strerror}", "the command after -- is started as it is typed"
        ) from error


def _watch(
    process: subprocess.Popen[bytes], probed: ProbeFolder, limits: BurstLimits, began: float
) -> tuple[str | None, int]:
    """Wait until a burst has ended, has said enough or is out of time; which of the last two, and its most memory."""
    peak = 0
    while process.poll() is None:
        time.sleep(_POLL_SECONDS)
        peak = max(peak, _resident(process.pid))
        probed.read_on()
        if not limits.to_its_end and enough(probed, limits):
            return Outcome.STOPPED, peak
        if time.monotonic() - began > limits.most_seconds:
            said = probed.first is not None and len(probed.first.durations) >= LEAST_STEPS
            return (Outcome.STOPPED if said else TIMED_OUT), peak
    return None, peak


def enough(probed: ProbeFolder, limits: BurstLimits) -> bool:
    """Whether the steps so far are steady, and enough of them."""
    durations = probed.first.durations if probed.first is not None else []
    first = warmup_steps(durations)
    if first is None:
        return False
    timed = durations[first:]
    return len(timed) >= limits.least_steps and sum(timed) >= limits.steady_seconds


def _resident(pid: int) -> int:
    """Bytes that a process and its children hold now."""
    total = 0
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return total


def _end(process: subprocess.Popen[bytes]) -> None:
    """End everything that the command started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)


def _outcome(code: int, ended_by: str | None, output: Path) -> tuple[str, str | None]:
    """How a burst ended, and why where it was not asked to."""
    if ended_by is not None:
        return ended_by, "no steady steps in the time it was given" if ended_by == TIMED_OUT else None
    run = _read(output)
    if code == 0:
        diverged = run is not None and run.status is Status.DIVERGED
        return (Outcome.DIVERGED, run.status_reason) if diverged and run else (Outcome.COMPLETED, None)
    if code == -signal.SIGKILL:
        return Outcome.OUT_OF_MEMORY, "killed (SIGKILL), as the kernel does when memory runs out"
    said = _OUTCOMES.get(run.status) if run is not None else None
    return said or Outcome.FAILED, f"exit code {code}: {_last_words(output)}"


def _read(output: Path) -> RunTable | None:
    try:
        return read_run(output)
    except AdvisorError:  # it printed nothing that is a log
        return None


def _last_words(output: Path) -> str:
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "it said nothing")


def _burst(
    settings: Sequence[Setting], probed: ProbeFolder, outcome: str, reason: str | None, seconds: float, started: float,
    peak: int, limits: BurstLimits,
) -> AdoptedBurst:  # fmt: skip
    process = probed.first
    if process is None:
        return AdoptedBurst(values=tuple(settings), outcome=outcome, reason=reason, seconds=seconds, started=started,
                            resident_peak_bytes=peak or None)  # fmt: skip
    durations, moments = process.durations, process.moments
    dropped = warmup_steps(durations)
    first = dropped if dropped is not None else len(durations) // 2
    main = process.main
    assert main is not None  # a process of `probed` has trained
    return AdoptedBurst(
        values=tuple(settings),
        outcome=outcome,
        reason=reason,
        seconds=seconds,
        startup_seconds=moments[0] - started,
        ending_seconds=started + seconds - moments[-1] if limits.to_its_end and outcome == Outcome.COMPLETED else None,
        warmup_seconds=tuple(durations[:first]),
        step_seconds=tuple(durations[first:]),
        steady=dropped is not None,
        shape=process.shape,
        elements=process.optimizers[main]["elements"],
        steps=len(moments),
        allocated_peak_bytes=probed.peak("allocated_peak_bytes"),
        reserved_peak_bytes=probed.peak("reserved_peak_bytes"),
        resident_peak_bytes=probed.peak("resident_peak_bytes") or peak or None,
        started=started,
        torch=process.header.get("torch"),
        processes=process.header.get("world_size", 1),
    )
