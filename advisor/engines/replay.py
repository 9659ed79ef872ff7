"""Replays a recorded run into a folder, as a real child process: for tests, demos and pages without a device.

`python -m advisor.engines.replay RECORDING --out DIR --speed 20` writes the recording's log line by line.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from advisor.engines.backend import Job
from advisor.engines.local import LocalBackend
from advisor.engines.process import python_command
from advisor.engines.state import this_host
from advisor.errors import AdvisorError
from advisor.store.run_folder import CONFIG, LOG
from advisor.store.store import Store
from trainer.runlog import RunLogWriter, read_records
from trainer.schema import Outcome


class ReplayBackend(LocalBackend):
    """A backend whose runs are recordings: everything around the trainer is real, the log lines come from a file."""

    engine = "replay"

    def __init__(self, store: Store, recording: Path | None = None, speed: float = 1.0):
        """`recording` is a `log.jsonl`, or None if nothing will be started; `speed` 10 plays ten times faster than it
        happened, `inf` at once."""
        super().__init__(store)
        self.recording = recording
        self.speed = speed

    def cards(self, job: Job) -> int:
        """Return None: a recording needs no GPU."""
        return 0

    def command(self, job: Job) -> tuple[str, ...]:
        """Return the command that replays the recording into a run folder."""
        if self.recording is None:
            raise AdvisorError(f"{job.folder} was started by the replay launcher", "launch its plan anew")
        where = (str(self.recording.resolve()), "--out", str(job.folder), "--speed", str(self.speed))
        return python_command("-m", "advisor.engines.replay", *where)


class _Clock:
    """The recording's own time, moved to now: a replay at any speed keeps the intervals that were recorded."""

    def __init__(self, recorded_start: float):
        self.shift_seconds = time.time() - recorded_start
        self.recorded = recorded_start

    def __call__(self) -> float:
        return self.recorded + self.shift_seconds


def replay(recording: Path, out: Path, speed: float) -> None:
    """Write the recording's records to `out/log.jsonl`, with the recorded pauses divided by `speed`.

    SIGTERM ends it with a final record, outcome `stopped`, as it would the trainer.
    """
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    records, _ = read_records(recording)
    clock = _Clock(records[0]["time"] if records else time.time())
    startup_seconds = records[0].get("startup_seconds", 0.0) if records else 0.0
    begun = time.monotonic()
    with RunLogWriter(out / LOG, clock=clock) as log:
        step = 0
        for record in records:
            due_seconds = (record["time"] - records[0]["time"]) / speed
            while not stopped and (left := begun + due_seconds - time.monotonic()) > 0:
                time.sleep(min(left, 0.05))
            if stopped:
                log.write("final", outcome=Outcome.STOPPED.value, reason="SIGTERM", step=step,
                          seconds=clock.recorded - records[0]["time"] + startup_seconds)  # fmt: skip
                return
            clock.recorded = record["time"]
            step = record.get("step", step)
            # A record's fields, with this process in the header, so that the folder is this machine's.
            fields = {key: value for key, value in record.items() if key not in ("kind", "time")}
            if record["kind"] == "header":
                fields |= {"pid": os.getpid(), "host": this_host()}
            log.write(record["kind"], **fields)


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay a recording into a run folder, which may have its `run.yaml` already."""
    parser = argparse.ArgumentParser(prog="python -m advisor.engines.replay", description=main.__doc__)
    parser.add_argument("recording", type=Path, help=f"a {LOG} written by the trainer")
    parser.add_argument("--out", type=Path, required=True, help=f"the run folder (with its {CONFIG})")
    parser.add_argument("--speed", type=float, default=1.0)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    replay(given.recording, given.out, given.speed)


if __name__ == "__main__":
    main()
