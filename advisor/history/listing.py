"""Lists the runs, one line each, from the index and the end of each log. Unchanged folders are not read again."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from advisor.engines.engines import describe
from advisor.engines.state import goes_on
from advisor.errors import AdvisorError
from advisor.run_records import RunRow
from advisor.store import run_folder
from advisor.store.adopted import PLAN as ADOPTED_PLAN
from advisor.store.disk import write_atomic
from advisor.store.store import Store
from advisor.trainers.known import trainer_of_run

SCHEMA = 3  # raise this number whenever the list shows something else for the same files
RUN_FILES = (run_folder.CONFIG, run_folder.LOG, run_folder.LAUNCH)  # a folder that has one of these files holds a run
# all files from which a line of the list is read; steps.jsonl and budget.json are written by other programs
_FILES = (
    *RUN_FILES,
    run_folder.STDOUT,
    run_folder.SIGHTING,
    run_folder.ABOUT,
    ADOPTED_PLAN,
    run_folder.CHECKPOINTS,
    "steps.jsonl",
    "budget.json",
)
_STATES = {"died": "lost", "out_of_memory": "failed", "diverged": "failed", "never started": "unstarted",
           "cannot be judged": "unknown"}  # fmt: skip
Lines = Mapping[str, Any]  # for each folder: a text that changes with its files, and the line
_PLACES, _CHUNK_BYTES = 16, 2560  # of a log, read for its sketch; its header has 2,000 bytes
DAMAGED, GONE = "damaged", "gone"


def files_state(folder: str) -> str | None:
    """Return a text that changes whenever a file behind the run's line does. Returns None if there
    is no run or folder.

    A replaced file has another inode. So the change shows even if the file system's clock is coarse and both files are
    equally long.
    """
    parts = []
    for name in _FILES:
        try:
            found = os.stat(f"{folder}/{name}")
        except OSError:
            parts.append("")
        else:
            parts.append(f"{found.st_mtime_ns:x}.{found.st_size:x}.{found.st_ino:x}")
    return " ".join(parts) if any(parts[: len(RUN_FILES)]) else None


def read_lines(home: Path) -> Lines:
    """Read the stored lines. Returns nothing if the file is missing or unusable."""
    try:
        document = json.loads(_path(home).read_bytes())
        runs = document["runs"] if document["schema"] == SCHEMA else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return runs if isinstance(runs, dict) else {}


def write_lines(home: Path, lines: Lines) -> None:
    """Store exactly these lines, in full or not at all. Does nothing if the store cannot be written."""
    with contextlib.suppress(AdvisorError):
        write_atomic(_path(home), json.dumps({"schema": SCHEMA, "runs": lines}, separators=(",", ":")))


def _path(home: Path) -> Path:
    return home / "listing" / f"{socket.gethostname()}.json"


def loss_sketch(folder: str) -> tuple[float, ...]:
    """Return training losses along the log of a run, a few however long it is. Empty if there are none.

    They are read again only after the log has changed.
    """
    path = f"{folder}/{run_folder.LOG}"
    try:
        found = os.stat(path)
        return _losses_along(path, found.st_size, found.st_mtime_ns)
    except OSError:
        return ()


@lru_cache(maxsize=20_000)
def _losses_along(path: str, size: int, changed_ns: int) -> tuple[float, ...]:
    del changed_ns  # only part of the cache key
    means = []
    with open(path, "rb") as log:
        for place in range(_PLACES):
            log.seek(place * size // _PLACES)
            losses = [loss for line in log.read(_CHUNK_BYTES).split(b"\n") if (loss := _loss_of(line)) is not None]
            means += [sum(losses) / len(losses)] if losses else []
    return tuple(means)


def _loss_of(line: bytes) -> float | None:
    """Return the training loss of a whole line of a log that records a step."""
    try:
        record = json.loads(line)
        loss = record["loss"] if record["kind"] == "step" else None
    except (ValueError, KeyError, TypeError):
        return None
    return loss if isinstance(loss, float) and math.isfinite(loss) else None


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One line of the list of runs. A field is None if the folder does not contain the value."""

    id: str
    name: str
    path: str
    created: str  # ISO 8601, UTC
    state: str  # a RunState's value, or "damaged", or "gone"
    outcome: str | None = None
    step: int | None = None
    steps: int | None = None
    loss: float | None = None  # training loss: mean of the last 2 % of the steps, at least five
    usd: float | None = None  # sum over all attempts, each at its own price
    device_key: str | None = None
    plan_id: str | None = None
    note: str = ""  # written by the run's owner, like the name if there is one
    tags: tuple[str, ...] = ()
    problem: str | None = None  # what is wrong with the folder


def state_words(state: str, outcome: str | None = None) -> tuple[str, str]:
    """Return a run's state or, if it has ended, its outcome, as one word; and why it failed, or else ""."""
    name = outcome or state
    return (word := _STATES.get(name, name)), name.replace("_", " ") if word == "failed" != name else ""


def list_runs(store: Store) -> list[RunSummary]:
    """Summarise every run, newest first.

    The line of a finished run is stored, and used while the files of its folder stay the same. Active runs and damaged
    or missing folders are read each time. A run whose folder was moved within the store is listed at its new place.
    """
    kept, lines, summaries, changed = read_lines(store.home), {}, [], False
    rows = store.registered_runs()
    places: list[tuple[str, RunRow | None]] = [(row.path, row) for row in rows]
    places += [(str(folder.resolve()), None) for folder in store.copied_in(rows)]
    for path, row in places:
        files = files_state(path)  # before the folder is read, so that a change in between is noticed next time
        known_as = "" if row is None else f" {row.id} {row.name} {row.created} {row.plan_id} {row.device_key}"
        stamp, line = f"{files}{known_as}", kept.get(path, ("", {}))
        summary: RunSummary | None = None
        # None if there is no stored line with this stamp, or another version wrote it
        with contextlib.suppress(TypeError, ValueError, AttributeError):
            known_by, fields = line
            if known_by == stamp and files is not None:
                summary = RunSummary(**fields | {"tags": tuple(fields.get("tags", ()))})
        if summary is None:
            try:
                summary = summarize(row or run_folder.run_row(Path(path)), store)
            except AdvisorError as error:  # a damaged launch record does not hide the other runs
                if row is not None:
                    raise
                name = Path(path).name
                summary = RunSummary(id=name, name=name, path=path, created="", state=DAMAGED, problem=error.message)
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
    """Summarise a run from its index line and the end of its log. An error is shown as the run's state."""
    base = RunSummary(**vars(row), state=GONE)
    folder = Path(row.path)
    if not run_folder.is_run_folder(folder):
        return replace(base, problem="its folder is gone")
    try:
        about = run_folder.read_about(folder)
        base = replace(base, name=about.name or row.name, note=about.note, tags=about.tags)
        status, launch, trainer = describe(folder, store), run_folder.read_launch(folder), trainer_of_run(folder)
        price = launch.usd_per_hour if launch is not None else None
        steps, booked = trainer.planned_steps(folder), trainer.booked(folder)
    except AdvisorError as error:
        return replace(base, state=DAMAGED, problem=error.message)
    unknown = not booked.attempts or (price is None and any(each.usd_per_hour is None for each in booked.attempts))
    usd = None if unknown else booked.usd(price or 0.0)
    return replace(base, state=status.state.value, outcome=status.outcome.value if status.outcome else None,
                   step=status.step, loss=status.loss, steps=steps, usd=usd)  # fmt: skip
