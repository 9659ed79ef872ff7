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
    watched = Watched(ready, folder, scratch, environment, shapes)
    try:
        ended_by = watched.to_the_end(limits)
    finally:
        watched.end()
    outcome, reason = _outcome(watched.process.returncode, ended_by, watched.output.path)
    burst = AdoptedBurst(
        values=tuple(settings),
        outcome=outcome,
        reason=reason,
        seconds=watched.seconds,
        started=watched.started,
        resident_peak_bytes=watched.resident_peak or None,
    )
    ended = limits.to_its_end and outcome == Outcome.COMPLETED
    if watched.probed.first is not None:
        return _by_probe(burst, watched.probed, watched.log.logged, ended)
    return burst if watched.log.logged is None else _by_log(burst, watched.log, watched.log.logged, ended)


class Watched:
    """A program that is watched by the probe, or by its own log if the probe sees nothing of it."""

    def __init__(self, ready: Ready, folder: Path, scratch: Path, environment: Mapping[str, str], shapes: int):
        inherited = {**environment, **TERMINAL, **ready.variables}
        variables = {**inherited, **probe_variables(scratch, shapes, inherited)}
        self.probed, self.output = ProbeFolder(scratch), Output(scratch / "output.log")
        self.log = LogWatch(self.output)
        self.resident_peak = 0  # bytes, of all its processes
        self.seconds = 0.0  # its lifetime, once it has ended
        self._began, self.started = time.monotonic(), time.time()
        try:
            self.process = subprocess.Popen(
                ready.arguments,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=self.output.terminal,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            message = f"cannot start {ready.arguments[0]}: {error.strerror}"
            raise AdvisorError(message, "the command after -- is started as it is typed") from error
        finally:
            self.output.close_terminal()

    def to_the_end(self, limits: BurstLimits) -> str | None:
        """Wait until it ends (returns None), or give the reason to end it: enough steps, or out of time."""
        while self.process.poll() is None:
            time.sleep(_POLL_SECONDS)
            self.resident_peak = max(self.resident_peak, resident_bytes(tree(self.process.pid)))
            self.probed.read_on()
            if self.probed.first is None:
                self.log.look(self.process.pid)
            first = warmup_steps(self._durations)
            timed = self._durations[first:] if first is not None else ()
            enough = len(timed) >= limits.least_steps and sum(timed) >= limits.steady_seconds
            if enough and not limits.to_its_end:
                return Outcome.STOPPED
            if time.monotonic() - self._began > limits.most_seconds:
                return Outcome.STOPPED if len(self._durations) >= LEAST_STEPS else TIMED_OUT
        return None

    def end(self) -> None:
        """End all its processes, and read the rest of its output."""
        # End everything that the command started, because processes of a launcher have their own sessions.
        started = tree(self.process.pid)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE_SECONDS)
        for one in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.seconds = time.monotonic() - self._began
        self.log.finish()
        self.probed.read_on()

    @property
    def _durations(self) -> Sequence[float]:
        if self.probed.first is not None:
            return self.probed.first.durations
        return self.log.logged.durations if self.log.logged is not None else ()


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
