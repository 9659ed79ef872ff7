"""The stack frames of snapshots and dumps, and how a place in a stranger's code is named."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from advisor.redact import hide_secrets

_MOST_FRAMES = 1000  # of one stack
_OF_LIBRARIES = re.compile(
    r"(?:^|[/\\])torch[/\\](?:_\w+|amp|autograd|cuda|distributed|func|fx|library|nn|optim|profiler|tensor|utils)\b|(?:^|[/\\])torch[/\\]functional\.py$"
    r"|^<frozen|(?:^|[/\\])(?:contextlib|functools|threading|runpy)\.py$"
    r"|(?:^|[/\\])(?:beartype|einops|jaxtyping|opt_einsum)[/\\]"
)
_HOME = re.compile(r"^(?:.*[/\\])?(?:home|Users)[/\\][^/\\]+[/\\]?")
_BACKWARD = re.compile(r"(\w+Backward\w*)::apply")


class Frame(NamedTuple):
    """One call of a stack."""

    function: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """Return file, line and function. The file has its last two folders at most, and no user's name."""
        parts = [part for part in re.split(r"[/\\]", _HOME.sub("", self.file)) if part]
        shown = "".join(c for c in f"{'/'.join(parts[-2:])}:{self.line} {self.function}" if c.isprintable())
        return hide_secrets(shown[:120])


Stack = tuple[Frame, ...]  # the innermost call first


def read_stack(given: Any) -> Stack:
    """Return the frames of an event; none if it has none."""
    frames = given[:_MOST_FRAMES] if type(given) in (list, tuple) else ()
    return tuple(
        Frame(
            str(one.get("name", "")), str(one.get("filename", "")), line if type(line := one.get("line")) is int else 0
        )
        for one in frames
        if type(one) is dict
    )


def place_of(stack: Sequence[Frame]) -> str | None:
    """Return where the user's code, or else a library above torch, made a call; None if there are no such frames.

    Calls of the autograd engine have no Python frames: they are named by the operation whose gradient is computed.
    """
    python = [
        frame for frame in stack if frame.file.endswith(".py") or "ipython" in frame.file or "ipykernel" in frame.file
    ]
    own = next((frame for frame in python if not _OF_LIBRARIES.search(frame.file)), None)
    backward = next((match[1] for frame in stack if (match := _BACKWARD.search(frame.function))), None)
    if own is not None and own.function != "<module>" or backward is None:
        return own.place if own else None
    return backward


def mentions(stack: Iterable[Frame], pattern: re.Pattern[str]) -> bool:
    """Return True if the file or function of a frame matches."""
    return any(pattern.search(f"{frame.file} {frame.function}") for frame in stack)
