"""Reserves a run's dollars in the shared ledger before it starts, and settles them when it is over.

A note in the run's folder, with a key of its own, is written before dollars are reserved: whoever is killed leaves it,
and the next push, or the next run that finds too few dollars, settles what it names.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from advisor.engines.backend import Job
from advisor.engines.engines import describe
from advisor.engines.process import folder_lock
from advisor.engines.state import goes_on
from advisor.errors import AdvisorError
from advisor.store.disk import read_record, write_atomic
from advisor.store.run_folder import is_run_folder, read_launch
from advisor.store.store import Store
from advisor.store.team_database import ALWAYS, EVERYBODY, Database, TeamBudget, is_database
from advisor.trainers.known import trainer_of_run
from advisor.units import HOUR, format_usd
from trainer.schema import to_dict

NOTE = "reservation.json"
_SPARE_SECONDS = 7 * 24 * HOUR  # for queues and repairs, until a reservation that nobody settles expires


class NotReservedError(AdvisorError):
    """A run was not started, because it may cost more dollars than are left, or any number of them."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """`reservation.json` of a run folder."""

    key: str  # of the run in the shared ledger; it says nothing about the machine
    team: str  # empty: of no team, and only the budget of all teams counts
    usd: float  # the most that all attempts may cost
    settled_usd: float | None = None  # None: the run is not over, or nobody has looked
    schema: int = 1


def budgets() -> Database | None:
    """Return where dollars are reserved, or None if the shared ledger is no database."""
    where = os.environ.get("ADVISOR_LEDGER", "").strip()
    return Database(where) if is_database(where) else None


def team_budgets(team: str | None = None, usd: float = 0.0, period: str | None = None) -> list[TeamBudget]:
    """Return what teams may spend and have spent, after a team was given its dollars of a period if one is named.

    A period is a month (None: this one), a year or always. Raises AdvisorError if the shared ledger is no database.
    """
    if (database := budgets()) is None:
        hint = "export ADVISOR_LEDGER=postgresql://host/name"
        raise AdvisorError("dollars are only reserved in a shared ledger in Postgres", hint, exit_code=2)
    if team is not None:
        period = period or f"{datetime.now(UTC):%Y-%m}"
        if period != ALWAYS and not re.fullmatch(r"\d{4}(-(0[1-9]|1[0-2]))?", period):
            raise AdvisorError(f"--period {period} is no period", "write 2026-12, 2026 or always", exit_code=2)
        database.set_budget(EVERYBODY if team == "everybody" else team, period, usd)
    return database.budgets()


@contextlib.contextmanager
def reserved(job: Job, store: Store, team: str | None = None) -> Iterator[None]:
    """Start a job with its dollars reserved; the caller holds the folder's lock. Free GPUs need no dollars.

    Raises AdvisorError, before anything starts, if too few are left or if the run could cost any number of dollars.
    """
    database, price = budgets(), job.record.usd_per_hour
    if database is None or not price:
        yield
        return
    usd, seconds = _most(job, price)
    team = team or os.environ.get("ADVISOR_TEAM", EVERYBODY)
    note = replace(_read(job.folder) or Reservation(key=uuid4().hex, team=team, usd=usd), usd=usd, settled_usd=None)
    _write(job.folder, note)
    expires = seconds + _SPARE_SECONDS
    short = database.reserve(note.key, note.team, usd, expires)
    if short is not None and settle_ended(store):
        short = database.reserve(note.key, note.team, usd, expires)
    try:
        if short is not None:
            period = "" if short.period == ALWAYS else f" for {short.period}"
            whose = f"team {short.team}" if short.team else "all teams together"
            raise NotReservedError(
                f"not started: {whose} has {format_usd(max(0.0, short.left_usd))} of {format_usd(short.usd)} "
                f"left{period}, and this run may cost {format_usd(usd)}",
                "limit it: --budget DOLLARS; or see what is reserved: advisor runs --budget", exit_code=3,
            )  # fmt: skip
        yield
    except BaseException:
        _settle(job.folder, store, database)
        raise


def _most(job: Job, price: float) -> tuple[float, float]:
    """Return the dollars and seconds that all attempts of a job may use."""
    limit = job.record.guards.max_seconds
    if limit is None:
        planned = getattr(getattr(job.plan, "chosen", None), "cost_usd", None)
        enough = f"{planned.high:.2f}" if planned is not None else "DOLLARS"
        raise NotReservedError(
            "not started: the shared ledger reserves what a run may cost, and nothing limits this one",
            f"limit it: --budget {enough}, here or in its plan", exit_code=2,
        )  # fmt: skip
    if job.record.attempt == 1:
        return limit * price / HOUR, limit
    spent = job.trainer.spent(job.folder)  # each attempt has its own price
    return spent.usd(price) + max(0.0, limit - spent.seconds) * price / HOUR, limit


def settle_ended(store: Store) -> int:
    """Settle the reservations of this machine's runs that are over. Returns their number."""
    folders = {Path(row.path) for row in store.registered_runs()} | set((store.home / "runs").glob("*"))
    return sum(settle(folder, store) for folder in sorted(folders) if (folder / NOTE).exists())


def settle(folder: Path, store: Store) -> bool:
    """Settle the reservation of a run that is over, and tell whether there was one.

    The next push tries again if the ledger does not answer, the folder is being started or its files are damaged.
    """
    if (database := budgets()) is not None:
        with contextlib.suppress(AdvisorError), folder_lock(folder):
            return _settle(folder, store, database)
    return False


def _settle(folder: Path, store: Store, database: Database) -> bool:
    """Settle a reservation with what the run's folder shows, unless the run goes on. Tells whether there was one."""
    note = _read(folder)
    if note is None or note.settled_usd is not None:
        return False
    usd = 0.0  # whoever reserved was killed before the start
    if is_run_folder(folder):
        if goes_on(describe(folder, store).state):
            return False
        launched = read_launch(folder)
        usd = trainer_of_run(folder).spent(folder).usd((launched.usd_per_hour if launched else None) or 0.0)
    database.settle(note.key, usd)
    _write(folder, replace(note, settled_usd=usd))
    return True


def _read(folder: Path) -> Reservation | None:
    found: Reservation | None = read_record(Reservation, folder / NOTE, "reservation")
    return found


def _write(folder: Path, note: Reservation) -> None:
    write_atomic(folder / NOTE, json.dumps(to_dict(note), indent=1) + "\n")
