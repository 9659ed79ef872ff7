"""Which run of a tracker is meant, what it is told, and what is refused; the real libraries: tests/engines."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from advisor.store.store import default_store
from tests.advisor.history.script import Script
from tests.advisor.plans import small_plan
from tests.advisor.readers.test_wandb_file import log_file, message
from tests.terminal import advisor

# by the plan 0.5 s a step, in fact 0.55 s
WANTED = {"advisor.step_seconds.predicted": 0.5, "advisor.step_seconds.actual": 0.55,
          "advisor.step_seconds.error": pytest.approx(0.1), "advisor.step_seconds.inside": "yes",
          "advisor.cost_usd.predicted": 0.01}  # fmt: skip


def finished_run(folder: Path, *, planned: bool = True) -> Path:
    run, plan = folder / "mine", small_plan(steps=20, step_seconds=0.5)
    run.mkdir()
    if planned:
        default_store().save_plan(plan, run / "plan.yaml")
    Script(run / "log.jsonl", plan).start(3.0).steps(1, 20, 0.55).end()
    return run


def asked(folder: Path, path: Path, *words: str) -> dict[str, object]:
    """What the Python with the tracker's library is asked to write; here a program that only keeps it."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\ncat > "{folder}/asked.json"\necho somewhere\n')
    python.chmod(0o755)
    run = folder / "mine" if (folder / "mine").exists() else finished_run(folder)
    given = ("compare", run, "--write-to", path, "--tracker-python", python, "--no-record", *words, "--json")
    document = json.loads(advisor(*given, expect=0).stdout)
    found = json.loads((folder / "asked.json").read_text())
    named = {name: found[name] for name in ("library", "run")}
    assert document["written"] == {**named, "place": "somewhere", "parameters": len(found["parameters"])}
    return found


def database(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as opened, opened:
        for statement in statements:
            opened.execute(statement)
    return path


def mlflow_folder(folder: Path) -> Path:
    run = folder / "mlruns" / "0" / "r1"
    (run / "metrics").mkdir(parents=True)
    (run / "meta.yaml").write_text("status: 3\n")
    return run


def test_prediction_interval_cost_and_score_go_to_the_run(tmp_path):
    found = asked(tmp_path, mlflow_folder(tmp_path))
    assert (found["library"], found["run"], found["store"]) == ("mlflow", "r1", (tmp_path / "mlruns").as_uri())
    told = found["parameters"]
    assert told["advisor.run"].startswith("mine")
    assert {name: told[name] for name in WANTED} == WANTED
    for quantity in ("step_seconds", "cost_usd"):
        low, value, high = (told[f"advisor.{quantity}.{name}"] for name in ("low", "predicted", "high"))
        assert low <= value <= high
    assert "advisor.mfu.predicted" not in told  # nothing was predicted for it


def test_a_run_is_found_by_id_or_name_and_never_guessed(tmp_path):
    rows = "('id1', 'mine', 'active'), ('id2', 'twin', 'active'), ('id3', 'twin', 'active'), ('id4', 'gone', 'deleted')"
    path = database(tmp_path / "mlflow.db", "create table runs (run_uuid, name, lifecycle_stage)",
                    "create table params (key)", f"insert into runs values {rows}")  # fmt: skip
    for name, run in (("mine", "id1"), ("id1", "id1"), ("id3", "id3")):
        found = asked(tmp_path, path, "--tracker-run", name)
        assert (found["run"], found["store"]) == (run, f"sqlite:///{path}")
    for words, said in (((), "3 runs"), (("twin",), "2 runs called 'twin'"), (("gone",), "no run 'gone'")):
        named = ("--tracker-run", *words) if words else ()
        refused = advisor("compare", tmp_path / "mine", "--write-to", path, *named, "--no-record", expect=2).stderr
        assert said in refused and "--tracker-run ID" in refused
    path = database(tmp_path / "p.db", "create table configs (x)", "create table metrics (run_name)",
                    "insert into metrics values ('only'), ('only')")  # fmt: skip
    found = asked(tmp_path, path)
    assert (found["library"], found["run"], found["project"]) == ("trackio", "only", "p")


def test_an_offline_run_of_wandb_is_named_by_its_file_or_folder(tmp_path):
    folder = tmp_path / "wandb" / "offline-run-1-abc"
    folder.mkdir(parents=True)
    file = folder / "run-abc.wandb"
    file.write_bytes(log_file([message(21), message(17, message(1, b"abc"), message(2, b"us"), message(3, b"p"))]))
    for path in (folder, file):
        found = asked(tmp_path, path)
        named = {name: found[name] for name in ("library", "run", "project", "entity", "folder")}
        assert named == {"library": "wandb", "run": "abc", "project": "p", "entity": "us", "folder": str(tmp_path)}


def test_what_is_refused(tmp_path):
    other = database(tmp_path / "x.db", "create table t (x)")
    (tmp_path / "text.db").write_text("no database, and long enough to be read as one")
    (tmp_path / "empty.wandb").write_bytes(log_file([message(21)]))
    run = finished_run(tmp_path)
    for path, said in ((other, "of a known tracker"), (tmp_path / "text.db", "cannot be read as SQLite"),
                       (tmp_path, "of a known tracker"), (tmp_path / "empty.wandb", "not a run of a known tracker"),
                       (mlflow_folder(tmp_path), f"{sys.executable} does not have mlflow")):  # fmt: skip
        done = advisor("compare", run, "--write-to", path, "--tracker-python", sys.executable, "--no-record")
        assert done.returncode in (1, 2) and said in done.stderr, done.stderr
    (run / "plan.yaml").unlink()
    done = advisor("compare", run, "--write-to", tmp_path / "mlruns" / "0" / "r1", "--no-record")
    assert done.returncode and "plan" in done.stderr


def test_watch_names_what_writes_to_a_tracker(tmp_path):
    done = advisor("watch", "latest", "--write-to", tmp_path / "mlflow.db", expect=2)
    assert "no --write-to" in done.stderr and "advisor compare RUN --write-to PATH" in done.stderr
