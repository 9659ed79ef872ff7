"""Databases and tables of trackers: MLflow's and trackio's SQLite, a history in Parquet."""

from __future__ import annotations

import json
import math
import sqlite3

import pyarrow
import pyarrow.parquet
import pytest

from advisor.errors import AdvisorError
from advisor.readers.read import read_run
from advisor.readers.run_table import Status


def test_mlflow_database(tmp_path):
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as database:
        database.execute("create table runs (run_uuid, name, status)")
        database.execute("create table params (key, value, run_uuid)")
        database.execute("create table metrics (key, value, timestamp, run_uuid, step, is_nan)")
        database.execute("insert into runs values ('a', 'short', 'FINISHED'), ('b', 'long', 'FAILED')")
        rows = [("train_loss", 5 - i, 1_700_000_000_000 + 1000 * i, "b", 10 * i, i == 4) for i in range(5)]
        rows += [("val_loss", 3.5, 1_700_000_004_000, "b", 40, False), ("train_loss", 9.0, 1, "a", 0, False)]
        database.executemany("insert into metrics values (?, ?, ?, ?, ?, ?)", rows)
    table = read_run(path)
    assert (table.format, table.rows, table.first_step, table.last_step, table.first_loss) == ("sqlite", 5, 0, 40, 5.0)
    assert math.isnan(table.last_loss) and table.columns["eval_loss"][-1] == 3.5
    assert table.status is Status.CRASHED and any("2 runs" in note and "long" in note for note in table.notes)


def test_trackio_database(tmp_path):
    path = tmp_path / "project.db"
    with sqlite3.connect(path) as database:
        database.execute("create table metrics (id integer primary key, timestamp, run_name, step, metrics)")
        for i in range(4):
            row = (f"2025-08-01T00:00:0{i}", "run", i, json.dumps({"train/loss": 4 - i / 2, "epoch": i / 4}))
            database.execute("insert into metrics (timestamp, run_name, step, metrics) values (?, ?, ?, ?)", row)
    table = read_run(path)
    assert (table.framework, table.rows, table.last_step, table.last_loss) == ("trackio", 4, 3, 2.5)
    assert table.columns["unix_seconds"][3] - table.columns["unix_seconds"][0] == 3


def test_another_database_says_what_it_holds(tmp_path):
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as database:
        database.execute("create table orders (id)")
    with pytest.raises(AdvisorError, match="its tables are orders"):
        read_run(path)


def test_a_history_in_parquet(tmp_path):
    columns = {
        "_step": [0, 1, 2],
        "_timestamp": [1.7e9, 1.7e9 + 1, 1.7e9 + 2],
        "train/loss": [4.0, None, 3.0],
        "note": ["", "", ""],
    }
    path = tmp_path / "history.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    table = read_run(path)
    assert (table.format, table.rows, table.first_step, table.last_step, table.last_loss) == ("parquet", 2, 0, 2, 3.0)
