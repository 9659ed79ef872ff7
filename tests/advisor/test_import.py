"""Runs that came from elsewhere: copied, registered, scored and learnt from like any other."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.engines.engines import describe
from advisor.engines.state import RunState
from advisor.errors import AdvisorError
from advisor.store.plan_files import dump_plan
from advisor.store.run_folder import read_launch
from advisor.store.store import Store
from advisor.workflows.bring_in import bring_in
from tests.advisor.plans import small_plan
from trainer.runlog import load_run_log
from trainer.schema import config_from_dict

RECORDING = Path(__file__).parents[1] / "recorded" / "small.jsonl"


@pytest.fixture
def export(tmp_path):
    """An export after its run: log and checkpoints in `run`, the plan beside it."""
    folder = tmp_path / "export"
    (folder / "run" / "checkpoints" / "step-00000060").mkdir(parents=True)
    (folder / "run" / "checkpoints" / "step-00000060" / "model.safetensors").write_bytes(b"weights")
    shutil.copy(RECORDING, folder / "run" / "log.jsonl")
    (folder / "run" / "stdout.log").write_text("done\n")
    (folder / "run" / "telemetry.parquet").symlink_to("/etc/passwd")
    plan = small_plan(usd_per_hour=2.0)
    header = load_run_log(RECORDING).header
    (folder / "plan.yaml").write_text(dump_plan(replace(plan, run=config_from_dict(header["config"]))))
    return folder


@pytest.mark.parametrize("how", ["export", "run folder"])
def test_a_run_is_brought_in_with_the_plan_beside_it(export, store, tmp_path, how):
    given = {"export": export, "run folder": export / "run"}[how]
    reviewed = bring_in(store, given)
    [row] = store.runs()
    assert Path(row.path) == reviewed.path and reviewed.path.parent == store.home / "runs"
    assert (row.plan_id, row.device_key) == (small_plan().id, "cpu")
    assert reviewed.recorded and {score.run_id for score in store.scores()} == {row.id}
    log = load_run_log(RECORDING)
    seconds = log.final["seconds"]
    assert reviewed.scored.actual("cost_usd") == pytest.approx(2.0 * seconds / 3600, rel=0.2)
    assert describe(reviewed.path, store).state is RunState.FINISHED
    assert read_launch(reviewed.path).host == log.header["host"]
    assert sorted(p.name for p in reviewed.path.iterdir()) == [
        "log.jsonl", "plan.yaml", "run.json", "run.yaml", "stdout.log",
    ]  # fmt: skip
    assert (export / "run" / "checkpoints").exists()  # the original is left alone


def test_the_same_run_is_brought_in_once(export, store):
    first = bring_in(store, export)
    with pytest.raises(AdvisorError, match="is here already") as refused:
        bring_in(store, export / "run")
    assert str(first.path) in refused.value.hint and len(store.runs()) == 1


def test_a_run_folder_of_another_machine_keeps_its_name_and_price(export, store, tmp_path):
    there = Store(tmp_path / "there")
    bring_in(there, export)
    [row] = there.runs()
    record = replace(read_launch(Path(row.path)), usd_per_hour=7.0)
    (Path(row.path) / "run.json").write_text(json.dumps({**json.loads((Path(row.path) / "run.json").read_text()),
                                                         "usd_per_hour": 7.0}))  # fmt: skip
    reviewed = bring_in(store, Path(row.path), checkpoints=True)
    assert (reviewed.scored.run_id, read_launch(reviewed.path)) == (row.id, record)


def test_checkpoints_come_only_when_they_are_asked_for(export, store):
    folder = bring_in(store, export, checkpoints=True).path
    assert (folder / "checkpoints" / "step-00000060" / "model.safetensors").read_bytes() == b"weights"


def test_what_is_no_run_of_ours_is_refused_with_what_to_do(store, tmp_path):
    with pytest.raises(AdvisorError, match="not a run folder of this trainer") as refused:
        bring_in(store, tmp_path)
    assert "advisor compare" in refused.value.hint
    (tmp_path / "log.jsonl").write_text("{}\nnot json\n{}\n")
    with pytest.raises(AdvisorError, match="damaged"):
        bring_in(store, tmp_path)
    assert store.runs() == []


def test_the_command_scores_and_says_where_it_is(call, export, tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    code, out, _ = call("import", str(export), "--json")
    assert code == 0 and json.loads(out)["recorded"] is True
    code, _, err = call("import", str(export))
    assert code == 1 and "is here already" in err
