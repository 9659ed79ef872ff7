"""A run that its limit ends says what there was no room for, and going on is not offered where it would do nothing."""

from __future__ import annotations

from dataclasses import replace

from advisor.units import parse_seconds
from tests.advisor.plans import small_run
from trainer.schema import EvalConfig, dump_config

TOKENS = 50_000_000  # to evaluate on: 780,000 steps' worth of tokens


def test_the_final_evaluation_is_named_and_resume_is_not_offered(call, tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    (tmp_path / "run.yaml").write_text(dump_config(replace(small_run(6), eval=EvalConfig(tokens=TOKENS))))
    run = str(tmp_path / "run")
    code, out, err = call("launch", str(tmp_path / "run.yaml"), "--run-dir", run, "--deadline", "144s")
    told = " ".join(out.split())
    assert "of the 144 s allowed are used" in told and "the evaluation of 50,000,000 tokens" in told, out + err
    assert "5 of 6 steps" in told and "its limit has no room for a step more: advisor resume" in told
    more = told.rpartition("--deadline ")[2].split()[0]
    code, _, err = call("resume", run)
    assert code == 1 and "of the 144 s it was given, and the next step needs" in err and "give it more" in err
    assert parse_seconds(more) > 144
    code, out, err = call("resume", run, "--deadline", "180s")  # more, and not enough
    assert code == 1 and "and the next step needs" in err
