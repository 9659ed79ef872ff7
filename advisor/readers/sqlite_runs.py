"""Reads the run with most losses from MLflow's SQLite database, `mlflow.db`, which is opened for reading only.

Tables: `runs` (run_uuid, name, status, …), `metrics` (key, value, timestamp in ms, run_uuid, step, is_nan) and `params`
(mlflow/store/tracking/dbmodels/models.py).
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
    """Read the run that logged most losses. Raises AdvisorError if the database is not MLflow's."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("select name from sqlite_master where type='table'")}
            columns = (
                {row[1] for row in database.execute("pragma table_info(metrics)")} if "metrics" in tables else set()
            )
            if {"key", "value", "run_uuid"} <= columns:
                return _mlflow(path, database)
    except sqlite3.Error as error:
        raise AdvisorError(
            f"{path} cannot be read as SQLite: {error}", "copy it again while nothing writes it"
        ) from error
    raise AdvisorError(
        f"{path} is an SQLite database, but not MLflow's; its tables are {', '.join(sorted(tables)[:8])}",
        "export the metrics as CSV: step, loss, …",
    )


def _mlflow(path: Path, database: sqlite3.Connection) -> RunTable:
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
        (run, MOST_VALUES),
    )
    for key, value, time, step, is_nan in found:
        series.setdefault(key, []).append((time / 1000, math.nan if is_nan else float(value), float(step or 0)))
    columns = {key: np.array(rows).T for key, rows in series.items()}
    params = dict(database.execute("select key, value from params where run_uuid = ?", (run,)))
    table = mlflow_files.table_of(path, {key: (c[0], c[1], c[2]) for key, c in columns.items()}, params)
    name, word = next(iter(database.execute("select name, status from runs where run_uuid = ?", (run,))), (run, ""))
    table = mlflow_files.with_status(table, str(word))
    words = f"that with most rows, {name}, is read; export another one to see it"
    notes = (f"the database holds {len(counts)} runs: {words}",) if len(counts) > 1 else ()
    return dataclasses.replace(table, format=NAME, framework="MLflow", notes=(*table.notes, *notes))
