"""A program watched from outside: what its log says so far, and what its processes hold."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence

import psutil

from advisor.adopt.by_log import LogSteps, read_steps
from advisor.adopt.output import Output
from advisor.hardware.here import used_by

_CLIENTS = frozenset(("docker", "podman", "nerdctl", "srun"))  # what they start is no child of theirs
LOOK_SECONDS, LOOK_SHARE = 0.5, 0.1  # between looks at what a burst printed; of the time, that they may take


class LogWatch:
    """What a program's own log says so far, looked at again and again, and the memory of its processes."""

    def __init__(self, output: Output, look_seconds: float = LOOK_SECONDS, look_share: float = LOOK_SHARE):
        self.output, self._seconds, self._share = output, look_seconds, look_share
        self.logged: LogSteps | None = None
        self.resident_peak = 0
        self.device_peak: int | None = None  # by NVML, on the fullest card
        self.processes = 1  # that train together
        self.elsewhere = False  # its processes are not those of its command: their memory is not seen
        self._next_look = 0.0

    def look(self, pid: int) -> None:
        """Read what was printed, where the last look is long enough ago for what a look costs."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self.logged = read_steps(self.output.path, self.output.ends)
        processes = tree(pid)
        self.elsewhere = self.elsewhere or any(_name(process) in _CLIENTS for process in processes)
        used = used_by({process.pid for process in processes})
        self.resident_peak = max(self.resident_peak, resident_bytes(processes))
        self.device_peak = max((n for n in (self.device_peak, used) if n is not None), default=None)
        self.processes = max([self.processes, *(_world(process) for process in processes)])
        self._next_look = time.monotonic() + max(self._seconds, (time.monotonic() - now) / self._share)

    def finish(self) -> None:
        """Read the log of a program that has ended."""
        self.output.finish()
        self.logged = read_steps(self.output.path, self.output.ends)
        self._next_look = math.inf


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that it started; empty when it has just ended."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def resident_bytes(processes: Sequence[psutil.Process]) -> int:
    """Bytes of the host that processes hold now."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _world(process: psutil.Process) -> int:
    """How many processes train together, as a launcher tells each of them."""
    try:
        told = process.environ().get("WORLD_SIZE", "")
    except psutil.Error:
        return 1
    return int(told) if told.isdigit() else 1
