"""MLflow's file store: `metrics/<name>` with lines "timestamp value step", `params/<name>`, the run's `meta.yaml`.

Source: mlflow/store/tracking/file_store.py. Times are in milliseconds. Older files have no step, so the order counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.chunks import as_number, read_text
from advisor.readers.config_names import facts_of_settings
from advisor.readers.gather import Series, rows_of_series
from advisor.readers.run_table import RunTable, Status
from advisor.readers.status import by_tracker

NAME = "mlflow"
_LINE = re.compile(rb"\d{10,19} \S{1,40}(?: -?\d{1,18})?(?: \S+){0,2}")
_MOST_FILES = 2000
# meta.yaml has the RunStatus as a number in old versions and by name in new ones
STATUS = {"3": Status.COMPLETED, "FINISHED": Status.COMPLETED, "4": Status.CRASHED, "FAILED": Status.CRASHED,
           "5": Status.KILLED, "KILLED": Status.KILLED}  # fmt: skip
_WORDS: Mapping[str, object] = {"True": True, "False": False, "None": None}


def score(head: bytes, path: Path) -> float:
    """Return the score: lines of a time in milliseconds, a number and a step, in a file without a suffix."""
    lines = [line for line in head.split(b"\n")[:20] if line.strip()]
    if not lines or not all(_LINE.fullmatch(line.strip()) for line in lines[: len(lines) - 1 or 1]):
        return 0.0
    return 0.9 if path.parent.name == "metrics" or "metrics" in path.parts else 0.6 if not path.suffix else 0.4


def read(path: Path) -> RunTable:
    """Read one metric's file, with the other metrics if it lies in a run's folder. Raises AdvisorError on failure."""
    run = next((folder for folder in path.parents if (folder / "meta.yaml").is_file()), None)
    if run is not None and (run / "metrics") in path.parents:
        return read_folder(run)
    return table_of(path, {path.name: read_metric(path)}, {})


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder is one run of a file store."""
    return (folder / "metrics").is_dir() and ((folder / "meta.yaml").is_file() or (folder / "params").is_dir())


def read_folder(folder: Path) -> RunTable:
    """Read all metrics and parameters of one run. Raises AdvisorError on failure."""
    files = [path for path in sorted((folder / "metrics").rglob("*")) if path.is_file()][:_MOST_FILES]
    series = {str(path.relative_to(folder / "metrics")): read_metric(path) for path in files}
    params = [path for path in sorted((folder / "params").glob("*")) if path.is_file()][:_MOST_FILES]
    settings = {path.name: _WORDS.get(text := read_text(path, 2**20).strip(), text) for path in params}
    table = table_of(folder, series, settings)
    if not (folder / "meta.yaml").is_file():
        return table
    match = re.search(r"^status:\s*'?(\w+)'?", read_text(folder / "meta.yaml", 2**20), re.MULTILINE)
    return with_status(table, match[1] if match else "")


def read_metric(path: Path) -> Series:
    """Return the Unix seconds, values and steps of one metric. Raises AdvisorError if a line has another form."""
    rows = []
    lines = read_text(path).split("\n")
    for number, line in enumerate(lines):
        parts = line.split()
        if not parts:
            continue
        value = as_number(parts[1]) if len(parts) > 1 else None
        time = as_number(parts[0])
        if value is None or time is None:
            if number >= len(lines) - 1:
                continue  # an incomplete last line
            raise AdvisorError(
                f"{path}, line {number + 1} is not 'timestamp value step': {line[:60]}", "mend or remove that line"
            )
        step = as_number(parts[2]) if len(parts) > 2 else None
        rows.append((time / 1000, value, math.nan if step is None else step))
    columns = np.array(rows, dtype=float).reshape(-1, 3).T
    return columns[0], columns[1], columns[2]


def table_of(source: Path, series: Mapping[str, Series], settings: Mapping[str, object]) -> RunTable:
    """Return one row per step. Metrics logged without steps, which MLflow writes as 0, are counted instead."""
    counted = {}
    for name, (times, values, steps) in series.items():
        has_steps = np.isfinite(steps).all() and (len(steps) == 1 or len(np.unique(steps)) > 1)
        counted[name] = times, values, steps if has_steps else np.arange(len(steps), dtype=float)
    told = {"unix_seconds": "time stamp of the metric"}
    return rows_of_series(counted).table(source, NAME, facts=facts_of_settings(settings), provenance=told)


def with_status(table: RunTable, word: str) -> RunTable:
    """Return a run's table with the end that MLflow recorded."""
    return by_tracker(table, STATUS.get(word), f"MLflow's status of the run is {word}")
