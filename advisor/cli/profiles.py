"""`advisor profiles`: what is known of each device, from which calibration, how old and how far it is believed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from advisor import units
from advisor.report import render
from advisor.report.calibration import consequence, verdict

if TYPE_CHECKING:
    from advisor.store.store import CalibrationEntry


@click.command()
@click.option("--delete", metavar="ID", help="Remove this calibration of yours instead: predictions forget it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(delete: str | None, as_json: bool) -> None:
    """List the calibrations of this store and those that came with the program, newest first.

    A calibration is good, doubtful (predictions widen its intervals) or rejected (they do without it).
    """
    from advisor.calibration.quality import with_quality
    from advisor.store.store import default_store

    store = default_store()
    if delete is not None:
        path = store.delete_calibration(delete)
        if as_json:
            render.print_json({"deleted": delete, "path": path})
        else:
            render.show(f"deleted calibration {delete} ({path})", "next: advisor profiles")
        return
    entries = [with_quality(entry) for entry in store.list_calibrations()]
    if as_json:
        render.print_json(entries)
    elif not entries:
        render.show("nothing is calibrated yet; measure this machine: advisor calibrate")
    else:
        _show(entries, datetime.now(UTC))


def _show(entries: list[CalibrationEntry], now: datetime) -> None:
    columns = ("calibration", "device", "name", "family", "age", "origin", "verdict")
    rows = [
        (e.id, e.device_key, e.device_name, e.family, _age(e.created, now), _origin(e), verdict(e.quality))
        for e in entries
        if e.quality is not None
    ]
    render.show(render.table(columns, rows))
    for e in entries:
        if e.quality is not None and e.quality.verdict != "good":
            render.show(f"! {e.id}: {consequence(e.quality, e.device_key)}")


def _origin(entry: CalibrationEntry) -> str:
    return "shipped" if entry.shipped else "own"


def _age(created: str, now: datetime) -> str:
    return units.format_seconds((now - datetime.fromisoformat(created)).total_seconds())
