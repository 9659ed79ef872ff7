"""A ledger that several machines share: a folder, an address or a Postgres database with small records.

A record never changes and is named by a hash of its content, so that writing it twice, from two machines or after a
crash, changes nothing: to push and to pull is to unite two sets. A copy in one SQLite file answers questions quickly.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.redact import hide_secrets
from advisor.store.disk import disk_errors
from advisor.store.team_database import Database, is_database
from advisor.store.team_files import Address, Files, Folder, digest, read_record

SCHEMA = 1
_AT_ONCE = 1000  # records in one transaction of the copy

Record = Mapping[str, Any]


class TeamLedger:
    """The records of a team, with a copy on this machine."""

    def __init__(self, where: str, home: Path):
        """`where` is a folder or an address; `home` has the copy."""
        self._where = where
        self._copy = home / "team-ledger.sqlite"

    @cached_property
    def shared(self) -> Files | Database:
        """The records that all machines see; questions are asked of the copy, without them."""
        if is_database(self._where):
            return Database(self._where)
        return Address(self._where) if "://" in self._where else Folder(Path(self._where).expanduser())

    def push(self, records: Iterable[Record]) -> int:
        """Write the records that are not there yet, and return their number."""
        there, new = self.shared.names(), 0

        def missing() -> Iterator[tuple[str, bytes]]:
            nonlocal new
            for name, content in map(named, records):
                if name not in there:
                    there.add(name)
                    new += 1
                    yield name, content

        self.shared.write(missing())
        return new

    def pull(self) -> tuple[int, tuple[str, ...]]:
        """Copy the records that this machine lacks. Returns their number, and the files that are no records."""
        with self._database() as db:
            have = {name for (name,) in db.execute("SELECT name FROM records")}
            contents = self.shared.read(sorted(self.shared.names() - have))
            pulled, damaged = 0, []
            while batch := tuple(islice(contents, _AT_ONCE)):  # read before the copy is locked for writing
                found = {name: read_record(name, content) for name, content in batch}
                rows = [(name, record["kind"], record["created"], content.decode())
                        for name, content in batch if (record := found[name]) is not None]  # fmt: skip
                db.executemany("INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?)", rows)
                db.commit()
                pulled += len(rows)
                damaged += [name for name, record in found.items() if record is None]
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
        hint = (
            "export ADVISOR_LEDGER=/shared/ledger, or an address such as s3://bucket/ledger or postgresql://host/name"
        )
        raise AdvisorError("no shared ledger is named", hint, exit_code=2)
    return TeamLedger(where, home)


def named(record: Record) -> tuple[str, bytes]:
    """Return the name of a record, by month and hash, and its content, in which credentials are masked."""
    text = json.dumps({**record, "schema": SCHEMA}, sort_keys=True, allow_nan=False, separators=(",", ":"))
    content = hide_secrets(text).encode()
    year, month = str(record["created"])[:7].split("-")
    return f"{year}/{month}/{digest(content)}.json", content
