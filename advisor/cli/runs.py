"""`advisor runs`: the runs on this machine, with names, notes and tags; their accuracy; runs of other machines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import RenderableType

from advisor import api
from advisor.cli.verb import EXISTING, FILE, answer, options, print_answer, verb
from advisor.errors import AdvisorError
from advisor.history.listing import RunSummary, list_runs, state_words
from advisor.report.render import remark, table
from advisor.report.table import on_console
from advisor.store.store import Store, default_store
from advisor.units import HOUR, format_count, format_loss, format_number, format_percent, format_seconds, format_usd


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
            raise AdvisorError("no run is given", "advisor runs RUN --name NAME; RUN may be latest", exit_code=2)
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
    listed = api.runs(tags=tags)
    summaries: list[RunSummary] = listed.record

    def shown() -> Iterator[RenderableType]:
        if summaries:
            tagged = ("tags",) if any(summary.tags for summary in summaries) else ()
            columns = ("run", *tagged, "started (UTC)", "state", "steps", "loss", "spent", "folder")
            rows = [_row(summary, bool(tagged)) for summary in summaries]
            yield table(columns, rows, right=("steps", "loss", "spent"))
        elif every := list_runs(store):
            known = sorted({tag for summary in every for tag in summary.tags})
            wanted = sorted({tag.strip().lower() for tag in tags})
            yield f"no run has {' and '.join(wanted)}; tags in use: {', '.join(known) or 'none'}"
        else:
            yield "no runs yet; start one: advisor launch plan.yaml"

    print_answer(listed, shown)


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
    state, why = state_words(run.state, run.outcome)
    steps = f"{format_count(run.step or 0)}/{format_count(run.steps)}" if run.steps else "-"
    loss = format_loss(run.loss) if run.loss is not None else "-"
    problem = f"{state}: {told}" if (told := run.problem or why) else state
    tags, home = (", ".join(run.tags),) if tagged else (), str(Path.home())
    folder = f"~{run.path[len(home) :]}" if run.path.startswith(f"{home}/") else run.path
    spent = "-" if run.usd is None else format_usd(run.usd)
    return (run.name, *tags, run.created[:16].replace("T", " "), problem, steps, loss, spent, folder)


@verb("accuracy")
@click.option("--gpu", "device", help="Show only the GPU with this key, or cpu.")
def accuracy_command(device: str | None) -> None:
    """Show the error of each predicted quantity so far, and how often its 80 % interval contained the outcome."""
    from advisor.history.ledger_rows import accuracy
    from advisor.report.comparison import left_out, track_record

    scores = default_store().scores(device)
    accuracies, aside = accuracy(scores), left_out(scores)
    where = f" on {device}" if device else ""
    none = [f"no run was compared with its prediction{where} yet", "next: advisor compare latest"]
    shown = [on_console(track_record(accuracies))] if accuracies else [] if aside else none
    answer("accuracy", lambda: {"device": device, "quantities": accuracies}, lambda: [*shown, *aside])


@verb("import")
@click.argument("run", metavar="RUN_FOLDER", type=EXISTING)
@options("plan", plan="The plan.yaml of the run. Default: the one in the run's folder, or next to it as in an export.")
@click.option("--checkpoints", is_flag=True, help="Copy the checkpoints as well, so that the run can be resumed here.")
def import_command(run: Path, plan: Path | None, checkpoints: bool) -> None:
    """Copy the run of RUN_FOLDER to the runs of this machine, compare it with its plan and learn from it.

    RUN_FOLDER is the folder of a run of our trainer from any machine, or the export from which the run was started. It
    may also be a file of `sacct --json`: a cluster's jobs with GPUs are then written to the shared ledger.
    The copy is listed, watched and compared like any run; the original is not changed.
    """
    from advisor.report import terminal
    from advisor.report.comparison import recorded
    from advisor.workflows.bring_in import bring_in
    from advisor.workflows.team import import_jobs

    if (pushed := import_jobs(run, default_store())) is not None:
        words = f"{format_count(pushed.records)} jobs read, {format_count(pushed.new)} new in the shared ledger"
        answer("runs-push", lambda: pushed, lambda: [words, "next: advisor runs --pull, advisor runs --spend"])
        return
    from advisor.workflows.compare import to_document

    reviewed = bring_in(default_store(), run, plan=plan, checkpoints=checkpoints)
    next_step = "next: advisor runs --accuracy" if reviewed.recorded else "next: advisor runs"
    score = terminal.scored_run(reviewed.name, reviewed.scored)
    answer(
        "compare",
        lambda: to_document(reviewed),
        lambda: [*score, "", *filter(None, [recorded(reviewed)]), f"run folder: {reviewed.path}", next_step],
    )


@verb("push")
def push_command() -> None:
    """Write this machine's finished runs, scores and calibrations to the ledger that ADVISOR_LEDGER names.

    ADVISOR_LEDGER is a folder that machines share, or an address such as s3://bucket/ledger or postgresql://host/name.
    Records never change and are written once. They have no host, user or path. A run belongs to the team of its tag
    `team:NAME`, or else to ADVISOR_TEAM. In Postgres, dollars that ended runs had reserved are settled.
    """
    from advisor.workflows.team import push

    pushed = push(default_store())
    words = f"{format_count(pushed.records)} records, {format_count(pushed.new)} of them new"
    answer("runs-push", lambda: pushed, lambda: [words])


@verb("pull")
def pull_command() -> None:
    """Copy what others wrote to the ledger that ADVISOR_LEDGER names.

    Their GPU calibrations can then be planned with, and the errors of their runs count for `advisor runs --accuracy`.
    """
    from advisor.workflows.team import pull

    pulled = pull(default_store())
    words = [f"{format_count(pulled.new)} new records: {format_count(pulled.calibrations)} calibrations to plan with, "
             f"scores of {format_count(pulled.scored_runs)} runs"]  # fmt: skip
    words += [f"not a record, and left out: {name}" for name in pulled.damaged]
    answer("runs-pull", lambda: pulled, lambda: words)


@verb("compact")
@click.argument("month", required=False, metavar="[YYYY-MM]")
def compact_command(month: str | None) -> None:
    """Write all records of MONTH in the shared ledger into one Parquet file; without MONTH, of every past month.

    It is read together with records that come later. A folder with fewer files is listed and copied faster.
    """
    from advisor.workflows.team import compact

    done = compact(default_store(), month)
    words = [f"{one}: {format_count(count)} records are in one file" for one, count in done.items()]
    answer("runs-compact", lambda: {"months": done}, lambda: words or ["every past month is in one file already"])


@verb("budget")
@click.argument("team", required=False)
@click.argument("dollars", required=False, type=click.FloatRange(min=0))
@click.option("--period", metavar="YYYY-MM|YYYY|always", help="When the dollars may be spent. Default: this month.")
def budget_command(team: str | None, dollars: float | None, period: str | None) -> None:
    """Show what teams may spend and what is left, or give TEAM its DOLLARS of a period. `everybody` limits all teams.

    ADVISOR_LEDGER has to be a Postgres database. A run with a price then reserves what it may cost before it starts,
    for the team of ADVISOR_TEAM or of its fleet; it is refused if a budget has less left. When it is over, what it cost
    is counted instead. A run counts in the month of its first start.
    """
    from advisor.workflows.budget import team_budgets

    if team is not None and dollars is None:
        raise AdvisorError(f"how many dollars may {team} spend?", f"advisor runs --budget {team} 5000", exit_code=2)
    budgets = team_budgets(team, dollars or 0.0, period)
    columns = ("team", "period", "budget", "spent", "reserved", "left")
    rows = [(one.team or "everybody", one.period, *map(format_usd, (one.usd, one.settled_usd, one.reserved_usd)),
             format_usd(max(0.0, one.left_usd))) for one in budgets]  # fmt: skip
    none = "no team has a budget; next: advisor runs --budget TEAM DOLLARS"
    answer(
        "runs-budget", lambda: {"budgets": budgets}, lambda: [table(columns, rows, right=columns[2:]) if rows else none]
    )


@verb("like")
@click.argument("plan", metavar="PLAN.yaml", type=FILE)
def like_command(plan: Path) -> None:
    """Show the team's runs that are nearest to PLAN.yaml, as far as `advisor runs --pull` has copied them.

    The nearest has the same model, then the same GPU, then the nearest number of GPUs and batch.
    """
    from advisor.store.plan_files import load_plan
    from advisor.workflows.team import earlier_runs, earlier_sentence

    found = earlier_runs(default_store(), load_plan(plan))
    yes = bool(found) and not found[0].differs
    none = "no: the copy of the ledger has no run of such a model; to copy again: advisor runs --pull"
    words = [f"- {earlier_sentence(one)}" for one in found]
    answer("runs-like", lambda: {"trained_before": yes, "runs": found},
           lambda: ["yes:" if yes else "no, but nearly:", *words] if found else [none])  # fmt: skip


@verb("spend")
@click.option("--by", type=click.Choice(("team", "model", "gpu", "month")), default="team", show_default=True,
              help="What to add up by.")  # fmt: skip
def spend_command(by: str) -> None:
    """Add up what the runs in the shared ledger used, as far as `advisor runs --pull` has copied them.

    With plan against actual: the cost, the median error of predicted step times, and how many of these were inside the
    predicted 80 % interval.
    """
    from advisor.workflows.team import spending

    found = spending(default_store(), by)

    def shown() -> Iterator[RenderableType]:
        if not found:
            yield "no runs in the copy of the ledger; next: advisor runs --push, advisor runs --pull"
            return
        columns = (by, "runs", "GPU-hours", "cost", "planned", "actual / planned", "step time's error", "within 80 %",
                   "median wait")  # fmt: skip
        rows = [
            (one.group, format_count(one.runs), format_number(one.gpu_hours), format_usd(one.usd) if one.usd else "-",
             format_usd(one.planned_usd) if one.planned_usd else "-",
             f"{one.planned_runs_usd / one.planned_usd:.2f}" if one.planned_usd and one.planned_runs_usd else "-",
             format_percent(one.step_error) if one.step_error is not None else "-",
             f"{format_percent(one.step_inside)} of {one.scored_runs}" if one.step_inside is not None else "-",
             format_seconds(one.queue_hours * HOUR) if one.queue_hours is not None else "-")
            for one in found
        ]  # fmt: skip
        yield table(columns, rows, right=columns[1:])

    answer("runs-spend", lambda: {"by": by, "groups": found}, shown)
