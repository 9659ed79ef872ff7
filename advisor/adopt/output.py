"""Stores a program's output as it comes, with the moment at which each line ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import termios
import threading
import time
from array import array
from pathlib import Path

_ROWS, _COLUMNS = 50, 200  # of the terminal: wide enough that no log line is broken
_BLOCK = 1 << 16
_LAST_WORDS_SECONDS = 5.0  # allowed for reading the rest after the program has ended
TERMINAL = {"TERM": "dumb"}  # no colours, no lines that are drawn over


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
