"""`advisor export`: what is of a plan and what of a trained run is told apart before anything is done."""

from __future__ import annotations

import pytest

from advisor.store.store import Store
from tests.advisor.plans import small_plan


@pytest.mark.parametrize(
    "words, said",
    [
        (("latest", "--to", "huggingface"), "--out FOLDER is needed"),
        (("latest", "--to", "huggingface", "--out", "model", "--qos", "high"), "--qos is for a plan"),
        (("latest", "--to", "huggingface", "--out", "model", "--budget", "3"), "--budget is for a plan"),
        (("missing.yaml", "--to", "slurm"), "missing.yaml"),
        (("no-such-run", "--to", "huggingface", "--out", "model"), "no-such-run"),
    ],
)
def test_what_does_not_belong_together_is_wrong_usage(call, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    code, _, err = call("export", *words)
    assert code == 2 and said in err and "Traceback" not in err
    assert not (tmp_path / "model").exists()


def test_a_tokenizer_is_of_a_trained_run(call, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    path = Store(tmp_path).save_plan(small_plan(), tmp_path / "plan.yaml")
    code, _, err = call("export", str(path), "--to", "script", "--tokenizer", str(tmp_path / "tokenizer.json"))
    assert code == 2 and "--tokenizer is for --to huggingface" in err
