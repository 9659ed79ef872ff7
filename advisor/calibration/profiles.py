"""Makes a `Profile` from a raw calibration and observed runs, or from the prior if a device has no calibration.

The fit runs again on each load, in well under a second. Only raw measurements are stored, so nothing can become out of
date.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from advisor.calibration import observations
from advisor.calibration.fit import FitEvidence
from advisor.calibration.quality import quality_of, with_quality
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec, find_gpu, peak_flops, require_gpu
from advisor.laws.flops import flops_per_token
from advisor.prediction.memory import MemoryObservation, corrected, load_memory_model
from advisor.prediction.power import PowerModel, measured_power
from advisor.prediction.prior import OtherCalibration, datasheet_rates, relative_to_datasheet
from advisor.prediction.profile import FORWARD_FRACTION, Profile, RunCosts
from advisor.prediction.throughput import Rates
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Basis, Estimate, MeasuredStep, Software, Workload
from advisor.store.calibration import Burst, Calibration, Quality, Verdict
from advisor.store.store import CalibrationEntry, Store, load_calibration

_STARTUP_SPREAD = 1.5  # a cold file cache makes the first start slower, a warm one faster


def load_profile(
    key: str,
    store: Store,
    *,
    family: str | None = None,
    precision: str | None = None,
    compile: bool | None = None,
    transfer: bool = True,
    power_cap_watts: float | None = None,
    software: Software | None = None,
) -> Profile:
    """Return the profile of a device: its newest calibration (of the family, if there is one), else the prior.

    Rejected calibrations (`calibration/quality`) are skipped, and the profile says so. A prior uses calibrations of
    other GPUs unless `transfer` is off, because they measured the trainer's own software. `software`
    selects published runs; calibrations measured this trainer and say nothing about other software. `power_cap_watts`
    slows the products of a prior; a calibration already includes the limit set then. `key` is a catalog key, an NVML
    name, or "cpu". Raises AdvisorError for an unknown GPU (with close matches) and for a CPU without a usable
    calibration, because no data sheet states a CPU's speed.
    """
    named = find_gpu(key) if key != "cpu" else None
    if named is not None:
        key = named.key
    elif key != "cpu" and key not in {entry.device_key for entry in store.list_calibrations()}:
        require_gpu(key)  # raises: only a calibration can have a GPU that is not in the catalog
    entry, passed_over = _believed(key, family, store) if software is None else (None, [])
    if entry is not None:
        calibration = replace(store.load_calibration(entry.path), quality=entry.quality)
        return _with_caveats(profile_of(calibration, store.observations(key)), passed_over)
    if passed_over and find_gpu(key) is None:
        newest, here = passed_over[0], "this CPU" if key == "cpu" else key
        raise AdvisorError(
            f"the last calibration of {here} ({newest.id}) was rejected: {_quality(newest).reason}",
            f"repeat it with nothing else running: advisor calibrate --gpu {key}",
        )
    if key == "cpu":
        hint = "name a GPU, as --gpu h100, or calibrate this CPU (90 s): advisor calibrate --gpu cpu"
        raise AdvisorError("this CPU was never calibrated", hint)
    spec = require_gpu(key)
    elsewhere = calibrated_elsewhere(spec, store) if transfer and software is None else None
    profile = prior_profile(
        spec,
        precision=precision,
        compile=compile,
        elsewhere=elsewhere,
        power_cap_watts=power_cap_watts,
        software=software,
    )
    return _with_caveats(profile, passed_over)


def _believed(key: str, family: str | None, store: Store) -> tuple[CalibrationEntry | None, list[CalibrationEntry]]:
    """Return the newest usable calibration, one of the family first, and the rejected ones that come before it."""
    passed_over: list[CalibrationEntry] = []
    for found in dict.fromkeys((*store.calibrations_of(key, family), *store.calibrations_of(key))):
        entry = with_quality(found)
        if _quality(entry).verdict != Verdict.REJECTED:
            return entry, passed_over
        passed_over.append(entry)
    return None, passed_over


def _quality(entry: CalibrationEntry) -> Quality:
    assert entry.quality is not None
    return entry.quality


def _with_caveats(profile: Profile, passed_over: Sequence[CalibrationEntry]) -> Profile:
    """Return the profile with a note that names newer calibrations it does not use, and why."""
    if not passed_over:
        return profile
    newest = passed_over[0]
    text = (
        f"calibration {newest.id} was rejected: {_quality(newest).reason}; repeat it: "
        f"advisor calibrate --gpu {newest.device_key}"
    )
    return replace(profile, sources=(*profile.sources, text), caveats=(*profile.caveats, text))


def calibrated_elsewhere(spec: GpuSpec, store: Store) -> OtherCalibration | None:
    """Return another GPU's newest usable calibration, of the same generation if possible. Returns None if none."""
    others: list[tuple[bool, int, CalibrationEntry, GpuSpec]] = []
    for found in store.list_calibrations():  # newest first
        other = find_gpu(found.device_key) if found.device_key != "cpu" else None
        if other is None or other.key == spec.key:
            continue
        entry = with_quality(found)
        if _quality(entry).verdict != Verdict.REJECTED:
            others.append((other.generation != spec.generation, len(others), entry, other))
    for _, _, entry, other in sorted(others, key=lambda f: f[:2]):
        written = entry.path.stat()
        result = _calibration_of(str(entry.path), written.st_mtime_ns, written.st_size, other, _quality(entry))
        if result is not None:
            return result
    return None


@lru_cache(maxsize=64)  # a search over all GPUs asks once for each
def _calibration_of(
    path: str, modified_ns: int, size_bytes: int, spec: GpuSpec, quality: Quality
) -> OtherCalibration | None:
    """Return what a calibration says about other GPUs. Time and size are cache keys, since the file grows."""
    calibration = replace(load_calibration(path), quality=quality)
    profile = profile_of(calibration)
    posterior, start = profile.posterior, FitEvidence(calibration).prior
    theta, covariance = posterior.theta, posterior.covariance
    if quality.widening != 1:
        # The information from the bursts is made `widening` times less certain. Only what they add to the prior is
        # weakened; otherwise the posterior could be wider than the prior.
        share = 1 / quality.widening**2  # of the bursts in the posterior's precision; the rest is the prior's
        after, before = share * np.linalg.inv(covariance), (1 - share) * np.linalg.inv(start.covariance)
        covariance = np.linalg.inv(after + before)
        theta = covariance @ (after @ theta + before @ start.mean)
    fitted, source = (theta, covariance), f"calibration {calibration.id} on {spec.key}{_widened(quality)}"
    return for_other_gpus(spec, profile, posterior.rates, fitted, (start.mean, start.covariance), source)


def for_other_gpus(
    spec: GpuSpec,
    of: Profile,
    rates: Rates,
    after: tuple[np.ndarray, np.ndarray],
    before: tuple[np.ndarray, np.ndarray],
    source: str,
) -> OtherCalibration | None:
    """Return coefficients and covariance, after measurements and before, relative to the GPU's data sheet. Returns None
    if the data sheet has no rate in the profile's precision."""
    datasheet = datasheet_rates(spec, of.precision)
    if datasheet is None:
        return None
    return OtherCalibration(
        theta=relative_to_datasheet(after[0], rates, datasheet),
        covariance=after[1],
        prior_mean=relative_to_datasheet(before[0], rates, datasheet),
        prior_covariance=before[1],
        spec=spec,
        precision=of.precision,
        compile=of.compile,
        source=source,
    )


def profile_of(calibration: Calibration, observed: Sequence[MeasuredStep] = ()) -> Profile:
    """Return the profile fitted to a calibration and later runs. Doubtful calibrations get wider intervals."""
    quality = quality_of(calibration)
    caveats = (f"calibration {calibration.id}{_widened(quality)}",) if quality.widening > 1 else ()
    bursts, settings, device = calibration.bursts, calibration.settings, calibration.device
    key = calibration.device_key
    spec = find_gpu(key) if key != "cpu" else None
    evidence = FitEvidence(calibration)
    drift = evidence.drift
    # Finished runs on one device count as one more, long burst each. Steps on several devices include communication,
    # for which the fit has no term.
    runs = []
    for run in (run for run in observed if run.workload.gpus == 1):
        seconds = run.step_seconds
        if run.reference_seconds and drift.reference_seconds:
            seconds *= (drift.reference_seconds / run.reference_seconds) ** drift.exponent
        runs.append(replace(run, step_seconds=seconds))
    return Profile(
        key=key,
        name=device.name or key,
        device_type=device.type,
        spec=spec,
        device_memory_bytes=device.memory_bytes,
        posterior=evidence.posterior(merged([*evidence.steps, *runs])),
        memory=corrected(load_memory_model(), memory_observations(bursts)),
        costs=replace(run_costs(calibration), power=_power(calibration, observed, evidence.rates, spec)),
        family=settings.family,
        seq_len=settings.seq_len,
        vocab_size=settings.vocab_size,
        precision=settings.precision,
        compile=settings.compile,
        activation_checkpointing=settings.activation_checkpointing,
        kernels=settings.kernels,
        depths=settings.depths,
        calibration_id=calibration.id,
        reference_seconds=drift.reference_seconds,
        drift_exponent=drift.exponent,
        widening=quality.widening,
        sources=(f"calibration {calibration.id}{_widened(quality)}", *(run.source for run in observed)),
        caveats=caveats,
    )


def _widened(quality: Quality) -> str:
    return f", intervals widened {quality.widening:g} times: {quality.reason}" if quality.widening > 1 else ""


def merged(parts: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """Return one measured step per configuration, the precision-weighted mean in log."""
    by_workload: dict[Workload, list[MeasuredStep]] = {}
    for part in parts:
        by_workload.setdefault(part.workload, []).append(part)
    joined = []
    for workload, group in by_workload.items():
        precision = np.array([part.noise**-2.0 for part in group])
        mean = float((precision * np.log([part.step_seconds for part in group])).sum() / precision.sum())
        noise = float(precision.sum() ** -0.5)
        joined.append(MeasuredStep(workload=workload, step_seconds=float(np.exp(mean)), noise=noise))
    return joined


def memory_observations(bursts: Sequence[Burst]) -> list[MemoryObservation]:
    """Return the measured peaks of every completed burst. On a CPU only the resident set is known."""
    return [
        MemoryObservation(
            workload=b.workload,
            allocated_peak_bytes=b.allocated_peak_bytes,
            reserved_peak_bytes=b.reserved_peak_bytes if b.workload.gpu != "cpu" else b.resident_peak_bytes,
            device_used_bytes=b.device_used_bytes,
        )
        for b in observations.completed(bursts)
    ]


def run_costs(calibration: Calibration) -> RunCosts:
    """Return the measured start-up, build, compilation, disk speed and forward share of a calibration."""
    done, rehearsal = observations.completed(calibration.bursts), calibration.rehearsal
    builds = [b.build_seconds / max(1, b.parameters) for b in done if b.build_seconds is not None and b.parameters]
    compiles = [b.compile_seconds for b in done if b.compile_seconds]
    shares = [
        b.eval_seconds * b.workload.grad_accum / statistics.median(b.step_seconds) for b in done if b.eval_seconds
    ]
    overhead, disk = calibration.environment.ready_seconds, float(calibration.disk_bytes_per_second)
    if rehearsal is not None:  # the checkpoint of a rehearsal is also checksummed and renamed
        overhead = rehearsal.overhead_seconds
        disk = min(disk, rehearsal.checkpoint_bytes / rehearsal.checkpoint_seconds)
    return RunCosts(
        startup_seconds=_spread(overhead, _STARTUP_SPREAD),
        build_seconds_per_parameter=statistics.median(builds),
        compile_seconds=_spread(max(compiles, default=0.0), 2.0),
        checkpoint_bytes_per_second=_spread(disk, 2.0),
        forward_fraction=statistics.median(shares) if shares else FORWARD_FRACTION,
    )


def _power(
    calibration: Calibration, observed: Sequence[MeasuredStep], rates: Rates, spec: GpuSpec | None
) -> PowerModel | None:
    """Return power as a function of MFU, from bursts and runs. Returns None if there is no energy counter."""
    peak = rates.matmul_flops
    if spec is not None:
        peak = peak_flops(spec, calibration.settings.precision) or peak
    done = observations.completed(calibration.bursts)
    metered = [(b.workload, statistics.median(b.step_seconds), b.watts) for b in done if b.watts]
    metered += [(run.workload, run.step_seconds, run.watts) for run in observed if run.watts]
    mfu = [  # MFU of one device
        flops_per_token(w.shape) * (w.micro_tokens * w.grad_accum / seconds) / peak for w, seconds, _ in metered
    ]
    return measured_power(mfu, [watts for _, _, watts in metered], spec.tdp_watts if spec else None)


def _spread(value: float, factor: float) -> Estimate:
    return Estimate(value=value, low=value / factor, high=value * factor, basis=Basis.MEASURED)
