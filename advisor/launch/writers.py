"""Whether somebody is writing a file at this moment."""

from __future__ import annotations

import os
from pathlib import Path

_PROCESSES = Path("/proc")
_WRITING = os.O_WRONLY | os.O_RDWR


def is_being_written(path: Path) -> bool:
    """Whether a process of this machine has the file open for writing; False where the system does not tell."""
    try:
        target = str(path.resolve(strict=True))
        processes = [name for name in os.listdir(_PROCESSES) if name.isdigit()]
    except OSError:
        return False
    return any(_writes(_PROCESSES / process, target) for process in processes)


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
