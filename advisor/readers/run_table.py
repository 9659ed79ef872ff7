"""What every reader gives: one run as a table with normalised units, its provenance, its facts and its events.

The table is columns of float64, one row per printed record; NaN where a record did not print the quantity. A *loss that
was printed as NaN* is told apart by `loss_is_nan`. Rows keep the order of the file after duplicates are dropped and
restarts are joined (the later attempt wins); `phase` numbers stretches whose steps start again for another purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from advisor.redact import hide_secrets

# name → unit and meaning; the only columns a RunTable may have
COLUMNS = {
    "step": "optimizer steps as printed",
    "epoch": "epochs as printed",
    "tokens": "tokens seen so far, all GPUs",
    "loss": "training loss as printed, nats unless a fact `loss_unit` says otherwise",
    "loss_is_nan": "1 where a loss was printed and is not a number, 2 where infinite",
    "eval_loss": "validation loss, in the unit of the training loss",
    "eval_bits_per_byte": "validation loss in bits per byte",
    "eval_train_loss": "loss on the training split by an evaluation, in the unit of the training loss",
    "accuracy": "on the training data, 0…1: of examples or tokens",
    "eval_accuracy": "on held-out data, 0…1",
    "reward": "mean per rollout or episode on the training data",
    "eval_reward": "the same by an evaluation",
    "learning_rate": "",
    "learning_rate_share": "of the peak, where only that is printed",
    "grad_norm": "before clipping unless a fact says otherwise",
    "clipped": "1 where the norm was clipped, or the printed share of clipped values",
    "skipped": "1 where the optimizer step was skipped (loss scaling), or how many were",
    "loss_scale": "of fp16",
    "seconds": "of one optimizer step",
    "elapsed_seconds": "since the run or phase began, as printed or from time stamps",
    "unix_seconds": "time stamp of the record",
    "tokens_per_second": "all GPUs",
    "step_samples": "sequences of one optimizer step, all GPUs",
    "mfu": "as logged, a fraction of 1",
    "memory_bytes": "GPU memory as logged (the most, where several are)",
    "reserved_bytes": "by the allocator, as logged",
    "resident_bytes": "host memory of the process, as logged",
    "data_seconds": "phases of a step",
    "forward_seconds": "",
    "epoch_seconds": "of one epoch, where a record is of one",
    "backward_seconds": "",
    "grad_norm_seconds": "of taking the gradient's norm, where it is timed apart from clipping",
    "clip_seconds": "",
    "optimizer_seconds": "",
    "flush_seconds": "of handing work to the device and waiting for it, where a log times that",
    "eval_seconds": "of an evaluation",
    "checkpoint_seconds": "of a checkpoint",
    "phase": "0, 1, …",
    "rank": "device or process that printed the record",
}

# columns of device telemetry; one row per reading
TELEMETRY_COLUMNS = {
    "unix_seconds": "time stamp, or seconds since the first reading where only that is known",
    "gpu": "index of the GPU",
    "power_watts": "",
    "power_limit_watts": "the most that the GPU may draw",
    "energy_joules": "counter of the device; it starts anew with the driver",
    "utilization": "share of time with a kernel, 0…1",
    "memory_utilization": "share of time with memory traffic, 0…1",
    "memory_used_bytes": "",
    "memory_total_bytes": "",
    "temperature_celsius": "",
    "sm_clock_mhz": "",
    "throttle_reasons": "NVML bits",
}


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
    columns: dict[str, np.ndarray]  # of COLUMNS, equally long
    provenance: dict[str, str]  # column → how it was printed and converted
    phases: tuple[Phase, ...] = ()
    main_phase: int = 0  # the longest with a loss
    facts: dict[str, Any] = field(default_factory=dict)  # declared: see FACTS
    events: tuple[Event, ...] = ()
    status: Status = Status.UNKNOWN
    status_reason: str = ""
    runs: tuple[RunPart, ...] = ()  # in the order of the log; empty: one, which the table itself describes
    clock_seconds: float | None = None  # of all runs by the log's time stamps, long pauses between them left out
    attempts: tuple[Attempt, ...] = ()  # in their order; empty: the log does not tell one process from the next
    telemetry: dict[str, np.ndarray] | None = None  # of TELEMETRY_COLUMNS, equally long
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
        assert name in COLUMNS, name
        return self.columns.get(name, np.full(len(self), np.nan))


# Facts a log, config or user may state; readers use these names and units so that detectors find them.
FACTS = {
    "parameters": "declared number of parameters",
    "trained_parameters": "of them, where the log says how many are trained",
    "family": "nanochat | gpt2 | llama | other words as declared",
    "depth": "transformer blocks",
    "width": "",
    "heads": "",
    "kv_heads": "",
    "ffn_width": "",
    "vocab_size": "",
    "seq_len": "",
    "micro_batch": "sequences per GPU and forward pass",
    "grad_accum": "",
    "activation_checkpointing": "none | full",
    "world_size": "devices",
    "device_flops": "FLOP/s of one GPU, as logged",
    "step_tokens": "tokens of one optimizer step, all GPUs",
    "step_samples": "sequences of one optimizer step",
    "planned_steps": "",
    "planned_epochs": "",
    "logging_steps": "between printed rows; below 1 a share of all",
    "dataset_tokens": "unique training tokens",
    "dataset_bytes": "",
    "data_fingerprint": "of the tokens trained on; the same data have the same one",
    "bytes_per_token": "",
    "learning_rate": "peak, as configured",
    "min_learning_rate": "",
    "warmup_steps": "",
    "schedule": "cosine | wsd | constant | linear | other words",
    "grad_clip": "threshold",
    "weight_decay": "",
    "optimizer": "",
    "precision": "bf16 | fp16 | fp32 | fp8",
    "compile": "bool",
    "gpu": "name as printed or given",
    "gpu_peak_flops": "as the log declares it",
    "gpu_memory_bytes": "",
    "usd_per_hour": "of all GPUs together",
    "loss_unit": "nats | bits | sum | other words; missing: nats",
    "eval_loss_unit": "of the validation loss, where the log says so",
    "grad_norm_kind": "pre_clip | post_clip; missing: unknown",
    "resumed_from_step": "",
    "checkpoint_every_steps": "",
    "checkpoint_every_seconds": "",
    "eval_every_steps": "",
    "total_seconds": "as the log declares its own duration",
    "dropout": "",
    "driver": "of the GPU",
    "cuda": "version",
    "torch": "version",
    "python": "version",
    "host": "name of the machine",
    "cpu_threads": "",
    "eval_losses": "where several sets are evaluated: name of the set → {step: [...], loss: [...]}",
    "witness_seconds": "times of the trainer's reference kernel during the run",
    "witness_quiet_seconds": "what the reference kernel took when the run's command was measured",
    "witness_steps": "the steps after which they were taken",
    "stolen_share": "of the CPU time, by the hypervisor, mean of the readings",
    "date": "",
}
