"""`advisor analyze`: any training log in, a diagnosis in hours and dollars out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.cli.params import EXISTING, FILE, GPU, NEW_FILE, NEW_FOLDER, SECONDS, USD, NamedPath, Number
from advisor.report import render

if TYPE_CHECKING:
    from advisor.store.store import Store
    from advisor.workflows.analysis import Analysis, Given


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=NamedPath())
@click.option("--gpu", type=GPU, help="The GPU, if the log does not say: h100, 8xh100, l4, … or cpu.")
@click.option("--gpus", type=click.IntRange(min=1), help="How many.")
@click.option("--price", type=USD, help="Dollars per GPU and hour. Default: the catalog's cheapest for the GPU.")
@click.option("--config", type=EXISTING, help="The run's configuration, if the log does not hold it.")
@click.option("--telemetry", type=EXISTING, help="nvidia-smi or other readings of the GPU.")
@click.option("--plan", type=FILE, help="The plan.yaml it came from.")
@click.option("--format", "format_", help="Read it as this format instead of guessing.")
@click.option("--target-loss", type=Number(min=0), help="Say whether the run will get there.")
@click.option("--target-usd", type=USD, help="Say whether the run stays within.")
@click.option("--target-time", type=SECONDS, help="Say whether the run ends within.")
@click.option(
    "--next-data",
    metavar="SIZE|PATH",
    help="Other data, as text (91MB, or a file) or tokens (2B, or a token folder): what the next run takes on them.",
)
@click.option("--html", type=NEW_FILE, help="Write a report in one self-contained HTML file.")
@click.option("--md", type=NEW_FILE, help="Write a report in Markdown.")
@click.option("--table", type=NEW_FILE, help="Write the table that was read as CSV.")
@click.option("--tables", type=NEW_FOLDER, help="Write every column of each run as a CSV of its own in this folder.")
@click.option("--plots", type=NEW_FOLDER, help="Write the charts as PNG and SVG in this folder.")
@click.option("--all", "everything", is_flag=True, help="Name each check that could not be made, and what it needs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(paths: tuple[Path, ...], as_json: bool, everything: bool, **options: Any) -> None:
    """Read a training log (or a run's folder): what happened, what it cost, what was wasted, what to change.

    Formats are recognised by themselves: nanochat, nanoGPT, llm.c, Megatron, Hugging Face, Lightning, TensorBoard,
    W&B and many more. Several paths, or the logs of one format in a folder, are compared with each other. A run
    started here may be given by its name, or as `latest`.
    """
    from advisor.report import terminal, write_reports
    from advisor.store.store import default_store
    from advisor.workflows.analysis import to_document
    from advisor.workflows.analyze import judge_all

    given, store = _given(options), default_store()
    judged = judge_all(paths, store, lambda path: _analyzed(path, given, store))
    analyses, comparison, left_out = judged.analyses, judged.comparison, judged.left_out
    written = write_reports(analyses, options, comparison=comparison, left_out=left_out)
    if as_json:
        documents = [to_document(analysis) for analysis in analyses]
        beside = {} if comparison is None else comparison.to_document()
        render.print_json(documents[0] if len(documents) == 1 else {"runs": documents, "left_out": left_out, **beside})
        return
    many = len(analyses) > len(paths)
    for analysis in analyses:
        render.show(*(terminal.verdict(analysis) if many else terminal.report(analysis, everything)), "")
    if len(analyses) > 1:
        render.show(*terminal.several(analyses, comparison, left_out), "")
    else:
        render.show(*left_out)
    for path in written:
        render.show(f"written to {path}")


def _analyzed(path: Path, given: Given, store: Store) -> Analysis:
    """One log judged, with a bar while it is read."""
    from advisor.workflows.analyze import analyze

    with render.progress(f"reading {path.name}", None) as update:

        def on_read(done: int, total: int) -> None:
            update(completed=done, total=total)

        return analyze(path, given, store, on_read)


def _given(options: dict[str, Any]) -> Given:
    from advisor.findings.forecast import Targets
    from advisor.workflows.analysis import Given
    from advisor.workflows.analyze import next_data_of

    seconds = options["target_time"]
    if options["gpu"] is not None:
        from advisor.hardware.catalog import read_gpus

        named = read_gpus(options["gpu"])
        options |= {"gpu": named.key, "gpus": options["gpus"] or named.count}
    return Given(
        gpu=options["gpu"],
        gpus=options["gpus"],
        usd_per_gpu_hour=options["price"],
        config=options["config"],
        telemetry=options["telemetry"],
        plan=options["plan"],
        format=options["format_"],
        next_data=next_data_of(options["next_data"]) if options["next_data"] else None,
        targets=Targets(
            final_loss=options["target_loss"], usd=options["target_usd"], hours=seconds / 3600 if seconds else None
        ),
    )
