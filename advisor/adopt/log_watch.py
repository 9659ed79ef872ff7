"""Watches a program from outside: the steps in its log, and the memory of its processes."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence

import psutil

from advisor.adopt.by_log import LogSteps, read_steps
from advisor.adopt.output import Output
from advisor.hardware.here import used_by

_CLIENTS = frozenset(("docker", "podman", "nerdctl", "srun"))  # processes that they start are not their children
LOOK_SECONDS, LOOK_SHARE = 0.5, 0.1  # between looks at a burst's output; share of the time that looking may take


class LogWatch:
    """The steps that a program's log has shown so far, and the peak memory of its processes."""

    def __init__(self, output: Output, look_seconds: float = LOOK_SECONDS, look_share: float = LOOK_SHARE):
        self.output, self._seconds, self._share = output, look_seconds, look_share
        self.logged: LogSteps | None = None
        self.resident_peak = 0
        self.device_peak: int | None = None  # by NVML, on the fullest GPU
        self.processes = 1  # number of processes that train together
        self.elsewhere = False  # the training processes are not children of the command, so their memory is unknown
        self._next_look = 0.0

    def look(self, pid: int) -> None:
        """Read the output and the memory, unless the last look was too recent for the cost of a look."""
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
    """Returns a process and all that it started; empty if it has just ended."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def resident_bytes(processes: Sequence[psutil.Process]) -> int:
    """Returns the bytes of host memory that processes hold now."""
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
    """Returns the number of processes that train together, as the launcher tells each of them."""
    try:
        told = process.environ().get("WORLD_SIZE", "")
    except psutil.Error:
        return 1
    return int(told) if told.isdigit() else 1
