"""What every reader gives: one run as a table with normalised units, its provenance, its facts and its events.

The table is columns of float64, one row per printed record; NaN where a record did not print the quantity. A *loss that
was printed as NaN* is marked by `loss_is_nan`. Rows keep the order of the file after duplicates are dropped and
restarts are joined (the later attempt wins); `phase` numbers stretches whose steps start again for another purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from advisor.readers.yaml_rows import rows_of_file
from advisor.redact import hide_secrets


def names_of(section: str) -> dict[str, str]:
    """Return the names of `columns.yaml` with their meaning: of its "columns", of "telemetry" or of "facts"."""
    return rows_of_file("columns")[section]


WITHOUT_NAME = "a number without a name"  # fact `loss_unit` of two bare columns
NOT_FOUND = ": command not found"  # what a shell says of a command, and goes on
ROW_NUMBERS = "number of the row: the log prints no step"  # provenance of steps that are none


class Status(StrEnum):
    """How a run ended, as far as its log shows."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"  # the log ends before the planned end, without a word
    STOPPED = "stopped"  # by its user or by a limit of its own
    TIME_LIMIT = "time_limit"  # the scheduler's
    OUT_OF_MEMORY = "out_of_memory"
    DIVERGED = "diverged"
    CRASHED = "crashed"
    KILLED = "killed"  # by a signal from outside
    RUNNING = "running"  # its process lives, or somebody writes its log: not over
    UNKNOWN = "unknown"  # nothing in the log says how many steps there were to be


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something the log says beside numbers: an error, a checkpoint, a restart, a signal."""

    # out_of_memory, exception, nccl_timeout, time_limit, signal, interrupt, checkpoint, restart, overflow, finished…
    kind: str
    text: str  # the line that says so, shortened
    line: int | None = None  # 1-based
    step: float | None = None  # last step before it
    numbers: dict[str, float] = field(default_factory=dict)  # e.g. requested_bytes, free_bytes, total_bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", hide_secrets(self.text))  # it is quoted in reports, which are shared


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of the run with steps of its own (pre-training, then fine-tuning in the same file)."""

    name: str
    first_row: int
    last_row: int  # inclusive

    @property
    def rows(self) -> slice:
        """Its rows in each column."""
        return slice(self.first_row, self.last_row + 1)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process of a run that was started once or several times. None: the log does not say."""

    resumed_from_step: int  # 0: fresh
    startup_seconds: float | None  # from the start of the process to that of its loop
    seconds: float | None  # that it lived, up to its last sign of life where it died without a word
    compile_seconds: float | None = None  # beyond steady steps; None: nothing was compiled
    lost_seconds: float = 0.0  # of steps and evaluations that a later attempt did again
    outcome: str | None = None  # in its own word; None: it runs, or died without one
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunPart:
    """One of the runs of a log: a phase of its table, or a start that never trained."""

    name: str
    status: Status
    status_reason: str
    phase: int | None = None  # index of the table's phases; None: it has no row
    first_line: int | None = None  # of the log, 1-based; None: the log has no lines
    last_line: int | None = None  # None: up to the end
    first_step: float | None = None  # as printed, like those of the table
    last_step: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    starts: int = 1  # processes it took: more where it was resumed
    declared_seconds: float | None = None  # as it sums itself up in the end
    clock_seconds: float | None = None  # by the time stamps of its lines, or a progress bar's clock
    clock: str = ""  # where `clock_seconds` comes from, in words
    elsewhere: bool = False  # what it printed is in another file

    def __post_init__(self) -> None:
        object.__setattr__(self, "status_reason", hide_secrets(self.status_reason))


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """One run as read from its log."""

    source: str
    format: str  # the reader's name
    framework: str | None
    columns: dict[str, np.ndarray]  # of `columns.yaml`, equally long
    provenance: dict[str, str]  # column → how it was printed and converted
    phases: tuple[Phase, ...] = ()
    main_phase: int = 0  # the longest with a loss
    facts: dict[str, Any] = field(default_factory=dict)  # declared, by the names of `columns.yaml`
    events: tuple[Event, ...] = ()
    status: Status = Status.UNKNOWN
    status_reason: str = ""
    runs: tuple[RunPart, ...] = ()  # in the order of the log; empty: one, which the table itself describes
    clock_seconds: float | None = None  # of all runs by the log's time stamps, long pauses between them left out
    attempts: tuple[Attempt, ...] = ()  # in their order; empty: the log does not tell one process from the next
    telemetry: dict[str, np.ndarray] | None = None  # of `columns.yaml`, equally long
    host_telemetry: dict[str, np.ndarray] | None = None  # of the machine, on a run without cards
    rows: int = 0  # records with a training loss (a validation loss where the log has no other), before thinning
    first_step: float | None = (
        None  # of the main phase, as printed; the epoch where no step is, or where each begins anew
    )
    last_step: float | None = None
    first_loss: float | None = None  # of the main phase, as printed; NaN where NaN was printed
    last_loss: float | None = None
    duplicates: int = 0  # records dropped since the same run was printed twice
    kept_every: int = 1  # rows of very long logs are thinned by this factor
    lines: np.ndarray | None = None  # 1-based, of the file, that printed each row; None: its rows are no lines
    notes: tuple[str, ...] = ()  # how traps were read, in words

    def __post_init__(self) -> None:
        object.__setattr__(self, "status_reason", hide_secrets(self.status_reason))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @property
    def counts_steps(self) -> bool:
        """Whether the column of steps holds steps; False where its rows are merely numbered."""
        return self.provenance.get("step") != ROW_NUMBERS

    def column(self, name: str) -> np.ndarray:
        """The column, all NaN where the log has none."""
        assert name in names_of("columns"), name
        return self.columns.get(name, np.full(len(self), np.nan))
