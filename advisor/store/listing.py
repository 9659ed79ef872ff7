"""Keeps what the list of runs showed of each folder, so that it is read again only after one of its files changed.

`listing/HOST.json` of the store: whether a process lives is known on its own machine alone, so each has a file. It can
be removed at any time; one that is damaged, or of another version, is made anew without a word.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.store.about import ABOUT
from advisor.store.adopted import PLAN as ADOPTED_PLAN
from advisor.store.disk import write_atomic
from advisor.store.run_folder import CHECKPOINTS, CONFIG, LAUNCH, LOG, SIGHTING, STDOUT

SCHEMA = 1  # raised whenever the list comes to show something else of the same files
RUN_FILES = (CONFIG, LOG, LAUNCH)  # one of them makes a folder a run's
# everything that a line of the list is read from; steps.jsonl and budget.json are the logs of other writers
_FILES = (*RUN_FILES, STDOUT, SIGHTING, ABOUT, ADOPTED_PLAN, CHECKPOINTS, "steps.jsonl", "budget.json")

Lines = Mapping[str, Any]  # by folder: a text that changes with its files, and what was read of them


def files_state(folder: str) -> str | None:
    """Gives the state of the files that a run's line is read from, as a text that changes when they do.

    None: the folder is gone, or holds no run. A file that is replaced is told by its inode, also where the clock of
    the file system is coarse and the new one is as long as the old.
    """
    parts = []
    for name in _FILES:
        try:
            found = os.stat(f"{folder}/{name}")
        except OSError:
            parts.append("")
        else:
            parts.append(f"{found.st_mtime_ns:x}.{found.st_size:x}.{found.st_ino:x}")
    return " ".join(parts) if any(parts[: len(RUN_FILES)]) else None


def read_lines(home: Path) -> Lines:
    """Reads what was kept; empty where there is nothing that can be used."""
    try:
        document = json.loads(_path(home).read_bytes())
        runs = document["runs"] if document["schema"] == SCHEMA else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return runs if isinstance(runs, dict) else {}


def write_lines(home: Path, lines: Lines) -> None:
    """Keeps these lines alone, whole or not at all; a store that cannot be written to goes without."""
    with contextlib.suppress(AdvisorError):
        write_atomic(_path(home), json.dumps({"schema": SCHEMA, "runs": lines}, separators=(",", ":")))


def _path(home: Path) -> Path:
    return home / "listing" / f"{socket.gethostname()}.json"
