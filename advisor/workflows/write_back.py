"""Writes a run's predictions, scores or current numbers to the same run in the user's tracker.

The tracker is recognised by its files. Its library does the writing, in the Python that trained or that the user names.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.history.scoring import ScoredRun
from advisor.readers import mlflow_files, wandb_file
from advisor.workflows.live import Seen, metrics

LIVE_SECONDS = 10.0  # between two writes of an active run
_SECONDS = 300.0  # importing a tracker can take long
_SCRIPT = Path(__file__).with_name("tracker_script.py")
_FORMATS = "a W&B offline run's folder, an MLflow run's folder or mlflow.db, or trackio's PROJECT.db"

Parameters = dict[str, float | str]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A run of a tracker on this machine."""

    library: str  # wandb | mlflow | trackio
    run: str  # its id or name, as the library expects it
    request: Mapping[str, str | None] = field(default_factory=dict)  # other values that the library needs
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Written:
    """Parameters that a tracker accepted."""

    library: str
    run: str
    place: str
    parameters: int


class TrackerWriter:
    """A process of the user's Python in which the tracker's library writes to one run until it is closed.

    Raises AdvisorError if there is no such run, or if the library is missing or refuses.
    """

    def __init__(self, path: Path, run: str | None, python: str, parameters: Parameters):
        self.target, self._python = target_of(path.expanduser().resolve(), run), python
        self._empty = tempfile.TemporaryDirectory()  # an empty folder, so that no local file hides an import
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
        try:
            self._process = subprocess.Popen(
                [python, "-c", _SCRIPT.read_text(encoding="utf-8")],
                env={**os.environ, "WANDB_SILENT": "true", **self.target.environment},
                cwd=self._empty.name,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
                start_new_session=True,  # Ctrl-C ends only the view; then the closed input ends this process
            )
        except OSError as error:
            raise AdvisorError(f"cannot start {python}: {error.strerror}", "--tracker-python PATH") from error
        library, named = self.target.library, self.target.request
        self.write({"library": library, "run": self.target.run, "parameters": parameters, **named})

    def write(self, line: Mapping[str, Any]) -> None:
        """Send one more object to the library."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.close()

    def close(self) -> str:
        """Wait until everything is written; returns where it went."""
        try:
            out, _ = self._process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            raise AdvisorError(
                f"{self.target.library} has not written within {_SECONDS:.0f} s",
                "is its folder on a slow disk? try again",
            ) from error
        self._said.seek(0)
        if self._process.returncode:
            raise _refused(self.target.library, self._python, self._said.read())
        self._empty.cleanup()
        return out.strip().splitlines()[-1]


def write_back(scored: ScoredRun, path: Path, run: str | None, python: str) -> Written:
    """Write a run's prediction, its interval and score to the tracker's run at `path`, with the Python at `python`.

    Raises AdvisorError if there is no such run, or if the library is missing or refuses.
    """
    if all(score.predicted is None for score in scored.scores):
        raise AdvisorError(f"nothing was predicted of {scored.run_id}", "give its plan: --plan plan.yaml", exit_code=2)
    parameters = parameters_of(scored)
    writer = TrackerWriter(path, run, python, parameters)
    target, place = writer.target, writer.close()
    return Written(library=target.library, run=target.run, place=place, parameters=len(parameters))


class LiveTracker:
    """Writes the numbers of an active run to the user's tracker, at most every few seconds."""

    def __init__(self, path: Path, run: str | None, python: str, seconds: float = LIVE_SECONDS):
        self._writer, self._seconds = TrackerWriter(path, run, python, {}), seconds
        self._written, self._last = -math.inf, -1  # time and step of the last write
        self._unsent: dict[str, Any] | None = None

    def take(self, seen: Seen) -> None:
        """Write the numbers of a new step, unless the last write was only a moment ago."""
        # The numbers of a run for a tracker; each name begins with "advisor/".
        found = {
            f"advisor/{metric.name}" + ("" if bound == "value" else f"_{bound}"): value
            for metric in metrics(seen)
            for bound, value in metric.bounds.items()
        }
        moment: dict[str, Any] = {"step": int(seen.step or 0), "metrics": found}
        if moment["step"] <= self._last:
            return
        self._unsent = moment
        if time.monotonic() - self._written >= self._seconds:
            self._send()

    def close(self) -> str:
        """Write what was not written yet and end; returns where it went."""
        self._send()
        place = self._writer.close()
        return f"written to {self._writer.target.library}'s run {self._writer.target.run}: {place}"

    def _send(self) -> None:
        if self._unsent is not None:
            self._written, self._last = time.monotonic(), self._unsent["step"]
            self._writer.write(self._unsent)
            self._unsent = None


def _refused(library: str, python: str, said: str) -> AdvisorError:
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
    if last.startswith("ModuleNotFoundError") and f"'{library}'" in last:
        hint = "--tracker-python PATH of the environment that wrote the tracker's run"
        return AdvisorError(f"{python} does not have {library}", hint)
    hint = "--tracker-python PATH of the environment that wrote the run has the version that reads it"
    return AdvisorError(f"{library} did not take the parameters: {last[:300]}", hint)


def parameters_of(scored: ScoredRun) -> Parameters:
    """Returns names and values of the predictions and the results."""
    found: Parameters = {"advisor.run": scored.run_id, "advisor.device": scored.device_key}
    for score in scored.scores:
        if score.predicted is None:
            continue
        name = f"advisor.{score.quantity}"
        promised = score.predicted
        found |= {f"{name}.predicted": promised.value, f"{name}.low": promised.low, f"{name}.high": promised.high}
        if score.actual is not None:
            found |= {f"{name}.actual": score.actual, f"{name}.inside": "yes" if score.inside_interval else "no"}
        if score.error is not None:
            found[f"{name}.error"] = score.error
    return found


def target_of(path: Path, run: str | None) -> Target:
    """Returns the tracker's run at a path. Raises AdvisorError if there is none, or several and none is named."""
    if not path.exists():
        raise AdvisorError(f"there is no {path}", f"give {_FORMATS}", exit_code=2)
    if path.is_dir() and mlflow_files.is_run_folder(path):
        store = path.parent.parent.as_uri()
        return Target(library="mlflow", run=path.name, request={"store": store},
                      environment={"MLFLOW_ALLOW_FILE_STORE": "true"})  # fmt: skip
    files = sorted(path.glob("run-*.wandb")) if path.is_dir() else [path] if path.suffix == ".wandb" else []
    if files:
        file = files[0]
        known = wandb_file.identity(file)
        if known is None:
            raise AdvisorError(f"{file} does not say which run it is of", "it is damaged, or was just begun")
        folder = file.parent.parent.parent  # DIR/wandb/offline-run-DATE-ID/run-ID.wandb
        request = {"project": known.project, "entity": known.entity, "folder": str(folder)}
        return Target(library="wandb", run=known.run, request=request)
    if path.suffix == ".db":
        return _of_database(path, run)
    raise AdvisorError(f"{path} is no run of a tracker that is known", f"give {_FORMATS}", exit_code=2)


def _of_database(path: Path, run: str | None) -> Target:
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("select name from sqlite_master where type='table'")}
            if {"runs", "params"} <= tables:
                rows = database.execute("select run_uuid, name from runs where lifecycle_stage = 'active'").fetchall()
                chosen = _chosen(path, [(str(uuid), str(name)) for uuid, name in rows], run)
                return Target(library="mlflow", run=chosen, request={"store": f"sqlite:///{path}"})
            if {"configs", "metrics"} <= tables:
                rows = database.execute("select distinct run_name from metrics").fetchall()
                chosen = _chosen(path, [(str(name), str(name)) for (name,) in rows], run)
                return Target(library="trackio", run=chosen, request={"project": path.stem, "folder": str(path.parent)},
                              environment={"TRACKIO_DIR": str(path.parent)})  # fmt: skip
    except sqlite3.Error as error:
        raise AdvisorError(
            f"{path} cannot be read as SQLite: {error}", "give the tracker's own file, whole and not a copy in writing"
        ) from error
    raise AdvisorError(f"{path} is an SQLite database of neither MLflow nor trackio", f"give {_FORMATS}", exit_code=2)


def _chosen(path: Path, runs: Sequence[tuple[str, str]], asked: str | None) -> str:
    """Returns the id of the run that is asked for, from pairs of id and name."""
    meant = [run for run in runs if asked is None or asked in run]
    if len(meant) == 1:
        return meant[0][0]
    names = ", ".join(f"{name} ({uuid})" if name != uuid else name for uuid, name in (meant or runs)[:8])
    what = f"no run {asked!r}" if not meant else f"{len(meant)} runs" + (f" called {asked!r}" if asked else "")
    raise AdvisorError(f"{path} has {what}", f"--tracker-run ID; there is: {names}" if names else "", exit_code=2)
