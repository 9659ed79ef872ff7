"""`advisor audit`: the claims of plans and reports on paper, judged by their own numbers."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.params import CARD_FILE, FILE, NEW_FILE
from advisor.report import render


@click.command()
@click.argument("papers", metavar="REPORT|CARD...", nargs=-1, type=FILE)
@click.option("--card", "card_path", type=CARD_FILE, help="Write the card drafted from the report's text to this file.")
@click.option("--kinds", is_flag=True, help="List what can be claimed, each with an example.")
@click.option("--md", "markdown_path", type=NEW_FILE, help="Write the audit to this Markdown file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    papers: tuple[Path, ...], card_path: Path | None, kinds: bool, markdown_path: Path | None, as_json: bool
) -> None:
    """Check every claim of a report: holds, wrong, does not follow, or cannot be judged, and why.

    A report is Markdown, HTML or plain text: claims are found in its sentences and tables by rule, no model is called,
    and what could not be placed is listed. A card is YAML: the declared configuration, the printed tables and the
    claims, as docs/file-formats.md describes; --card writes one from a text, to be corrected and judged again. Speeds
    are held against the card's calibration, if there is one here, else against published runs.
    """
    from advisor.report.audit import document, kind_lines, markdown, text_lines
    from advisor.store.store import default_store
    from advisor.workflows.audit import audit_cards, kinds_with_examples, write_draft

    if kinds:
        listed = kinds_with_examples()
        if as_json:
            render.print_json({"kinds": listed})
        else:
            render.show("\n".join(kind_lines(listed)))
        return
    if not papers:
        raise click.UsageError("name a report or a card, or ask for --kinds")
    if card_path is not None:
        if len(papers) != 1:
            raise click.UsageError("--card takes one report")
        count = write_draft(papers[0], card_path)
        render.remark(f"{count} claims written to {card_path}: correct it, then advisor audit {card_path}")
    audits = audit_cards(papers, default_store())
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
