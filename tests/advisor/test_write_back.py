"""Which run of a tracker is meant, what it is told, and what is refused; the real libraries: tests/engines."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from advisor.errors import AdvisorError
from advisor.history.scoring import Score, ScoredRun
from advisor.records import Basis, Estimate
from advisor.workflows.write_back import parameters_of, target_of, write_back
from tests.advisor.readers.test_wandb_file import log_file, message

SCORED = ScoredRun(
    run_id="mine-20261123",
    device_key="cpu, mine",
    outcome="completed",
    reason=None,
    attempts=1,
    steps=100,
    steps_planned=100,
    complete=True,
    departures=(),
    scores=(
        Score(
            quantity="step_seconds", predicted=Estimate(value=0.5, low=0.4, high=0.6, basis=Basis.MEASURED), actual=0.55
        ),
        Score(quantity="cost_usd", predicted=Estimate(value=2.0, low=1.5, high=2.5, basis=Basis.MEASURED), actual=None),
    ),
    reference_seconds=None,
    drift_factor=None,
    gap_seconds=None,
    causes=(),
)


def test_what_is_told():
    found = parameters_of(SCORED)
    step = {name.rsplit(".", 1)[1]: value for name, value in found.items() if ".step_seconds." in name}
    assert step == {"predicted": 0.5, "low": 0.4, "high": 0.6, "actual": 0.55, "inside": "yes",
                    "error": pytest.approx(0.1)}  # fmt: skip
    assert {name for name in found if "cost" in name} == {f"advisor.cost_usd.{x}" for x in ("predicted", "low", "high")}


def database(path, *statements: str):
    with closing(sqlite3.connect(path)) as opened, opened:
        for statement in statements:
            opened.execute(statement)
    return path


def test_a_run_is_found_by_id_or_name_and_never_guessed(tmp_path):
    rows = "('id1', 'mine', 'active'), ('id2', 'twin', 'active'), ('id3', 'twin', 'active'), ('id4', 'gone', 'deleted')"
    path = database(tmp_path / "mlflow.db", "create table runs (run_uuid, name, lifecycle_stage)",
                    "create table params (key)", f"insert into runs values {rows}")  # fmt: skip
    assert target_of(path, "mine").run == target_of(path, "id1").run == "id1"
    assert target_of(path, "id3").request == {"store": f"sqlite:///{path}"}
    for asked, said in ((None, "3 runs"), ("twin", "2 runs called 'twin'"), ("gone", "no run 'gone'")):
        with pytest.raises(AdvisorError, match=said) as refused:
            target_of(path, asked)
        assert "--tracker-run ID" in refused.value.hint and refused.value.exit_code == 2
    path = database(tmp_path / "p.db", "create table configs (x)", "create table metrics (run_name)",
                    "insert into metrics values ('only'), ('only')")  # fmt: skip
    found = target_of(path, None)
    assert (found.library, found.run, found.request["project"]) == ("trackio", "only", "p")


def test_files_of_trackers(tmp_path):
    folder = tmp_path / "wandb" / "offline-run-1-abc"
    folder.mkdir(parents=True)
    file = folder / "run-abc.wandb"
    file.write_bytes(log_file([message(21), message(17, message(1, b"abc"), message(2, b"us"), message(3, b"p"))]))
    for path in (folder, file):
        found = target_of(path, None)
        assert (found.library, found.run) == ("wandb", "abc")
        assert found.request == {"project": "p", "entity": "us", "folder": str(tmp_path)}
    run = tmp_path / "mlruns" / "0" / "r1"
    (run / "metrics").mkdir(parents=True)
    (run / "meta.yaml").write_text("status: 3\n")
    found = target_of(run, None)
    assert (found.library, found.run, found.request) == ("mlflow", "r1", {"store": (tmp_path / "mlruns").as_uri()})


def test_what_is_refused(tmp_path):
    other = database(tmp_path / "x.db", "create table t (x)")
    (tmp_path / "text.db").write_text("no database, and long enough to be read as one")
    (tmp_path / "empty.wandb").write_bytes(log_file([message(21)]))
    for path, said in ((other, "neither MLflow nor trackio"), (tmp_path / "text.db", "cannot be read as SQLite"),
                       (tmp_path, "no run of a tracker"), (tmp_path / "none", "there is no"),
                       (tmp_path / "empty.wandb", "does not say which run")):  # fmt: skip
        with pytest.raises(AdvisorError, match=said):
            target_of(path, None)
    unplanned = replace(SCORED, scores=tuple(replace(score, predicted=None) for score in SCORED.scores))
    with pytest.raises(AdvisorError, match="nothing was predicted"):
        write_back(unplanned, tmp_path / "mlflow.db", None, "python")
