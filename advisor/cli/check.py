"""`advisor check`: judges documents printed by other commands, as a check in CI."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli import DONE, NOTHING_FITS
from advisor.cli.verb import FILE, answer, option, options, verb
from advisor.options import Kind
from advisor.report.render import table


@verb("check")
@click.argument("documents", metavar="DOCUMENT.json...", nargs=-1, required=True, type=FILE)
@option("slower", Kind.NUMBER, "Accepted loss of speed, as a share.", default=0.02, least=0, most=1)
@options("md")
def command(documents: tuple[Path, ...], slower: float, md: Path | None) -> int:
    """Judge what `predict`, `plan`, `compare ACCEPTED NEW` or `ab` printed with --json, as a check in CI.

    The check fails if a run does not fit, if no run stays within a plan's limits, or if speed is lost beyond the
    noise. The exit code is 0 if nothing failed and 3 otherwise. --md writes a comment for a pull request.
    """
    from advisor.report.table import Table, in_markdown
    from advisor.store.disk import write_atomic
    from advisor.workflows.check import CheckVerdict, judge, read_documents

    judged = judge(read_documents(documents), slower)
    failed = [one for one in judged if one.verdict is CheckVerdict.BAD]
    heading = f"{len(failed)} of {len(judged)} failed" if failed else f"all {len(judged)} passed or open"
    columns = ("question", "", "answer")
    rows = tuple((one.question, str(one.verdict), one.words) for one in judged)
    if md is not None:
        write_atomic(md, f"### Training advisor: {heading}\n\n{in_markdown(Table(columns=columns, rows=rows))}\n")
    document = {"failed": len(failed), "judged": judged}
    answer("check", lambda: document, lambda: [heading, "", table(columns, rows)])
    return NOTHING_FITS if failed else DONE
