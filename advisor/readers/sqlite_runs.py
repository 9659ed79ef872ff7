"""Reads the run with most losses from a tracker's SQLite database: MLflow's `mlflow.db`, trackio's `<project>.db`.

MLflow: tables `runs` (run_uuid, name, status, …), `metrics` (key, value, timestamp in ms, run_uuid, step, is_nan) and
`params` (mlflow/store/tracking/dbmodels/models.py). trackio: table `metrics` (timestamp, run_name, step, metrics as
JSON; trackio/sqlite_storage.py). A database is opened for reading only.
"""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers import mlflow_files
from advisor.readers.chunks import json_object
from advisor.readers.gather import rows_of
from advisor.readers.names import column_of
from advisor.readers.run_table import RunTable

NAME = "sqlite"
MAGIC = b"SQLite format 3\0"
MOST_VALUES = 1 << 21  # values of one run; ten columns of this length take 168 MB
_NAMED = 5  # other runs that are listed by name


def score(head: bytes, path: Path) -> float:
    """Return the score, by the first bytes of any SQLite database."""
    return 0.9 if head.startswith(MAGIC[:15]) else 0.0


def read(path: Path) -> RunTable:
    """Read the run that logged most losses. Raises AdvisorError if the database is not a known tracker's."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("select name from sqlite_master where type='table'")}
            columns = (
                {row[1] for row in database.execute("pragma table_info(metrics)")} if "metrics" in tables else set()
            )
            if {"key", "value", "run_uuid"} <= columns:
                return _mlflow(path, database)
            if {"run_name", "step", "metrics"} <= columns:
                return _trackio(path, database)
    except sqlite3.Error as error:
        raise AdvisorError(
            f"{path} cannot be read as SQLite: {error}", "copy it again while nothing writes it"
        ) from error
    raise AdvisorError(
        f"{path} is an SQLite database of neither MLflow nor trackio; its tables are {', '.join(sorted(tables)[:8])}",
        "export the metrics as CSV: step, loss, …",
    )


def _mlflow(path: Path, database: sqlite3.Connection) -> RunTable:
    counts = Counter[str]()
    for run, key, rows in database.execute("select run_uuid, key, count(*) from metrics group by run_uuid, key"):
        named = column_of(key)
        counts[run] += rows if named is not None and named.column in ("loss", "eval_loss") else 0
    run = _longest(path, counts)
    series: dict[str, list[tuple[float, float, float]]] = {}
    found = database.execute(
        "select key, value, timestamp, step, is_nan from metrics where run_uuid = ? order by step, timestamp limit ?",
        (run, MOST_VALUES),
    )
    for key, value, time, step, is_nan in found:
        series.setdefault(key, []).append((time / 1000, math.nan if is_nan else float(value), float(step or 0)))
    columns = {key: np.array(rows).T for key, rows in series.items()}
    params = dict(database.execute("select key, value from params where run_uuid = ?", (run,)))
    table = mlflow_files.table_of(path, {key: (c[0], c[1], c[2]) for key, c in columns.items()}, params)
    name, word = next(iter(database.execute("select name, status from runs where run_uuid = ?", (run,))), (run, ""))
    table = mlflow_files.with_status(table, str(word))
    return dataclasses.replace(table, format=NAME, framework="MLflow", notes=(*table.notes, *_others(name, counts)))


def _trackio(path: Path, database: sqlite3.Connection) -> RunTable:
    counts = Counter(dict(database.execute("select run_name, count(*) from metrics group by run_name")))
    run = _longest(path, counts)
    found = database.execute(
        "select step, timestamp, metrics from metrics where run_name = ? order by step limit ?", (run, MOST_VALUES)
    )
    rows = ({**json_object(text), "step": step, "timestamp": time} for step, time, text in found)
    return rows_of(rows).table(path, NAME, "trackio", notes=_others(run, counts))


def _longest(path: Path, counts: Counter[str]) -> str:
    if not counts:
        raise AdvisorError(f"{path} holds no metric", "was the run logged to another store?")
    return counts.most_common(1)[0][0]


def _others(run: str, counts: Counter[str]) -> list[str]:
    """Return a note on the other runs if a database holds several."""
    if len(counts) < 2:
        return []
    return [f"the database holds {len(counts)} runs: that with most rows, {run}, is read; export another one to see it"]
