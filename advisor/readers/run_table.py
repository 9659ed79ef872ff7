"""The result of every reader: one run as a table with normalised units, its provenance, its facts and its events.

The table has float64 columns and one row per printed record, with NaN where a record did not print the quantity. A
*loss that was printed as NaN* is marked by `loss_is_nan`. Rows keep file order after duplicates are dropped and
restarts are joined (the later attempt wins). `phase` numbers stretches whose steps start again for another purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from advisor.readers.yaml_rows import rows_of_file
from advisor.redact import hide_secrets


def names_of(section: str) -> dict[str, str]:
    """Return the names and meanings in a section of `columns.yaml`: "columns", "telemetry" or "facts"."""
    return rows_of_file("columns")[section]


WITHOUT_NAME = "a number without a name"  # fact `loss_unit` of two columns without a header
NOT_FOUND = ": command not found"  # a shell prints this about a command and goes on
ZERO_FOR_NAN = "a loss printed as 0 beside a gradient norm of nan is NaN"  # a note
ROW_NUMBERS = "number of the row: the log prints no step"  # provenance of row numbers used as steps


class Status(StrEnum):
    """How a run ended, as far as its log shows."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"  # the log ends before the planned end, without a message
    # neither a message, nor a plan that it missed, nor anything else says how it ended
    NO_END = "no_end_recorded"
    STOPPED = "stopped"  # by its user or by a limit of its own
    TIME_LIMIT = "time_limit"  # the scheduler's
    OUT_OF_MEMORY = "out_of_memory"
    DIVERGED = "diverged"
    CRASHED = "crashed"
    KILLED = "killed"  # by a signal from outside
    RUNNING = "running"  # its process lives or its log is still being written, so the run is not over

    @property
    def words(self) -> str:
        """Return the status as a report prints it."""
        return "no end is recorded" if self is Status.NO_END else self.value.replace("_", " ")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that a log says besides numbers: an error, a checkpoint, a restart, a signal."""

    # out_of_memory, exception, nccl_timeout, time_limit, signal, interrupt, checkpoint, restart, overflow, finished…
    kind: str
    text: str  # the line that says so, shortened
    line: int | None = None  # 1-based
    step: float | None = None  # last step before it
    numbers: dict[str, float] = field(default_factory=dict)  # e.g. requested_bytes, free_bytes, total_bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", hide_secrets(self.text))  # reports quote it, and people share reports


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of the run with its own steps, such as pre-training or fine-tuning in the same file."""

    name: str
    first_row: int
    last_row: int  # inclusive

    @property
    def rows(self) -> slice:
        """Return the slice of its rows in each column."""
        return slice(self.first_row, self.last_row + 1)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process of a run that was started once or several times. None means that the log does not say."""

    resumed_from_step: int  # 0 for a fresh start
    startup_seconds: float | None  # from the start of the process to the start of its loop
    seconds: float | None  # lifetime of the process, up to its last record if it died without a final one
    compile_seconds: float | None = None  # beyond steady steps; None if nothing was compiled
    lost_seconds: float = 0.0  # in steps and evaluations that a later attempt repeated
    outcome: str | None = None  # the trainer's word for it; None if it still runs or died without one
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunPart:
    """One run in a log: a phase of its table, or a start that never trained."""

    name: str
    status: Status
    status_reason: str
    phase: int | None = None  # index of the table's phases; None if it has no row
    first_line: int | None = None  # of the log, 1-based; None if the log has no lines
    last_line: int | None = None  # None for up to the end
    first_step: float | None = None  # as printed, like those of the table
    last_step: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    starts: int = 1  # number of processes; more than one if it was resumed
    declared_seconds: float | None = None  # total that the run itself states at its end
    clock_seconds: float | None = None  # by the time stamps of its lines, or by a progress bar's clock
    clock: str = ""  # source of `clock_seconds`, in words

    def __post_init__(self) -> None:
        object.__setattr__(self, "status_reason", hide_secrets(self.status_reason))


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """One run as read from its log."""

    source: str
    format: str  # the reader's name
    framework: str | None
    columns: dict[str, np.ndarray]  # names from `columns.yaml`; all have the same length
    provenance: dict[str, str]  # column → how it was printed and converted
    phases: tuple[Phase, ...] = ()
    main_phase: int = 0  # the longest with a loss
    facts: dict[str, Any] = field(default_factory=dict)  # declared, by the names of `columns.yaml`
    events: tuple[Event, ...] = ()
    status: Status = Status.NO_END
    status_reason: str = ""
    runs: tuple[RunPart, ...] = ()  # in log order; empty if there is only one, which the table itself describes
    clock_seconds: float | None = None  # all runs by the log's time stamps, without long pauses between them
    attempts: tuple[Attempt, ...] = ()  # in order; empty if the log does not distinguish processes
    telemetry: dict[str, np.ndarray] | None = None  # names from `columns.yaml`; all have the same length
    host_telemetry: dict[str, np.ndarray] | None = None  # the same for the machine, on a run without GPUs
    rows: int = 0  # records with a training loss (or a validation loss if the log has no other)
    first_step: float | None = (
        None  # of the main phase, as printed; the epoch if no step is printed or steps restart with each epoch
    )
    last_step: float | None = None
    first_loss: float | None = None  # of the main phase, as printed; NaN if NaN was printed
    last_loss: float | None = None
    steps_by_bar: bool = False  # a progress bar counts the steps: it shows how many are done, 0 at first
    duplicates: int = 0  # records dropped because the same run was printed twice
    lines: np.ndarray | None = None  # 1-based line of the file that printed each row; None if its rows are not lines
    notes: tuple[str, ...] = ()  # how ambiguous content was read, in words

    def __post_init__(self) -> None:
        object.__setattr__(self, "status_reason", hide_secrets(self.status_reason))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @property
    def counts_steps(self) -> bool:
        """Return whether the step column holds steps; False if its rows are only numbered."""
        return self.provenance.get("step") != ROW_NUMBERS

    def column(self, name: str) -> np.ndarray:
        """Return the column, all NaN if the log has none."""
        assert name in names_of("columns"), name
        return self.columns.get(name, np.full(len(self), np.nan))
