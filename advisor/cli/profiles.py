"""`advisor profiles`: what is known of each device, from which calibration, how old and how right."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from advisor import units
from advisor.report import render


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """List the calibrations of this store and those that came with the program, newest first."""
    from advisor.store.store import default_store

    entries = default_store().list_calibrations()
    if as_json:
        render.print_json(entries)
    elif not entries:
        render.show("nothing is calibrated yet; measure this machine: advisor calibrate")
    else:
        now = datetime.now(UTC)
        rows = [
            (e.id, e.device_key, e.device_name, e.family, _age(e.created, now), "shipped" if e.shipped else "own")
            for e in entries
        ]
        render.show(render.table(("calibration", "device", "name", "family", "age", "origin"), rows))


def _age(created: str, now: datetime) -> str:
    return units.format_seconds((now - datetime.fromisoformat(created)).total_seconds())
