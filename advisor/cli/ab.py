"""`advisor ab`: variants of a run against a base, over seeds, run here one after the other."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.params import FILE, NEW_FILE
from advisor.report import render


@click.command()
@click.argument("base", metavar="BASE.yaml", type=FILE)
@click.argument("variants", metavar="VARIANT.yaml...", nargs=-1, required=True, type=FILE)
@click.option("--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs of each.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs. Default: ab-BASE beside BASE.yaml.")
@click.option("--md", type=NEW_FILE, help="Write a report in Markdown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    base: Path, variants: tuple[Path, ...], seeds: int, out: Path | None, md: Path | None, as_json: bool
) -> None:
    """Train BASE and each VARIANT (run.yaml or plan.yaml) here with several seeds, in turn, and compare them in pairs.

    Differences of loss, step time and peak memory come with 95 % intervals; what does not clear the noise is said to be
    none, with the seeds that a difference of its size needs. A checklist says of each whether it trains, begins at ln
    V, falls, fits, trains where it was to, and goes on after a stop. Typed again, what is done already is kept.
    """
    from advisor.report import ab as report
    from advisor.report.table import on_console
    from advisor.store.disk import write_atomic
    from advisor.store.store import default_store
    from advisor.units import format_seconds
    from advisor.workflows.ab import expected, read_arms, run_ab

    store = default_store()
    arms = read_arms((base, *variants))
    seconds = expected(store, arms, seeds)
    takes = f"about {format_seconds(seconds)}" if seconds is not None else "nobody knows how long: advisor calibrate"
    render.remark(f"{len(arms)} arms x {seeds} seeds on this machine, {takes}")
    found = run_ab(store, arms, seeds, (out or base.parent / f"ab-{base.stem}").resolve(), render.remark)
    if md is not None:
        write_atomic(md, report.markdown(found))
    if as_json:
        render.print_json(report.document(found))
        return
    render.show(report.heading(found), "", on_console(report.contrast_table(found)), "")
    render.show(on_console(report.check_table(found)), "", *report.notes(found))
