"""`advisor runs --accuracy`: the accuracy of the predictions over all runs that were compared."""

from __future__ import annotations

import click

from advisor.cli.verb import answer, verb


@verb()
@click.option("--gpu", "device", help="Show only the GPU with this key, or cpu.")
def command(device: str | None) -> None:
    """Show the error of each predicted quantity so far, and how often its 80 % interval contained the outcome."""
    from advisor.history.ledger_rows import accuracy
    from advisor.report.comparison import track_record
    from advisor.report.table import on_console
    from advisor.store.store import default_store

    found = accuracy(default_store().scores(device))
    where = f" on {device}" if device else ""
    none = (f"no run was compared with its prediction{where} yet", "next: advisor compare latest")
    document = {"device": device, "quantities": found}
    answer("accuracy", lambda: document, lambda: [on_console(track_record(found))] if found else none)
