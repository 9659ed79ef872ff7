"""`advisor accuracy`: how right the predictions have been, over all runs that were compared."""

from __future__ import annotations

import click

from advisor import render
from advisor.units import format_percent


@click.command()
@click.option("--device", help="Only this device: cpu, or a card's key.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(device: str | None, as_json: bool) -> None:
    """Show the running error of each predicted quantity and how often its 80 % interval held the outcome."""
    from advisor.outcome import QUANTITIES
    from advisor.review import accuracy
    from advisor.store import default_store

    found = accuracy(default_store().scores(device))
    if as_json:
        render.print_json({"device": device, "quantities": found})
        return
    if not found:
        where = f" on {device}" if device else ""
        render.show(f"no run was compared with its prediction{where} yet", "next: advisor compare latest")
        return
    words = {name: title for name, title, _ in QUANTITIES}
    rows = [
        (
            one.device_key,
            words.get(one.quantity, one.quantity),
            str(one.runs),
            format_percent(one.median_error),
            format_percent(one.p90_error),
            f"{'+' if one.bias >= 0 else '-'}{format_percent(abs(one.bias))}",
            format_percent(one.coverage),
        )
        for one in found
    ]
    columns = ("device", "quantity", "runs", "median error", "p90 error", "bias", "inside the 80 % interval")
    render.show(render.table(columns, rows, right=columns[2:]))
