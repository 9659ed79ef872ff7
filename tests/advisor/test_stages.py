"""A plan in stages: what each takes by arithmetic of its bill, and the gates between them."""

from __future__ import annotations

import math

import pytest

from advisor.errors import AdvisorError
from advisor.planning.stages import stages, with_gates
from tests.advisor.plans import altered, guess, small_plan


def promising(**changes):
    """The small plan, with a promise of loss: 1,000 steps of 10 ms, 3 s to start, 1 s and 2 s of evals and saves."""
    from dataclasses import replace

    from trainer.schema import EvalConfig

    plan = small_plan(steps=1000, usd_per_hour=3.6)
    run = replace(plan.run, eval=EvalConfig(tokens=64))
    return altered(plan, run=run, loss=guess(3.0), cost_usd=guess(0.016), **changes)


def test_a_stage_takes_what_comes_before_the_first_step_and_its_share_of_the_rest():
    half, end = stages(promising(), shares=(0.5, 1.0))
    assert (half.step, half.tokens, half.share) == (500, 500 * 64, 0.5)
    assert half.seconds == pytest.approx(3.0 + 0.5 * (10.0 + 1.0 + 2.0)) and end.seconds == pytest.approx(16.0)
    assert end.usd == pytest.approx(0.016) and half.usd == pytest.approx(0.016 * 9.5 / 16)
    assert end.loss.value == pytest.approx(3.0) and half.loss.value > 3.0 and half.at_most is None


def test_a_gate_asks_for_what_is_expected_unless_told_otherwise():
    plan = promising()
    gated = with_gates(plan, ["50%", "900:3.5"])
    assert [(gate.step, gate.above) for gate in gated.run.stop.gates] == [
        (500, pytest.approx(stages(plan, shares=(0.5,))[0].loss.high, abs=1e-4)),
        (900, 3.5),
    ]
    assert [stage.step for stage in stages(gated, shares=(1.0,))] == [500, 900, 1000]
    assert [stage.at_most for stage in stages(gated, shares=())][1] == 3.5
    assert with_gates(plan, []) is plan


@pytest.mark.parametrize("text", ["", "soon", "500:", "500:low", "2k", "0", "500:-1", "500:nan", "120%", "1.5", ":4"])
def test_what_is_no_gate_is_refused_with_an_example(text):
    with pytest.raises(AdvisorError) as error:
        with_gates(promising(), [text])
    assert error.value.exit_code == 2 and "10k:4.2" in error.value.hint


def test_without_a_promise_the_loss_has_to_be_said():
    plan = promising()
    silent = with_loss_unknown(plan)
    with pytest.raises(AdvisorError, match="promises no loss") as error:
        with_gates(silent, ["500"])
    assert error.value.hint == "give one: --gate 500:4.2"
    (stage,) = stages(with_gates(silent, ["500:4"]), shares=())
    assert (stage.at_most, stage.loss) == (4.0, None) and math.isfinite(stage.seconds)


def with_loss_unknown(plan):

    return altered(plan, loss=None)
