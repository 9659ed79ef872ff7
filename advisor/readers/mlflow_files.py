"""MLflow's stores: files, and the SQLite database `mlflow.db`, of which the run with most losses is read.

Files: `metrics/<name>` with lines "timestamp value step", `params/<name>`, the run's `meta.yaml`
(mlflow/store/tracking/file_store.py). Times are in milliseconds. Older files have no step, so the order counts.
Tables: `runs` (run_uuid, name, status, …), `metrics` (key, value, timestamp, run_uuid, step, is_nan) and `params`
(mlflow/store/tracking/dbmodels/models.py).
"""

from __future__ import annotations

import dataclasses
import math
import re
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.chunks import as_number, read_text
from advisor.readers.config_names import facts_of_settings
from advisor.readers.gather import Series, rows_of_series
from advisor.readers.names import column_of
from advisor.readers.run_table import RunTable, Status
from advisor.readers.status import by_tracker

NAME, DATABASE = "mlflow", "sqlite"
_LINE = re.compile(rb"\d{10,19} \S{1,40}(?: -?\d{1,18})?(?: \S+){0,2}")
_MOST_FILES = 2000
_MOST_VALUES = 1 << 21  # values of one run in a database; ten columns of this length take 168 MB
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


def score_database(head: bytes, path: Path) -> float:
    """Return the score, by the first bytes of any SQLite database."""
    return 0.9 if head.startswith(b"SQLite format 3") else 0.0


def read_database(path: Path) -> RunTable:
    """Read the run that logged most losses. Raises AdvisorError if the database is not MLflow's."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("select name from sqlite_master where type='table'")}
            columns = {row[1] for row in database.execute("pragma table_info(metrics)")}
            if {"key", "value", "run_uuid"} <= columns:
                return _longest_run(path, database)
    except sqlite3.Error as error:
        raise AdvisorError(
            f"{path} cannot be read as SQLite: {error}", "copy it again while nothing writes it"
        ) from error
    raise AdvisorError(
        f"{path} is an SQLite database, but not MLflow's; its tables are {', '.join(sorted(tables)[:8])}",
        "export the metrics as CSV: step, loss, …",
    )


def _longest_run(path: Path, database: sqlite3.Connection) -> RunTable:
    counts = Counter[str]()
    for run, key, rows in database.execute("select run_uuid, key, count(*) from metrics group by run_uuid, key"):
        named = column_of(key)
        counts[run] += rows if named is not None and named.column in ("loss", "eval_loss") else 0
    if not counts:
        raise AdvisorError(f"{path} holds no metric", "was the run logged to another store?")
    run = counts.most_common(1)[0][0]
    series: dict[str, list[tuple[float, float, float]]] = {}
    found = database.execute(
        "select key, value, timestamp, step, is_nan from metrics where run_uuid = ? order by step, timestamp limit ?",
        (run, _MOST_VALUES),
    )
    for key, value, time, step, is_nan in found:
        series.setdefault(key, []).append((time / 1000, math.nan if is_nan else float(value), float(step or 0)))
    columns = {key: np.array(rows).T for key, rows in series.items()}
    params = dict(database.execute("select key, value from params where run_uuid = ?", (run,)))
    table = table_of(path, {key: (c[0], c[1], c[2]) for key, c in columns.items()}, params)
    name, word = next(iter(database.execute("select name, status from runs where run_uuid = ?", (run,))), (run, ""))
    table = with_status(table, str(word))
    words = f"that with most rows, {name}, is read; export another one to see it"
    notes = (f"the database holds {len(counts)} runs: {words}",) if len(counts) > 1 else ()
    return dataclasses.replace(table, format=DATABASE, framework="MLflow", notes=(*table.notes, *notes))
