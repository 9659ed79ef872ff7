"""A shared ledger in Postgres: the records in one table, and the budgets of teams, from which runs reserve dollars.

A reservation counts in full until it is settled, and then with what the run cost. One that is never settled counts
until it expires. It counts in the month in which it was first made, for its team and for all teams together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from advisor.errors import AdvisorError
from advisor.redact import for_sending

if TYPE_CHECKING:
    import psycopg

EVERYBODY = ""  # the team whose budget limits all teams together
ALWAYS = "always"  # the period of a budget that has no end
_AT_ONCE = 1000  # records in one statement
_LOCK = 46_2026  # of whoever makes the tables

# Migration i takes a database from version i to version i + 1. Never change a released one: add a new one.
MIGRATIONS = (
    # The body is JSON and not JSONB, which writes numbers anew (1e+20, -0.0), so that hashes would no longer hold.
    """
    CREATE TABLE advisor_records (
        name text PRIMARY KEY, kind text NOT NULL, created text NOT NULL, team text, body json NOT NULL
    );
    CREATE TABLE advisor_budgets (
        team text, period text, usd numeric(20, 6) NOT NULL CHECK (usd >= 0), PRIMARY KEY (team, period)
    );
    CREATE TABLE advisor_reservations (
        run text PRIMARY KEY, team text NOT NULL, usd numeric(20, 6) NOT NULL CHECK (usd >= 0),
        created timestamptz NOT NULL DEFAULT now(), expires timestamptz NOT NULL,
        settled numeric(20, 6) CHECK (settled >= 0)
    );
    CREATE VIEW advisor_counted AS SELECT run, team, to_char(created AT TIME ZONE 'UTC', 'YYYY-MM') AS month,
        settled, CASE WHEN settled IS NULL AND expires > now() THEN usd ELSE 0 END AS open
        FROM advisor_reservations
    """,
)
# Of each budget its dollars, what was settled in it and what is reserved. With a run, only the budgets that have too
# little left for it, of those in which it counts: as it was first reserved, or else as it would be now.
_BUDGETS = f"""
    WITH own AS (
        SELECT coalesce(max(team), %(team)s) AS team,
            coalesce(max(month), to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM')) AS month
        FROM advisor_counted WHERE run = %(run)s
    )
    SELECT b.team, b.period, b.usd::float8 AS usd, coalesce(sum(c.settled), 0)::float8 AS settled_usd,
        coalesce(sum(c.open), 0)::float8 AS reserved_usd
    FROM advisor_budgets b CROSS JOIN own LEFT JOIN advisor_counted c
    ON b.team IN ('{EVERYBODY}', c.team) AND (b.period = '{ALWAYS}' OR starts_with(c.month, b.period))
        AND c.run IS DISTINCT FROM %(run)s
    WHERE %(run)s::text IS NULL
        OR b.team IN ('{EVERYBODY}', own.team) AND (b.period = '{ALWAYS}' OR starts_with(own.month, b.period))
    GROUP BY b.team, b.period
    HAVING %(run)s::text IS NULL OR b.usd - coalesce(sum(c.settled), 0) - coalesce(sum(c.open), 0) < %(usd)s::numeric
    ORDER BY b.team, b.period"""


@dataclass(frozen=True, kw_only=True)
class TeamBudget:
    """The dollars that a team may spend in a period, and what became of them."""

    team: str  # empty: all teams together
    period: str  # a month such as 2026-12, a year, or always
    usd: float
    settled_usd: float  # what runs that are over cost
    reserved_usd: float  # what runs that are not over may still cost

    @property
    def left_usd(self) -> float:
        return self.usd - self.settled_usd - self.reserved_usd


def is_database(where: str) -> bool:
    return where.startswith(("postgresql://", "postgres://"))


class Database:
    """The tables of a ledger. Every operation is one transaction of its own connection."""

    def __init__(self, address: str):
        self._address = address
        self._is_ready = False

    # --- records ---

    def names(self) -> set[str]:
        with self._transaction() as db:
            return {name for (name,) in db.execute("SELECT name FROM advisor_records")}

    def write(self, records: Iterable[tuple[str, bytes]]) -> None:
        rows = iter(records)
        while batch := [(name, content.decode()) for name, content in islice(rows, _AT_ONCE)]:
            with self._transaction() as db, db.cursor() as cursor:
                cursor.executemany(
                    "INSERT INTO advisor_records SELECT %s, body->>'kind', body->>'created', body->>'team', body "
                    "FROM (SELECT %s::json AS body) AS given ON CONFLICT DO NOTHING",
                    batch,
                )

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield records that were listed, with their contents."""
        wanted = iter(names)
        while batch := list(islice(wanted, _AT_ONCE)):
            with self._transaction() as db:
                query = "SELECT name, body::text FROM advisor_records WHERE name = ANY(%s)"
                rows = db.execute(query, (batch,)).fetchall()
            yield from ((name, body.encode()) for name, body in rows)

    # --- budgets ---

    def set_budget(self, team: str, period: str, usd: float) -> None:
        """Give a team its dollars of a period, in place of those that it had."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO advisor_budgets VALUES (%s, %s, %s) ON CONFLICT (team, period) "
                "DO UPDATE SET usd = excluded.usd",
                (team, period, usd),
            )

    def budgets(self) -> list[TeamBudget]:
        with self._transaction() as db:
            return _budgets(db, {"run": None, "team": None, "usd": None})

    def reserve(self, run: str, team: str, usd: float, seconds: float) -> TeamBudget | None:
        """Keep so many dollars free for a run, in every budget of its team, until it is settled or so long from now.

        To reserve again for the same run replaces what was reserved or settled. Returns None, or the budget that has
        too few left; then nothing changes.
        """
        given = {"run": run, "team": team, "usd": usd, "seconds": seconds}
        with self._transaction() as db:
            db.execute("LOCK TABLE advisor_budgets IN EXCLUSIVE MODE")  # whoever has it is alone with the budgets
            if short := _budgets(db, given):
                return short[0]
            db.execute(
                "INSERT INTO advisor_reservations (run, team, usd, expires) "
                "VALUES (%(run)s, %(team)s, %(usd)s, now() + make_interval(secs => %(seconds)s)) ON CONFLICT (run) "
                "DO UPDATE SET usd = excluded.usd, expires = excluded.expires, settled = NULL",
                given,
            )
        return None

    def settle(self, run: str, usd: float) -> None:
        """Count what a run cost in place of what was reserved for it; a copy of its folder may know less of it."""
        with self._transaction() as db:
            query = "UPDATE advisor_reservations SET settled = greatest(settled, %s::numeric) WHERE run = %s"
            db.execute(query, (usd, run))

    # --- the connection ---

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection]:
        import psycopg

        try:
            with psycopg.connect(self._address, connect_timeout=10, application_name="training-advisor") as db:
                if not self._is_ready:
                    _migrate(db)
                    self._is_ready = True
                yield db
        except psycopg.Error as error:
            reason = " ".join(str(error).split())
            message = f"the ledger {for_sending(self._address)} cannot be used: {for_sending(reason)}"
            raise AdvisorError(message, "psql with the same address shows whether the database answers") from error


def _migrate(db: psycopg.Connection) -> None:
    """Make the tables, or upgrade older ones. The first process to come does it, once."""
    if _version(db) == len(MIGRATIONS):
        return
    db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    version = _version(db)  # read again, because another process may have made them while this one waited
    if version > len(MIGRATIONS):
        message = f"the ledger was written by a newer version (schema {version}, not {len(MIGRATIONS)})"
        raise AdvisorError(message, "upgrade training-advisor")
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        db.execute(script)
        db.execute("CREATE TABLE IF NOT EXISTS advisor_version (version integer PRIMARY KEY)")
        db.execute("INSERT INTO advisor_version VALUES (%s)", (number,))
    db.commit()


def _version(db: psycopg.Connection) -> int:
    known = db.execute("SELECT to_regclass('advisor_version') IS NOT NULL").fetchone()
    found = db.execute("SELECT max(version) FROM advisor_version").fetchone() if known and known[0] else None
    return int(found[0]) if found else 0


def _budgets(db: psycopg.Connection, given: Mapping[str, Any]) -> list[TeamBudget]:
    from psycopg.rows import class_row

    return db.cursor(row_factory=class_row(TeamBudget)).execute(_BUDGETS, given).fetchall()
