"""Runs a training command as a child process until its steps have been measured."""

from __future__ import annotations

import contextlib
import math
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.adopt.command import Ready
from advisor.adopt.decoder import Weights, decoder_of
from advisor.adopt.watching import LogWatch, Output, ProbeFolder, end, how_it_died, resident_bytes, start, tree
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


def warmup_steps(seconds: Sequence[float]) -> int | None:
    """Returns how many first steps to drop: the fewest after which two neighbouring windows agree. None if none do.

    A window is a quarter of the remaining steps, but at least two.
    """
    for first in range(len(seconds) - LEAST_STEPS + 1):
        left = seconds[first:]
        window = max(2, len(left) // 4)
        medians = [statistics.median(part) for part in (left[:window], left[window : 2 * window], left)]
        if min(medians) > 0 and all(abs(math.log(medians[0] / other)) <= _AGREE for other in medians[1:]):
            return first
    return None


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
) -> AdoptedBurst:
    """Run one burst in `folder`, with the advisor's own files in `scratch`; returns its record even if it fails.

    Raises AdvisorError if the command cannot be started.
    """
    probed, output = ProbeFolder(scratch), Output(scratch / "output.log")
    log, resident_peak, ended_by = LogWatch(output), 0, None
    began, started = time.monotonic(), time.time()
    try:
        process = start(ready.arguments, folder, {**environment, **ready.variables}, scratch, output)
    except OSError as error:
        message = f"cannot start {ready.arguments[0]}: {error.strerror}"
        raise AdvisorError(message, "the command after -- is started as it is typed") from error
    try:
        while ended_by is None and process.poll() is None:
            time.sleep(_POLL_SECONDS)
            resident_peak = max(resident_peak, resident_bytes(tree(process.pid)))
            probed.look()
            if probed.first is None:
                log.look(process.pid)
            # End it if it has enough steps, or is out of time.
            durations = (probed if probed.first is not None else log).timed[2]
            warmup, seconds = warmup_steps(durations), time.monotonic() - began
            timed = durations[warmup:] if warmup is not None else ()
            enough = len(timed) >= limits.least_steps and sum(timed) >= limits.steady_seconds
            if enough and not limits.to_its_end:
                ended_by = Outcome.STOPPED.value
            elif seconds > limits.most_seconds:
                ended_by = Outcome.STOPPED.value if len(durations) >= LEAST_STEPS else TIMED_OUT
    finally:
        children = tree(process.pid)  # before it ends, because they are found by it
        for number in (signal.SIGTERM, signal.SIGKILL):
            end(process, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
        end(process, signal.SIGKILL, children)
    seconds = time.monotonic() - began
    log.finish()
    probed.finish()
    if ended_by is not None:
        outcome, reason = ended_by, "no steady steps in the time it was given" if ended_by == TIMED_OUT else None
    else:
        outcome, reason = _ended_itself(process.returncode, output.path)
    burst = AdoptedBurst(values=tuple(settings), outcome=outcome, reason=reason, seconds=seconds, started=started,
                         resident_peak_bytes=resident_peak or None)  # fmt: skip
    return _measured(burst, probed, log, by_itself=limits.to_its_end and outcome == Outcome.COMPLETED)


def _ended_itself(code: int, output: Path) -> tuple[str, str | None]:
    """Returns the outcome of a burst that nobody ended, and the reason if it failed."""
    try:
        run = read_run(output)
    except AdvisorError:  # its output is not a log
        run = None
    if code == 0:
        diverged = run is not None and run.status is Status.DIVERGED
        return (Outcome.DIVERGED, run.status_reason) if diverged and run else (Outcome.COMPLETED, None)
    out_of_memory, reason = how_it_died(code)
    if out_of_memory or (run is not None and run.status is Status.OUT_OF_MEMORY):
        outcome = Outcome.OUT_OF_MEMORY
    else:
        outcome = Outcome.DIVERGED if run is not None and run.status is Status.DIVERGED else Outcome.FAILED
    if code != -signal.SIGKILL:
        lines = [line.strip() for line in output.read_text(encoding="utf-8", errors="replace").splitlines()]
        reason = f"{reason}: {next((line[:200] for line in reversed(lines) if line), 'it said nothing')}"
    return outcome, reason


def _measured(burst: AdoptedBurst, probed: ProbeFolder, log: LogWatch, *, by_itself: bool) -> AdoptedBurst:
    """Returns the burst with the measurements of the probe, or else of its own log, which does not state the batch.

    `by_itself`: it ended by itself. The share of an epoch in a step comes from the log, if that counts the same steps.
    """
    process, logged = probed.first, log.logged
    steps, moments, durations = (log if process is None else probed).timed
    if not moments:
        return burst
    dropped = warmup_steps(durations)
    warmup = dropped if dropped is not None else len(durations) // 2
    burst = replace(
        burst,
        startup_seconds=moments[0] - burst.started,
        ending_seconds=burst.started + burst.seconds - moments[-1] if by_itself else None,
        warmup_seconds=tuple(durations[:warmup]),
        step_seconds=tuple(durations[warmup:]),
        steady=dropped is not None,
        steps=steps[-1],
    )
    if process is None:
        assert logged is not None  # the steps are those of the log
        resident = None if log.elsewhere else burst.resident_peak_bytes
        return replace(burst, source=LOG, clock=logged.clock, step_tokens=logged.tokens, step_epochs=logged.epochs,
                       step_printed=logged.printed, device_peak_bytes=log.peaks.get("device_peak_bytes"),
                       resident_peak_bytes=resident, processes=log.processes)  # fmt: skip
    assert process.main is not None  # it has trained
    shape, elements, header = process.shape, process.main["elements"], process.newest("process")
    witnesses, steady_from = process.records["witness"], moments[warmup]
    weights = [Weights(name=each["name"], shape=tuple(each["shape"]), count=each["count"])
               for each in process.newest("model").get("weights", ())]  # fmt: skip
    away = abs(logged.steps[-1] - len(moments)) if logged is not None else math.inf
    return replace(
        burst,
        reference_seconds=tuple(w["reference_seconds"] for w in witnesses if w["time"] >= steady_from),
        shape=shape,
        elements=elements,
        model=decoder_of(weights, elements, round(shape.length or 1)) if shape else None,
        step_epochs=logged.epochs if logged and away <= max(_UNPRINTED, _UNPRINTED_SHARE * len(moments)) else None,
        torch=header.get("torch"),
        # as the launcher sets it, or else the number that trained
        processes=max(header.get("world_size", 1), len(probed.processes)),
        **probed.memory,
    )
