"""The exception for all errors that users see: a message and what to do next."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable

# The extra of this project with which each optional package is installed.
_EXTRAS = {
    **dict.fromkeys(("torch", "tokenizers", "safetensors", "pyarrow"), "train"),
    **dict.fromkeys(("streamlit", "altair", "vl_convert"), "app"),
    "gpuhunt": "prices",
    "mcp": "mcp",
    "prometheus_client": "prometheus",
    "sentencepiece": "sentencepiece",
    "fsspec": "ledger",
    "psycopg": "ledger",
}


class AdvisorError(Exception):
    """An error that the user can fix: `message` describes it and `hint` gives the next step, often a command.

    `exit_code` is 1 for a failure, 2 for wrong usage, and 3 if nothing fits the user's limits.
    """

    def __init__(self, message: str, hint: str | None = None, *, exit_code: int = 1):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


def require_package(name: str, needed_for: str) -> None:
    """Raise AdvisorError if an optional package is not installed."""
    if importlib.util.find_spec(name) is None:
        raise _not_installed(name, needed_for)


def _not_installed(name: str, needed_for: str = "this") -> AdvisorError:
    hint = f"pip install 'training-advisor[{_EXTRAS[name]}]'"
    return AdvisorError(f"{needed_for} needs the package {name}, which is not installed", hint)


def close_matches(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return names similar to `name`, best first, for "did you mean"."""
    return difflib.get_close_matches(name, list(names), n=count, cutoff=0.55)


def explain(error: Exception) -> tuple[str, str | None, int]:
    """Return message, hint and exit code for any exception."""
    if isinstance(error, AdvisorError):
        return error.message, error.hint, error.exit_code
    from trainer.schema import ConfigError

    if isinstance(error, ConfigError):
        problems = "".join(f"\n  {problem}" for problem in error.problems)
        return f"the run configuration cannot be used:{problems}", "fix the settings named above", 2
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) in _EXTRAS:
        return explain(_not_installed(package))
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}", "check that the path exists, is writable and its disk is not full", 1
    words = str(error).strip() or "no message"
    return (
        f"unexpected {type(error).__name__}: {words}",
        "this is a fault of the program; the same command with ADVISOR_DEBUG=1 before it shows where",
        1,
    )
