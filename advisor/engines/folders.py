"""Handles run folders for all backends: writes files, notes a stop."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.engines.backend import LaunchRequest
from advisor.errors import AdvisorError
from advisor.store.disk import disk_errors, write_atomic
from advisor.store.run_folder import read_launch, write_launch


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
