"""What a program prints, kept as it comes with the moment at which each of its lines ended."""

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

_ROWS, _COLUMNS = 50, 200  # of the terminal: wide enough that no line of a log is broken
_BLOCK = 1 << 16
_LAST_WORDS_SECONDS = 5.0  # that what is still to be read may take, once the program has ended
TERMINAL = {"TERM": "dumb"}  # no colours, no lines that are drawn over


class Output:
    """A terminal that a program prints to: a line is sent when it ends, where a file would get it with many others.

    What comes is written to `path`, and to `also`. `terminal` is what the program is given; `close_terminal` once it
    has been started.
    """

    def __init__(self, path: Path, also: int | None = None):
        self.path = path
        self.ends = array("d")  # Unix seconds at which the lines came to their ends, in order
        self._master, self.terminal = pty.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        modes = termios.tcgetattr(self.terminal)
        modes[1] &= ~termios.OPOST  # line ends stay as they are printed
        termios.tcsetattr(self.terminal, termios.TCSANOW, modes)
        self._to = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), *([also] if also is not None else [])]
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close_terminal(self) -> None:
        """Leave the terminal to the program alone."""
        os.close(self.terminal)

    def finish(self) -> None:
        """Take in what is left, of a program that has ended."""
        self._thread.join(_LAST_WORDS_SECONDS)

    def _read(self) -> None:
        clock = time.time() - time.monotonic()  # setting the system's clock shifts no line
        while block := _block(self._master):
            now = clock + time.monotonic()
            for file in self._to:
                left = block
                with contextlib.suppress(OSError):  # a full disk: the program goes on, its lines count
                    while left:
                        left = left[os.write(file, left) :]
            self.ends.extend([now] * block.count(b"\n"))
        os.close(self._master)
        os.close(self._to[0])


def _block(terminal: int) -> bytes:
    """What came next; empty when nobody can print any more."""
    try:
        return os.read(terminal, _BLOCK)
    except OSError:  # EIO: the last process that could print has ended
        return b""
