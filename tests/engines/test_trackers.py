"""Prediction and score on the user's own run, by the trackers' real libraries, and read back by them."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from advisor.readers.read import read_run
from advisor.readers.wandb_file import identity
from advisor.workflows.write_back import write_back
from tests.advisor.test_watch_log import rows
from tests.advisor.test_write_back import SCORED
from tests.waiting import waited

ROOT = Path(__file__).resolve().parents[2]

WANTED = {"advisor.step_seconds.predicted": 0.5, "advisor.step_seconds.high": 0.6, "advisor.cost_usd.low": 1.5,
          "advisor.step_seconds.inside": "yes", "advisor.run": "mine-20261123"}  # fmt: skip


def there(python: Path, folder: Path, program: str, **variables: str) -> str:
    """What a program of the tracker's environment prints last."""
    done = subprocess.run([python, "-c", program], cwd=folder, env={**os.environ, **variables}, capture_output=True,
                          text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return (done.stdout.strip().splitlines() or [""])[-1]


@pytest.fixture
def has(trackers_python):
    """Skips in words where the environment lacks a library."""

    def check(library: str) -> Path:
        if subprocess.run([trackers_python, "-c", f"import {library}"], capture_output=True, cwd="/").returncode:
            pytest.skip(f"{trackers_python} does not have {library}: make engines")
        return trackers_python

    return check


def written_live(folder: Path, python: Path, path: Path, *words: str) -> str:
    """What `watch --write-to` says of a log that grows from step 500 to its end, at 2,000."""
    log, said = folder / "train.log", folder / "said"
    log.write_text(rows(10, 500))
    command = [sys.executable, "-m", "advisor", "watch", log, "--write-to", path, "--tracker-python", python, *words]
    with open(said, "w") as err:
        watching = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, stderr=err, text=True)
    waited(lambda: "step 500/2,000" in said.read_text(), seconds=120)
    log.write_text(rows(10, 2000) + "Training complete\n")
    out, _ = watching.communicate(timeout=300)
    assert watching.returncode == 0 and "step 2,000/2,000" in out, said.read_text()
    return said.read_text()


def test_mlflow_while_a_run_goes_on(has, tmp_path):
    """In a store of files, as a training that logs to `mlruns` has it."""
    python, store = has("mlflow"), (tmp_path / "mlruns").as_uri()
    begin = f"""import mlflow; mlflow.set_tracking_uri({store!r})
with mlflow.start_run(run_name="mine") as run:
    mlflow.log_metric("loss", 3.0, step=1)
print(run.info.experiment_id + "/" + run.info.run_id)"""
    experiment, run = there(python, tmp_path, begin, MLFLOW_ALLOW_FILE_STORE="true").split("/")
    said = written_live(tmp_path, python, tmp_path / "mlruns" / experiment / run)
    assert f"written to mlflow's run {run}" in said
    read = f"""import json, mlflow
history = mlflow.MlflowClient({store!r}).get_metric_history({run!r}, "advisor/loss")
print(json.dumps([[point.step, point.value] for point in history]))"""
    assert json.loads(there(python, tmp_path, read, MLFLOW_ALLOW_FILE_STORE="true")) == [[500, 8.0], [2000, 5.0]]


def test_trackio_while_a_run_goes_on(has, tmp_path):
    python, store = has("trackio"), tmp_path / "store"
    begin = """import trackio
trackio.init(project="p", name="mine", embed=False)
trackio.log({"loss": 3.0})
trackio.finish()"""
    there(python, tmp_path, begin, TRACKIO_DIR=str(store))
    assert "written to trackio's run mine" in written_live(tmp_path, python, store / "p.db", "--tracker-run", "mine")
    with closing(sqlite3.connect(store / "p.db")) as database:
        logged = [json.loads(text) for (text,) in database.execute("select metrics from metrics order by id")]
    assert [one["advisor/loss"] for one in logged if "advisor/loss" in one] == [8.0, 5.0]
    assert logged[-1]["advisor/step"] == 2000 and logged[-1]["advisor/step_seconds"] > 0


def test_wandb_offline_while_a_run_goes_on(has, tmp_path):
    python = has("wandb")
    begin = """import wandb
run = wandb.init(project="p", name="mine", mode="offline")
run.log({"loss": 3.0})
run.finish()"""
    there(python, tmp_path, begin, WANDB_SILENT="true")
    (first,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert "written to wandb's run" in written_live(tmp_path, python, first.parent)
    (second,) = (part for part in tmp_path.glob("wandb/offline-run-*/run-*.wandb") if part != first)
    assert identity(second) == identity(first)
    assert {b"advisor/step", b"advisor/loss"} <= set(re.findall(rb"advisor/\w+", second.read_bytes()))


def test_mlflow(has, tmp_path):
    python, store = has("mlflow"), f"sqlite:///{tmp_path}/mlflow.db"
    begin = f"""import mlflow; mlflow.set_tracking_uri({store!r})
for name in ("other", "mine"):
    with mlflow.start_run(run_name=name) as run:
        mlflow.log_param("lr", 0.001)
print(run.info.run_id)"""
    run = there(python, tmp_path, begin)
    written = write_back(SCORED, tmp_path / "mlflow.db", "mine", str(python))
    assert (written.library, written.run) == ("mlflow", run)
    read = f"import json, mlflow; print(json.dumps(mlflow.MlflowClient({store!r}).get_run({run!r}).data.params))"
    found = json.loads(there(python, tmp_path, read))
    assert found["lr"] == "0.001" and len(found) == 1 + written.parameters
    assert {name: found[name] for name in WANTED} == {name: str(value) for name, value in WANTED.items()}
    assert write_back(SCORED, tmp_path / "mlflow.db", run, str(python)) == written  # the same once more


def test_trackio(has, tmp_path):
    python, store = has("trackio"), tmp_path / "store"
    begin = """import trackio
for name in ("other", "mine"):
    trackio.init(project="p", name=name, config={"lr": 0.001}, embed=False)
    trackio.log({"loss": 3.0})
    trackio.finish()"""
    there(python, tmp_path, begin, TRACKIO_DIR=str(store))
    written = write_back(SCORED, store / "p.db", "mine", str(python))
    assert (written.library, written.run) == ("trackio", "mine")
    read = "import json; from trackio.api import Api; print(json.dumps({r.name: r.config for r in Api().runs('p')}))"
    found = json.loads(there(python, tmp_path, read, TRACKIO_DIR=str(store)))
    assert found["mine"]["lr"] == 0.001 and {name: found["mine"][name] for name in WANTED} == WANTED
    assert not any(name.startswith("advisor") for name in found["other"])


def test_wandb_offline(has, tmp_path):
    """A second part of the same run; what the client wrote is read by our own reader."""
    python = has("wandb")
    begin = """import wandb
run = wandb.init(project="p", name="mine", mode="offline", config={"n_layer": 12})
run.config.update({"seq_len": 512})
run.log({"loss": 3.0})
run.finish()"""
    there(python, tmp_path, begin, WANDB_SILENT="true")
    (first,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert read_run(first).facts["seq_len"] == 512  # set after its start
    written = write_back(SCORED, first.parent, None, str(python))
    assert written.library == "wandb" and first.stem == f"run-{written.run}"
    parts = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(parts) == 2 and {identity(part) for part in parts} == {identity(first)}
    (second,) = (part for part in parts if part != first)
    assert str(second.parent) == written.place
    text = second.read_bytes()
    assert all(name.encode() in text for name in WANTED) and identity(first).project == "p"


def test_a_python_without_the_library_says_so(tmp_path):
    (tmp_path / "run" / "metrics").mkdir(parents=True)
    (tmp_path / "run" / "meta.yaml").write_text("status: 3\n")
    done = subprocess.run([sys.executable, "-c", "import mlflow"], capture_output=True, cwd="/")
    if done.returncode == 0:
        pytest.skip("this Python has mlflow")
    with pytest.raises(Exception, match="does not have mlflow") as refused:
        write_back(SCORED, tmp_path / "run", None, sys.executable)
    assert "--tracker-python" in refused.value.hint
