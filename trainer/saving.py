"""Writes the checkpoints of a run. All processes do this together and, if configured, during the steps.

    begin()      each process copies its part to host memory, and a thread writes it
    written      whether this process's files are on disk; the run continues until all processes say so
    finish()     all together: the main process gives the checkpoint its name, once every file is on disk

A kill at any moment leaves either the finished checkpoint or a hidden folder that the next attempt removes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainer import checkpoint_files as files
from trainer.checkpoint import Snapshot
from trainer.checkpoint_files import CheckpointError
from trainer.device import available_host_memory
from trainer.parallel import World

# Share of the host's free memory that a copy may take. Else the run waits while its own tensors are written.
_SPARE_MEMORY = 0.5


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint that is on disk under its name."""

    step: int
    path: str  # relative to the parent of the folder of checkpoints
    bytes: int
    write_seconds: float  # from the first byte to the last, in the slowest process


@dataclass(kw_only=True)
class _Writing:
    """One checkpoint being written. The thread adds how the writing ended."""

    snapshot: Snapshot
    partial: Path
    thread: threading.Thread | None = None
    ended: dict[str, Any] = field(default_factory=dict)  # files and seconds, or an error

    def write(self) -> None:
        began = time.perf_counter()
        try:
            self.ended["files"] = files.write_files(self.partial, self.snapshot.tensors)
        except Exception as error:  # this is a thread, and the run must learn of any error
            self.ended["error"] = str(error)
        self.ended["seconds"] = time.perf_counter() - began


class Saver:
    """Writes checkpoints into one folder, one at a time. Every process of the run makes the same calls."""

    def __init__(self, folder: Callable[[], Path], world: World, device: torch.device, *, background: bool):
        """`folder` returns the present folder of checkpoints, because a run folder may be moved during its run."""
        self._where, self._world, self._device, self.background = folder, world, device, background
        self._writing: _Writing | None = None

    @property
    def under_way(self) -> bool:
        return self._writing is not None

    @property
    def written(self) -> bool:
        """Tell whether this process has nothing left to write."""
        thread = None if self._writing is None else self._writing.thread
        return thread is None or not thread.is_alive()

    def begin(self, snapshot: Snapshot) -> None:
        """Start writing. Raises CheckpointError on all processes if there is no room. Finish an earlier one first."""
        assert self._writing is None
        writing = _Writing(snapshot=snapshot, partial=self._prepare(snapshot))
        if self.background and files.bytes_needed(snapshot.tensors) < _SPARE_MEMORY * available_host_memory():
            writing.snapshot = snapshot.on_host()
            writing.thread = threading.Thread(target=writing.write, name="checkpoint", daemon=True)
            writing.thread.start()
        else:
            writing.write()
        self._writing = writing

    def finish(self) -> Saved:
        """Wait until all have written, then publish. Raises CheckpointError on all processes if any of them failed."""
        writing, self._writing = self._writing, None
        assert writing is not None
        if writing.thread is not None:
            writing.thread.join()
        parts = self._gather(writing.ended)
        error = next((part["error"] for part in parts if "error" in part), None)
        published: dict[str, Any] = {"error": error}
        if error is None and self._world.is_main:
            published = self._publish(writing, {name: file for part in parts for name, file in part["files"].items()})
        published = self._gather(published)[0]
        if published["error"] is not None:
            if self._world.is_main:
                files.drop(writing.partial)
            raise CheckpointError(published["error"])
        slowest = max(part["seconds"] for part in parts)
        step = writing.snapshot.step
        return Saved(step=step, path=published["path"], bytes=published["bytes"], write_seconds=slowest)

    def _prepare(self, snapshot: Snapshot) -> Path:
        folder = self._where()
        needed = sum(self._gather(files.bytes_needed(snapshot.tensors)))
        prepared: dict[str, Any] = {}
        if self._world.is_main:
            try:
                prepared["name"] = files.prepare(folder, snapshot.step, needed).name
            except CheckpointError as error:
                prepared["error"] = str(error)
        prepared = self._gather(prepared)[0]
        if "error" in prepared:
            raise CheckpointError(prepared["error"])
        return folder / prepared["name"]

    def _publish(self, writing: _Writing, written: dict[str, Any]) -> dict[str, Any]:
        try:
            path, size = files.publish(writing.partial, written, writing.snapshot.state)
        except CheckpointError as error:
            return {"error": str(error)}
        return {"error": None, "path": f"{path.parent.name}/{path.name}", "bytes": size}

    def _gather(self, value: Any) -> list[Any]:
        return self._world.gather(value, self._device)
