"""Runs a training command as a child process until its steps have been measured."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from advisor.adopt.by_log import LogSteps
from advisor.adopt.command import Ready
from advisor.adopt.decoder import Weights, decoder_of
from advisor.adopt.log_watch import TERMINAL, LogWatch, Output, resident_bytes, tree
from advisor.adopt.probe_log import ProbeFolder, probe_variables
from advisor.errors import AdvisorError
from advisor.readers.read import read_run
from advisor.readers.run_table import Status
from advisor.store.adopted import LOG, AdoptedBurst, Setting
from trainer.schema import Outcome

LEAST_STEPS = 4  # enough for two windows of two steps each
_AGREE = 0.1  # windows agree if the logarithms of their medians differ by less (DeepView's rule, with room for noise)
_POLL_SECONDS = 0.05
_UNPRINTED = 2  # steps that may follow the last printed line, because fast programs print rows in blocks
_UNPRINTED_SHARE = 0.25  # as a share of all steps; a counter of other things is off by a factor of 2 or more
_GRACE_SECONDS = 3.0  # from SIGTERM to SIGKILL; a burst has nothing to save
TIMED_OUT = "timed_out"
_OUTCOMES = {Status.OUT_OF_MEMORY: Outcome.OUT_OF_MEMORY, Status.DIVERGED: Outcome.DIVERGED}


def warmup_steps(seconds: Sequence[float]) -> int | None:
    """Returns how many first steps to drop: the fewest after which two neighbouring windows agree. None if none do.

    A window is a quarter of the remaining steps, but at least two.
    """
    for first in range(len(seconds) - LEAST_STEPS + 1):
        left = seconds[first:]
        window = max(2, len(left) // 4)
        one, other = statistics.median(left[:window]), statistics.median(left[window : 2 * window])
        rest = statistics.median(left)
        if _near(one, other) and _near(one, rest):
            return first
    return None


def _near(one: float, other: float) -> bool:
    return one > 0 and other > 0 and abs(math.log(one / other)) <= _AGREE


@dataclass(frozen=True, kw_only=True)
class BurstLimits:
    """The limits at which a burst is long enough, or is given up."""

    steady_seconds: float = 2.0  # of timed steps
    least_steps: int = 6  # timed
    most_seconds: float = 120.0  # of the whole process
    to_its_end: bool = False  # the command ends by itself, so that its final save is timed


def run_burst(
    ready: Ready,
    settings: Sequence[Setting],
    folder: Path,
    scratch: Path,
    limits: BurstLimits,
    environment: Mapping[str, str],
    shapes: int = 3,
) -> AdoptedBurst:
    """Run one burst in `folder`, with the advisor's own files in `scratch`; returns its record even if it fails.

    Raises AdvisorError if the command cannot be started.
    """
    inherited = {**environment, **TERMINAL, **ready.variables}
    variables = {**inherited, **probe_variables(scratch, shapes, inherited)}
    probed, output = ProbeFolder(scratch), Output(scratch / "output.log")
    log, resident_peak, ended_by = LogWatch(output), 0, None
    began, started = time.monotonic(), time.time()
    try:
        process = subprocess.Popen(
            ready.arguments, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=output.terminal,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        message = f"cannot start {ready.arguments[0]}: {error.strerror}"
        raise AdvisorError(message, "the command after -- is started as it is typed") from error
    finally:
        output.close_terminal()
    try:
        while ended_by is None and process.poll() is None:
            time.sleep(_POLL_SECONDS)
            resident_peak = max(resident_peak, resident_bytes(tree(process.pid)))
            probed.read_on()
            if probed.first is None:
                log.look(process.pid)
            ended_by = _why_end(probed, log, limits, time.monotonic() - began)
    finally:
        _end(process)
    seconds = time.monotonic() - began
    log.finish()
    probed.read_on()
    outcome, reason = _outcome(process.returncode, ended_by, output.path)
    burst = AdoptedBurst(values=tuple(settings), outcome=outcome, reason=reason, seconds=seconds, started=started,
                         resident_peak_bytes=resident_peak or None)  # fmt: skip
    ended = limits.to_its_end and outcome == Outcome.COMPLETED
    if probed.first is not None:
        return _by_probe(burst, probed, log.logged, ended)
    return burst if log.logged is None else _by_log(burst, log, log.logged, ended)


def _why_end(probed: ProbeFolder, log: LogWatch, limits: BurstLimits, seconds: float) -> str | None:
    """Returns why a burst that has run so long is to be ended: enough steps, or out of time. None: let it go on."""
    durations = probed.first.durations if probed.first is not None else log.logged.durations if log.logged else ()
    first = warmup_steps(durations)
    timed = durations[first:] if first is not None else ()
    enough = len(timed) >= limits.least_steps and sum(timed) >= limits.steady_seconds
    if enough and not limits.to_its_end:
        return Outcome.STOPPED
    if seconds > limits.most_seconds:
        return Outcome.STOPPED if len(durations) >= LEAST_STEPS else TIMED_OUT
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End everything that a command started, because processes of a launcher have their own sessions."""
    started = tree(process.pid)
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    for one in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def _outcome(code: int, ended_by: str | None, output: Path) -> tuple[str, str | None]:
    """Returns how a burst ended, and the reason unless we ended it."""
    if ended_by is not None:
        return ended_by, "no steady steps in the time it was given" if ended_by == TIMED_OUT else None
    try:
        run = read_run(output)
    except AdvisorError:  # its output is not a log
        run = None
    if code == 0:
        diverged = run is not None and run.status is Status.DIVERGED
        return (Outcome.DIVERGED, run.status_reason) if diverged and run else (Outcome.COMPLETED, None)
    if code == -signal.SIGKILL:
        return Outcome.OUT_OF_MEMORY, "killed (SIGKILL), as the kernel does when memory runs out"
    said = _OUTCOMES.get(run.status) if run is not None else None
    lines = [line.strip() for line in output.read_text(encoding="utf-8", errors="replace").splitlines()]
    last_words = next((line[:200] for line in reversed(lines) if line), "it said nothing")
    return said or Outcome.FAILED, f"exit code {code}: {last_words}"


def _by_probe(burst: AdoptedBurst, probed: ProbeFolder, logged: LogSteps | None, ended: bool) -> AdoptedBurst:
    """Returns the burst with the probe's measurements; `ended` means that it ended by itself.

    The share of an epoch in one step comes from the program's log, if that counts the same steps.
    """
    process = probed.first
    assert process is not None and process.main is not None  # a process of `probed` has trained
    moments, elements = process.moments, process.optimizers[process.main]["elements"]
    raw = process.model.get("weights", ())  # weights of the model that it trained
    weights = [Weights(name=each["name"], shape=tuple(each["shape"]), count=each["count"]) for each in raw]
    # The log counts the steps that the probe saw.
    away = abs(logged.steps[-1] - len(moments)) if logged is not None else math.inf
    same = away <= max(_UNPRINTED, _UNPRINTED_SHARE * len(moments))
    timed = _timed(burst, moments[0], moments[-1], process.durations, ended)
    steady_from = moments[len(timed.warmup_seconds)]
    return replace(
        timed,
        reference_seconds=tuple(w["reference_seconds"] for w in process.witnesses if w["time"] >= steady_from),
        shape=process.shape,
        elements=elements,
        model=decoder_of(weights, elements, round(shape.length or 1)) if (shape := process.shape) else None,
        steps=len(moments),
        step_epochs=logged.epochs if logged and same else None,
        allocated_peak_bytes=probed.peak("allocated_peak_bytes"),
        reserved_peak_bytes=probed.peak("reserved_peak_bytes"),
        resident_peak_bytes=probed.peak("resident_peak_bytes") or burst.resident_peak_bytes,
        torch=process.header.get("torch"),
        # as the launcher sets it, or else the number that trained
        processes=max(process.header.get("world_size", 1), len(probed.processes)),
    )


def _by_log(burst: AdoptedBurst, watched: LogWatch, logged: LogSteps, ended: bool) -> AdoptedBurst:
    """Returns the burst with the measurements of its own log, which does not state the batch."""
    return replace(
        _timed(burst, logged.moments[0], logged.moments[-1], logged.durations, ended),
        source=LOG,
        clock=logged.clock,
        steps=logged.steps[-1],
        step_tokens=logged.tokens,
        step_epochs=logged.epochs,
        step_printed=logged.printed,
        device_peak_bytes=watched.device_peak,
        resident_peak_bytes=None if watched.elsewhere else burst.resident_peak_bytes,
        processes=watched.processes,
    )


def _timed(burst: AdoptedBurst, first: float, last: float, durations: Sequence[float], ended: bool) -> AdoptedBurst:
    """Returns the burst with its step times; `first` and `last` are the ends of the first and the last step."""
    dropped = warmup_steps(durations)
    warmup = dropped if dropped is not None else len(durations) // 2
    return replace(
        burst,
        startup_seconds=first - burst.started,
        ending_seconds=burst.started + burst.seconds - last if ended else None,
        warmup_seconds=tuple(durations[:warmup]),
        step_seconds=tuple(durations[warmup:]),
        steady=dropped is not None,
    )
