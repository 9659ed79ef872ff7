"""Locks this machine's GPUs: the process that starts a run locks the run's GPUs, and the run's process keeps the locks.

The lock files are in a folder that every user of the machine sees. The system frees a lock when its process ends.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.engines.process import try_lock
from advisor.errors import AdvisorError
from advisor.hardware.here import VISIBLE, DetectedGpu, names_not_numbers, visible_cards
from advisor.store.disk import disk_errors

LOCKS = Path("/tmp")  # not TMPDIR, which differs from user to user


@dataclass(frozen=True, kw_only=True)
class LockedGpus:
    """GPUs locked by this process and by every process that inherits its open files."""

    ids: tuple[int, ...]  # numbered as by nvidia-smi
    files: tuple[int, ...]

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables that make only these GPUs visible to a process."""
        if not self.ids:
            return {}
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE: ",".join(map(str, self.ids))}


@contextlib.contextmanager
def lock_gpus(count: int, requested: Sequence[int], run: Path) -> Iterator[LockedGpus]:
    """Lock this many GPUs for a run: those asked for, or else the first free ones in the order of `choice`.

    Yields None if there are no GPUs, or if CUDA_VISIBLE_DEVICES names them by words, which hides their numbers. Raises
    AdvisorError with the holders of the missing GPUs.
    """
    present = visible_ids()
    if count == 0 or not (present or requested):
        yield LockedGpus(ids=(), files=())
        return
    if requested and len(set(requested)) != count:
        message = f"--gpu-ids names {len(set(requested))} GPUs, the plan is for {count}"
        raise AdvisorError(message, "name as many", exit_code=2)
    if present is not None and (unknown := sorted(set(requested) - set(present))):
        has = ", ".join(map(str, present)) or "none"
        raise AdvisorError(f"--gpu-ids: there is no GPU {unknown[0]} here", f"GPUs here: {has}", exit_code=2)
    held: dict[int, int] = {}
    taken: dict[int, str] = {}
    try:
        for number in requested or (card.number for card in choice()):
            if len(held) == count:
                break
            file = _opened(number)
            if try_lock(file):
                held[number] = file
                # Say which run holds the GPU, unless the lock file belongs to another user.
                with (
                    contextlib.suppress(PermissionError),
                    open(os.open(_path(number), os.O_WRONLY | os.O_NOFOLLOW), "wb") as out,
                ):
                    out.truncate()
                    out.write(f"{run}\n".encode())
            else:
                taken[number] = _signed(file)
                os.close(file)
        if len(held) < count:
            who = "; ".join(f"GPU {number} is taken by {run}" for number, run in taken.items())
            raise AdvisorError(f"{count} free GPUs are needed: {who}", "wait for it, or end it: advisor stop RUN")
        yield LockedGpus(ids=tuple(held), files=tuple(held.values()))
    finally:
        for file in held.values():
            os.close(file)


def parse_gpu_ids(text: str | None) -> tuple[int, ...]:
    """Return the GPUs of "0,1"; raises AdvisorError (exit 2) for anything else."""
    words = [word.strip() for word in text.split(",")] if text is not None else []
    if any(not re.fullmatch(r"[0-9]{1,3}", word) for word in words):
        raise AdvisorError(f"--gpu-ids {text}: this is not a list of GPUs", "write it like 0,1", exit_code=2)
    return tuple(map(int, words))


def visible_ids() -> tuple[int, ...] | None:
    """Return the GPU numbers in CUDA_VISIBLE_DEVICES, all GPUs if it is unset, or None if it has other names."""
    return None if names_not_numbers() else tuple(card.number for card in visible_cards())


def choice() -> list[DetectedGpu]:
    """Return the visible GPUs in the order in which a run takes them: unused ones first."""
    return sorted(visible_cards(), key=lambda card: card.in_use)


def runs_by_gpu() -> dict[int, str]:
    """Return the visible GPUs that runs hold now, each with its run."""
    found = {}
    for number in visible_ids() or ():
        file = _opened(number)
        if not try_lock(file):
            found[number] = _signed(file)
        os.close(file)
    return found


def _path(number: int) -> Path:
    return LOCKS / f"training-advisor-gpu-{number}.lock"


def _opened(number: int) -> int:
    """Open a lock file, creating it if needed. Another user's file is opened read-only, which suffices to lock it."""
    path = _path(number)
    with disk_errors("lock the GPU by", path):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


def _signed(file: int) -> str:
    text = os.pread(file, 4096, 0).decode("utf-8", "replace").strip()
    return text or "another run"
