"""Finds the folders of the shipped data and of the user's own data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@cache
def profiles_folder() -> Path:
    """Return the folder of shipped profiles: inside an installed package, or next to the package in a checkout."""
    installed = _PACKAGE / "_profiles"
    return installed if installed.is_dir() else _PACKAGE.parent / "profiles"


def examples_folder() -> Path:
    """Return the folder of shipped examples."""
    installed = _PACKAGE / "_examples"
    return installed if installed.is_dir() else _PACKAGE.parent / "examples"


def example_run() -> Path:
    """Return the folder of a recorded run, which is shipped so that there is something to see before the first run."""
    return examples_folder() / "run"


def advisor_home() -> Path:
    """Return the user's own folder: ADVISOR_HOME, or else the platform's data folder. It may not exist yet."""
    chosen = os.environ.get("ADVISOR_HOME")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs  # may be missing where ADVISOR_HOME is set

    return Path(platformdirs.user_data_dir("training-advisor", appauthor=False))


def names_apart(paths: Sequence[str]) -> list[str]:
    """Return a short name for each path: the end of the path, long enough to differ from all others."""
    parts = [Path(path).parts for path in paths]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(part)} ({number})" for number, part in enumerate(parts, 1)]
