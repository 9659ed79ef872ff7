"""Reads and writes what a fleet that runs has done so far: one file, from which its controller goes on."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from advisor.store.disk import read_record, write_atomic
from advisor.store.store import Store, file_name
from trainer.schema import to_dict


class Phase(StrEnum):
    """What the controller knows of a run."""

    WAITING = "waiting"
    STARTING = "starting"  # written before the launch, which may or may not have happened
    RUNNING = "running"  # its engine has it
    ENDED = "ended"  # completed
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class RunState:
    """One run of a fleet. Times are hours since the fleet's start."""

    run: str
    team: str | None = None
    folder: str  # chosen before the first launch, so that a second one cannot go elsewhere
    phase: Phase = Phase.WAITING
    pool: str | None = None  # planned, or where it is
    gpus: int = 0
    start_hours: float | None = None  # planned, or when it was started
    end_hours: float | None = None  # expected at the last plan, or when it ended
    low_hours: float | None = None  # of the end in 8 of 10 drawn futures
    high_hours: float | None = None
    deadline_hours: float | None = None
    probability: float | None = None  # of the deadline, in the last plan
    moves_to: str | None = None  # the pool in which it has to go on: on demand in time, or on spot machines again
    attempt: int = 0  # the last one that was started, or is to be started
    usd: float = 0.0  # spent by all attempts
    limit_usd: float = 0.0  # the most that all attempts may cost, kept free in the budget while it runs
    refusals: int = 0  # launches in a row that its engine refused
    reason: str | None = None  # why it waits or failed


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The dollars of a team."""

    team: str  # "" is everybody
    usd: float


@dataclass(frozen=True, kw_only=True)
class FleetState:
    """`state.json` of a fleet."""

    name: str
    file: str
    created: str  # ISO 8601, UTC; part of the names of the run folders
    starts: str  # ISO 8601; the moment from which hours count
    runs: tuple[RunState, ...]
    budgets: tuple[Budget, ...] = ()
    schema: int = 1

    def left_usd(self, team: str) -> float:
        """Return what is left of a budget, without what runs that are started may still cost."""
        given = next((one.usd for one in self.budgets if one.team == team), math.inf)
        started = (Phase.STARTING, Phase.RUNNING)
        return given - sum(
            max(one.usd, one.limit_usd) if one.phase in started else one.usd
            for one in self.runs
            if team in ("", one.team)
        )


def fleet_folder(store: Store, name: str) -> Path:
    """Return the folder of a fleet in the advisor's own."""
    return store.home / "fleets" / file_name(name)


def read_state(store: Store, name: str) -> FleetState | None:
    """Return what a fleet has done, or None if it never ran. Raises AdvisorError for a damaged file."""
    path = fleet_folder(store, name) / "state.json"
    found: FleetState | None = read_record(FleetState, path, "state of the fleet", why="to forget what it started")
    return found


def write_state(store: Store, state: FleetState) -> None:
    """Write the state, in full or not at all."""
    write_atomic(fleet_folder(store, state.name) / "state.json", json.dumps(to_dict(state), indent=1) + "\n")
