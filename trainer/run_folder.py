"""Holds a run's folder while its process lives: no other process trains in it, and it may be moved in the meantime."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import IO

LOCK_NAME = ".trainer.lock"
LOCK_WAIT_SECONDS = 20.0  # by then, a process that was just killed or told to end has ended
_GONE = " (deleted)"


class FolderInUseError(OSError):
    """Says that another process trains in the folder, and which process it is."""


class RunFolder:
    """A folder identified by its inode rather than its name. `path` is where it is at present."""

    def __init__(self, path: str | Path):
        """Create the folder if needed, and hold it open. Raises OSError."""
        self._given = Path(path).absolute()  # a later change of the working directory must not move it
        self._given.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._given, os.O_RDONLY | os.O_DIRECTORY)
        self._lock: IO[str] | None = None

    @property
    def path(self) -> Path:
        """Return the folder's present path, or the given path if the folder is gone or the system cannot tell."""
        if self._is_at(self._given):
            return self._given
        moved_to = self._moved_to()
        if moved_to is not None:
            self._given = moved_to
        return self._given

    @property
    def is_gone(self) -> bool:
        """Tell whether the folder was deleted, for example by a move to another disk, which copies it."""
        return not self._is_at(self._given) and self._moved_to() is None

    def lock(self, wait_seconds: float = LOCK_WAIT_SECONDS) -> None:
        """Keep every other process from training here until this process ends in any way. Raises FolderInUseError."""
        import fcntl  # POSIX only, like the whole trainer

        self._lock = open(self.path / LOCK_NAME, "a+", encoding="utf-8")  # noqa: SIM115 - held until the process ends
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    self._lock.seek(0)
                    raise FolderInUseError(f"{self._lock.read().strip() or 'another process'} trains in it") from None
                time.sleep(0.1)
            except OSError:  # the file system has no locks, so only the launcher's own check remains
                return
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        self._lock.flush()

    def close(self) -> None:
        """Release the folder. A second call does nothing."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _moved_to(self) -> Path | None:
        """Return the present name of an open folder, which Linux knows."""
        try:
            name = os.readlink(f"/proc/self/fd/{self._descriptor}")
        except OSError:
            return None
        return Path(name) if not name.endswith(_GONE) and self._is_at(Path(name)) else None
