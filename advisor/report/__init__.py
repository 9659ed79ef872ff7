"""Computed records → words, tables and charts: console, Markdown, one self-contained HTML file, CSV. No arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.workflows.analysis import Analysis


def write_reports(
    analyses: Sequence[Analysis], *, html: Path | None, md: Path | None, table: Path | None
) -> list[Path]:
    """Write the reports that are asked for and give their paths; raises AdvisorError where a disk refuses."""
    from advisor.store.disk import write_atomic

    written = []
    if html is not None:
        from advisor.report.html import page

        write_atomic(html, page(analyses))
        written.append(html)
    if md is not None:
        from advisor.report.markdown import document

        write_atomic(md, "\n\n---\n\n".join(document(analysis) for analysis in analyses))
        written.append(md)
    if table is not None:
        from advisor.report.rows import as_csv

        write_atomic(table, as_csv(analyses))
        written.append(table)
    return written
