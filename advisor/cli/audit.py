"""`advisor audit`: judges the claims of plans and reports by the numbers in the text."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from advisor.cli.verb import CARD_FILE, FILE, answer, options, print_answer, verb
from advisor.report import render


@verb()
@click.argument("papers", metavar="REPORT|CARD...", nargs=-1, type=FILE)
@click.option("--card", type=CARD_FILE, help="Draft a card from the report's text and write it to this file.")
@click.option("--kinds", is_flag=True, help="List the kinds of claims that can be judged, each with an example.")
@click.option("--schema", is_flag=True, help="Print the prompt for an assistant that reads the REPORT.")
@click.option("--reader", metavar="CMD",
              help="Command of the assistant that reads the report. It gets the prompt on stdin.")  # fmt: skip
@click.option("--reader-url", metavar="BASE", help="Address of an assistant with a chat-completions API.")
@click.option("--reader-model", metavar="NAME", help="The model of --reader-url.")
@click.option("--answer", "answered", metavar="FILE", help="File with an assistant's answer; - reads it from stdin.")
@options("md", md="Write the audit to this Markdown file.")
def command(papers: tuple[Path, ...], card: Path | None, kinds: bool, schema: bool, reader: str | None,
            reader_url: str | None, reader_model: str | None, answered: str | None,
            md: Path | None) -> None:  # fmt: skip
    """Check each claim of a report: whether it holds, is wrong, does not follow or cannot be judged, and why.

    Your assistant (--reader, --reader-url or --answer) reads the REPORT, which is Markdown, HTML or plain text. This
    program then judges each claim whose words and numbers are in the report. Without an assistant it reads no sentence,
    but checks the numbers of each table, and of lines like "depth: 12", against each other. A CARD is YAML or JSON with
    configuration, tables and claims (docs/file-formats.md); --card writes a card, to correct and to judge again.
    Speeds are compared with this machine's calibration of the GPU, or else with published runs.
    """
    from advisor import api
    from advisor.assistant import reader_of
    from advisor.auditing.schema import card_schema
    from advisor.readers.chunks import read_text
    from advisor.report.audit import kind_lines, markdown, text_lines
    from advisor.store.disk import write_atomic
    from advisor.workflows.audit import asking, kinds_with_examples, write_draft

    if kinds:
        listed = kinds_with_examples()
        answer("audit-kinds", lambda: {"kinds": listed}, lambda: kind_lines(listed))
        return
    if len(papers) != 1 and (card is not None or answered is not None):
        raise click.UsageError("--card and --answer take one report")
    if schema:
        request = asking(papers[0] if papers else None)
        answer("audit-schema", lambda: request, lambda: request.prompt)
        return
    if not papers:
        raise click.UsageError("name a report or a card, or ask for --kinds or --schema")
    asks, given = reader_of(reader, reader_url, reader_model, card_schema), None
    if answered is not None:
        given = sys.stdin.read() if answered == "-" else read_text(Path(answered))
    if card is not None:
        count = write_draft(papers[0], card, asks, given)
        render.remark(f"{count} claims written to {card}: correct it, then advisor audit {card}")
        papers, asks, given = (card,), None, None  # ask the assistant only once
    audits = api.audit(*papers, reader=asks, answer=given)
    if md is not None:
        write_atomic(md, markdown(audits.record))
        render.remark(f"written to {md}")
    print_answer(audits, lambda: (line for one in audits.record for line in (*text_lines(one), "")))
