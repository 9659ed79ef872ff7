"""`advisor accuracy`: how right the predictions have been, over all runs that were compared."""

from __future__ import annotations

import click

from advisor.report import render


@click.command()
@click.option("--device", help="Only of this GPU (its key), or cpu.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(device: str | None, as_json: bool) -> None:
    """Show the running error of each predicted quantity and how often its 80 % interval held the outcome."""
    from advisor.history.ledger_rows import accuracy
    from advisor.report.comparison import track_record
    from advisor.report.table import on_console
    from advisor.store.store import default_store

    accuracies = accuracy(default_store().scores(device))
    if as_json:
        render.print_json({"device": device, "quantities": accuracies})
        return
    if not accuracies:
        where = f" on {device}" if device else ""
        render.show(f"no run was compared with its prediction{where} yet", "next: advisor compare latest")
        return
    render.show(on_console(track_record(accuracies)))
