"""A plan is what it promises: it overwrites no file of another kind, and is not started once edited."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from advisor.engines.export.targets import TARGETS
from advisor.store.plan_files import dump_plan
from tests.advisor.plans import small_plan

EDITS = [
    (("run", "steps"), 7, "steps 7 against 20"),
    (("run", "micro_batch"), 8, "micro_batch 8 against 2"),
    (("run", "compile"), True, "compile True against False"),
    (("run", "model", "depth"), 3, "depth 3 against 1"),
    (("run", "optimizer", "name"), "muon", "optimizer muon against adamw"),
    (("chosen", "prediction", "workload", "gpu"), "h100-80gb-sxm", "GPU h100-80gb-sxm against cpu"),
    (("chosen", "prediction", "workload", "gpus"), 4, "4 GPUs against 1"),
]


@pytest.mark.parametrize(
    ("where", "value", "said"), EDITS, ids=lambda case: ".".join(case) if type(case) is tuple else None
)
def test_an_edited_plan_is_not_started(call, tmp_path, monkeypatch, where, value, said):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    raw = yaml.safe_load(dump_plan(small_plan(20)))
    inner = raw
    for name in where[:-1]:
        inner = inner[name]
    inner[where[-1]] = value
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(raw))
    words = [("launch", str(path), "--dry-run"), *(("export", str(path), "--to", to) for to in TARGETS)]
    for each in words:
        code, out, err = call(*each)
        assert (code, out) == (1, "") and "the run differs from what was predicted: " in err and said in err, err


def test_what_promises_nothing_of_the_run_may_be_edited(call, tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    plan = small_plan(20)
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(replace(plan, run=replace(plan.run, seed=5, name="mine"))))
    assert call("launch", str(path), "--dry-run")[0] == 0


@pytest.mark.parametrize("content", ["notes: mine\n", "# only words\n- a list\n", "\x00\x01", "{"])
@pytest.mark.parametrize(
    "words", [("plan", "--gpu", "l4", "--depth", "4", "--tokens", "20M", "--out"), ("audit", "REPORT", "--card")]
)
def test_only_a_file_of_the_same_kind_is_overwritten(call, tmp_path, monkeypatch, content, words):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    report, mine = tmp_path / "report.md", tmp_path / "mine.yaml"
    report.write_text("# Report\n\nThe run trained 124 M parameters on 10 B tokens.\n")
    mine.write_text(content)
    typed = [str(report) if word == "REPORT" else word for word in words]
    code, _, err = call(*typed, str(mine))
    assert code == 2 and "is there already and is no " in err and mine.read_text() == content
    for _ in range(2):  # its own it replaces
        code, _, err = call(*typed, str(tmp_path / "ours.yaml"))
        assert code in (0, 1) and "already" not in err, err
