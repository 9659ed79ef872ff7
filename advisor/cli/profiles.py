"""`advisor calibrate --list`: every calibration with its device, age and quality."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from rich.console import RenderableType

from advisor import units
from advisor.cli.verb import answer, verb
from advisor.report import render
from advisor.report.calibration import consequence, verdict

if TYPE_CHECKING:
    from advisor.store.store import CalibrationEntry


@verb()
@click.option("--delete", metavar="ID", help="Remove this calibration; predictions no longer use it.")
def command(delete: str | None) -> None:
    """List the calibrations of this store and those that came with the program, newest first.

    A calibration is good, doubtful (predictions widen its intervals) or rejected (predictions do not use it).
    """
    from advisor.calibration.quality import with_quality
    from advisor.store.store import default_store

    if delete is not None:
        path = default_store().delete_calibration(delete)
        words = f"deleted calibration {delete} ({path})"
        gone = {"deleted": delete, "path": path}
        answer("calibration-deleted", lambda: gone, lambda: [words, "next: advisor calibrate --list"])
        return
    entries = [with_quality(entry) for entry in default_store().list_calibrations()]
    answer("calibrations", lambda: {"calibrations": entries}, lambda: _shown(entries, datetime.now(UTC)))


def _shown(entries: list[CalibrationEntry], now: datetime) -> Iterator[RenderableType]:
    if not entries:
        yield "nothing is calibrated yet; measure this machine: advisor calibrate"
        return
    columns, rows, worse = ("calibration", "device", "name", "family", "age", "origin", "verdict"), [], []
    for e in entries:
        if e.quality is None:
            continue
        age = units.format_seconds((now - datetime.fromisoformat(e.created)).total_seconds())
        origin = "shipped" if e.shipped else "own"
        rows.append((e.id, e.device_key, e.device_name, e.family, age, origin, verdict(e.quality)))
        if e.quality.verdict != "good":
            worse.append(f"! {e.id}: {consequence(e.quality, e.device_key)}")
    yield from (render.table(columns, rows), *worse)
