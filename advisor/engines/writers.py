"""Whether somebody is writing a file at this moment, or was a moment ago."""

from __future__ import annotations

import os
import time
from pathlib import Path

_PROCESSES = Path("/proc")
_MOMENT = 60.0  # seconds, at least: programs write what they print when a buffer is full
_WRITING = os.O_WRONLY | os.O_RDWR


def is_being_written(path: Path) -> bool:
    """Whether a process of this machine has the file open for writing; False where the system does not tell."""
    try:
        target = str(path.resolve(strict=True))
        processes = [name for name in os.listdir(_PROCESSES) if name.isdigit()]
    except OSError:
        return False
    return any(_writes(_PROCESSES / process, target) for process in processes)


def was_just_written(path: Path, stamp: float, every: float) -> bool:
    """Whether a file's last record is of a moment ago by its own stamp, read as UTC or as this machine's time.

    `stamp`: seconds since 1970, of the last record; `every`: seconds between records. A copy of an older log is new by
    its file's date and old by its stamps. False where the file cannot be looked at.
    """
    now = time.time()
    try:
        written = path.stat().st_mtime
    except OSError:
        return False
    moment = max(_MOMENT, 5 * every)
    here = time.localtime(now).tm_gmtoff
    return 0 <= now - written <= moment and any(-1 <= now + zone - stamp <= moment for zone in (0, here))


def _writes(process: Path, target: str) -> bool:
    """Whether one process writes it; not where it is gone by now, or somebody else's."""
    try:
        open_files = os.listdir(process / "fd")
    except OSError:
        return False
    return any(_is_open_for_writing(process, number, target) for number in open_files)


def _is_open_for_writing(process: Path, number: str, target: str) -> bool:
    try:
        if os.readlink(process / "fd" / number) != target:
            return False
        info = (process / "fdinfo" / number).read_text(encoding="ascii")
    except OSError:
        return False
    flags = next((line.split()[1] for line in info.splitlines() if line.startswith("flags:")), "0")
    return bool(int(flags, 8) & _WRITING)
