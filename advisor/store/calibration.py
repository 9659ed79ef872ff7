"""Defines calibrations and their bursts as records. Only this module converts them to the YAML on disk and back.

`docs/file-formats.md` lists the fields. Unknown fields are ignored. Fields that older versions did not write are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from advisor.records import Kernels, MeasuredStep, Workload
from trainer.messages import BurstResult, Ceilings, WorkerDevice
from trainer.schema import Outcome, record_from_dict, to_dict

SCHEMA = 1
CALIBRATION, ACCURACY_SESSION = "calibration", "accuracy-session"  # document kinds
PARTIAL, COMPLETE = "partial", "complete"  # status
_BURSTS = ("bursts", "setting_bursts", "chosen", "edge", "variants", "held_out")  # fields that hold bursts


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to calibrate, after every automatic choice has been made."""

    gpu: str
    device: str  # cpu | cuda
    family: str
    depths: tuple[int, ...]
    seq_len: int
    vocab_size: int
    data: str | None
    budget_seconds: float
    precision: str
    compile: bool
    activation_checkpointing: str
    optimizer: str
    memory_bytes: int | None  # that bursts may fill
    most_micro_tokens: int  # largest micro-batch of a burst, in tokens
    usd_per_hour: float | None
    seed: int = 0
    kernels: Kernels = field(default_factory=Kernels)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The software that a calibration ran with."""

    torch: str
    python: str
    ready_seconds: float  # from process start until the worker was ready


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A real run of a few steps. It shows the costs of a run other than steps, evaluations and checkpoints."""

    overhead_seconds: float  # imports, device, data, telemetry, building the model, first batch, shutting down
    checkpoint_bytes: int
    checkpoint_seconds: float


@dataclass(frozen=True, kw_only=True)
class Burst(BurstResult):
    """One burst of a calibration: its workload, time, outcome and measurements."""

    workload: Workload
    started: float  # Unix seconds
    seconds: float  # of the whole burst

    @property
    def completed(self) -> bool:
        """Tell whether the burst completed and its result shows that the model trained."""
        return self.outcome == Outcome.COMPLETED and self.trained


@dataclass(frozen=True, kw_only=True)
class SettingBurst(Burst):
    """A burst that shows what one setting gives; no fit uses it."""

    setting: str | None  # the one that was switched, as in `calibration/setting_effects`; None: all as calibrated


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The time and money that a calibration took. `usd` is None if no price was given."""

    seconds: float
    usd: float | None


@dataclass(frozen=True, kw_only=True)
class HeldOutSummary:
    """The errors of predicting each configuration of the calibration from all others, corrected for drift."""

    configurations: int
    median: float
    p90: float
    coverage: float


class Verdict(StrEnum):
    """How predictions use a calibration."""

    GOOD = "good"  # used
    DOUBTFUL = "doubtful"  # used with wider intervals
    REJECTED = "rejected"  # not used


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The verdict on a calibration (`calibration/quality`), and its reason."""

    verdict: Verdict
    widening: float  # factor that widens the intervals of step times; 1 unless doubtful
    reason: str


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The raw measurements of one device. Fits are computed from them each time the calibration is read."""

    id: str
    created: str  # ISO 8601, UTC
    status: str  # partial | complete
    device_key: str  # catalog key, or "cpu"
    device: WorkerDevice
    environment: Environment
    settings: Settings
    disk_bytes_per_second: int
    ceilings: Ceilings
    rehearsal: Rehearsal | None = None  # None if it did not complete
    bursts: tuple[Burst, ...]  # in the order they ran
    setting_bursts: tuple[SettingBurst, ...] = ()  # in the order they ran: one as calibrated on each side of the others
    cost: Cost
    held_out_error: HeldOutSummary | None = None  # None if the calibration is incomplete or has too few configurations
    quality: Quality | None = None  # None if bursts were added after the verdict, or an older version wrote the file


@dataclass(frozen=True, kw_only=True)
class AccuracySession(Calibration):
    """A calibration with additional bursts that no fit has used (`benchmarks/held_out.py`)."""

    chosen: tuple[Burst, ...] = ()  # bursts of the recommended configuration, measured again
    edge: tuple[Burst, ...] = ()  # the largest configuration predicted to fit the memory
    variants: tuple[Burst, ...] = ()  # the recommended configuration under other software settings
    held_out: tuple[Burst, ...] = ()  # configurations outside the calibration


def calibration_to_dict(calibration: Calibration) -> dict[str, Any]:
    """Return the document for disk. It begins with what lists show, so that they need not read the rest."""
    raw = to_dict(calibration)
    device = {"key": raw.pop("device_key"), **raw.pop("device")}
    head = {
        "schema": SCHEMA,
        "kind": ACCURACY_SESSION if isinstance(calibration, AccuracySession) else CALIBRATION,
        "id": calibration.id,
        "created": calibration.created,
        "device": device,
        "family": calibration.settings.family,
        "quality": raw.pop("quality"),
    }
    for name in (name for name in _BURSTS if name in raw):
        heads = [{"workload": workload_to_dict(b.workload), "started": b.started} for b in getattr(calibration, name)]
        raw[name] = [first | {k: v for k, v in burst.items() if k not in first}
                     for first, burst in zip(heads, raw[name], strict=True)]  # fmt: skip
    return head | raw


def calibration_from_dict(raw: Mapping[str, Any]) -> Calibration:
    """Read a calibration document. Raises ConfigError that names every missing or wrong field."""
    device = raw.get("device")
    key = device.get("key") if isinstance(device, Mapping) else None
    # the flat workloads of bursts are nested as in the record, on this device; anything but a list is left as it is
    bursts = {
        name: [
            b | {"workload": _workload_with_device(b.get("workload"), key)} if isinstance(b, dict) else b for b in given
        ]
        if isinstance(given := raw[name], list)
        else given
        for name in _BURSTS
        if name in raw
    }
    kind = AccuracySession if raw.get("kind") == ACCURACY_SESSION else Calibration
    return record_from_dict(kind, {**raw, "device_key": key, **bursts}, pass_over_unknown=True)


def measured_run_to_dict(run: MeasuredStep) -> dict[str, Any]:
    """Return the form in which an observation is stored."""
    names = ("created", "step_seconds", "steps", "reference_seconds", "watts")
    known = {name: getattr(run, name) for name in names}
    return {"schema": SCHEMA, "run_id": run.run_id, "device_key": run.workload.gpu, **known,
            "workload": workload_to_dict(run.workload)}  # fmt: skip


def measured_run_from_dict(raw: Mapping[str, Any]) -> MeasuredStep:
    """Read an observation. Raises ConfigError that names every missing or wrong field."""
    workload = _workload_with_device(raw.get("workload"), raw.get("device_key"))
    return record_from_dict(MeasuredStep, {**raw, "workload": workload}, pass_over_unknown=True)


def workload_to_dict(w: Workload) -> dict[str, Any]:
    """Return a workload as the flat mapping in a burst. The device is stored once, for the whole document."""
    return to_dict(w.shape) | {
        "micro_batch": w.micro_batch,
        "grad_accum": w.grad_accum,
        **({"gpus": w.gpus} if w.gpus > 1 else {}),
        "precision": w.precision,
        "compile": w.compile,
        "activation_checkpointing": w.activation_checkpointing,
        "optimizer": w.optimizer,
    }


def _workload_with_device(flat: Any, key: Any) -> Any:
    return {**flat, "shape": flat, "gpu": key} if isinstance(flat, Mapping) else flat
