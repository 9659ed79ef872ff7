"""Samples the device in a separate process, so that reading never delays a training step. Needs no torch.

`python -m trainer.telemetry --out DIR --pid PID --device cuda --hz 10` samples until PID ends or SIGTERM arrives. It
must use less than 1 % of a processor core; the file's metadata says what it did use.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from trainer.telemetry_files import PARTS_NAME, DeviceBuffer, TelemetryWriter, read_metadata, read_telemetry
from trainer.telemetry_sources import Source, open_sources

__all__ = ["TelemetryHandle", "read_metadata", "read_telemetry", "sample", "start_telemetry"]

DEFAULT_HZ = {"cuda": 10.0, "cpu": 2.0}
MAX_HZ = 100.0
SLOW_HZ = 2.0  # for everything but power, because a GPU answers more slowly and the values change slowly
HOST_MAX_HZ = 5.0  # one reading of the host takes nearly a millisecond of a core if caches are cold
PART_SECONDS = 60.0
STDERR_NAME = "stderr.txt"
_ALIVE_SECONDS = 0.5  # between checks that the run still exists
_LONGEST_SLEEP_SECONDS = 0.2  # a signal waits no longer than this


class PartWriter(Protocol):
    """Takes readings, one part at a time."""

    def write_part(self, buffers: list[DeviceBuffer]) -> None:
        """Write the rows of all buffers and clear them. Raises OSError (the rows are then lost)."""


@dataclass(frozen=True, kw_only=True)
class TelemetryHandle:
    """A running telemetry process. If `process` is None, telemetry is off and `stop` does nothing."""

    process: subprocess.Popen[bytes] | None
    folder: Path  # of the telemetry parts

    def stop(self, timeout_seconds: float = 60.0) -> None:
        """End telemetry and wait until its file is written. After the timeout it is killed; its parts stay readable."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _tidy(self.folder)


def start_telemetry(
    out_dir: Path, pid: int, device_type: str, hz: float | None = None, *, gpus: int | None = None
) -> TelemetryHandle:
    """Start sampling into run folder `out_dir` for as long as process `pid` lives.

    `device_type` is "cuda" or "cpu". `hz` None takes the device's default, 0 turns telemetry off. `gpus` limits it to
    the first visible GPUs. Errors from the new process go to `telemetry/stderr.txt`. Raises OSError.
    """
    folder = Path(out_dir) / PARTS_NAME
    hz = DEFAULT_HZ[device_type] if hz is None else hz
    if hz == 0:
        return TelemetryHandle(process=None, folder=folder)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "trainer.telemetry", "--out", str(out_dir), "--pid", str(pid)]
    command += ["--device", device_type, "--hz", str(hz)]
    command += ["--gpus", str(gpus)] if gpus is not None else []
    package_root = str(Path(__file__).resolve().parent.parent)
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    with open(folder / STDERR_NAME, "ab") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # a Ctrl-C or a signal to the run's group must reach only the run
        )
    return TelemetryHandle(process=process, folder=folder)


def sample(
    sources: Sequence[Source],
    writer: PartWriter,
    hz: float,
    *,
    goes_on: Callable[[], bool],
    on_error: Callable[[str], None],
    monotonic: Callable[[], float] = time.monotonic,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    part_seconds: float = PART_SECONDS,
) -> None:
    """Read the sources and write parts until `goes_on` returns False. Missed readings are left out, not invented."""
    tracks = [_Track(source, hz, monotonic(), alone=len(sources) == 1) for source in sources]
    buffers = [buffer for track in tracks for buffer in track.buffers]
    part_due = monotonic() + part_seconds
    while goes_on():
        # few calls, because other programs use the caches between two readings and each call loads its code again
        now = monotonic()
        next_due = now + _LONGEST_SLEEP_SECONDS
        for track in tracks:
            if now >= track.due:
                track.read(now, round(clock() * 1000))
            if track.due < next_due:
                next_due = track.due
        if now >= part_due:
            part_due = now + part_seconds
            _write_part(writer, buffers, on_error)
        if (wait := next_due - monotonic()) > 0:
            sleep(wait)
    _write_part(writer, buffers, on_error)


class _Track:
    """One source with its rhythm: power at every tick, slow quantities at some ticks, the host only at those."""

    def __init__(self, source: Source, hz: float, start: float, *, alone: bool):
        devices = source.describe()
        self.source = source
        self.buffers = [DeviceBuffer(device["gpu"], source.columns) for device in devices]
        on_host = all(device["gpu"] is None for device in devices)
        self.slow_period = 1 / min(hz, SLOW_HZ)
        self.period = 1 / hz
        if on_host:
            self.period = 1 / min(hz, HOST_MAX_HZ) if alone else self.slow_period
        self.every_slow = on_host
        self.due = start + (self.period if on_host else 0.0)  # percentages need an interval first
        self.slow_due = start
        self.nothing = [None] * len(devices)  # the slow quantities at a tick that reads only power

    def read(self, now: float, time_ms: int) -> None:
        power = self.source.read_power()
        slow: Sequence[Any] = self.nothing
        if self.every_slow or now >= self.slow_due:
            slow = self.source.read_slow()
            self.slow_due += self.slow_period * max(1, -(-(now - self.slow_due) // self.slow_period))
        for buffer, deciwatts, values in zip(self.buffers, power, slow, strict=True):
            buffer.add(time_ms, deciwatts, values)
        self.due += self.period
        if self.due <= now:  # ticks were missed
            self.due += self.period * (1 + (now - self.due) // self.period)


def _write_part(writer: PartWriter, buffers: list[DeviceBuffer], on_error: Callable[[str], None]) -> None:
    try:
        writer.write_part(buffers)
    except OSError as error:  # a full disk loses a minute of telemetry, but nothing else
        on_error(f"telemetry of the last minute is lost: {error}")


class _RunIsThere:
    """Tells whether to continue: no signal came, and the run's process lives (checked twice a second)."""

    def __init__(self, pid: int):
        self._process = psutil.Process(pid)
        self._next_look = 0.0
        self._alive = True
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _stop(self, *_: object) -> None:
        self._alive = False

    def __call__(self) -> bool:
        if self._alive and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _ALIVE_SECONDS
            self._alive = self._lives()
        return self._alive

    def _lives(self) -> bool:
        try:
            # is_running recognises a reused process number by its start time
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.telemetry", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="run folder")
    parser.add_argument("--pid", type=int, required=True, help="process of the run; sampling ends with it")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--hz", type=float, required=True, help="power readings a second, at most 100")
    parser.add_argument("--gpus", type=int, help="only the first so many visible cards")
    parsed = parser.parse_args(arguments)
    if not 0 < parsed.hz <= MAX_HZ:
        parser.error(f"--hz: {parsed.hz} is not above 0 and at most {MAX_HZ:g}")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample until the run ends, then join the parts. Return 0 if all is written, 1 if something was lost."""
    options = _parse(arguments)
    started = time.monotonic()
    problems: list[str] = []

    def report(text: str) -> None:
        problems.append(text)
        print(text, file=sys.stderr, flush=True)

    try:
        goes_on = _RunIsThere(options.pid)
        sources, remarks = open_sources(options.device, options.pid, options.gpus)
        devices = [device for source in sources for device in source.describe()]
        writer = TelemetryWriter(options.out, {"hz": options.hz, "pid": options.pid, "devices": devices})
    except (psutil.NoSuchProcess, OSError, ValueError) as error:
        report(f"no telemetry: {error}")
        return 1
    for remark in remarks:
        print(remark, file=sys.stderr, flush=True)
    startup = time.process_time()
    gc.disable()  # nothing here makes reference cycles, and a collection would delay a reading
    sample(sources, writer, options.hz, goes_on=goes_on, on_error=report)
    cost = {
        "startup_cpu_seconds": startup,
        "cpu_seconds": time.process_time(),  # includes start-up, but not joining
        "wall_seconds": time.monotonic() - started,
    }
    try:
        writer.join(cost)
    except (OSError, ValueError) as error:
        report(f"the parts of the telemetry could not be joined and stay as they are: {error}")
    _tidy(options.out / PARTS_NAME)
    return 1 if problems else 0


def _tidy(folder: Path) -> None:
    """Remove empty files. Parts and error messages stay."""
    stderr = folder / STDERR_NAME
    if stderr.exists() and stderr.stat().st_size == 0:
        stderr.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty, or gone
        folder.rmdir()


if __name__ == "__main__":
    sys.exit(main())
