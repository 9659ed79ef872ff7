"""`advisor analyze`: reads any training log and diagnoses it in hours and dollars."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.cli.verb import NEW_FILE, NEW_FOLDER, NamedPath, answer, json_asked, options, options_in, refused, verb
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
@click.option("--schema", is_flag=True, help="Print the prompt for an assistant that describes the log.")
@click.option("--reader", metavar="CMD",
              help="Command of an assistant that describes the log's lines. It gets the prompt on stdin.")  # fmt: skip
@click.option("--reader-url", metavar="BASE", help="Address of an assistant with a chat-completions API.")
@click.option("--reader-model", metavar="NAME", help="The model of --reader-url.")
@click.option("--answer", "answered", metavar="FILE", help="File with an assistant's answer; - reads it from stdin.")
@click.option("--all", "everything", is_flag=True, help="List each check that could not be made, and what it needs.")
def command(paths: tuple[Path, ...], everything: bool, schema: bool, reader: str | None, reader_url: str | None,
            reader_model: str | None, answered: str | None, **options: Any) -> None:  # fmt: skip
    """Read a training log (or a run's folder): what happened, what it cost, what was wasted, what to change.

    The format is recognised: nanochat, nanoGPT, llm.c, Megatron, Hugging Face, Lightning, TensorBoard, W&B and many
    more. Several paths, or the logs of one format in a folder, are compared with each other. A run started here may be
    given by its name, or as `latest`.

    Traces of torch.profiler, SQLite exports of Nsight Systems, CUDA memory snapshots and flight-recorder dumps are
    recognised too, one file a rank, also in a folder or archive: where a step goes, what fills memory, who is stuck.
    Beside a log, in its run folder or with --plan, the parts of a step stand beside those predicted for the run.

    An assistant of yours can describe a log that is not recognised: --reader sends it 250 lines of the log without
    credentials. Its patterns are applied to every line, and its answer is used only if it holds there. The format is
    kept, so that the next log of that program needs no assistant. docs/findings.md shows a format that you can write.
    """
    from advisor.assistant import reader_of
    from advisor.readers.archive import opened
    from advisor.readers.chunks import read_text
    from advisor.report.traces import report as report_traces
    from advisor.store.store import default_store
    from advisor.workflows.analyze import analyze, given_of, judge_all, located, with_traces
    from advisor.workflows.analyze_trace import analyze_traces, traces_and_logs
    from advisor.workflows.ask_about_log import answer_schema, question
    from advisor.workflows.goal import readings

    if len(paths) != 1 and (schema or answered is not None):
        raise click.UsageError("--schema and --answer take one log")
    if schema:
        with opened(paths[0]) as inside:
            asked = question(inside)
        answer("analyze-schema", lambda: asked, lambda: asked.prompt)
        return
    asks, said = reader_of(reader, reader_url, reader_model, answer_schema), None
    if answered is not None:
        said = sys.stdin.read() if answered == "-" else read_text(Path(answered))
    reports = {name: options.pop(name) for name in ("html", "md", "table", "tables", "plots")}
    given, store = given_of(AnalyzeOptions(**options)), default_store()
    traces, logs = traces_and_logs([located(path, store) for path in paths])
    if not logs:
        if any(reports.values()):
            raise click.UsageError("of traces there are the report that is printed, and --json")
        with render.progress("reading", None) as update:
            judgements = analyze_traces(traces, given, lambda name: update(description=f"reading {name}"))
        answer("analyze-trace", judgements.to_document, lambda: report_traces(judgements.judged, everything))
        return
    for words in readings({"gpu": options["gpu"] or ""}):
        render.remark(words)

    def with_progress(path: Path) -> Analysis:
        with render.progress(f"reading {path.name}", None) as update:
            return analyze(path, given, store, lambda done, total: update(completed=done, total=total),
                           reader=asks, answer=said)  # fmt: skip

    judged = judge_all(logs, store, with_progress)
    if traces:
        with render.progress("reading", None) as update:
            judged = with_traces(judged, traces, given, lambda name: update(description=f"reading {name}"))
    analyses, comparison, left_out = judged.analyses, judged.comparison, judged.left_out
    written = []
    if any(reports.values()):
        from advisor.report.files import write_reports

        written = write_reports(analyses, reports, comparison=comparison, left_out=left_out)
    if json_asked():
        print_json(*judged.document())
        return
    from advisor.report import terminal  # its tables of plans take a while to load

    many = len(analyses) > len(logs)
    for analysis in analyses:
        render.show(*terminal.report(analysis, everything, brief=many), "")
    render.show(*((*terminal.several(analyses, comparison, left_out), "") if len(analyses) > 1 else left_out))
    render.show(*report_traces(judged.traces, everything))
    render.show(*(f"written to {path}" for path in written))
