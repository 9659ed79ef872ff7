"""Prediction and score on the user's own run, by the trackers' real libraries, and read back by them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from advisor.readers.read import read_run
from advisor.readers.wandb_file import identity
from tests.advisor.test_write_back import WANTED, finished_run
from tests.terminal import advisor


def there(python: Path, folder: Path, program: str, **variables: str) -> str:
    """What a program of the tracker's environment prints last."""
    done = subprocess.run([python, "-c", program], cwd=folder, env={**os.environ, **variables}, capture_output=True,
                          text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return (done.stdout.strip().splitlines() or [""])[-1]


def written(run: Path, path: Path, python: Path, *words: str) -> dict[str, Any]:
    """What `compare --write-to` says that it wrote."""
    given = ("compare", run, "--write-to", path, "--tracker-python", python, "--no-record", *words, "--json")
    return json.loads(advisor(*given, expect=0).stdout)["written"]


@pytest.fixture
def has(trackers_python):
    """Skips in words where the environment lacks a library."""

    def check(library: str) -> Path:
        if subprocess.run([trackers_python, "-c", f"import {library}"], capture_output=True, cwd="/").returncode:
            pytest.skip(f"{trackers_python} does not have {library}: make engines")
        return trackers_python

    return check


@pytest.mark.parametrize("place", ["mlflow.db", "mlruns"])
def test_mlflow(has, tmp_path, place):
    """In a database, and in a store of files as a training that logs to `mlruns` has it."""
    python, files = has("mlflow"), {"MLFLOW_ALLOW_FILE_STORE": "true"}
    store = f"sqlite:///{tmp_path}/mlflow.db" if place == "mlflow.db" else (tmp_path / "mlruns").as_uri()
    begin = f"""import mlflow; mlflow.set_tracking_uri({store!r})
for name in ("other", "mine"):
    with mlflow.start_run(run_name=name) as run:
        mlflow.log_param("lr", 0.001)
print(run.info.experiment_id + "/" + run.info.run_id)"""
    experiment, run = there(python, tmp_path, begin, **files).split("/")
    path, words = tmp_path / place, ("--tracker-run", "mine")
    if place == "mlruns":
        path, words = path / experiment / run, ()
    mine = finished_run(tmp_path)
    first = written(mine, path, python, *words)
    assert (first["library"], first["run"]) == ("mlflow", run)
    read = f"import json, mlflow; print(json.dumps(mlflow.MlflowClient({store!r}).get_run({run!r}).data.params))"
    found = json.loads(there(python, tmp_path, read, **files))
    assert found["lr"] == "0.001" and len(found) == 1 + first["parameters"]
    for name, value in WANTED.items():
        assert (found[name] if isinstance(value, str) else float(found[name])) == value
    assert written(mine, path, python, *words) == first  # the same once more


def test_trackio(has, tmp_path):
    python, store = has("trackio"), tmp_path / "store"
    begin = """import trackio
for name in ("other", "mine"):
    trackio.init(project="p", name=name, config={"lr": 0.001}, embed=False)
    trackio.log({"loss": 3.0})
    trackio.finish()"""
    there(python, tmp_path, begin, TRACKIO_DIR=str(store))
    done = written(finished_run(tmp_path), store / "p.db", python, "--tracker-run", "mine")
    assert (done["library"], done["run"]) == ("trackio", "mine")
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
    done = written(finished_run(tmp_path), first.parent, python)
    assert done["library"] == "wandb" and first.stem == f"run-{done['run']}"
    parts = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(parts) == 2 and {identity(part) for part in parts} == {identity(first)}
    (second,) = (part for part in parts if part != first)
    assert str(second.parent) == done["place"]
    text = second.read_bytes()
    assert all(name.encode() in text for name in WANTED) and identity(first).project == "p"
