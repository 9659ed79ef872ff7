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
