"""Measures which settings make a run faster on this device, and calibrates the best ones for plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from advisor.calibration.detect import CPU_DEFAULTS, CUDA_DEFAULTS, device_for, resolve_key
from advisor.calibration.measure import Worker
from advisor.calibration.session import Event
from advisor.calibration.tuning import Tuning, variants
from advisor.calibration.tuning import tune as run_tuning
from advisor.errors import AdvisorError
from advisor.options import TuneOptions
from advisor.records import Kernels, Plan
from advisor.store.store import Store
from advisor.workflows.calibrate import Calibrated, calibrate, options_for
from advisor.workflows.data import read_data
from trainer.messages import WorkerDevice
from trainer.schema import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    OptimizerConfig,
    RunConfig,
    StopConfig,
    TelemetryConfig,
    make_shape,
)

_DEPTHS = {"cpu": 4, "cuda": 12}
_BATCHES = {"cpu": (4, 2), "cuda": (16, 2)}  # micro-batch, gradient-accumulation steps
_BUDGETS = {"cpu": 180.0, "cuda": 420.0}  # on a GPU, each setting is compiled, which takes some ten seconds


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The measurements, their device, and the calibration of the best settings (None: not asked for)."""

    device_key: str
    device: WorkerDevice
    tuning: Tuning
    calibrated: Calibrated | None
    uncalibrated: AdvisorError | None = None  # why a requested calibration failed


def tune(
    options: TuneOptions,
    store: Store,
    plan: Plan | None = None,
    on_start: Callable[[float], None] = lambda seconds: None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Tuned:
    """Measure the effect of each setting on the run of a plan or of the options, and calibrate the best settings.

    Raises AdvisorError if the run does not start here. `on_start` receives the seconds that will be used, `on_event`
    every burst.
    """
    worker_log = store.home / "worker.log"
    worker_log.parent.mkdir(parents=True, exist_ok=True)
    gpu = plan.workload.gpu if plan is not None else options.gpu
    with Worker(device_for(gpu), log=worker_log) as worker:
        device = worker.start().device
        key, own = resolve_key(gpu, device), plan.run if plan is not None else _own_config(options, device)
        base = base_config(own, device)
        seconds = options.budget_seconds or _BUDGETS[device.type]
        on_start(seconds)
        tuning = run_tuning(
            base,
            list(variants(base, device)),
            worker,
            budget_seconds=seconds,
            burst_seconds=min(1.0, seconds / 200),
            on_event=on_event,
        )
    tuned = Tuned(device_key=key, device=device, tuning=tuning, calibrated=None)
    if not options.calibrate:
        return tuned
    try:
        best = tuning.best_config
        depth = best.model.depth
        depths = tuple(sorted({max(1, depth // 2), depth}))
        asked = options_for(best, gpu=key, depths=depths, price=options.price)
        calibrated = calibrate(asked, store, on_event=on_event, kernels=Kernels.of(best))
        return replace(tuned, calibrated=calibrated)
    except AdvisorError as error:  # the tuning results stay valid
        return replace(tuned, uncalibrated=error)


def base_config(config: RunConfig, device: WorkerDevice) -> RunConfig:
    """Returns the configuration that all settings are compared with: only training steps, no automatic settings."""
    precision = device.auto_precision if config.precision == "auto" else config.precision
    return replace(
        config,
        steps=10_000,
        name="tune",
        device=device.type,
        precision=precision,
        sharding="none",  # only one device
        eval=EvalConfig(tokens=0),
        checkpoint=CheckpointConfig(every_seconds=None, final=False),
        stop=StopConfig(),
        telemetry=TelemetryConfig(hz=0),
    )


def _own_config(options: TuneOptions, device: WorkerDevice) -> RunConfig:
    defaults = CUDA_DEFAULTS if device.type == "cuda" else CPU_DEFAULTS
    meta = read_data(options.data)
    micro_batch, grad_accum = _BATCHES[device.type]
    if options.micro_batch is not None:
        micro_batch, grad_accum = options.micro_batch, 1
    shape = make_shape(
        options.family,
        depth=options.depth or _DEPTHS[device.type],
        seq_len=options.seq_len or defaults.seq_len,
        vocab_size=options.vocab_size or (meta and meta.vocab_size) or defaults.vocab_size,
    )
    return RunConfig(
        model=shape,
        steps=1,
        micro_batch=micro_batch,
        grad_accum=options.grad_accum or grad_accum,
        precision=options.precision,
        compile=defaults.compile if options.compile is None else options.compile,
        activation_checkpointing=options.activation_checkpointing,
        data=DataConfig(path=str(options.data.resolve()) if options.data else None),
        optimizer=OptimizerConfig(name=options.optimizer),
    )
