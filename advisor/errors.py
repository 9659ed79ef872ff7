"""The one exception a user sees: what happened, with the value, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AdvisorError(Exception):
    """Something the user can mend: `message` says what is wrong, `hint` the next step (often a command).

    `exit_code` is 1 for a failure, 2 for wrong usage, 3 when everything worked but nothing fits.
    """

    def __init__(self, message: str, hint: str | None = None, *, exit_code: int = 1):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


def close_matches(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Names that look like `name`, best first, for "did you mean"."""
    return difflib.get_close_matches(name, list(names), n=count, cutoff=0.5)


def explain(error: Exception) -> tuple[str, str | None, int]:
    """The message, hint and exit code of any exception: one sentence for people, whatever went wrong."""
    if isinstance(error, AdvisorError):
        return error.message, error.hint, error.exit_code
    from trainer.schema import ConfigError

    if isinstance(error, ConfigError):
        problems = "".join(f"\n  {problem}" for problem in error.problems)
        return f"the run configuration cannot be used:{problems}", "mend the settings named above", 2
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}", "check that the path exists, is writable and its disk is not full", 1
    words = str(error).strip() or "no message"
    return (
        f"unexpected {type(error).__name__}: {words}",
        "this is a fault of the program; the same command with ADVISOR_DEBUG=1 before it shows where",
        1,
    )
