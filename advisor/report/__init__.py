"""Turns computed records into words, tables and charts: console, Markdown, self-contained HTML, CSV. No arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.errors import AdvisorError

if TYPE_CHECKING:
    from advisor.history.comparison import Comparison
    from advisor.workflows.analysis import Analysis


def write_reports(
    analyses: Sequence[Analysis],
    paths: Mapping[str, Path | None],
    *,
    comparison: Comparison | None = None,
    left_out: Sequence[str] = (),
) -> list[Path]:
    """Write the reports that were asked for; returns their paths. Raises AdvisorError if a file cannot be written.

    `paths` names files under `html`, `md` and `table`, and folders under `tables` and `plots`; other keys are ignored.
    """
    from advisor.store.disk import write_atomic

    if html := paths.get("html"):
        from advisor.report.html import page

        write_atomic(html, page(analyses, comparison, left_out))
    if md := paths.get("md"):
        from advisor.report.markdown import report

        write_atomic(md, report(analyses, comparison, left_out))
    if table := paths.get("table"):
        from advisor.report.rows import as_csv

        write_atomic(table, as_csv(analyses))
    if tables := paths.get("tables"):
        from advisor.report.rows import write_tables

        write_tables(analyses, tables)
    if plots := paths.get("plots"):
        try:
            from advisor.report.plots import write_pictures
        except ImportError as error:
            hint = "pip install 'training-advisor[app]'"
            raise AdvisorError(f"--plots draws charts, and {error.name} is not installed", hint) from error
        write_pictures(analyses, plots)
    return [path for name in ("html", "md", "table", "tables", "plots") if (path := paths.get(name))]
