"""Finds whether a folder holds one run or several: logs of one format, or subfolders with one run each."""

from __future__ import annotations

from pathlib import Path

from advisor.errors import AdvisorError
from advisor.readers import mlflow_files, wandb_folder
from advisor.readers.chunks import sample
from advisor.readers.folder import is_log_path
from advisor.readers.read import known_reader
from advisor.readers.yaml_rows import text_regex

_SURE = 0.5  # lowest score at which a file is a log and not a text with numbers in it
_MOST = 200  # files or folders that are examined


def logs_of(folder: Path) -> list[Path]:
    """Return the paths of a folder's runs; empty if the folder is one run or holds none.

    Several runs are two or more logs of one format in the folder, or two or more subfolders that each have a log. Logs
    of ranks, checkpoints and event files are parts of one run.
    """
    if _is_one_run(folder):
        return []
    entries = [path for path in sorted(folder.iterdir()) if not text_regex("part_of_a_run").search(path.name)][:_MOST]
    files = {path: name for path in entries if path.is_file() and (name := _format(path)) is not None}
    names = list(files.values())
    if names and max(names.count(name) for name in names) > 1:
        suffixes = {path.suffix for path in files}
        # a log that broke off before its first step has no format yet, only the same suffix as the others
        return [path for path in entries if path.is_file() and (path in files or path.suffix in suffixes)]
    inside = [path for path in entries if path.is_dir() and _has_log(path)]
    return inside if len(inside) > 1 and not files else []


def _is_one_run(folder: Path) -> bool:
    own = (folder / "log.jsonl").is_file() or (folder / "run.json").is_file()
    return own or mlflow_files.is_run_folder(folder) or wandb_folder.files_of(folder) is not None


def _has_log(folder: Path) -> bool:
    if _is_one_run(folder):
        return True
    files = [path for path in sorted(folder.rglob("*"))[:_MOST] if path.is_file()]
    return any(_format(path) is not None for path in files)


def _format(path: Path) -> str | None:
    """Return the reader's name for a training log; None for anything else, including GPU telemetry."""
    if not is_log_path(path) or not path.stat().st_size:
        return None
    try:
        found = known_reader(path)
    except AdvisorError:
        return None
    if found is None or found[0] < _SURE or not sample(path).strip() or found[1].name in _READINGS:
        return None
    return found[1].name


_READINGS = frozenset(("gpu_csv", "smi tables", "telemetry.parquet"))
