"""Stores logs under a name: the files and `logs/NAME/kept.json`. Each is written in full or not at all."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.store.disk import disk_errors, read_json, write_atomic

_ABOUT, _FILES = "kept.json", "files"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


@dataclass(frozen=True, kw_only=True)
class KeptLogs:
    """Logs that were stored under a name, with the settings of the page."""

    name: str
    kept_at: datetime
    files: tuple[Path, ...]
    settings: Mapping[str, Any]  # values of the page's controls, by their names in the page's address


def keep_logs(
    home: Path, name: str, files: Sequence[tuple[str, bytes]], settings: Mapping[str, Any], now: datetime
) -> Path:
    """Store logs (file names and contents) under a name, replacing older ones. Raises AdvisorError on failure."""
    if not _NAME.fullmatch(name):
        hint = "take up to 60 letters, digits, dots, dashes or underscores, a letter or digit first"
        raise AdvisorError(f"{name!r} cannot be the name of kept logs", hint, exit_code=2)
    about = {"schema": 1, "kept_at": now.astimezone(UTC).isoformat(), "files": [file for file, _ in files]}
    folder = home / "logs" / name
    with disk_errors("keep the logs in", folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{name}."))
        new = making / "new"
        try:
            (new / _FILES).mkdir(parents=True)
            for file, content in files:
                (new / _FILES / file).write_bytes(content)
            write_atomic(new / _ABOUT, json.dumps(about | {"settings": dict(settings)}, indent=1) + "\n")
            if folder.exists():
                folder.rename(making / "before")
            new.rename(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return folder


def kept_logs(home: Path) -> list[KeptLogs]:
    """Return all stored logs, newest first."""
    folders = (home / "logs").glob(f"*/{_ABOUT}")
    found = [_read(path.parent) for path in folders if _NAME.fullmatch(path.parent.name)]
    return sorted(found, key=lambda one: (one.kept_at, one.name), reverse=True)


def find_kept_logs(home: Path, name: str) -> KeptLogs | None:
    """Return the logs stored under a name, or None if there are none."""
    folder = home / "logs" / name
    return _read(folder) if _NAME.fullmatch(name) and (folder / _ABOUT).is_file() else None


def delete_kept_logs(home: Path, name: str) -> None:
    """Delete the logs stored under a name, if there are any."""
    found = find_kept_logs(home, name)
    if found is not None:
        folder = home / "logs" / name
        with disk_errors("remove the logs", folder):
            shutil.rmtree(folder)


def _read(folder: Path) -> KeptLogs:
    path = folder / _ABOUT
    about = read_json(path, "kept logs")
    try:
        kept_at = datetime.fromisoformat(str(about["kept_at"]))
        files = tuple(folder / _FILES / Path(str(file)).name for file in about["files"])
        settings = dict(about["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise AdvisorError(f"the kept logs {path} cannot be used: {error}", f"remove them: rm -r {folder}") from error
    return KeptLogs(name=folder.name, kept_at=kept_at, files=files, settings=settings)
