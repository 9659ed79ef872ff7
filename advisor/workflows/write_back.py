"""Writes a run's prediction, interval, cost and score to the same run in the user's tracker: W&B, MLflow or trackio.

The tracker is recognised by its files. Its library does the writing, in the Python that trained or that the user names.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.history.scoring import ScoredRun
from advisor.readers import mlflow_files, wandb_file

_SECONDS = 300.0  # importing a tracker can take long
_SCRIPT = Path(__file__).with_name("tracker_script.py")

Target = dict[str, str | None]  # a run of a tracker on this machine: `library`, `run` and what else the library needs


@dataclass(frozen=True, kw_only=True)
class WrittenParameters:
    """Parameters that a tracker accepted."""

    library: str
    run: str
    place: str
    parameters: int


def write_back(scored: ScoredRun, path: Path, run: str | None, python: str) -> WrittenParameters:
    """Write what was predicted of a run, and its score, to the tracker's run at `path`, with the Python at `python`.

    Raises AdvisorError if there is no such run, or if the library is missing or refuses.
    """
    target = target_of(path.expanduser().resolve(), run)
    parameters: dict[str, float | str] = {"advisor.run": scored.run_id, "advisor.device": scored.device_key}
    for score in scored.scores:
        if (promised := score.predicted) is not None:
            inside = None if score.actual is None else "yes" if score.inside_interval else "no"
            values = {"predicted": promised.value, "low": promised.low, "high": promised.high,
                      "actual": score.actual, "inside": inside, "error": score.error}  # fmt: skip
            parameters |= {f"advisor.{score.quantity}.{key}": one for key, one in values.items() if one is not None}
    if len(parameters) == 2:
        raise AdvisorError(f"nothing was predicted for {scored.run_id}", "give its plan: --plan plan.yaml", exit_code=2)
    library, words = str(target["library"]), [python, "-c", _SCRIPT.read_text(encoding="utf-8")]
    environment = {**os.environ, "WANDB_SILENT": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    environment |= {"TRACKIO_DIR": str(target["folder"])} if library == "trackio" else {}
    hint, asked = "--tracker-python PATH of the tracker's environment", json.dumps({**target, "parameters": parameters})
    with tempfile.TemporaryDirectory() as empty:  # an empty folder, so that no local file hides an import
        try:
            done = subprocess.run(words, input=asked, env=environment, cwd=empty, capture_output=True, text=True,
                                  timeout=_SECONDS)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AdvisorError(f"{python} did not write to {library}: {error}", hint) from error
    if done.returncode:
        said = ["it said nothing", *filter(None, map(str.strip, done.stderr.splitlines()))][-1]
        missing = said.startswith("ModuleNotFoundError") and f"'{library}'" in said
        message = f"{python} does not have {library}" if missing else f"{library} did not take them: {said[:300]}"
        raise AdvisorError(message, hint)
    place = done.stdout.strip().splitlines()[-1]
    return WrittenParameters(library=library, run=str(target["run"]), place=place, parameters=len(parameters))


def target_of(path: Path, run: str | None) -> Target:
    """Returns the tracker's run at a path. Raises AdvisorError unless there is one run or one is named."""
    if path.is_dir() and mlflow_files.is_run_folder(path):
        return {"library": "mlflow", "run": path.name, "store": path.parent.parent.as_uri()}
    for file in sorted(path.glob("run-*.wandb")) if path.is_dir() else [path] if path.suffix == ".wandb" else []:
        if known := wandb_file.identity(file):
            folder = str(file.parent.parent.parent)  # DIR/wandb/offline-run-DATE-ID/run-ID.wandb
            return {"library": "wandb", "folder": folder, **vars(known)}
    if path.suffix == ".db" and path.exists() and (found := _of_database(path, run)):
        return found
    hint = "give a W&B offline run's folder, an MLflow run's folder or mlflow.db, or trackio's PROJECT.db"
    raise AdvisorError(f"{path} is not a run of a known tracker", hint, exit_code=2)


def _of_database(path: Path, run: str | None) -> Target | None:
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("select name from sqlite_master where type='table'")}
            if {"runs", "params"} <= tables:
                rows = database.execute("select run_uuid, name from runs where lifecycle_stage = 'active'").fetchall()
                return {"library": "mlflow", "run": _chosen(path, rows, run), "store": f"sqlite:///{path}"}
            if {"configs", "metrics"} <= tables:
                rows = database.execute("select distinct run_name, run_name from metrics").fetchall()
                named = {"run": _chosen(path, rows, run), "project": path.stem, "folder": str(path.parent)}
                return {"library": "trackio", **named}
    except sqlite3.Error as error:
        raise AdvisorError(f"{path} cannot be read as SQLite: {error}", "pass the tracker's complete file") from error
    return None


def _chosen(path: Path, runs: list[tuple[str, str]], asked: str | None) -> str:
    """Returns the id of the run that is asked for, from pairs of id and name."""
    meant = [run for run in runs if asked is None or asked in run]
    if len(meant) == 1:
        return str(meant[0][0])
    names = ", ".join(f"{name} ({key})" if name != key else name for key, name in (meant or runs)[:8])
    found = f"no run {asked!r}" if not meant else f"{len(meant)} runs" + (f" called {asked!r}" if asked else "")
    raise AdvisorError(f"{path} has {found}", f"--tracker-run ID; there is: {names}" if names else "", exit_code=2)
