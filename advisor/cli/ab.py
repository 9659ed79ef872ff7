"""`advisor ab` runs variants of a base run with several seeds on this machine and compares them."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.verb import FILE, answer, option, verb
from advisor.options import Kind
from advisor.report import render


@verb()
@click.argument("base", metavar="BASE.yaml", type=FILE)
@click.argument("variants", metavar="VARIANT.yaml...", nargs=-1, required=True, type=FILE)
@option("seeds", Kind.WHOLE, "Number of runs of each configuration.", default=3, least=1, most=100)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs. Default: ab-BASE next to BASE.yaml.")
def command(base: Path, variants: tuple[Path, ...], seeds: int, out: Path | None) -> None:
    """Train BASE and each VARIANT (run.yaml or plan.yaml) here with several seeds, in turn, and compare them in pairs.

    Differences of loss, step time and peak memory have 95 % intervals. A difference within the noise is reported as
    no difference, with the number of seeds that could show it. No finished run is repeated.
    """
    from advisor.report.comparison import variant_lines, variants_document
    from advisor.store.store import default_store
    from advisor.workflows.ab import run_ab

    folder = (out or base.parent / f"ab-{base.stem}").resolve()
    experiment = run_ab(default_store(), (base, *variants), seeds, folder, render.remark)
    answer("ab", lambda: variants_document(experiment), lambda: variant_lines(experiment))
