"""The records of runs that were launched: what was started, what it might spend, how its predictions fared."""

from __future__ import annotations

import math
from dataclasses import dataclass

from advisor.records import Estimate
from trainer.schema import LossStop


@dataclass(frozen=True, kw_only=True)
class Guards:
    """What may end a run early, always with a checkpoint. `max_seconds` is what the trainer obeys."""

    max_usd: float | None = None
    max_hours: float | None = None
    max_seconds: float | None = None  # the tightest of both, and of the configuration's own limit
    loss: tuple[LossStop, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run is to be started, and what the engine is told beside. None: nothing."""

    engine: str = "local"
    name: str | None = None  # of Slurm's partition, ssh's host, SkyPilot's infrastructure
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpu_ids: tuple[int, ...] = ()  # cards of this machine, as nvidia-smi counts them; none named: the first free ones


@dataclass(frozen=True, kw_only=True)
class Arriving:
    """How a run elsewhere is measured on arrival, before its first step."""

    may_change_depth: bool = False
    stop_if_over: float | None = None  # share by which the planned work may cost more there; None: any
    told: bool = False  # what was found has come home


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """`run.json` of a run folder: the process that was started there and what it was allowed to spend."""

    id: str  # of the run; stays with the folder when it is copied or resumed
    name: str
    attempt: int  # 1, 2, … : how often it was started
    launched_at: str  # ISO 8601, UTC; this attempt
    host: str
    pid: int | None  # None: a recording was replayed, or the process could not be started
    process_started: float | None  # Unix seconds; with `pid` it names one process for good, though pids are used again
    command: tuple[str, ...]
    gpus: int = 1
    usd_per_hour: float | None = None  # all devices together; None: unknown
    guards: Guards = Guards()
    plan_id: str | None = None
    device_key: str | None = None
    handle: str = "local://"  # engine://id: who started it, and what it is called there
    place: Place = Place()
    cards: tuple[int, ...] = ()  # of this machine, that this attempt was given
    trainer: str = "own"  # the adapter's name
    arriving: Arriving | None = None  # None: it was not asked to be measured where its engine starts it
    stop_asked_at: str | None = None  # ISO 8601, UTC: when its user asked this attempt to stop; None: never
    schema: int = 2


@dataclass(frozen=True, kw_only=True)
class ArrivalRecord:
    """`arrival.json` of a run folder: what the machine said of the plan before the run began there."""

    calibration: str | None  # its id, a copy lies beside; None: nothing could be measured
    device_key: str | None  # None: what was measured is not believed
    seconds: float  # that it took
    planned_step_seconds: Estimate
    found_step_seconds: Estimate | None  # of the planned configuration; None: it does not run there
    over: float | None  # by which share the planned work costs more there (takes longer, where nothing is paid)
    goes_on: bool
    reason: str
    schema: int = 1


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One line of the index of runs."""

    id: str
    name: str
    path: str
    created: str  # ISO 8601, UTC
    plan_id: str | None = None
    device_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """One quantity of one finished run, predicted against actual: a line of the ledger."""

    run_id: str
    quantity: str  # a field name with its unit, e.g. step_seconds
    device_key: str
    predicted: Estimate
    actual: float
    created: str  # ISO 8601, UTC

    @property
    def log_error(self) -> float | None:
        """ln(actual / predicted): 0.05 is 5 % more than promised; None where a ratio means nothing."""
        if self.actual <= 0 or self.predicted.value <= 0:
            return None
        return math.log(self.actual / self.predicted.value)

    @property
    def inside(self) -> bool:
        """Whether the actual value fell inside the stated 80 % interval."""
        return self.predicted.contains(self.actual)
