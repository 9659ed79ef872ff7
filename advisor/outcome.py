"""One finished or running run, read from its folder, compared with its plan and remembered. CLI and page call this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advisor.calibration import MeasuredRun
from advisor.catalog import find_gpu
from advisor.errors import AdvisorError
from advisor.predict.energy import JOULES_PER_KWH
from advisor.records import LaunchRecord, Plan, Workload
from advisor.review import Comparison, compare_run, measured_kwh, score_rows, step_median
from advisor.side_by_side import Point, side_by_side
from advisor.store import LOG, Store, read_launch, read_run_plan, run_id
from advisor.units import (
    Formatter,
    format_bytes,
    format_energy,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_usd,
)
from trainer.runlog import RunLog, RunLogError, load_run_log
from trainer.schema import config_from_dict

FEWEST_STEPS_TO_LEARN_FROM = 10  # a run this long says something about its configuration's step time

# what is compared, as people call it
QUANTITIES: tuple[tuple[str, str, Formatter], ...] = (
    ("step_seconds", "step time", format_seconds),
    ("step_seconds_drift_corrected", "step time, machine drift taken out", format_seconds),
    ("tokens_per_second", "throughput", format_rate),
    ("mfu", "MFU", format_percent),
    ("peak_allocated_bytes", "peak memory, allocated", format_bytes),
    ("peak_reserved_bytes", "peak memory, reserved", format_bytes),
    ("wall_clock_seconds", "wall clock", format_seconds),
    ("cost_usd", "cost", format_usd),
    ("energy_kwh", "energy", format_energy),
    ("loss", "validation loss", format_number),
)


@dataclass(frozen=True, kw_only=True)
class Reviewed:
    """One run folder, read and compared."""

    run_dir: Path
    log: RunLog
    comparison: Comparison
    recorded: bool = False
    problem: str | None = None  # what could not be read, in words


def review(store: Store, text: str, *, record: bool) -> Reviewed:
    """Read and compare one run; record it if it is over. Raises AdvisorError when the folder cannot be compared."""
    run_dir = store.find_run(text)
    log = read_log(run_dir)
    plan, launch = read_run_plan(run_dir), read_launch(run_dir)
    energy_kwh, problem = _metered_kwh(run_dir)
    comparison = compare_run(
        log,
        plan,
        run_id=run_id(run_dir),
        device_key=_device_key(log, plan, launch),
        usd_per_hour=launch.usd_per_hour if launch else None,
        energy_kwh=energy_kwh,
    )
    recorded = record and comparison.outcome is not None
    if recorded:
        remember(store, log, comparison)
    return Reviewed(run_dir=run_dir, log=log, comparison=comparison, recorded=recorded, problem=problem)


def read_log(run_dir: Path) -> RunLog:
    """The run's log, with at least a header; raises AdvisorError."""
    path = run_dir / LOG
    if not path.exists():
        raise AdvisorError(f"{run_dir} has no log: the run has not started", f"see how it is: advisor watch {run_dir}")
    try:
        log = load_run_log(path)
    except RunLogError as error:
        raise AdvisorError(f"the log is damaged: {error}", f"mend or remove that line of {path}") from error
    if log.header is None:
        raise AdvisorError(f"the run in {run_dir} ended before its first step", f"see why: {run_dir / 'stdout.log'}")
    return log


def remember(store: Store, log: RunLog, comparison: Comparison) -> None:
    """Write the scores of a finished run into the ledger, and its step time among its device's observations."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    store.record_scores(comparison.run_id, score_rows(comparison, created))
    step_seconds = step_median(log)
    if step_seconds is None or len(log.steps) < FEWEST_STEPS_TO_LEARN_FROM:
        return
    if log.witnesses and comparison.reference_seconds is None:
        return  # other work came and went on the machine: the step time says more of that than of the configuration
    workload = workload_of(log, comparison.device_key)
    observed = MeasuredRun(
        run_id=comparison.run_id,
        device_key=comparison.device_key,
        created=created,
        workload=workload,
        step_seconds=step_seconds,
        reference_seconds=comparison.reference_seconds,
        steps=len(log.steps),
        watts=_watts(comparison, workload.gpus),
    )
    store.add_observation(observed)


def _watts(comparison: Comparison, gpus: int) -> float | None:
    """Mean power of one device over a completed run; None where it was not metered."""
    actual = {score.quantity: score.actual for score in comparison.scores}
    kwh, seconds = actual.get("energy_kwh"), actual.get("wall_clock_seconds")
    return kwh * JOULES_PER_KWH / seconds / gpus if kwh and seconds else None


def workload_of(log: RunLog, device_key: str) -> Workload:
    """What the run was, as predictions are about it: from the header, where nothing is left open."""
    header = log.headers[-1]
    config = config_from_dict(header["config"])
    return Workload(
        shape=config.model,
        micro_batch=config.micro_batch,
        grad_accum=config.grad_accum,
        gpu=device_key,
        gpus=header["world_size"],
        precision=header["precision"],
        compile=config.compile,
        activation_checkpointing=config.activation_checkpointing,
        optimizer=config.optimizer.name,
    )


def side_by_side_of(reviewed: Sequence[Reviewed]) -> list[Point]:
    """The points at which two or more runs can be set side by side; raises AdvisorError when one has no steps."""
    if len(reviewed) < 2:
        return []
    try:
        return side_by_side([(one.run_dir.name, one.log) for one in reviewed])
    except ValueError as error:
        raise AdvisorError(f"these runs cannot be set side by side: {error}") from error


def to_document(one: Reviewed) -> dict[str, Any]:
    """One run as JSON: each quantity under its own name, beside what the run was and where the gap went."""
    comparison = one.comparison
    quantities = {
        score.quantity: {
            "predicted": score.predicted,
            "actual": score.actual,
            "error": score.error,
            "inside_interval": score.inside_interval,
        }
        for score in comparison.scores
    }
    names = ("run_id", "device_key", "outcome", "reason", "complete", "attempts", "steps", "steps_planned")
    return {
        **{name: getattr(comparison, name) for name in names},
        "run_dir": one.run_dir,
        **quantities,
        "reference_seconds": comparison.reference_seconds,
        "drift_factor": comparison.drift_factor,
        "gap_seconds": comparison.gap_seconds,
        "causes": comparison.causes,
        "recorded": one.recorded,
    }


def _device_key(log: RunLog, plan: Plan | None, launch: LaunchRecord | None) -> str:
    """The device the run was on: as launched, as planned, or by its own word."""
    if launch is not None and launch.device_key:
        return launch.device_key
    device = log.header["device"]
    if plan is not None:
        return plan.workload.gpu
    if device["type"] == "cpu":
        return "cpu"
    spec = find_gpu(device["name"])
    return spec.key if spec else device["name"]


def _metered_kwh(run_dir: Path) -> tuple[float | None, str | None]:
    """Energy by the run's telemetry, None without any; and what is wrong with the telemetry, in words."""
    from trainer.telemetry_files import read_metadata, read_telemetry  # pandas and pyarrow: only where they are needed

    try:
        if read_metadata(run_dir) is None:
            return None, None
        telemetry = read_telemetry(run_dir, ("power_deciwatts", "energy_millijoules"))
    except (ValueError, OSError) as error:
        return None, f"the telemetry of {run_dir} cannot be read, its energy is unknown: {error}"
    return measured_kwh(telemetry), None
