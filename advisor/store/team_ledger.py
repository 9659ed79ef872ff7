"""A ledger that several machines share: a folder, an address or a Postgres database with small records.

A record never changes and is named by a hash of its content, so that writing it twice, from two machines or after a
crash, changes nothing: to push and to pull is to unite two sets. A copy in one SQLite file answers questions quickly.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.redact import hide_secrets
from advisor.store.ledger import SqliteFile
from advisor.store.team_database import Database, is_database
from advisor.store.team_files import Files, digest, read_record

SCHEMA = 1
_AT_ONCE = 1000  # records in one transaction of the copy

_MIGRATIONS = (  # an older version made the table and left the number at 0
    """
    CREATE TABLE IF NOT EXISTS records (
        name TEXT PRIMARY KEY, kind TEXT NOT NULL, created TEXT NOT NULL, body TEXT NOT NULL
    )
    """,
)

Record = Mapping[str, Any]


class TeamLedger(SqliteFile):
    """The records of a team, with a copy on this machine."""

    def __init__(self, where: str, home: Path):
        """`where` is a folder or an address; `home` has the copy."""
        super().__init__(home / "team-ledger.sqlite", _MIGRATIONS, "it is only a copy: delete it and pull again")
        self._where = where

    @cached_property
    def shared(self) -> Files | Database:
        """The records that all machines see; questions are asked of the copy, without them."""
        return Database(self._where) if is_database(self._where) else Files(self._where)

    def push(self, records: Iterable[Record]) -> int:
        """Write the records that are not there yet, and return their number."""
        there = self.shared.names()
        new = {name: content for name, content in map(named, records) if name not in there}
        self.shared.write(new.items())
        return len(new)

    def pull(self) -> tuple[int, tuple[str, ...]]:
        """Copy the records that this machine lacks. Returns their number, and the files that are no records."""
        have = {name for (name,) in self._rows("SELECT name FROM records")}
        contents = self.shared.read(sorted(self.shared.names() - have))
        pulled, damaged = 0, []
        while batch := tuple(islice(contents, _AT_ONCE)):
            read = [(name, content, read_record(name, content)) for name, content in batch]
            rows = [(name, known["kind"], known["created"], content.decode())
                    for name, content, known in read if known is not None]  # fmt: skip
            with self._transaction() as db:
                db.executemany("INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?)", rows)
            pulled += len(rows)
            damaged += [name for name, _, known in read if known is None]
        return pulled, tuple(damaged)

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Return this machine's copy of all records of one kind, oldest first."""
        rows = self._rows("SELECT body FROM records WHERE kind = ? ORDER BY created, name", (kind,))
        found: list[dict[str, Any]] = json.loads(f"[{','.join(body for (body,) in rows)}]")
        return found


def ledger_of(home: Path) -> TeamLedger:
    """Return the ledger that ADVISOR_LEDGER names. Raises AdvisorError if it names none."""
    where = os.environ.get("ADVISOR_LEDGER", "").strip()
    if not where:
        where = "/shared/ledger, or an address such as s3://bucket/ledger or postgresql://host/name"
        raise AdvisorError("no shared ledger is named", f"export ADVISOR_LEDGER={where}", exit_code=2)
    return TeamLedger(where, home)


def named(record: Record) -> tuple[str, bytes]:
    """Return the name of a record, by month and hash, and its content, in which credentials are masked."""
    text = json.dumps({**record, "schema": SCHEMA}, sort_keys=True, allow_nan=False, default=str, separators=(",", ":"))
    content = hide_secrets(text).encode()
    year, month = str(record["created"])[:7].split("-")
    return f"{year}/{month}/{digest(content)}.json", content
