"""`advisor runs`: the runs on this machine, and what their owner says of them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from advisor.errors import AdvisorError
from advisor.history.listing import RunSummary, list_runs
from advisor.report.render import print_json, remark, show, table
from advisor.store.store import Store, default_store
from advisor.units import format_count, format_number, format_usd


@click.command("runs")
@click.argument("run", required=False)
@click.option("--name", help="Call RUN this from now on; its folder keeps its name. '' takes it back.")
@click.option("--note", help="Write this down of RUN, in place of what was. '' removes it.")
@click.option(
    "--tag", "tags", multiple=True, help="Tag RUN with this (repeat for several). Without RUN: list those only."
)
@click.option("--untag", "untags", multiple=True, metavar="TAG", help="Take this tag from RUN.")
@click.option("--delete", is_flag=True, help="Delete RUN with its checkpoints; what it taught stays known.")
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    run: str | None,
    name: str | None,
    note: str | None,
    tags: tuple[str, ...],
    untags: tuple[str, ...],
    delete: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """List the runs started here, newest first, with what became of them; or name, describe, tag or delete RUN.

    RUN is a folder, a name or the beginning of it, or `latest`. Name, note and tags lie in its folder (about.yaml).
    """
    store = default_store()
    if run is None:
        if delete or name is not None or note is not None or untags:
            raise AdvisorError("which run is meant?", "advisor runs RUN --name NAME; RUN may be latest", exit_code=2)
        _list(store, tags, as_json)
    elif delete:
        if name is not None or note is not None or tags or untags:
            raise AdvisorError("a run is either deleted or described", "advisor runs RUN --delete", exit_code=2)
        _delete(store, store.find_run(run), yes, as_json)
    else:
        _one(store.find_run(run), name, note, tags, untags, as_json)


def _list(store: Store, tags: tuple[str, ...], as_json: bool) -> None:
    wanted = {tag.strip().lower() for tag in tags}
    every = list_runs(store)
    summaries = [summary for summary in every if wanted <= set(summary.tags)]
    if as_json:
        print_json({"runs": summaries})
    elif not every:
        show("no runs yet; start one: advisor launch plan.yaml")
    elif not summaries:
        known = sorted({tag for summary in every for tag in summary.tags})
        show(f"no run has {' and '.join(sorted(wanted))}; tags in use: {', '.join(known) or 'none'}")
    else:
        tagged = any(summary.tags for summary in summaries)
        columns = ("run", *(("tags",) if tagged else ()), "started (UTC)", "state", "steps", "training loss", "folder")
        show(table(columns, [_row(summary, tagged) for summary in summaries], right=("steps", "training loss")))


def _one(
    run_dir: Path, name: str | None, note: str | None, tags: tuple[str, ...], untags: tuple[str, ...], as_json: bool
) -> None:
    from advisor.store.about import read_about
    from advisor.workflows.keep_runs import annotate

    if name is None and note is None and not tags and not untags:
        about = read_about(run_dir)
    else:
        about = annotate(run_dir, name=name, note=note, tags=tags, untags=untags)
    if as_json:
        print_json({"folder": run_dir, "name": about.name or None, "note": about.note or None, "tags": about.tags})
        return
    said = [("folder", str(run_dir)), ("name", about.name), ("tags", ", ".join(about.tags)), ("note", about.note)]
    show(*(f"{what}: {words}" for what, words in said if words))


def _delete(store: Store, run_dir: Path, yes: bool, as_json: bool) -> None:
    from advisor.workflows.keep_runs import delete_run

    if not yes:
        if not sys.stdin.isatty():
            raise AdvisorError(f"deleting {run_dir} cannot be undone", "say so: --yes", exit_code=2)
        click.confirm(f"delete {run_dir} with its checkpoints? This cannot be undone", abort=True, err=True)
    gone = delete_run(store, run_dir)
    if as_json:
        print_json(gone)
        return
    show(f"{run_dir.name} is no longer listed" if gone.folder_left else f"deleted {run_dir}")
    if gone.folder_left:
        remark(f"its folder stays, for it lies outside the advisor's own: rm -r {run_dir}")
    if gone.recorded:
        remark(f"what it taught stays known; to forget that too: advisor compare {gone.run_id} --forget")


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
    """A path with the home folder as ~."""
    home = str(Path.home())
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path
