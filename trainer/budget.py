"""`budget.json`: the seconds and dollars of all attempts at a run, wherever they ran. Standard library only.

An attempt books in advance: the file always states what will have been used by its next write. A process that is killed
in between is thus counted in full, with at most one interval too much. Seconds come from the monotonic clock.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.runlog import Lifetime, RunLog
from trainer.schema import ConfigError, StopConfig, record_from_dict, to_dict

BUDGET_NAME = "budget.json"
PRICE_VARIABLE = "TRAINER_USD_PER_HOUR"  # price of the present machine, if it differs from the configuration's price
SCHEMA = 1
WARNED_SHARE = 0.8
MOST_USED = f"{100 * WARNED_SHARE:.0f} % of the limit is used: "  # how the warning begins, which ends with the run
NEW_LIMITS = "new limits: "  # how the message begins after which other limits count
# Time between two writes: a twentieth of the attempt so far, so that booking in advance costs a killed attempt little.
LEAST_INTERVAL_SECONDS, MOST_INTERVAL_SECONDS, _INTERVAL_SHARE = 0.5, 5.0, 0.05
_LATE_SECONDS = 0.5  # by which a write may be late


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process that worked on the run. `seconds` is its lifetime; until it has `ended` in order, all it booked."""

    session: str  # also its name in the log
    host: str | None
    began: float  # Unix seconds, by its machine's clock
    seconds: float
    usd_per_hour: float | None  # None if not given; then the caller's price counts
    ended: bool = False


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The seconds and dollars that attempts have used, and the durations that they measured."""

    attempts: tuple[Attempt, ...] = ()
    start_seconds: float | None = None  # from the start of a process to the end of its first step
    step_seconds: float | None = None
    checkpoint_seconds: float | None = None
    needed_seconds: float | None = None  # for an attempt to do one step, if its limit ended the last attempt

    @property
    def seconds(self) -> float:
        return sum(attempt.seconds for attempt in self.attempts)

    def usd(self, usd_per_hour: float) -> float:
        """Return the dollars, with each attempt at its own price, or at the given price if it has none."""
        prices = (usd_per_hour if a.usd_per_hour is None else a.usd_per_hour for a in self.attempts)
        return sum(a.seconds * price / 3600 for a, price in zip(self.attempts, prices, strict=True))


def read_spent(folder: Path, on_message: Callable[[str], None] = lambda _: None) -> Spent:
    """Return what `budget.json` counts, or the newest checkpoint's count if that file is lost or older.

    Damage is reported through `on_message`. Raises OSError.
    """
    booked, saved = _read_file(folder / BUDGET_NAME, on_message), _read_newest_checkpoint(folder / "checkpoints")
    known = {attempt.session: attempt for attempt in saved.attempts}
    for attempt in booked.attempts:
        known[attempt.session] = _longer(attempt, known.get(attempt.session))
    return _with_attempts(booked if booked.attempts else saved, known)


def write_spent(folder: Path, spent: Spent) -> None:
    """Replace `budget.json`. The file is on disk when this returns. Raises OSError."""
    fields = {"schema": SCHEMA, **to_dict(spent)}
    text = json.dumps({**fields, "sha256": _digest(fields)}, indent=1)
    path = folder / BUDGET_NAME
    partial = path.with_name(f".{BUDGET_NAME}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def with_log(spent: Spent, log: RunLog) -> Spent:
    """Add attempts that only the log has, and time that the log measured beyond the count."""
    known = {attempt.session: attempt for attempt in spent.attempts}
    for life in log.lifetimes:
        before = known.get(life.session)
        known[life.session] = _logged(life) if before is None else _at_least(before, life.measured_seconds)
    return _with_attempts(spent, known)


class Budget:
    """The account of this attempt, in addition to earlier attempts."""

    def __init__(
        self,
        place: Callable[[], Path],
        stop: StopConfig,
        earlier: Spent,
        *,
        age_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        writes: bool = True,
    ):
        """`place` returns the run folder; `age_seconds` is this process's age; `writes` is true in the main process."""
        self._place, self._clock, self._writes = place, clock, writes
        self.earlier = earlier  # may be set again after the log has been read
        self.limit(stop)
        self.usd_per_hour = _price(stop)
        self._zero = clock() - age_seconds
        self._began = time.time() - age_seconds
        self.session = uuid.uuid4().hex[:16]
        self.start_seconds, self.step_seconds = earlier.start_seconds, earlier.step_seconds
        self.checkpoint_seconds = earlier.checkpoint_seconds
        self.needed_seconds: float | None = None
        self._due, self._ended = -1.0, False
        self._lock = threading.Lock()  # the watch books while the loop trains

    def limit(self, stop: StopConfig) -> None:
        """Set the limits, which may change while the run continues."""
        self._max_seconds, self._max_usd = stop.max_seconds, stop.max_usd

    @property
    def own_seconds(self) -> float:
        """Return the seconds of this attempt since its process started."""
        return self._clock() - self._zero

    @property
    def seconds(self) -> float:
        """Return the seconds of all attempts."""
        return self.earlier.seconds + self.own_seconds

    @property
    def usd(self) -> float | None:
        """Return the dollars of all attempts. Returns None if there is no price for this one."""
        price = self.usd_per_hour
        return None if price is None else self.earlier.usd(price) + self.own_seconds * price / 3600

    def seconds_left(self) -> float | None:
        """Return the seconds to the first limit at this machine's price, negative beyond it. None if no limit."""
        left = [] if self._max_seconds is None else [self._max_seconds - self.seconds]
        if self._max_usd is not None and self.usd_per_hour:
            left.append((self._max_usd - self.earlier.usd(self.usd_per_hour)) / self.usd_per_hour * 3600
                        - self.own_seconds)  # fmt: skip
        return min(left) if left else None

    def share_used(self) -> float:
        """Return the used share of the limit that is nearer. Returns 0 without a limit."""
        shares = [] if self._max_seconds is None else [self.seconds / self._max_seconds]
        if self._max_usd is not None and (usd := self.usd) is not None:
            shares.append(usd / self._max_usd)
        return max(shares, default=0.0)

    @property
    def words(self) -> str:
        """Say how much of the limits was used."""
        parts = [] if self._max_seconds is None else [f"{self.seconds:.1f} s of the {self._max_seconds:g} s allowed"]
        if self._max_usd is not None and (usd := self.usd) is not None:
            parts.append(f"${usd:.4g} of the ${self._max_usd:g} allowed")
        return " and ".join(parts)

    def book(self) -> None:
        """Write the file if that is due, including the time until the next write. Raises OSError."""
        with self._lock:
            now = self.own_seconds
            if self._writes and not self._ended and now >= self._due:
                interval = min(MOST_INTERVAL_SECONDS, max(LEAST_INTERVAL_SECONDS, _INTERVAL_SHARE * now))
                self._write(now + interval + _LATE_SECONDS)
                self._due = now + interval

    def end(self) -> None:
        """Write what this attempt really took. After that, nothing is booked. Raises OSError."""
        with self._lock:
            if self._writes and not self._ended:
                self._ended = True
                self._write(self.own_seconds)

    def record(self) -> dict[str, Any]:
        """Return the count up to now, as checkpoints store it."""
        return to_dict(self._spent(self.own_seconds))

    def _spent(self, own_seconds: float) -> Spent:
        attempt = Attempt(
            session=self.session,
            host=socket.gethostname(),
            began=self._began,
            seconds=round(own_seconds, 3),
            usd_per_hour=self.usd_per_hour,
            ended=self._ended,
        )
        return Spent(
            attempts=(*self.earlier.attempts, attempt),
            start_seconds=self.start_seconds,
            step_seconds=self.step_seconds,
            checkpoint_seconds=self.checkpoint_seconds,
            needed_seconds=self.needed_seconds,
        )

    def _write(self, own_seconds: float) -> None:
        write_spent(self._place(), self._spent(own_seconds))  # has its own thread, so the loop does not wait for it


def _price(stop: StopConfig) -> float | None:
    """Return the price given when the attempt was started on this machine, or else the configuration's price."""
    given = os.environ.get(PRICE_VARIABLE)
    return stop.usd_per_hour if given is None else float(given)


def _read_file(path: Path, on_message: Callable[[str], None]) -> Spent:
    try:
        fields = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Spent()
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or fields.pop("sha256", None) != _digest(fields):
        on_message(f"{path} is damaged: what earlier attempts used is taken from the log and the newest checkpoint")
        return Spent()
    return _from_fields(fields)


def _from_fields(fields: Mapping[str, Any]) -> Spent:
    try:
        return record_from_dict(Spent, {key: value for key, value in fields.items() if key != "schema"},
                                pass_over_unknown=True)  # fmt: skip
    except ConfigError:
        return Spent()


def _read_newest_checkpoint(folder: Path) -> Spent:
    """Read the count from `state.json` alone. An unreadable checkpoint is left for the resume to handle."""
    for path in sorted(folder.glob("step-*/state.json"), reverse=True):
        try:
            return _from_fields(json.loads(path.read_bytes())["extra"]["budget"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return Spent()


def _with_attempts(spent: Spent, attempts: Mapping[str, Attempt]) -> Spent:
    return dataclasses.replace(spent, attempts=tuple(sorted(attempts.values(), key=lambda attempt: attempt.began)))


def _logged(life: Lifetime) -> Attempt:
    return Attempt(
        session=life.session,
        host=life.host,
        began=life.began,
        seconds=life.seconds,
        usd_per_hour=life.usd_per_hour,
        ended=life.ended,
    )


def _longer(attempt: Attempt, other: Attempt | None) -> Attempt:
    return attempt if other is None or attempt.seconds >= other.seconds else other


def _at_least(attempt: Attempt, seconds: float) -> Attempt:
    """Raise an attempt's seconds to what the log measured, because a copy of the file may be older than the log."""
    return dataclasses.replace(attempt, seconds=max(attempt.seconds, seconds))


def _digest(fields: Any) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
