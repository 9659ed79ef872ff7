"""`advisor runs`: the runs on this machine, with their names, notes and tags."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import RenderableType

from advisor.cli.verb import answer, verb
from advisor.errors import AdvisorError
from advisor.history.listing import RunSummary, list_runs
from advisor.report.render import remark, table
from advisor.store.store import Store, default_store
from advisor.units import format_count, format_number, format_usd


@verb("runs")
@click.argument("run", required=False)
@click.option("--name", help="Rename RUN to this; the folder keeps its name. '' removes the custom name.")
@click.option("--note", help="Store this note about RUN, in place of its last note. '' removes it.")
@click.option("--tag", "tags", multiple=True,
              help="Tag RUN with this (repeat for several). Without RUN: list only runs with these tags.")  # fmt: skip
@click.option("--untag", "untags", multiple=True, metavar="TAG", help="Remove this tag from RUN.")
@click.option("--delete", is_flag=True, help="Delete RUN with its checkpoints; its recorded scores stay.")
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
def command(run: str | None, name: str | None, note: str | None, tags: tuple[str, ...], untags: tuple[str, ...],
            delete: bool, yes: bool) -> None:  # fmt: skip
    """List the runs started here, newest first, with their outcomes; or name, describe, tag or delete RUN.

    RUN is a folder, a name or its beginning, or `latest`. Name, note and tags are stored in its folder (about.yaml).
    """
    store = default_store()
    if run is None:
        if delete or name is not None or note is not None or untags:
            raise AdvisorError("which run is meant?", "advisor runs RUN --name NAME; RUN may be latest", exit_code=2)
        _list(store, tags)
    elif delete:
        if name is not None or note is not None or tags or untags:
            raise AdvisorError("a run is either deleted or described", "advisor runs RUN --delete", exit_code=2)
        run_dir = store.find_run(run)
        from advisor.workflows.keep_runs import delete_run

        if not yes:
            if not sys.stdin.isatty():
                raise AdvisorError(f"deleting {run_dir} cannot be undone", "say so: --yes", exit_code=2)
            click.confirm(f"delete {run_dir} with its checkpoints? This cannot be undone", abort=True, err=True)
        gone = delete_run(store, run_dir)
        words = f"{run_dir.name} is no longer listed" if gone.folder_left else f"deleted {run_dir}"
        answer("run-deleted", lambda: gone, lambda: [words])
        if gone.folder_left:
            remark(f"its folder stays, because it lies outside the advisor's own: rm -r {run_dir}")
        if gone.recorded:
            remark(f"its recorded scores stay; to remove them too: advisor compare {gone.run_id} --forget")
    else:
        _one(store.find_run(run), name, note, tags, untags)


def _list(store: Store, tags: tuple[str, ...]) -> None:
    wanted = {tag.strip().lower() for tag in tags}
    every = list_runs(store)
    summaries = [summary for summary in every if wanted <= set(summary.tags)]

    def shown() -> Iterator[RenderableType]:
        if not every:
            yield "no runs yet; start one: advisor launch plan.yaml"
        elif not summaries:
            known = sorted({tag for summary in every for tag in summary.tags})
            yield f"no run has {' and '.join(sorted(wanted))}; tags in use: {', '.join(known) or 'none'}"
        else:
            tagged = ("tags",) if any(summary.tags for summary in summaries) else ()
            columns = ("run", *tagged, "started (UTC)", "state", "steps", "training loss", "folder")
            rows = [_row(summary, bool(tagged)) for summary in summaries]
            yield table(columns, rows, right=("steps", "training loss"))

    answer("runs", lambda: {"runs": summaries}, shown)


def _one(run_dir: Path, name: str | None, note: str | None, tags: tuple[str, ...], untags: tuple[str, ...]) -> None:
    from advisor.store.run_folder import read_about
    from advisor.workflows.keep_runs import annotate

    if name is None and note is None and not tags and not untags:
        about = read_about(run_dir)
    else:
        about = annotate(run_dir, name=name, note=note, tags=tags, untags=untags)
    said = [("folder", str(run_dir)), ("name", about.name), ("tags", ", ".join(about.tags)), ("note", about.note)]
    answer(
        "run",
        lambda: {"folder": run_dir, "name": about.name or None, "note": about.note or None, "tags": about.tags},
        lambda: [f"{title}: {words}" for title, words in said if words],
    )


def _row(run: RunSummary, tagged: bool) -> tuple[str, ...]:
    state = (run.outcome or run.state).replace("_", " ")
    steps = f"{format_count(run.step or 0)}/{format_count(run.steps)}" if run.steps else "-"
    loss = format_number(run.loss) if run.loss is not None else "-"
    if run.usd:
        state = f"{state}, {format_usd(run.usd)}"
    problem = f"{state}: {run.problem}" if run.problem else state
    tags = (", ".join(run.tags),) if tagged else ()
    return (run.name, *tags, run.created[:16].replace("T", " "), problem, steps, loss, _short(run.path))


def _short(path: str) -> str:
    """Return a path with the home folder as ~."""
    home = str(Path.home())
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path
