"""Defines the messages between a calibration and its worker: one JSON object per line, one record each way.

Imports only the standard library and `trainer.schema`, so that the advisor can talk to `trainer.worker` without torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.schema import ConfigError, DeviceFacts, RunConfig, record_from_dict, to_dict


@dataclass(frozen=True, kw_only=True)
class CeilingsRequest:
    """Asks for the device's ceilings, measured within about `seconds`."""

    precision: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class BurstRequest:
    """Asks to train `config` until it is steady (at most `most_warmup` steps), then to time steps for `seconds`."""

    config: RunConfig
    seconds: float
    least_steps: int
    most_warmup: int
    limit_seconds: float  # for the whole burst


Request = CeilingsRequest | BurstRequest


@dataclass(frozen=True, kw_only=True)
class WorkerDevice(DeviceFacts):
    """The device that a worker found."""

    auto_precision: str  # the precision that `precision: auto` means on it


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The first answer: the worker is ready."""

    device: WorkerDevice
    torch: str
    python: str


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The first answer if the device does not exist. The process then ends."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class MatmulTiming:
    """Repeated products of m×k by k×n."""

    m: int
    k: int
    n: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class CopyTiming:
    """Repeated copies on the device. `bytes` counts both bytes read and bytes written."""

    bytes: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The device's ceilings as raw timings. The reader computes medians."""

    precision: str
    matmul: tuple[MatmulTiming, ...]
    copy: tuple[CopyTiming, ...]
    launch_seconds: tuple[float, ...]  # per operation


@dataclass(frozen=True, kw_only=True)
class BurstResult:
    """How one burst ended and what it measured. A field is None or empty if the burst did not get that far."""

    outcome: str  # an `Outcome`, or timed_out, which the caller sets
    reason: str | None
    resident_before_bytes: int | None = None
    parameters: int | None = None
    build_seconds: float | None = None
    allocated_peak_bytes: int | None = None  # of a GPU, without the matrices of the witness kernel
    reserved_peak_bytes: int | None = None
    resident_peak_bytes: int | None = None
    device_used_bytes: int | None = None  # as reported by the driver
    watts: float | None = None  # mean while steps were timed
    eval_seconds: float | None = None
    steal_fraction: float | None = None
    trained: bool = False  # the loss changed and there was a gradient
    warmup_seconds: tuple[float, ...] = ()
    step_seconds: tuple[float, ...] = ()
    reference_seconds: tuple[float, ...] = ()  # of the witness kernel, timed beside the steps
    compile_seconds: float | None = None  # time that warm-up took beyond steady steps
    first_loss: float | None = None
    last_loss: float | None = None
    grad_norm: float | None = None  # median
    data_seconds: float | None = None  # median of this phase on sampled steps, as below
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    clip_seconds: float | None = None
    optimizer_seconds: float | None = None


Body = Ready | Refused | Ceilings | BurstResult


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One line of a worker. If `last` is set, its process then ends, since its memory would falsify the next burst."""

    body: Body
    last: bool = False


_REQUESTS: Mapping[str, type[Request]] = {"ceilings": CeilingsRequest, "burst": BurstRequest}
_ANSWERS: Mapping[str, type[Body]] = {"ready": Ready, "error": Refused, "ceilings": Ceilings, "burst": BurstResult}


def write_request(request: Request) -> str:
    """Return a request as one line for the worker, without its line end."""
    return json.dumps({"op": _name_of(request, _REQUESTS), **to_dict(request)})


def read_request(line: str) -> Request:
    """Read a request. Raises ConfigError that names every problem, including those of a burst's configuration."""
    raw = json.loads(line)
    request = record_from_dict(_REQUESTS[raw.pop("op")], raw)
    if isinstance(request, BurstRequest) and (problems := request.config.problems()):
        raise ConfigError(problems)
    return request


def write_answer(answer: Answer) -> str:
    """Return an answer as one line for the caller, without its line end."""
    return json.dumps({"kind": _name_of(answer.body, _ANSWERS), **to_dict(answer.body), "last": answer.last})


def read_answer(line: str) -> Answer:
    """Read an answer. Raises ConfigError that names every wrong field."""
    raw = json.loads(line)
    last = raw.pop("last")
    return Answer(body=record_from_dict(_ANSWERS[raw.pop("kind")], raw), last=last)


def _name_of(record: Any, kinds: Mapping[str, type]) -> str:
    return next(name for name, kind in kinds.items() if type(record) is kind)
