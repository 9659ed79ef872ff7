"""`python -m advisor.adopt.guard FOLDER`: the process of an adopted run.

It starts the command with the probe and writes the probe's records into the run's log. It ends the command when its
time or money is used up, and exits with the command's status. If the plan was made from the command's own log, the
guard reads that log instead.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from advisor.adopt.command import with_values
from advisor.adopt.log_watch import TERMINAL, LogWatch, Output, tree
from advisor.adopt.probe_log import MEMORY, ProbeFolder, probe_variables
from advisor.errors import AdvisorError
from advisor.store.adopted import LOG, PLAN, load_adopted_plan
from advisor.trainers.adopted import ADOPTED, PROBE_FOLDER, recipe_of
from advisor.trainers.adopted import LOG as STEPS
from trainer.runlog import RunLogWriter
from trainer.schema import Outcome

_POLL_SECONDS = 0.2
_LOOK_SECONDS, _LOOK_SHARE = 2.0, 0.01  # seconds between looks at the log; share of the time that looking may take
_LEAST_GRACE = 10.0  # from SIGTERM to SIGKILL, at least
_GRACE_FACTOR = 3.0  # times the duration of the command's end when it was adopted


def grace_seconds(ending_seconds: float) -> float:
    """Returns the seconds from SIGTERM to SIGKILL for a command with this ending; enough to finish any step."""
    return max(_LEAST_GRACE, _GRACE_FACTOR * ending_seconds)


class Guard:
    """One attempt at an adopted run."""

    def __init__(self, folder: Path):
        self.folder, self.plan = folder, load_adopted_plan(folder / PLAN)
        self.log, self.attempt = RunLogWriter(folder / STEPS), len(ADOPTED.spent(folder).attempts) + 1
        self.noted_steps = self.noted_witnesses = self.last_step = 0
        self.began = time.time()
        self._clock = self.began - time.monotonic()  # changing the system clock moves no limit
        self.used_before = ADOPTED.spent(folder).seconds
        self.asked: str | None = None  # why the command is being ended
        self.asked_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Start the command and watch it to its end; returns its exit code (128 + the signal that ended it)."""
        scratch = self.folder / PROBE_FOLDER / f"{self.attempt:03}"
        scratch.mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: self._end(f"received {signal.Signals(number).name}"))
        try:
            os.chdir(Path(self.plan.folder).expanduser())  # relative paths in its arguments start here
            # The planned command, with the arguments that resume an earlier attempt.
            ready = with_values(self.plan.command, recipe_of(self.folder), self.plan.values)
            again = self.plan.resume_args if self.attempt > 1 else ()
            arguments = (*ready.arguments, *again)
            variables = {v.name: v.value for v in self.plan.environment} | ready.variables
        except (OSError, AdvisorError) as error:
            # Record that the command could not be prepared.
            command = self.plan.command
            self._header(command)
            return self._final(127, Outcome.FAILED, f"cannot start {command[0]}: {error}")
        self._header(arguments)
        # Remove the variables by which this process finds its own packages: the command may have others of the same
        # names.
        ours = str(Path(__file__).resolve().parents[2])
        kept = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != ours]
        rest = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment = rest | ({"PYTHONPATH": os.pathsep.join(kept)} if kept else {}) | variables
        environment |= probe_variables(scratch, 3, environment)
        by_log = self.plan.basis == LOG
        output = Output(scratch / "output.log", also=sys.stdout.fileno()) if by_log else None
        terminal = output.terminal if output is not None else None
        environment |= TERMINAL if by_log else {}
        try:
            self.process = subprocess.Popen(
                arguments,
                env=environment,
                start_new_session=True,
                stdout=terminal,
                stderr=terminal,
            )
        except OSError as error:
            return self._final(127, Outcome.FAILED, f"cannot start {arguments[0]}: {error.strerror}")
        finally:
            if output is not None:
                output.close_terminal()
        seen = ProbeFolder(scratch) if output is None else LogWatch(output, _LOOK_SECONDS, _LOOK_SHARE)
        while self.process.poll() is None:
            time.sleep(_POLL_SECONDS)
            if isinstance(seen, LogWatch):
                seen.look(self.process.pid)
            self._note(seen)
            self._enforce(self.process)
        if isinstance(seen, LogWatch):
            seen.finish()
        self._note(seen)
        code = self.process.returncode
        return self._final(code if code >= 0 else 128 - code, *self._ended(code))

    def _header(self, command: Sequence[str]) -> None:
        plan, who = self.plan, {"host": socket.gethostname(), "pid": os.getpid()}
        self.log.write("header", time=self.began, attempt=self.attempt, **who, plan=plan.id, trainer=plan.trainer,
                       basis=plan.basis, reference_seconds=plan.reference_seconds, command=list(command))  # fmt: skip

    def _steps(
        self, moments: Sequence[float], durations: Sequence[float], memory: Mapping[str, int], numbers: Sequence[int]
    ) -> None:
        """Record the new steps of this attempt: end, duration (unknown for the first step) and memory."""
        took = (None, *durations)
        for i in range(self.noted_steps, len(moments)):
            self.log.write("step", time=moments[i], step=numbers[i], seconds=took[i], **memory)
            self.last_step = numbers[i]
        self.noted_steps = len(moments)

    def _final(self, status: int, outcome: Outcome, reason: str) -> int:
        now = self.now()
        self.log.write("final", time=now, outcome=outcome.value, reason=reason, seconds=now - self.began,
                       step=self.last_step)  # fmt: skip
        return status

    def _note(self, seen: ProbeFolder | LogWatch) -> None:
        """Record the steps that the probe or the program's own log has shown since the last call."""
        if isinstance(seen, LogWatch):
            if (logged := seen.logged) is not None:
                peaks = {"resident_peak_bytes": seen.resident_peak, "device_peak_bytes": seen.device_peak}
                known = {name: peak for name, peak in peaks.items() if peak and not seen.elsewhere}
                self._steps(logged.moments, logged.durations, known, logged.steps)
            return
        seen.read_on()
        if (process := seen.first) is None:
            return
        moments = process.moments
        for reading in process.witnesses[self.noted_witnesses :]:  # each with the step before it
            at = reading["time"]
            self.log.write("witness", time=at, step=bisect_right(moments, at),
                           reference_seconds=reading["reference_seconds"])  # fmt: skip
        self.noted_witnesses = len(process.witnesses)
        known = {name: peak for name in MEMORY if (peak := seen.peak(name)) is not None}
        self._steps(moments, process.durations, known, range(1, len(moments) + 1))

    def _enforce(self, process: subprocess.Popen[bytes]) -> None:
        """End the command when its limit is reached, and kill it if it does not end."""
        limit = self.plan.limit_seconds
        if (
            self.asked is None
            and limit is not None
            and self.used_before + self.now() - self.began >= limit - self._ending
        ):
            by_time = limit == self.plan.max_seconds
            self._end(f"its limit of {limit:.0f} s" if by_time else f"its limit of ${self.plan.max_usd:g}")
        if self.asked is not None and self.now() - self.asked_at > grace_seconds(self._ending):
            # Kill everything that the command started, because processes of a launcher have their own sessions.
            for one in tree(process.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def now(self) -> float:
        """Returns the Unix seconds, as if nobody had set the system clock since this attempt began."""
        return self._clock + time.monotonic()

    @property
    def _ending(self) -> float:
        """Returns the seconds that the command's end may take."""
        return self.plan.ending_seconds.high if self.plan.ending_seconds is not None else 0.0

    def _end(self, why: str) -> None:
        if self.asked is not None or self.process is None:
            return
        self.asked, self.asked_at = why, self.now()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)

    def _ended(self, code: int) -> tuple[Outcome, str]:
        if self.asked is not None:
            return Outcome.STOPPED, self.asked
        if code == 0:
            return Outcome.COMPLETED, "the command ended by itself"
        if code == -signal.SIGKILL:
            return Outcome.OUT_OF_MEMORY, "killed (SIGKILL), as the kernel does when memory runs out"
        return Outcome.FAILED, f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"


def main(folder: str) -> int:
    """Run the plan of a run folder."""
    return Guard(Path(folder).resolve()).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
