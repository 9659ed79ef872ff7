"""Gates: a run goes on only if its evaluation is as good as was asked, and says on what evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.trainer.small import config
from trainer.run import run
from trainer.runlog import LOG_NAME, load_run_log
from trainer.schema import EvalConfig, Gate, Outcome, StopConfig


def gated(*gates: Gate, **changes):
    return config(steps=12, eval=EvalConfig(tokens=256), stop=StopConfig(gates=gates), **changes)


def messages(log):
    return [record["text"] for record in log.messages]


def test_a_gate_that_is_passed_is_logged_with_its_evidence(tmp_path):
    assert run(gated(Gate(step=4, above=9.0)), tmp_path) is Outcome.COMPLETED
    log = load_run_log(tmp_path / LOG_NAME)
    assert [e["step"] for e in log.evals] == [4, 12]
    (said,) = [text for text in messages(log) if text.startswith("gate")]
    assert said == (
        f"gate after step 4: the evaluation's loss is {log.evals[0]['loss']:.4f}, at most 9 was asked for: goes on"
    )


def test_a_gate_that_is_not_passed_stops_with_a_checkpoint(tmp_path):
    settings = gated(Gate(step=4, above=1.0))
    assert run(settings, tmp_path) is Outcome.STOPPED
    log = load_run_log(tmp_path / LOG_NAME)
    loss = log.evals[-1]["loss"]
    assert log.final["reason"] == f"gate after step 4: the evaluation's loss is {loss:.4f}, at most 1 was asked for"
    assert (log.final["step"], [c["step"] for c in log.checkpoints]) == (4, [4])
    # whoever goes on knows what the gate said
    assert run(settings, tmp_path) is Outcome.COMPLETED
    assert load_run_log(tmp_path / LOG_NAME).steps[-1]["step"] == 12


def test_a_gate_costs_no_evaluation_that_is_due_anyway(tmp_path):
    settings = gated(Gate(step=6, above=9.0))
    run(replace(settings, eval=EvalConfig(tokens=256, every_steps=3)), tmp_path)
    assert [e["step"] for e in load_run_log(tmp_path / LOG_NAME).evals] == [3, 6, 9, 12]


@pytest.mark.parametrize("gate", [Gate(step=0, above=3.0), Gate(step=12, above=3.0), Gate(step=4, above=0.0)])
def test_gates_that_say_nothing_are_problems(gate):
    assert "stop.gates: out of range" in gated(gate).problems()
    without = replace(gated(Gate(step=4, above=3.0)), eval=EvalConfig(tokens=0))
    assert any("eval.tokens" in text for text in without.problems())
