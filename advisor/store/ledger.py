"""The advisor's SQLite files: the index of runs with the ledger of predicted and actual values, and others like it.

Every operation opens its own connection and is one transaction, so two processes can use a file at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.records import Basis, Estimate
from advisor.run_records import RunRow, ScoreRow
from advisor.store.disk import disk_errors

BUSY_SECONDS = 15.0
_LOCKED = f"another process has held it for {BUSY_SECONDS:.0f} s: wait for it to end, then repeat the command"
_DAMAGED = "move it aside (mv {path} {path}.damaged) and compare runs again: their folders are not touched"

# Migration i upgrades a file from version i to version i + 1. Never change a released migration; add a new one.
MIGRATIONS = (
    """
    CREATE TABLE runs (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, path TEXT NOT NULL, created TEXT NOT NULL,
        plan_id TEXT, device_key TEXT
    );
    CREATE TABLE scores (
        run_id TEXT NOT NULL, quantity TEXT NOT NULL, device_key TEXT NOT NULL,
        predicted REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL, basis TEXT NOT NULL,
        actual REAL NOT NULL, log_error REAL, inside INTEGER NOT NULL, created TEXT NOT NULL,
        PRIMARY KEY (run_id, quantity)
    );
    CREATE INDEX scores_device ON scores (device_key, created);
    """,
    """
    CREATE TABLE withdrawn (run_id TEXT PRIMARY KEY, withdrawn TEXT NOT NULL);
    """,
    """
    ALTER TABLE scores ADD COLUMN set_aside TEXT NOT NULL DEFAULT '';
    """,
)
_RUN = [field.name for field in dataclasses.fields(RunRow)]
_SCORE = ["run_id", "quantity", "device_key", "predicted", "low", "high", "basis", "actual", "log_error", "inside",
          "created", "set_aside"]  # fmt: skip


class SqliteFile:
    """A file that is created on first use, and upgraded if an older version wrote it."""

    def __init__(self, path: Path, migrations: Sequence[str], if_damaged: str):
        self.sqlite_path, self._migrations = path, migrations
        self._hints = (  # how SQLite's name of an error begins, and what to do
            (("SQLITE_FULL",), "the disk is full: free some space; what was recorded before is intact"),
            (("SQLITE_BUSY", "SQLITE_LOCKED"), _LOCKED),
            (("SQLITE_NOTADB", "SQLITE_CORRUPT"), if_damaged.format(path=path)),
            (("",), "check that the folder is writable, or set ADVISOR_HOME to a folder of yours"),
        )

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows that a query finds; no file is made for a question."""
        if not self.sqlite_path.exists():
            return []
        with self._transaction() as db:
            return db.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with disk_errors("make the folder", self.sqlite_path.parent):
            self.sqlite_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            db = sqlite3.connect(self.sqlite_path, timeout=BUSY_SECONDS, isolation_level=None)
            with contextlib.closing(db):
                self._prepare(db)
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")  # if an exception leaves this block, closing the connection rolls back
        except sqlite3.DatabaseError as error:
            name = getattr(error, "sqlite_errorname", "") or ""
            hint = next(hint for starts, hint in self._hints if name.startswith(starts))
            raise AdvisorError(f"the ledger {self.sqlite_path} cannot be used: {error}", hint) from error

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Switch to write-ahead logging, and upgrade an older file. The first process to come does it, once."""
        newest = len(self._migrations)
        if _version(db) == newest:
            return
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                db.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                # ignoring its timeout, SQLite answers "locked" while another process switches
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)
        db.execute("BEGIN IMMEDIATE")
        version = _version(db)  # read again, because another process may have upgraded the file while this one waited
        if version > newest:
            message = f"the ledger {self.sqlite_path} was written by a newer version (schema {version}, not {newest})"
            raise AdvisorError(message, "upgrade training-advisor, or set ADVISOR_HOME to another folder")
        for script in self._migrations[version:]:
            for statement in filter(str.strip, script.split(";")):
                db.execute(statement)  # not executescript, which would commit half-way
        db.execute(f"PRAGMA user_version = {newest}")
        db.execute("COMMIT")


def _version(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA user_version").fetchone()[0]


class Ledger(SqliteFile):
    """Runs and scores in one file."""

    def __init__(self, path: Path):
        super().__init__(path, MIGRATIONS, _DAMAGED)

    def register_run(self, row: RunRow) -> None:
        """Add a run to the index, or replace the row with the same id."""
        with self._transaction() as db:
            db.execute(f"INSERT OR REPLACE INTO runs ({', '.join(_RUN)}) VALUES (:{', :'.join(_RUN)})", vars(row))

    def registered_runs(self) -> list[RunRow]:
        """Return the registered runs, newest first."""
        rows = self._rows(f"SELECT {', '.join(_RUN)} FROM runs ORDER BY created DESC, id DESC")
        return [RunRow(**dict(zip(_RUN, row, strict=True))) for row in rows]

    def forget_run(self, run_id: str) -> None:
        """Remove a run from the index. Its folder and its scores remain."""
        with self._transaction() as db:
            db.execute("DELETE FROM runs WHERE id = ?", (run_id,))

    def withdraw(self, run_id: str, now: datetime) -> None:
        """Remove the scores of a run, and record that they were withdrawn."""
        with self._transaction() as db:
            db.execute("DELETE FROM scores WHERE run_id = ?", (run_id,))
            db.execute("INSERT OR REPLACE INTO withdrawn VALUES (?, ?)", (run_id, now.isoformat(timespec="seconds")))

    def withdrawn_runs(self) -> set[str]:
        """Return the runs whose scores were withdrawn and not recorded again."""
        return {run_id for (run_id,) in self._rows("SELECT run_id FROM withdrawn")}

    def record_scores(self, run_id: str, rows: Sequence[ScoreRow]) -> None:
        """Write the scores of one run. They replace older scores and end an earlier withdrawal."""
        if strangers := {row.run_id for row in rows} - {run_id}:
            raise ValueError(f"scores of {', '.join(sorted(strangers))} handed in for run {run_id}")
        values = [
            {**vars(row), "predicted": guess.value, "low": guess.low, "high": guess.high, "basis": guess.basis.value,
             "log_error": row.log_error, "inside": int(row.inside)}
            for row in rows if (guess := row.predicted)
        ]  # fmt: skip
        with self._transaction() as db:
            db.execute("DELETE FROM scores WHERE run_id = ?", (run_id,))
            db.execute("DELETE FROM withdrawn WHERE run_id = ?", (run_id,))
            db.executemany(f"INSERT INTO scores ({', '.join(_SCORE)}) VALUES (:{', :'.join(_SCORE)})", values)

    def scores(self, device: str | None = None) -> list[ScoreRow]:
        """Return the scores of one device key, or of all devices, oldest first."""
        where, values = ("WHERE device_key = ?", (device,)) if device is not None else ("", ())
        rows = self._rows(f"SELECT {', '.join(_SCORE)} FROM scores {where} ORDER BY created, run_id, quantity", values)
        return [
            ScoreRow(run_id=run_id, quantity=quantity, device_key=device_key, actual=actual, created=created,
                     predicted=Estimate(value=value, low=low, high=high, basis=Basis(basis)), set_aside=aside)
            for run_id, quantity, device_key, value, low, high, basis, actual, _error, _inside, created, aside in rows
        ]  # fmt: skip
