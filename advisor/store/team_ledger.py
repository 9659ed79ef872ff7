"""A ledger that several machines share: a folder or an address, with one small file for each record.

A record never changes and is named by a hash of its content, so that writing it twice, from two machines or after a
crash, changes nothing: to push and to pull is to unite two sets. A copy in one SQLite file answers questions quickly.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from advisor.errors import AdvisorError
from advisor.store.disk import disk_errors

SCHEMA = 1
_AT_ONCE = 1000  # records in one transaction of the copy

Record = Mapping[str, Any]


class _Files(Protocol):
    """Where the files of a ledger lie: names such as 2026/11/HASH.json."""

    def names(self) -> set[str]: ...
    def write(self, name: str, content: bytes) -> None: ...
    def read(self, name: str) -> bytes: ...


class _Folder:
    """A folder of this machine, or one that several machines mount."""

    def __init__(self, path: Path):
        self.path = path

    def names(self) -> set[str]:
        with disk_errors("read the ledger", self.path):
            months = [month for year in _entries(self.path) for month in _entries(year)]
            return {
                f"{month.parent.name}/{month.name}/{entry.name}"
                for month in months
                for entry in os.scandir(month)
                if entry.name.endswith(".json")
            }

    def write(self, name: str, content: bytes) -> None:
        path = self.path / name
        with disk_errors("write to the ledger", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # A process that is killed leaves at most a file that no reader looks at.
            unfinished = path.with_name(f".{path.name}.{os.getpid()}")
            unfinished.write_bytes(content)
            os.replace(unfinished, path)

    def read(self, name: str) -> bytes:
        with disk_errors("read the ledger", self.path / name):
            return (self.path / name).read_bytes()


class _Address:
    """An object store or another system that fsspec knows, such as s3://bucket/folder."""

    def __init__(self, address: str):
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            hint = "pip install 'training-advisor[ledger]', or name a folder"
            raise AdvisorError(f"ADVISOR_LEDGER={address} needs fsspec", hint, exit_code=2) from error
        try:
            self._fs, self._root = url_to_fs(address)
        except (ImportError, ValueError) as error:
            hint = "install the package that it names, or name a folder"
            raise AdvisorError(f"ADVISOR_LEDGER={address} cannot be opened: {error}", hint, exit_code=2) from error

    def names(self) -> set[str]:
        try:
            found = self._fs.find(self._root)
        except FileNotFoundError:
            return set()
        return {"/".join(path.split("/")[-3:]) for path in found if path.endswith(".json")}

    def write(self, name: str, content: bytes) -> None:
        self._fs.makedirs(f"{self._root}/{name.rpartition('/')[0]}", exist_ok=True)
        self._fs.pipe_file(f"{self._root}/{name}", content)

    def read(self, name: str) -> bytes:
        content: bytes = self._fs.cat_file(f"{self._root}/{name}")
        return content


class TeamLedger:
    """The records of a team, with a copy on this machine."""

    def __init__(self, where: str, home: Path):
        """`where` is a folder or an address; `home` has the copy."""
        self.where = where
        self._files: _Files = _Address(where) if "://" in where else _Folder(Path(where).expanduser())
        self._copy = home / "team-ledger.sqlite"

    def push(self, records: Iterable[Record]) -> int:
        """Write the records that are not there yet, and return their number."""
        there, new = self._files.names(), 0
        for record in records:
            name, content = named(record)
            if name not in there:
                self._files.write(name, content)
                there.add(name)
                new += 1
        return new

    def pull(self) -> tuple[int, tuple[str, ...]]:
        """Copy the records that this machine lacks. Returns their number, and the files that are no records."""
        with self._database() as db:
            have = {name for (name,) in db.execute("SELECT name FROM records")}
            pulled, rows, damaged = 0, [], []
            missing = sorted(self._files.names() - have)
            for at, name in enumerate(missing):
                record = _read(name, self._files.read(name))
                if record is None:
                    damaged.append(name)
                else:
                    rows.append((name, record["kind"], record["created"], json.dumps(record, sort_keys=True)))
                if len(rows) == _AT_ONCE or at == len(missing) - 1:
                    db.executemany("INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?)", rows)
                    db.commit()
                    pulled, rows = pulled + len(rows), []
        return pulled, tuple(damaged)

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Return this machine's copy of all records of one kind, oldest first."""
        with self._database() as db:
            rows = db.execute("SELECT body FROM records WHERE kind = ? ORDER BY created, name", (kind,)).fetchall()
        found: list[dict[str, Any]] = json.loads(f"[{','.join(body for (body,) in rows)}]")
        return found

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        with disk_errors("make the folder", self._copy.parent):
            self._copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            with contextlib.closing(sqlite3.connect(self._copy, timeout=15.0)) as db:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("CREATE TABLE IF NOT EXISTS records (name TEXT PRIMARY KEY, kind TEXT NOT NULL, "
                           "created TEXT NOT NULL, body TEXT NOT NULL)")  # fmt: skip
                yield db
        except sqlite3.DatabaseError as error:
            hint = "it is only a copy: delete it and pull again"
            raise AdvisorError(f"{self._copy} cannot be used: {error}", hint) from error


def ledger_of(home: Path) -> TeamLedger:
    """Return the ledger that ADVISOR_LEDGER names. Raises AdvisorError if it names none."""
    where = os.environ.get("ADVISOR_LEDGER", "").strip()
    if not where:
        hint = "export ADVISOR_LEDGER=/shared/ledger, or an address such as s3://bucket/ledger"
        raise AdvisorError("no shared ledger is named", hint, exit_code=2)
    return TeamLedger(where, home)


def named(record: Record) -> tuple[str, bytes]:
    """Return the name of a record's file, by month and hash, and its content."""
    content = json.dumps({**record, "schema": SCHEMA}, sort_keys=True, allow_nan=False, separators=(",", ":")).encode()
    year, month = str(record["created"])[:7].split("-")
    return f"{year}/{month}/{hashlib.sha256(content).hexdigest()[:32]}.json", content


def _read(name: str, content: bytes) -> dict[str, Any] | None:
    """Return a record if its content is what its name says, or None."""
    if hashlib.sha256(content).hexdigest()[:32] != name.rpartition("/")[2].removesuffix(".json"):
        return None
    try:
        record = json.loads(content)
    except ValueError:
        return None
    sound = isinstance(record, dict) and isinstance(record.get("kind"), str) and isinstance(record.get("created"), str)
    return record if sound else None


def _entries(folder: Path) -> list[Path]:
    """Return the folders of years or months in a folder, which may not exist yet."""
    if not folder.is_dir():
        return []
    return [folder / entry.name for entry in os.scandir(folder) if entry.name.isdigit() and entry.is_dir()]
