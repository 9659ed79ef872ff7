"""Describes a calibration's verdict and its settings' effects, for terminal and page. No arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from advisor import units
from advisor.report.table import Table
from advisor.store.calibration import Calibration, Quality, Verdict

if TYPE_CHECKING:
    from advisor.workflows.calibrate_elsewhere import MeasuredPlace

COLUMNS = ("place", "device", "would start", "matrix products", "memory", "held-out error", "took", "verdict")
SETTINGS = ("setting", "speed ratio", "memory")
SETTINGS_NOTE = (
    "speed ratio: steps per second in one burst with the setting, divided by those of the bursts without it before and "
    "after; 80 % intervals, so some differences are chance; memory: allocated on the GPU, or of a CPU's whole process, "
    "which scatters by some MiB; settings without -- are fields of `run` in a plan's file"
)
NOTE = "{}: not stored: it is of another CPU than this machine's, and all CPUs share one name"


def verdict(quality: Quality) -> str:
    """Returns the verdict in few words, for a table."""
    return f"{quality.verdict}, {quality.widening:g} × wider" if quality.widening > 1 else quality.verdict


def consequence(quality: Quality, device_key: str) -> str:
    """Says what predictions do with a calibration, why, and what to do about it."""
    again = f"repeat it with nothing else running: advisor calibrate --gpu {device_key}"
    if quality.verdict == Verdict.REJECTED:
        return f"rejected, no plan uses it: {quality.reason}; {again}"
    if quality.verdict == Verdict.DOUBTFUL:
        wider = f", intervals of step times are widened {quality.widening:g} times" if quality.widening > 1 else ""
        return f"doubtful{wider}: {quality.reason}; {again}"
    return f"good: {quality.reason}"


def settings_table(calibration: Calibration) -> Table | None:
    """Lists what each setting gives, the fastest first. Returns None if `--settings` was not given."""
    from advisor.calibration.measure import describe  # imports the worker
    from advisor.calibration.setting_effects import effects, switched

    if not calibration.setting_bursts:
        return None
    base, rows, notes = calibration.setting_bursts[0].workload, [], [SETTINGS_NOTE]
    for effect in effects(calibration):
        memory = "-" if effect.memory_bytes is None else units.format_bytes.change(effect.memory_bytes)
        if effect.reason is not None:
            notes.append(f"! {effect.setting} does not run here: {effect.outcome}, {effect.reason.splitlines()[0]}")
        speed = "-" if effect.speed is None else units.format_estimate(effect.speed, units.format_number)
        rows.append((effect.setting, speed, memory))
    tried = {row[0] for row in rows}
    names = [name for name, _, _ in switched(calibration.settings, base, calibration.device.compute_capability)]
    if untried := ", ".join(name for name in names if name not in tried):
        notes.append(f"! not tried for lack of time: {untried} (raise --budget-seconds)")
    title = f"what each setting gives at {describe(base)}"
    return Table(columns=SETTINGS, rows=tuple(rows), title=title, notes=tuple(notes), numbers=SETTINGS[1:])


def elsewhere_table(found: Sequence[MeasuredPlace]) -> Table:
    """Lists each place in a row; for a place without a measurement, the row has its state."""
    notes = tuple(NOTE.format(one.name) for one in found if one.calibrated is not None and not one.kept)
    return Table(columns=COLUMNS, rows=tuple(_row(one) for one in found), notes=notes, numbers=COLUMNS[3:7])


def _row(one: MeasuredPlace) -> tuple[str, ...]:
    starts = one.starts_at or "-"
    if one.calibrated is None:
        failed = "failed" if one.is_over else one.state
        return (one.name, "-", starts, "-", "-", "-", "-", f"{failed}: {one.words}" if one.words else failed)
    calibration, rates = one.calibrated.calibration, one.calibrated.profile.posterior.rates
    held, quality = calibration.held_out_error, calibration.quality
    return (
        one.name,
        calibration.device.name or calibration.device_key,
        starts,
        units.format_flops(rates.matmul_flops),
        units.format_bandwidth(rates.bandwidth),
        "-" if held is None else units.format_percent(held.median),
        units.format_seconds(calibration.cost.seconds),
        "-" if quality is None else verdict(quality),
    )
