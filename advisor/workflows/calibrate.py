"""Runs a calibration: the worker process, its bursts, the fit and the held-out errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from advisor.calibration.detect import CPU_DEFAULTS, CUDA_DEFAULTS, Defaults, device_for, fillable_bytes, resolve_key
from advisor.calibration.fit import FitEvidence
from advisor.calibration.measure import Worker
from advisor.calibration.profiles import profile_of
from advisor.calibration.session import CalibrationEvent
from advisor.calibration.session import calibrate as run_bursts
from advisor.calibration.setting_effects import effects
from advisor.engines.background import BackgroundCommand
from advisor.errors import require_package
from advisor.laws.held_out import HeldOut
from advisor.options import CalibrationOptions
from advisor.prediction.memory import load_memory_model
from advisor.prediction.profile import Profile
from advisor.prediction.throughput import TERMS
from advisor.store.calibration import Calibration, Settings, calibration_to_dict
from advisor.store.store import Store
from advisor.workflows.data import read_data
from trainer.messages import WorkerDevice
from trainer.schema import to_dict
from trainer.token_folder import TokenMeta


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A finished calibration, the profile fitted to it, and its held-out errors (None: too few configurations)."""

    calibration: Calibration
    profile: Profile
    held_out: HeldOut | None


def calibrate(
    options: CalibrationOptions,
    store: Store,
    on_start: Callable[[Settings], None] = lambda settings: None,
    on_event: Callable[[CalibrationEvent], None] = lambda event: None,
    fewest: int = 0,
) -> Calibrated:
    """Calibrate this machine and store the measurements. Raises AdvisorError if it does not have the device.

    `on_start` receives the settings once all are decided; `on_event` receives every burst. It takes longer than its
    budget if that is too short for `fewest` configurations.
    """
    require_package("torch", "calibrating")
    meta = read_data(options.data)
    worker_log = store.home / "worker.log"
    worker_log.parent.mkdir(parents=True, exist_ok=True)
    with Worker(device_for(options.gpu), log=worker_log) as worker:
        settings = resolve(options, worker.start().device, meta)
        on_start(settings)
        memory, resume = load_memory_model(), not options.fresh
        calibration = run_bursts(settings, worker, store, memory, on_event, resume, fewest, options.settings)
    return judged(calibration, store)


def judged(calibration: Calibration, store: Store) -> Calibrated:
    """Fits a calibration together with the later runs on its GPU."""
    held = FitEvidence(calibration).held_out()
    profile = profile_of(calibration, store.observations(calibration.settings.gpu))
    return Calibrated(calibration=calibration, profile=profile, held_out=held)


def resolve(options: CalibrationOptions, device: WorkerDevice, meta: TokenMeta | None) -> Settings:
    """Returns the settings of a calibration: each option that was given, or else the device's usual value."""
    defaults: Defaults = CUDA_DEFAULTS if device.type == "cuda" else CPU_DEFAULTS
    return Settings(
        gpu=resolve_key(options.gpu, device),
        device=device.type,
        family=options.family,
        depths=tuple(options.depths or defaults.depths),
        seq_len=options.seq_len or defaults.seq_len,
        vocab_size=options.vocab_size or (meta and meta.vocab_size) or defaults.vocab_size,
        data=str(options.data.resolve()) if options.data else None,
        budget_seconds=options.budget_seconds or defaults.budget_seconds,
        precision=options.precision if options.precision != "auto" else device.auto_precision,
        compile=defaults.compile if options.compile is None else options.compile,
        activation_checkpointing=options.activation_checkpointing,
        optimizer=options.optimizer,
        memory_bytes=fillable_bytes(device),
        most_micro_tokens=defaults.most_micro_tokens,
        usd_per_hour=options.price,
    )


def to_document(done: Calibrated) -> dict[str, Any]:
    """Returns the JSON document of `--json`: the fit's quality, its coefficients, ceilings and the bill."""
    profile, bursts = done.profile, done.calibration.bursts
    document = calibration_to_dict(done.calibration)
    rates = profile.posterior.rates
    deviations = profile.posterior.covariance.diagonal() ** 0.5
    return {
        "calibration": document["id"],
        "device": document["device"],
        "settings": document["settings"],
        "ceilings": {
            "matmul_flops_per_second": rates.matmul_flops,
            "bandwidth_bytes_per_second": rates.bandwidth,
            "launch_seconds": rates.launch_seconds,
        },
        "bursts": len(bursts),
        "outcomes": {o: sum(b.outcome == o for b in bursts) for o in {b.outcome for b in bursts}},
        "coefficients": {
            t: {"log_mean": float(m), "log_deviation": float(d)}
            for t, m, d in zip(TERMS, profile.posterior.theta, deviations, strict=True)
        },
        "discrepancy": profile.posterior.discrepancy,
        "drift_deviation": profile.posterior.drift,
        "drift_exponent": profile.drift_exponent,
        "held_out": document["held_out_error"],
        "quality": document["quality"],
        "setting_effects": [to_dict(effect) for effect in effects(done.calibration)],
        "cost": document["cost"],
    }


def calibrating(store: Store) -> BackgroundCommand:
    """Returns the calibration in the background, with which a page can watch and cancel it. Measurements are stored."""
    return BackgroundCommand(home=store.home, name="calibrating", description="a calibration")


def start_calibrating(store: Store, options: Sequence[str], seconds: float) -> None:
    """Run `advisor calibrate` with these options in the background. Raises AdvisorError if one is already running."""
    calibrating(store).start(("calibrate", "--budget-seconds", f"{seconds:g}", *options), seconds)


def calibrated_since(store: Store, since: float) -> Calibration | None:
    """Returns the newest calibration if it was written after the start. (An older one may be continued.)"""
    own = [entry for entry in store.list_calibrations() if not entry.shipped and entry.path.stat().st_mtime >= since]
    newest = max(own, key=lambda entry: entry.path.stat().st_mtime, default=None)
    return store.load_calibration(newest.path) if newest is not None else None
