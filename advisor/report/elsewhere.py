"""What places elsewhere were measured to be, beside each other. No arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from advisor.report.calibration import verdict
from advisor.report.table import Table
from advisor.units import format_bandwidth, format_flops, format_percent, format_seconds

if TYPE_CHECKING:
    from advisor.workflows.calibrate_elsewhere import Measured

COLUMNS = ("place", "device", "would start", "matrix products", "memory", "held-out error", "took", "verdict")
NOTE = "{}: of another CPU than this machine's, and not kept: all CPUs go by one name"


def elsewhere_table(found: Sequence[Measured]) -> Table:
    """A row a place; of one that was not measured, how it stands."""
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
