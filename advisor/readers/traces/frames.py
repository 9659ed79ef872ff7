"""The stack frames of snapshots and dumps, and how a place in a stranger's code is named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from advisor.readers.traces.safe_pickle import optional
from advisor.redact import for_sending

_MOST_FRAMES = 1000  # of one stack
_OF_LIBRARIES = re.compile(
    r"(?:^|[/\\])torch[/\\](?:_\w+|amp|autograd|cuda|distributed|func|fx|library|nn|optim|profiler|tensor|utils)\b|(?:^|[/\\])torch[/\\]functional\.py$"
    r"|^<frozen|(?:^|[/\\])(?:contextlib|functools|threading|runpy)\.py$"
    r"|(?:^|[/\\])(?:beartype|einops|jaxtyping|opt_einsum|torchinductor_[^/\\]*)[/\\]"
)
_HOME = re.compile(r"(?i)^(?:.*[/\\])?(?:home|users?)[/\\][^/\\]+[/\\]?")
PYTHON = re.compile(r"\.py$|ipython|ipykernel")
_BACKWARD = re.compile(r"(\w+Backward\w*)::apply")


class Frame(NamedTuple):
    """One call of a stack."""

    function: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """Return file, line and function. The file has at most its last two parts, and no user's name."""
        parts = [part for part in re.split(r"[/\\]", _HOME.sub("", self.file)) if part]
        return shown(f"{'/'.join(parts[-2:])}:{self.line} {self.function}", 120)


Stack = tuple[Frame, ...]  # the innermost call first


def shown(text: str, most: int) -> str:
    """Return a stranger's words, so that they can be printed."""
    return for_sending("".join(character for character in text[:most] if character.isprintable()))


def read_stack(given: Any) -> Stack:
    """Return the frames of an event; none if it has none."""
    frames = given[:_MOST_FRAMES] if type(given) in (list, tuple) else ()
    return tuple(
        Frame(str(one.get("name", "")), str(one.get("filename", "")), optional(one, "line", int) or 0)
        for one in frames
        if type(one) is dict
    )


def place_of(stack: Sequence[Frame]) -> str | None:
    """Return where the user's code, or else a library above torch, made a call; None if there are no such frames.

    Calls of the autograd engine have no Python frames: they are named by the operation whose gradient is computed.
    """
    own = next((frame for frame in stack if PYTHON.search(frame.file) and not _OF_LIBRARIES.search(frame.file)), None)
    backward = next((match[1] for frame in stack if (match := _BACKWARD.search(frame.function))), None)
    if backward is not None and (own is None or own.function == "<module>"):
        return backward
    return own.place if own is not None else None
