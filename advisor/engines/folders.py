"""Handles run folders for all backends: writes files, notes a stop, reads output, lists an engine's runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.engines.backend import LaunchRequest, engine_of
from advisor.errors import AdvisorError
from advisor.run_records import LaunchRecord, Place
from advisor.store.disk import disk_errors, write_atomic
from advisor.store.run_folder import STDOUT, is_run_folder, read_launch, write_launch
from advisor.store.store import Store


def write_files(request: LaunchRequest) -> None:
    """Write what the command needs into the run's folder."""
    for name, here in request.copies.items():
        target = request.folder / name
        with disk_errors("copy to", target):
            shutil.copytree(here, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in request.files.items():
        write_atomic(request.folder / name, text)


def note_stop(run_dir: Path) -> None:
    """Record that the user asked this attempt to stop."""
    launch = read_launch(run_dir)
    if launch is not None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        write_launch(run_dir, replace(launch, stop_asked_at=now))


def not_ended(run_dir: Path, timeout_seconds: float) -> AdvisorError:
    """Return the error for a run that still runs after it was asked to stop."""
    return AdvisorError(
        f"{run_dir} has not ended within {timeout_seconds:.0f} s; it may still be writing its checkpoint",
        f"wait (advisor watch {run_dir}), or end it without one: advisor stop {run_dir} --force",
    )


def printed(run_dir: Path) -> str:
    """Return the text of `stdout.log`, of all attempts; empty if there is none yet."""
    path = run_dir / STDOUT
    if not path.exists():
        return ""
    with disk_errors("read", path):
        return path.read_text(encoding="utf-8", errors="replace")


def runs_of(engine: str, store: Store) -> Iterator[tuple[Path, LaunchRecord | None]]:
    """Yield the existing folders of an engine's runs, newest first; a run without a launch record counts as local."""
    for row in store.runs():
        folder = Path(row.path)
        if not is_run_folder(folder):
            continue
        launch = read_launch(folder)
        if (engine_of(launch.handle) if launch is not None else Place().engine) == engine:
            yield folder, launch
