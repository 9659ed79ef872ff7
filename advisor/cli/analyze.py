"""`advisor analyze`: any training log in, a diagnosis in hours and dollars out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.cli.params import EXISTING, GPU, NEW_FILE, NEW_FOLDER, NamedPath, Number
from advisor.cli.verb import json_asked, options, verb
from advisor.documents import print_json
from advisor.options import Kind
from advisor.report import render

if TYPE_CHECKING:
    from advisor.store.store import Store
    from advisor.workflows.analysis import Analysis, Given


@verb()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=NamedPath())
@click.option("--gpu", type=GPU, help="The GPU, if the log does not say: h100, 8xh100, l4, … or cpu.")
@options("one_count", "one_price",
         one_price="Dollars per GPU-hour. Default: the catalog's cheapest for the GPU.")  # fmt: skip
@click.option("--config", type=EXISTING, help="The run's configuration, if the log does not hold it.")
@click.option("--telemetry", type=EXISTING, help="nvidia-smi or other readings of the GPU.")
@options("plan")
@click.option("--format", help="Read it as this format instead of guessing.")
@click.option("--target-loss", type=Number(min=0), help="Say whether the run will get there.")
@options("budget", "deadline", budget="Say whether the whole run stays within this many dollars.",
         deadline={"kind": Kind.SECONDS, "help": "Say whether the whole run ends in this time, e.g. 8h."})  # fmt: skip
@click.option("--next-data", metavar="SIZE|PATH", help="Other data, as text (91MB, or a file) or tokens (2B, or a "
              "token folder): time and cost of the next run on them.")  # fmt: skip
@click.option("--html", type=NEW_FILE, help="Write a report in one self-contained HTML file.")
@options("md")
@click.option("--table", type=NEW_FILE, help="Write the table that was read to a CSV file.")
@click.option("--tables", type=NEW_FOLDER, help="Write every column of each run as a CSV of its own in this folder.")
@click.option("--plots", type=NEW_FOLDER, help="Write the charts as PNG and SVG in this folder.")
@click.option("--all", "everything", is_flag=True, help="Name each check that could not be made, and what it needs.")
def command(paths: tuple[Path, ...], everything: bool, **options: Any) -> None:
    """Read a training log (or a run's folder): what happened, what it cost, what was wasted, what to change.

    Formats are recognised: nanochat, nanoGPT, llm.c, Megatron, Hugging Face, Lightning, TensorBoard, W&B and many
    more. Several paths, or the logs of one format in a folder, are compared with each other. A run started here may be
    given by its name, or as `latest`.
    """
    from advisor.report import terminal, write_reports
    from advisor.store.store import default_store
    from advisor.workflows.analysis import to_document
    from advisor.workflows.analyze import given_of, judge_all

    reports = {name: options.pop(name) for name in ("html", "md", "table", "tables", "plots")}
    given, store = given_of(options), default_store()
    judged = judge_all(paths, store, lambda path: _analyzed(path, given, store))
    analyses, comparison, left_out = judged.analyses, judged.comparison, judged.left_out
    written = write_reports(analyses, reports, comparison=comparison, left_out=left_out)
    if json_asked():
        documents = [to_document(analysis) for analysis in analyses]
        several = {} if comparison is None else comparison.to_document()
        if len(documents) == 1:
            print_json("analyze", documents[0])
        else:
            print_json("analyze-several", {"runs": documents, "left_out": left_out, **several})
        return
    many = len(analyses) > len(paths)
    for analysis in analyses:
        render.show(*(terminal.verdict(analysis) if many else terminal.report(analysis, everything)), "")
    render.show(*((*terminal.several(analyses, comparison, left_out), "") if len(analyses) > 1 else left_out))
    render.show(*(f"written to {path}" for path in written))


def _analyzed(path: Path, given: Given, store: Store) -> Analysis:
    """One log judged, with a bar while it is read."""
    from advisor.workflows.analyze import analyze

    with render.progress(f"reading {path.name}", None) as update:
        return analyze(path, given, store, lambda done, total: update(completed=done, total=total))
