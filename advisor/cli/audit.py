"""`advisor audit`: the claims of plans and reports on paper, judged by their own numbers."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.params import FILE, NEW_FILE
from advisor.report import render


@click.command()
@click.argument("cards", metavar="CARD...", nargs=-1, required=True, type=FILE)
@click.option("--md", "markdown_path", type=NEW_FILE, help="Write the audit to this Markdown file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(cards: tuple[Path, ...], markdown_path: Path | None, as_json: bool) -> None:
    """Check every claim of a run card: holds, wrong, does not follow, or cannot be judged, and why.

    A card is YAML: the declared configuration, the printed tables and the claims of a plan or report, as
    docs/file-formats.md describes; examples/reports has five. Speeds are held against the card's calibration, if there
    is one here, else against published runs.
    """
    from advisor.report.audit import document, markdown, text_lines
    from advisor.store.store import default_store
    from advisor.workflows.audit import audit_cards

    audits = audit_cards(cards, default_store())
    if markdown_path is not None:
        from advisor.store.disk import write_atomic

        write_atomic(markdown_path, markdown(audits))
        render.remark(f"written to {markdown_path}")
    if as_json:
        documents = [document(one) for one in audits]
        render.print_json(documents[0] if len(documents) == 1 else {"audits": documents})
        return
    for one in audits:
        render.show("\n".join(text_lines(one)), "")
