"""Stores a program's output as it comes, and watches the program from outside: the steps in its log, its memory."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import pty
import struct
import termios
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from advisor.hardware.here import used_by

if TYPE_CHECKING:
    from advisor.adopt.by_log import LogSteps

_ROWS, _COLUMNS = 50, 200  # of the terminal: wide enough that no log line is broken
_BLOCK = 1 << 16
_LAST_WORDS_SECONDS = 5.0  # allowed for reading the rest after the program has ended
TERMINAL = {"TERM": "dumb"}  # no colours, no lines that are drawn over
_CLIENTS = frozenset(("docker", "podman", "nerdctl", "srun"))  # processes that they start are not their children
LOOK_SECONDS, LOOK_SHARE = 0.5, 0.1  # between looks at a burst's output; share of the time that looking may take


class Output:
    """A terminal that a program prints to. A program sends a terminal each finished line, but buffers output to a file.

    Output is written to `path` and to `also`. The program gets `terminal`; call `close_terminal` after starting it.
    """

    def __init__(self, path: Path, also: int | None = None):
        self.path = path
        self.ends = array("d")  # Unix seconds at which the lines ended, in order
        self._master, self.terminal = pty.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        modes = termios.tcgetattr(self.terminal)
        modes[1] &= ~termios.OPOST  # keep line ends as they are printed
        termios.tcsetattr(self.terminal, termios.TCSANOW, modes)
        self._to = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), *([also] if also is not None else [])]
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close_terminal(self) -> None:
        """Leave the terminal to the program alone."""
        os.close(self.terminal)

    def finish(self) -> None:
        """Read the rest of the output of a program that has ended."""
        self._thread.join(_LAST_WORDS_SECONDS)

    def _read(self) -> None:
        clock = time.time() - time.monotonic()  # changing the system clock shifts no line
        while block := _block(self._master):
            now = clock + time.monotonic()
            for file in self._to:
                left = block
                with contextlib.suppress(OSError):  # with a full disk the program continues, and its lines still count
                    while left:
                        left = left[os.write(file, left) :]
            self.ends.extend([now] * block.count(b"\n"))
        os.close(self._master)
        os.close(self._to[0])


def _block(terminal: int) -> bytes:
    """Returns the next output; empty if no process can print any more."""
    try:
        return os.read(terminal, _BLOCK)
    except OSError:  # EIO: the last process that could print has ended
        return b""


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
        self._read()
        processes = tree(pid)
        self.elsewhere = self.elsewhere or any(asked(process.name) in _CLIENTS for process in processes)
        used = used_by({process.pid for process in processes})
        self.resident_peak = max(self.resident_peak, resident_bytes(processes))
        self.device_peak = max((n for n in (self.device_peak, used) if n is not None), default=None)
        # the launcher tells each process how many train together
        worlds = [(asked(process.environ) or {}).get("WORLD_SIZE", "") for process in processes]
        self.processes = max([self.processes, *(int(world) for world in worlds if world.isdigit())])
        self._next_look = time.monotonic() + max(self._seconds, (time.monotonic() - now) / self._share)

    def finish(self) -> None:
        """Read the log of a program that has ended."""
        self.output.finish()
        self._read()
        self._next_look = math.inf

    def _read(self) -> None:
        from advisor.adopt.by_log import read_steps  # all readers, which a guard with the probe does not need

        self.logged = read_steps(self.output.path, self.output.ends)


def tree(pid: int) -> list[psutil.Process]:
    """Returns a process and all that it started; empty if it has just ended."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def resident_bytes(processes: Sequence[psutil.Process]) -> int:
    """Returns the bytes of host memory that processes hold now."""
    return sum(memory.rss for process in processes if (memory := asked(process.memory_info)) is not None)


def asked(question: Callable[[], Any]) -> Any:
    """Returns the answer of a process, or None if it has ended or may not be asked."""
    try:
        return question()
    except psutil.Error:
        return None
