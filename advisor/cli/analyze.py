"""`advisor analyze`: reads any training log and diagnoses it in hours and dollars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.cli.verb import NEW_FILE, NEW_FOLDER, NamedPath, json_asked, options, options_in, refused, verb
from advisor.documents import print_json
from advisor.options import AnalyzeOptions
from advisor.report import render

if TYPE_CHECKING:
    from advisor.workflows.analysis import Analysis


@verb()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=NamedPath())
@options_in(AnalyzeOptions)
@refused("plan the same run on other data: advisor plan --like LOG --data-tokens 2B", "--next-data")
@click.option("--html", type=NEW_FILE, help="Write a report in one self-contained HTML file.")
@options("md")
@click.option("--table", type=NEW_FILE, help="Write the table that was read to a CSV file.")
@click.option("--tables", type=NEW_FOLDER, help="Write one CSV file per run, with all columns, to this folder.")
@click.option("--plots", type=NEW_FOLDER, help="Write the charts as PNG and SVG to this folder.")
@click.option("--all", "everything", is_flag=True, help="List each check that could not be made, and what it needs.")
def command(paths: tuple[Path, ...], everything: bool, **options: Any) -> None:
    """Read a training log (or a run's folder): what happened, what it cost, what was wasted, what to change.

    The format is recognised: nanochat, nanoGPT, llm.c, Megatron, Hugging Face, Lightning, TensorBoard, W&B and many
    more. Several paths, or the logs of one format in a folder, are compared with each other. A run started here may be
    given by its name, or as `latest`.
    """
    from advisor.report import terminal
    from advisor.report.files import write_reports
    from advisor.store.store import default_store
    from advisor.workflows.analyze import analyze, given_of, judge_all
    from advisor.workflows.goal import readings

    reports = {name: options.pop(name) for name in ("html", "md", "table", "tables", "plots")}
    given, store = given_of(AnalyzeOptions(**options)), default_store()
    for words in readings({"gpu": options["gpu"] or ""}):
        render.remark(words)

    def with_progress(path: Path) -> Analysis:
        with render.progress(f"reading {path.name}", None) as update:
            return analyze(path, given, store, lambda done, total: update(completed=done, total=total))

    judged = judge_all(paths, store, with_progress)
    analyses, comparison, left_out = judged.analyses, judged.comparison, judged.left_out
    written = write_reports(analyses, reports, comparison=comparison, left_out=left_out)
    if json_asked():
        print_json(*judged.document())
        return
    many = len(analyses) > len(paths)
    for analysis in analyses:
        render.show(*terminal.report(analysis, everything, brief=many), "")
    render.show(*((*terminal.several(analyses, comparison, left_out), "") if len(analyses) > 1 else left_out))
    render.show(*(f"written to {path}" for path in written))
