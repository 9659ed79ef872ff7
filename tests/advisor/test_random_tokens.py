"""No run starts on random tokens unless somebody typed --synthetic: every way to start one is tried."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from advisor import engines
from advisor.engines.backend import Job
from advisor.engines.engines import BACKENDS, PLACES
from advisor.engines.export.targets import TARGETS
from advisor.errors import AdvisorError
from advisor.store.store import Store
from tests.advisor.plans import changed, small_plan, small_run
from trainer.schema import DataConfig, dump_config

REFUSED = "no data given: this run would train on random tokens"
ON = {"local": "local", "slurm": "slurm:gpu", "ssh": "ssh:box", "skypilot": "skypilot:aws"}
STARTS = [
    *(("launch", "PLAN", "--on", ON[engine], *more) for engine in PLACES for more in ((), ("--dry-run",))),
    *(("export", "PLAN", "--to", target) for target in TARGETS),
    ("launch", "CONFIG"),
    ("resume", "FOLDER"),
    ("ab", "CONFIG", "OTHER", "--out", "EXPERIMENT"),
]


@pytest.fixture
def typed(call, tmp_path, monkeypatch):
    """A command about a plan, a configuration and a run folder that have no data, and the files of each."""
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    bare = small_run(3, data=DataConfig())
    plan = replace(small_plan(3), run=bare)
    files = {name: tmp_path / name.lower() for name in ("FOLDER", "EXPERIMENT")}
    files |= {name: tmp_path / f"{name.lower()}.yaml" for name in ("PLAN", "CONFIG", "OTHER")}
    Store(tmp_path / "home").save_plan(changed(plan, gpu="h100-80gb-sxm"), files["PLAN"])
    files["CONFIG"].write_text(dump_config(bare))
    files["OTHER"].write_text(dump_config(replace(bare, seed=5)))
    files["FOLDER"].mkdir()
    (files["FOLDER"] / "run.yaml").write_text(dump_config(bare))
    return lambda *words: call(*(str(files.get(word, word)) for word in words))


@pytest.mark.parametrize("words", STARTS, ids=" ".join)
def test_nothing_starts_without_data(typed, tmp_path, words):
    code, out, err = typed(*words)
    assert code == 1 and REFUSED in err and "advisor data prepare" in err and "--synthetic" in err, err
    assert out == "" and not (tmp_path / "home" / "runs").exists() and not (tmp_path / "experiment").exists()
    assert not (tmp_path / "folder" / "run.json").exists()


def test_a_look_beforehand_says_so(typed):
    for engine in PLACES:
        code, out, _ = typed("launch", "PLAN", "--on", ON[engine], "--check", "--json")
        missing = [check["words"] for check in json.loads(out)["checks"] if check["finding"] == "missing"]
        assert code == 1 and any(REFUSED in words for words in missing)


def test_who_types_it_gets_it(typed):
    code, out, err = typed("launch", "CONFIG", "--synthetic", "--dry-run", "--json")
    assert code == 0, err
    assert yaml.safe_load(json.loads(out)["files"]["run.yaml"])["data"] == {"path": None, "synthetic": True}
    for target in TARGETS:
        code, out, err = typed("export", "PLAN", "--to", target, "--synthetic", "--json")
        assert code == 1 or yaml.safe_load(json.loads(out)["files"]["run.yaml"])["data"]["synthetic"], err
        assert REFUSED not in err
    code, _, err = typed("resume", "FOLDER", "--synthetic")
    assert code == 0 and REFUSED not in err, err
    code, out, _ = typed("launch", "CONFIG", "--synthetic", "--check")
    assert "random tokens, as --synthetic asks" in out


def test_a_run_that_has_data_is_not_resumed_on_random_tokens(typed, tmp_path):
    with_data = dump_config(small_run(3, data=DataConfig(path="tokens")))
    (tmp_path / "folder" / "run.yaml").write_text(with_data)
    code, _, err = typed("resume", "FOLDER", "--synthetic")
    assert code == 2 and "this run trains on tokens" in err
    assert (tmp_path / "folder" / "run.yaml").read_text() == with_data


def test_what_a_backend_starts_is_a_job_a_measurement_or_a_command_of_somebody_else():
    """A new engine, or a new way to make a request, is asked for its data by the job that it takes."""
    for engine in BACKENDS:
        assert engine in PLACES, f"{engine} is started by no word of --on: add it to this test"
    makers = {}
    for path in Path(engines.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.returns is not None and not node.name.startswith("_"):
                given = {ast.unparse(a.annotation) for a in node.args.args if a.annotation is not None}
                if ast.unparse(node.returns) == "LaunchRequest":
                    makers[f"{path.stem}.{node.name}"] = given & {"Job", "Measuring"}
    assert {"backend.dryrun", "ssh.dryrun", "slurm.dryrun"} <= makers.keys() and all(makers.values()), makers
    with pytest.raises(AdvisorError, match=REFUSED):
        Job(folder=Path(), trainer=None, config=small_run(3, data=DataConfig()), plan=None, files={}, record=None)


def test_the_plan_says_it_first_and_carries_what_was_asked_for(call, tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    words = ("plan", "--gpu", "l4", "--depth", "4", "--tokens", "20M", "--out")
    code, out, _ = call(*words, str(tmp_path / "bare.yaml"))
    told = " ".join(out.split())
    assert code == 0 and f"! {REFUSED}. Give --data DIR (advisor data prepare FILES --out DIR)" in told
    assert "next, where the data are: advisor data prepare FILES --out data" in told
    assert "--data data " in told and told.endswith("--out plan.yaml") and "advisor launch" not in told
    code, out, _ = call(*words, str(tmp_path / "asked.yaml"), "--synthetic")
    assert code == 0 and REFUSED not in out and f"advisor launch {tmp_path / 'asked.yaml'}" in " ".join(out.split())
    plans = {name: yaml.safe_load((tmp_path / f"{name}.yaml").read_text()) for name in ("bare", "asked")}
    assert [plans[name]["run"]["data"]["synthetic"] for name in plans] == [False, True]
    for more, said in ((("--data", str(tmp_path)), "--data means yours"), (("--data-tokens", "1B"), "leave one out")):
        code, _, err = call(*words, str(tmp_path / "no.yaml"), "--synthetic", *more)
        assert code == 2 and said in err
