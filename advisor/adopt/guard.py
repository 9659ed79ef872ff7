"""`python -m advisor.adopt.guard FOLDER`: the process of an adopted run.

It starts the command with the probe and writes the probe's records into the run's log. It ends the command when its
time or money is used up, and exits with the command's status. If the plan was made from the command's own log, the
guard reads that log instead.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from bisect import bisect_right
from pathlib import Path

from advisor.adopt.command import with_values
from advisor.adopt.watching import LogWatch, Output, ProbeFolder, end, how_it_died, start, tree
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
        self.folder, self.plan, spent = folder, load_adopted_plan(folder / PLAN), ADOPTED.spent(folder)
        self.attempt, self.used_before = len(spent.attempts) + 1, spent.seconds
        self.noted_steps = self.noted_witnesses = self.last_step = 0
        self.began = time.time()
        self._clock = self.began - time.monotonic()  # changing the system clock moves no limit
        self.log = RunLogWriter(folder / STEPS, clock=self.now)
        self.stop_reason: str | None = None  # why the command is being ended
        self.asked_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def now(self) -> float:
        """Returns the Unix seconds, as if nobody had set the system clock since this attempt began."""
        return self._clock + time.monotonic()

    def run(self) -> int:
        """Start the command and watch it to its end; returns its exit code (128 + the signal that ended it)."""
        plan, scratch = self.plan, self.folder / PROBE_FOLDER / f"{self.attempt:03}"
        scratch.mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: self._end(f"received {signal.Signals(number).name}"))
        # Remove the variables by which this process finds its own packages: the command may have others of the same
        # names.
        ours, environment = str(Path(__file__).resolve().parents[2]), dict(os.environ)
        if kept := [p for p in environment.pop("PYTHONPATH", "").split(os.pathsep) if p and p != ours]:
            environment["PYTHONPATH"] = os.pathsep.join(kept)
        output = Output(scratch / "output.log", also=sys.stdout.fileno()) if plan.basis == LOG else None
        seen = ProbeFolder(scratch) if output is None else LogWatch(output, _LOOK_SECONDS, _LOOK_SHARE)
        arguments, failed = plan.command, ""
        try:
            # The planned command, with the arguments that resume an earlier attempt.
            ready = with_values(plan.command, recipe_of(self.folder), plan.values)
            arguments = (*ready.arguments, *(plan.resume_args if self.attempt > 1 else ()))
            environment |= ready.variables
            self.process = start(arguments, Path(plan.folder).expanduser(), environment, scratch, output)
        except (OSError, AdvisorError) as error:
            failed = f"cannot start {arguments[0]}: {error}"
        who = {"host": socket.gethostname(), "pid": os.getpid(), "plan": plan.id, "trainer": plan.trainer}
        self.log.write("header", time=self.began, attempt=self.attempt, **who, basis=plan.basis,
                       reference_seconds=plan.reference_seconds, command=list(arguments))  # fmt: skip
        if self.process is None:
            return self._final(127, Outcome.FAILED, failed)
        while self.process.poll() is None:
            time.sleep(_POLL_SECONDS)
            seen.look(self.process.pid)
            self._note(seen)
            self._enforce(self.process)
        seen.finish()
        self._note(seen)
        code = self.process.returncode
        if self.stop_reason is not None:
            outcome, reason = Outcome.STOPPED, self.stop_reason
        elif code == 0:
            outcome, reason = Outcome.COMPLETED, "the command ended on its own"
        else:
            out_of_memory, reason = how_it_died(code)
            outcome = Outcome.OUT_OF_MEMORY if out_of_memory else Outcome.FAILED
        return self._final(code if code >= 0 else 128 - code, outcome, reason)

    def _final(self, status: int, outcome: Outcome, reason: str) -> int:
        self.log.write("final", outcome=outcome.value, reason=reason, seconds=self.now() - self.began,
                       step=self.last_step)  # fmt: skip
        return status

    def _note(self, seen: ProbeFolder | LogWatch) -> None:
        """Record the steps and readings of the reference kernel that came since the last call."""
        (numbers, moments, durations), memory = seen.timed, seen.memory
        if isinstance(seen, ProbeFolder) and seen.first is not None:
            readings = seen.first.records["witness"]
            for reading in readings[self.noted_witnesses :]:  # each with the step before it
                self.log.write("witness", time=reading["time"], step=bisect_right(moments, reading["time"]),
                               reference_seconds=reading["reference_seconds"])  # fmt: skip
            self.noted_witnesses = len(readings)
        for i in range(self.noted_steps, len(moments)):
            seconds = durations[i - 1] if i else None  # unknown for the first step
            self.log.write("step", time=moments[i], step=numbers[i], seconds=seconds, **memory)
            self.last_step = numbers[i]
        self.noted_steps = len(moments)

    def _enforce(self, process: subprocess.Popen[bytes]) -> None:
        """End the command when its limit is reached, and kill all that it started if it does not end."""
        limit, used = self.plan.limit_seconds, self.used_before + self.now() - self.began
        if limit is not None and used >= limit - self.plan.ending_seconds:
            by_time = limit == self.plan.max_seconds
            self._end(f"its limit of {limit:.0f} s" if by_time else f"its limit of ${self.plan.max_usd:g}")
        if self.stop_reason is not None and self.now() - self.asked_at > grace_seconds(self.plan.ending_seconds):
            end(process, signal.SIGKILL, tree(process.pid))

    def _end(self, why: str) -> None:
        """Ask the command once to end."""
        if self.stop_reason is None and self.process is not None:
            self.stop_reason, self.asked_at = why, self.now()
            end(self.process, signal.SIGTERM)


def main(folder: str) -> int:
    """Run the plan of a run folder."""
    return Guard(Path(folder).resolve()).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
