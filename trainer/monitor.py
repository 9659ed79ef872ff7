"""Prints readings of every GPU of the machine as lines of CSV on stdout, while any program runs. Needs no torch.

`python -m trainer.monitor --hz 100 --seconds 600` samples until the time is over, SIGTERM or SIGINT arrives, or nobody
reads its output. The first line is a comment with the GPUs as JSON, the second line is the header. Every row has the
power; quantities that a GPU reads more slowly are in two rows per second. No program that draws can delay a reading.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TextIO

import pynvml

from trainer.telemetry import MAX_HZ, sample
from trainer.telemetry_files import DeviceBuffer
from trainer.telemetry_sources import GPU_COLUMNS, NvmlSource, Source

NO_CARD = 3  # exit status
PART_SECONDS = 0.5  # between writes; a monitor that is killed loses at most this
# column of a source → its name after "gpu0_", and its divisor
_COLUMNS = {
    "utilization_percent": ("util_pct", 1),
    "memory_used_bytes": ("memory_used_mib", 2**20),
    "temperature_celsius": ("temp_c", 1),
    "sm_clock_mhz": ("sm_clock_mhz", 1),
    "memory_clock_mhz": ("memory_clock_mhz", 1),
    "throttle_reasons": ("throttle_reasons", 1),
    "energy_millijoules": ("energy_j", 1000),
}


class CsvStream:
    """Takes parts of readings as telemetry's writer does, and prints one row with all GPUs for each moment."""

    def __init__(self, source: Source, out: TextIO):
        """Print the comment and the header."""
        cards = source.describe()
        names = [
            f"gpu{card['gpu']}_{name}"
            for card in cards
            for name in ("power_w", *(name for name, _ in _COLUMNS.values()))
        ]
        self._places = [(GPU_COLUMNS.index(column), divisor) for column, (_, divisor) in _COLUMNS.items()]
        self._out, self._first_ms = out, -1
        print(f"# {json.dumps(cards)}", file=out)
        print(",".join(("timestamp", "elapsed_sec", *names)), file=out, flush=True)

    def write_part(self, buffers: list[DeviceBuffer]) -> None:
        """Print the buffers' readings and clear them. Raises BrokenPipeError if nobody reads."""
        for moment in zip(*(buffer.rows() for buffer in buffers), strict=True):
            time_ms = moment[0][0]
            self._first_ms = time_ms if self._first_ms < 0 else self._first_ms
            cells = [f"{time_ms / 1000:.3f}", f"{(time_ms - self._first_ms) / 1000:.3f}"]
            for _, deciwatts, slow in moment:
                cells.append("" if deciwatts is None else f"{deciwatts / 10:.1f}")
                cells += self._slow(slow)
            self._out.write(",".join(cells) + "\n")
        for buffer in buffers:
            buffer.clear()
        self._out.flush()

    def _slow(self, values: Sequence[Any] | None) -> list[str]:
        if values is None:
            return [""] * len(self._places)
        known = [(values[place], divisor) for place, divisor in self._places]
        return ["" if value is None else f"{value / divisor:.10g}" for value, divisor in known]


def stream(source: Source, out: TextIO, hz: float, goes_on: Callable[[], bool]) -> None:
    """Print readings until `goes_on` returns False or nobody reads."""
    gc.disable()  # nothing here makes reference cycles, and a collection would delay a reading
    with suppress(_ReaderGone):
        sample([source], CsvStream(source, out), hz, goes_on=goes_on, on_error=_end, part_seconds=PART_SECONDS)


class _ReaderGone(Exception):
    """Says that the reader closed its end of the pipe."""


def _end(error: str) -> None:
    raise _ReaderGone(error)


class _Asked:
    """Tells whether to continue: no signal came, and the time, which starts at the first question, is not over."""

    def __init__(self, seconds: float | None):
        self._seconds = math.inf if seconds is None else seconds
        self._end: float | None = None
        self._stopped = False
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def __call__(self) -> bool:
        if self._end is None:  # a driver may take seconds to start
            self._end = time.monotonic() + self._seconds
        return not self._stopped and time.monotonic() < self._end


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample every GPU. Returns NO_CARD if there is none."""
    parser = argparse.ArgumentParser(prog="python -m trainer.monitor", description=__doc__)
    parser.add_argument("--hz", type=float, required=True, help="power readings a second, at most 100")
    parser.add_argument("--seconds", type=float, help="end after so many")
    options = parser.parse_args(arguments)
    if not 0 < options.hz <= MAX_HZ:
        parser.error(f"--hz: {options.hz} is not above 0 and at most {MAX_HZ:g}")
    goes_on = _Asked(options.seconds)
    try:
        source = NvmlSource(everything=True)
    except pynvml.NVMLError as error:
        print(f"NVML, the driver's library, says: {error}", file=sys.stderr)
        return NO_CARD
    if not source.describe():
        print("the driver sees no card", file=sys.stderr)
        return NO_CARD
    stream(source, sys.stdout, options.hz, goes_on)
    return 0


if __name__ == "__main__":
    sys.exit(main())
