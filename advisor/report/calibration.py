"""Describes the verdict on a calibration, for terminal and page. No arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from advisor.report.table import Table
from advisor.store.calibration import Quality, Verdict
from advisor.units import format_bandwidth, format_flops, format_percent, format_seconds

if TYPE_CHECKING:
    from advisor.workflows.calibrate_elsewhere import Measured

COLUMNS = ("place", "device", "would start", "matrix products", "memory", "held-out error", "took", "verdict")
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


def elsewhere_table(found: Sequence[Measured]) -> Table:
    """Lists each place in a row; for a place without a measurement, the row has its state."""
    notes = tuple(NOTE.format(one.name) for one in found if one.calibrated is not None and not one.kept)
    return Table(columns=COLUMNS, rows=tuple(_row(one) for one in found), notes=notes, numbers=COLUMNS[3:7])


def _row(one: Measured) -> tuple[str, ...]:
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
        format_flops(rates.matmul_flops),
        format_bandwidth(rates.bandwidth),
        "-" if held is None else format_percent(held.median),
        format_seconds(calibration.cost.seconds),
        "-" if quality is None else verdict(quality),
    )
