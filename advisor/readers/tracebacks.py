"""Python tracebacks in a log, also with rank or actor prefixes and several ranks interleaved."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

START = b"Traceback (most recent call last)"
MOST_LINES = 400  # deeper stacks exist, but a line of each frame and its source is two: recursion errors end here
_FRAME = re.compile(rb'\s+File "([^"\n]+)", line (\d+)')
_EXCEPTION = re.compile(
    rb"([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Iteration|Timeout|Warning|Failure|Fault|Abort)"
    rb"|(?:[A-Za-z_]\w*\.)+[A-Z]\w*)(\(\w+\))?(?::\s?(.*))?$"
)
_ANSI = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, kw_only=True)
class Raised:
    """The end of one traceback."""

    name: str  # RuntimeError, torch.cuda.OutOfMemoryError
    message: str
    file: str | None  # of the innermost frame
    file_line: int | None
    caller: str | None  # innermost frame outside of installed packages, as file:line, where it is another one

    @property
    def text(self) -> str:
        """One line: the exception, where it was raised and which line of the user's own code led there."""
        where = "" if self.file is None else f" [{_short(self.file)}:{self.file_line}"
        if where and self.caller is not None:
            where += f", from {self.caller}"
        return f"{self.name}: {self.message}".rstrip(": ") + (where + "]" if where else "")


@dataclass(kw_only=True)
class OpenTraceback:
    """A traceback whose exception has not been read yet: fed line by line until it is `closed`."""

    prefix: bytes  # what stood before "Traceback" in its line: a rank, an actor, a time stamp
    lines: int = 0
    others: int = 0  # lines of other ranks in between
    frames: list[tuple[str, int]] = field(default_factory=list)
    raised: Raised | None = None
    closed: bool = False

    def owns(self, line: bytes) -> bool:
        """Whether a line goes on with this traceback rather than with another rank's."""
        if self.prefix and not self.lines and not line.startswith(self.prefix) and _FRAME.match(line):
            self.prefix = b""  # a time stamp: only the first line carries it
        return line.startswith(self.prefix)

    def pass_by(self) -> None:
        """Count a line of somebody else."""
        self.others += 1
        self.closed = self.others >= 5 * MOST_LINES

    def feed(self, line: bytes) -> bool:
        """Take one more line; True when it is the exception's own, which needs no other judgement then."""
        self.lines += 1
        self.closed = self.lines >= MOST_LINES
        body = _ANSI.sub(b"", line[len(self.prefix) :])[:4000].rstrip()
        if frame := _FRAME.match(body):
            self.frames = [*self.frames[-50:], (_text(frame[1]), int(frame[2][:9]))]
        elif self.frames and not body[:1].isspace() and (found := _EXCEPTION.match(body)):
            self.raised = self._end(found)
            # ray prints the remote traceback behind its own exception, whose last line is the real one
            self.closed = not found[1].endswith(b"RayTaskError")
            return True
        elif self.raised is not None and not body:
            self.closed = True
        return False

    def _end(self, found: re.Match[bytes]) -> Raised:
        file, line = self.frames[-1]
        own = next((frame for frame in reversed(self.frames) if not _installed(frame[0])), None)
        caller = None if own is None or own == (file, line) else f"{_short(own[0])}:{own[1]}"
        message = _text(found[3] or b"").strip()
        return Raised(name=_text(found[1]), message=message, file=file, file_line=line, caller=caller)


def _installed(path: str) -> bool:
    return any(part in path for part in ("site-packages", "dist-packages", "<frozen", "/lib/python", ".pyx"))


def _short(path: str) -> str:
    """The last two parts of a path: enough to find the file, without somebody's home folder."""
    return "/".join(re.split(r"[\\/]", path)[-2:])


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
