"""`advisor compare`: predicted against actual, where the gap went, and several runs side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from advisor import render
from advisor.errors import AdvisorError
from advisor.units import (
    Formatter,
    format_bytes,
    format_energy,
    format_estimate,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
    format_usd,
)

FEWEST_STEPS_TO_LEARN_FROM = 10  # a run this long says something about its configuration's step time

_SHOWN: tuple[tuple[str, str, Formatter], ...] = (
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
    log: Any  # RunLog
    comparison: Any  # Comparison
    recorded: bool = False


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--record/--no-record", default=True, help="Keep the scores and offer the run to its device's profile.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(runs: tuple[str, ...], record: bool, as_json: bool) -> None:
    """Set RUN (a path, a name, a unique beginning of one, or `latest`) against its prediction.

    Several runs are shown side by side too, at equal tokens and at equal learning-rate phase. A finished run's scores
    go into the ledger that `advisor accuracy` reads, and its step time into the profile of its device.
    """
    from advisor.store import default_store

    store = default_store()
    reviewed = [review(store, text, record=record) for text in runs]
    points = side_by_side_of(reviewed)
    if as_json:
        documents = [to_document(one) for one in reviewed]
        render.print_json(documents[0] if len(documents) == 1 else {"runs": documents, "side_by_side": points})
        return
    for one in reviewed:
        render.show(*report(one), "")
    if points:
        render.show(*_side_by_side_report(points))
    render.show("next: advisor accuracy" if any(one.recorded for one in reviewed) else "next: advisor runs")


def review(store: Any, text: str, *, record: bool) -> Reviewed:
    """Read and compare one run; record it if it is over. Raises AdvisorError when the folder cannot be compared."""
    from advisor.review import compare_run
    from advisor.store import read_launch, read_run_plan, run_id

    run_dir = store.find_run(text)
    log = read_log(run_dir)
    plan, launch = read_run_plan(run_dir), read_launch(run_dir)
    comparison = compare_run(
        log,
        plan,
        run_id=run_id(run_dir),
        device_key=_device_key(log, plan, launch),
        usd_per_hour=launch.usd_per_hour if launch else None,
        energy_kwh=_metered_kwh(run_dir),
    )
    recorded = record and comparison.outcome is not None
    if recorded:
        remember(store, log, comparison)
    return Reviewed(run_dir=run_dir, log=log, comparison=comparison, recorded=recorded)


def read_log(run_dir: Path) -> Any:
    """The run's log, with at least a header; raises AdvisorError."""
    from advisor.store import LOG
    from trainer.runlog import RunLogError, load_run_log

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


def remember(store: Any, log: Any, comparison: Any) -> None:
    """Write the scores of a finished run into the ledger, and its step time among its device's observations."""
    from advisor.calibrate.evidence import workload_to_dict
    from advisor.review import score_rows, step_median

    created = datetime.now(UTC).isoformat(timespec="seconds")
    store.record_scores(comparison.run_id, score_rows(comparison, created))
    if len(log.steps) < FEWEST_STEPS_TO_LEARN_FROM:
        return
    observation = {
        "created": created,
        "workload": workload_to_dict(workload_of(log, comparison.device_key)),
        "step_seconds": step_median(log),
        "reference_seconds": comparison.reference_seconds,
        "steps": len(log.steps),
    }
    store.add_observation(comparison.device_key, comparison.run_id, observation)


def workload_of(log: Any, device_key: str) -> Any:
    """What the run was, as predictions are about it: from the header, where nothing is left open."""
    from advisor.records import Workload
    from trainer.schema import config_from_dict

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


def side_by_side_of(reviewed: list[Reviewed]) -> list[Any]:
    """The points at which two or more runs can be set side by side; raises AdvisorError when one has no steps."""
    if len(reviewed) < 2:
        return []
    from advisor.side_by_side import side_by_side

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


def _device_key(log: Any, plan: Any, launch: Any) -> str:
    """The device the run was on: as launched, as planned, or by its own word."""
    if launch is not None and launch.device_key:
        return launch.device_key
    device = log.header["device"]
    if plan is not None:
        return plan.workload.gpu
    if device["type"] == "cpu":
        return "cpu"
    from advisor.catalog import find_gpu

    spec = find_gpu(device["name"])
    return spec.key if spec else device["name"]


def _metered_kwh(run_dir: Path) -> float | None:
    """Energy by the run's telemetry; None without any."""
    from trainer.telemetry_files import read_metadata, read_telemetry

    try:
        if read_metadata(run_dir) is None:
            return None
        telemetry = read_telemetry(run_dir, ("power_deciwatts", "energy_millijoules"))
    except (ValueError, OSError) as error:
        render.remark(f"warning: the telemetry of {run_dir} cannot be read, its energy is unknown: {error}")
        return None
    from advisor.review import measured_kwh

    return measured_kwh(telemetry)


def report(one: Reviewed) -> Iterator[Any]:
    comparison = one.comparison
    yield f"{one.run_dir.name}: {_standing(comparison)}"
    yield ""
    rows = [_score_row(comparison.score(name), title, formatter) for name, title, formatter in _SHOWN]
    columns = ("what", "predicted (80 % interval)", "actual", "error", "inside", "basis")
    yield render.table(columns, [row for row in rows if row], right=("actual", "error"))
    if comparison.gap_seconds is not None:
        yield ""
        yield _gap_table(comparison)


def _standing(comparison: Any) -> str:
    ended = comparison.outcome or "no end in the log: it runs, or died without a word"
    again = f", {comparison.attempts} attempts" if comparison.attempts > 1 else ""
    return f"{ended}, {comparison.steps} of {comparison.steps_planned} steps{again}"


def _score_row(score: Any, title: str, formatter: Formatter) -> tuple[str, ...] | None:
    if score.actual is None and score.predicted is None:
        return None
    error = "-" if score.error is None else f"{'+' if score.error >= 0 else '-'}{format_percent(abs(score.error))}"
    inside = {True: "yes", False: "no", None: "-"}[score.inside_interval]
    basis = score.predicted.basis if score.predicted else "-"
    return title, format_estimate(score.predicted, formatter), formatter(score.actual), error, inside, basis


def _gap_table(comparison: Any) -> Any:
    rows = [(cause.name, _signed(cause.seconds), cause.note) for cause in comparison.causes]
    rows.append(("in all", _signed(comparison.gap_seconds), "actual minus predicted wall clock"))
    return render.table(("where the gap went", "seconds", ""), rows, right=("seconds",), styles={len(rows) - 1: "bold"})


def _signed(seconds: float) -> str:
    return f"{seconds:+.2f}"


def _side_by_side_report(points: list[Any]) -> Iterator[Any]:
    names = [standing.run_id for standing in points[0].runs]
    rows = []
    for point in points:
        at = f"{format_tokens(point.value)} tokens" if point.at == "tokens" else f"{point.value:.0%} of the schedule"
        losses = [f"{s.loss:.4f} ({format_percent(s.rate_factor)} of peak LR)" for s in point.runs]
        rows.append((at, *losses, "comparable" if point.comparable else point.problem))
    yield render.table(("training loss at", *names, ""), rows, title="Side by side")
    yield ""
