"""Lists the runs: one line each, from the index and the end of the log; read again only where the folder changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from advisor.engines.engines import describe
from advisor.engines.state import goes_on
from advisor.errors import AdvisorError
from advisor.run_records import RunRow
from advisor.store.about import read_about
from advisor.store.listing import files_state, read_lines, write_lines
from advisor.store.run_folder import is_run_folder, read_launch, run_row
from advisor.store.store import Store
from advisor.trainers.known import trainer_of_run

DAMAGED, GONE = "damaged", "gone"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One line of the list of runs. None: the folder does not say."""

    id: str
    name: str
    path: str
    created: str  # ISO 8601, UTC
    state: str  # a RunState's value, or "damaged", or "gone"
    outcome: str | None = None
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    usd: float | None = None  # of all attempts, each at its own price
    device_key: str | None = None
    plan_id: str | None = None
    note: str = ""  # its owner's, as the name where they gave one
    tags: tuple[str, ...] = ()
    problem: str | None = None  # what is wrong with the folder, in words


def list_runs(store: Store) -> list[RunSummary]:
    """Sum up every run, newest first.

    The line of a run that is over is kept in the store, and holds as long as the files of its folder stay the same. A
    run that goes on, a folder that is damaged and one that is gone are looked at each time. A run whose folder was
    moved within the store is listed where it is now.
    """
    kept, lines, summaries, changed = read_lines(store.home), {}, [], False
    rows = store.registered_runs()
    places: list[tuple[str, RunRow | None]] = [(row.path, row) for row in rows]
    places += [(str(folder.resolve()), None) for folder in store.copied_in(rows)]
    for path, row in places:
        files = files_state(path)  # before the folder is read: what changes meanwhile is seen next time
        known_as = "" if row is None else f" {row.id} {row.name} {row.created} {row.plan_id} {row.device_key}"
        stamp, line = f"{files}{known_as}", kept.get(path)
        summary = None if files is None else _from_line(line, stamp)
        if summary is None:
            summary = summarize(row, store) if row is not None else _summarize_copied(Path(path), store)
            line, changed = (stamp, {name: value for name, value in vars(summary).items() if value is not None}), True
        if not (goes_on(summary.state) or summary.state in (DAMAGED, GONE)):
            lines[path] = line
        summaries.append(summary)
    if lines.keys() != kept.keys() or (changed and lines != kept):
        write_lines(store.home, lines)
    there = {summary.id for summary in summaries if summary.state != GONE}
    summaries = [summary for summary in summaries if summary.state != GONE or summary.id not in there]
    return sorted(summaries, key=lambda run: (run.created, run.id), reverse=True)


def summarize(row: RunRow, store: Store) -> RunSummary:
    """Sum up a run from its index line and the end of its log; what is wrong with it becomes its state."""
    base = RunSummary(**vars(row), state=GONE)
    folder = Path(row.path)
    if not is_run_folder(folder):
        return replace(base, problem="its folder is gone")
    try:
        about = read_about(folder)
        base = replace(base, name=about.name or row.name, note=about.note, tags=about.tags)
        status, launch, trainer = describe(folder, store), read_launch(folder), trainer_of_run(folder)
        price = launch.usd_per_hour if launch is not None else None
        steps, usd = trainer.planned_steps(folder), trainer.booked_usd(folder, price)
    except AdvisorError as error:
        return replace(base, state=DAMAGED, problem=error.message)
    return replace(base, state=status.state.value, outcome=status.outcome.value if status.outcome else None,
                   step=status.step, loss=status.loss, steps=steps, usd=usd)  # fmt: skip


def _summarize_copied(folder: Path, store: Store) -> RunSummary:
    """The same of a folder that is in no index; where its own launch record is damaged, the others are still listed."""
    try:
        return summarize(run_row(folder), store)
    except AdvisorError as error:
        return RunSummary(id=folder.name, name=folder.name, path=str(folder), created="", state=DAMAGED,
                          problem=error.message)  # fmt: skip


def _from_line(line: Any, stamp: str) -> RunSummary | None:
    """The summary that was kept with this stamp; None where there is none, or it is none of this version's."""
    try:
        known_by, fields = line
        return RunSummary(**fields | {"tags": tuple(fields.get("tags", ()))}) if known_by == stamp else None
    except (TypeError, ValueError, AttributeError):
        return None
