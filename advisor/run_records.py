"""The records of launched runs: the process, its limits, and the errors of its predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from advisor.records import Estimate
from trainer.schema import LossStop


@dataclass(frozen=True, kw_only=True)
class Guards:
    """Limits that end a run early, always with a checkpoint. The trainer enforces `max_seconds`."""

    max_usd: float | None = None
    max_hours: float | None = None
    max_seconds: float | None = None  # the shortest of both limits and the configuration's own
    loss: tuple[LossStop, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run starts, with settings for the engine."""

    engine: str = "local"
    name: str | None = None  # Slurm partition, ssh host or SkyPilot infrastructure
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpu_ids: tuple[int, ...] = ()  # GPUs of this machine as numbered by nvidia-smi; empty: the first free ones


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """The contents of `run.json` in a run folder: the process that was started, and its limits."""

    id: str  # of the run; unchanged if the folder is copied or the run resumed
    name: str
    attempt: int  # 1, 2, …
    launched_at: str  # start of this attempt, ISO 8601, UTC
    host: str
    pid: int | None = None  # None: the run was replayed from a recording, or the process could not be started
    process_started: float | None = None  # Unix seconds; identifies the process together with `pid`: pids are reused
    command: tuple[str, ...] = ()
    gpus: int = 1
    usd_per_hour: float | None = None  # for all devices together; None: unknown
    guards: Guards = Guards()
    plan_id: str | None = None
    device_key: str | None = None
    handle: str = "local://"  # engine://id, the name of the run in its engine
    place: Place = Place()
    cards: tuple[int, ...] = ()  # GPUs of this machine that this attempt uses
    trainer: str = "own"  # the adapter's name
    commands_first: tuple[str, ...] = ()  # what its job does with `advisor` first, until the results are in the folder
    stop_asked_at: str | None = None  # when the user asked this attempt to stop, ISO 8601, UTC; None: never
    schema: int = 3


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One row of the index of runs."""

    id: str
    name: str
    path: str
    created: str  # ISO 8601, UTC
    plan_id: str | None = None
    device_key: str | None = None


# of the outcomes of one run, the same one as its step time in other words
SAME_AS_STEP_TIME = ("step_seconds_drift_corrected", "tokens_per_second", "mfu")


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """One row of the ledger: predicted and actual value of one quantity in a finished run."""

    run_id: str
    quantity: str  # a field name with its unit, e.g. step_seconds
    device_key: str
    predicted: Estimate
    actual: float
    created: str  # ISO 8601, UTC
    set_aside: str = ""  # why it does not count in medians, in words; "": it counts

    @property
    def log_error(self) -> float | None:
        """Return ln(actual / predicted): 0.05 means 5 % above the prediction. Returns None if one is not positive."""
        if self.actual <= 0 or self.predicted.value <= 0:
            return None
        return math.log(self.actual / self.predicted.value)

    @property
    def inside(self) -> bool:
        """Tell whether the actual value is inside the predicted 80 % interval."""
        return self.predicted.contains(self.actual)
