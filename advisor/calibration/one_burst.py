"""Runs one burst of a calibration: its configuration, its duration and its outcome. Effects: the worker process."""

from __future__ import annotations

import time

from advisor.calibration.measure import Worker, WorkerDied
from advisor.records import Workload
from advisor.store.calibration import Burst, Settings
from trainer.messages import BurstRequest, BurstResult
from trainer.schema import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    OptimizerConfig,
    RunConfig,
    TelemetryConfig,
    make_shape,
)

LATE_SECONDS = 20.0  # a burst is ended if it takes this much longer than expected
_WARMUP_STEPS_MOST = 12


def run_burst(worker: Worker, settings: Settings, workload: Workload, limit: float) -> Burst:
    """Run one burst in the worker. Every outcome, also a failure, is a value in the record."""
    request = BurstRequest(
        config=burst_config(settings, workload),
        seconds=burst_seconds(settings),
        least_steps=3,
        most_warmup=_WARMUP_STEPS_MOST,
        limit_seconds=max(1.0, limit),
    )
    began, started = time.monotonic(), time.time()
    result = outcome_of(worker, request)
    seconds = round(time.monotonic() - began, 4)
    return Burst(**vars(result), workload=workload, started=round(started, 3), seconds=seconds)


def outcome_of(worker: Worker, request: BurstRequest) -> BurstResult:
    """Return the result of one burst, even if the worker died."""
    try:
        return worker.burst(request, timeout=max(5.0, request.limit_seconds) + LATE_SECONDS)
    except WorkerDied as death:
        return BurstResult(outcome=death.outcome, reason=death.reason)


def burst_seconds(settings: Settings) -> float:
    """Return the timed seconds of one burst: enough for a median, and few enough for thirty in a small budget."""
    return min(1.5, settings.budget_seconds / 30)


def burst_config(settings: Settings, workload: Workload) -> RunConfig:
    """Return the configuration of a burst: that of the full run without checkpoints and telemetry."""
    config = RunConfig(
        model=workload.shape,
        steps=10_000,
        micro_batch=workload.micro_batch,
        grad_accum=workload.grad_accum,
        name="burst",
        device=settings.device,
        precision=workload.precision,
        compile=workload.compile,
        activation_checkpointing=workload.activation_checkpointing,
        data=DataConfig(path=settings.data),
        optimizer=OptimizerConfig(name=workload.optimizer),
        eval=EvalConfig(tokens=workload.micro_tokens),
        checkpoint=CheckpointConfig(every_seconds=None, final=False),
        telemetry=TelemetryConfig(hz=0),
    )
    return settings.kernels.set_in(config)


def describe(w: Workload) -> str:
    """Describe one burst in words."""
    accumulated = f" × {w.grad_accum} gradient-accumulation steps" if w.grad_accum > 1 else ""
    return f"depth {w.shape.depth}, micro-batch {w.micro_batch} × {w.shape.seq_len}{accumulated}"


def base_workload(settings: Settings, depth: int) -> Workload:
    shape = make_shape(settings.family, depth=depth, vocab_size=settings.vocab_size, seq_len=settings.seq_len)
    return Workload(
        shape=shape,
        micro_batch=1,
        gpu=settings.gpu,
        precision=settings.precision,
        compile=settings.compile,
        activation_checkpointing=settings.activation_checkpointing,
        optimizer=settings.optimizer,
    )
