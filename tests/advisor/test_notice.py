"""What saving takes beside the notice that a provider gives."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from advisor.calibrate.profiles import prior_profile
from advisor.hardware.catalog import require_gpu
from advisor.plan.answer import bare_plan
from advisor.predict.notice import save_seconds, short_notice
from advisor.store.store import Store
from tests.advisor.plans import goal_of, guess, small_plan
from trainer.schema import EvalConfig


def test_saving_takes_the_longer_of_a_step_and_an_evaluation_and_a_checkpoint():
    """Two checkpoints of 20 s in all, five evaluations of 30 s in all, steps of 4 s; high ends are a tenth above."""
    plan = small_plan(steps=50)
    run = replace(
        plan.run, eval=EvalConfig(every_steps=10, tokens=64), checkpoint=replace(plan.run.checkpoint, every_steps=25)
    )
    clock = replace(plan.prediction.wall_clock, checkpoints_seconds=guess(20.0), evals_seconds=guess(30.0))
    assert round(save_seconds(run, clock, guess(4.0)), 6) == 1.1 * (6.0 + 10.0)
    assert round(save_seconds(run, clock, guess(8.0)), 6) == 1.1 * (8.0 + 10.0)


def test_only_what_a_provider_states_is_too_short():
    assert short_notice("gcp", 29.0) is None and short_notice("lambda", 1e6) is None and short_notice(None, 1e6) is None
    assert "30 s of notice" in short_notice("gcp", 31.0) and "2 min" in short_notice("aws", 121.0)


def test_a_plan_on_a_machine_that_goes_too_fast_says_so():
    words = "--gpu h100-80gb-sxm --gpus 8 --budget 5000 --depth 32 --provider gcp"
    profile = prior_profile(require_gpu("h100-80gb-sxm"))
    spot, own = (
        bare_plan(goal_of(shlex.split(f"{words} --spot {kind}")), profile, now=datetime(2026, 11, 22, tzinfo=UTC))
        for kind in ("only", "none")
    )
    assert any("30 s of notice" in warning for warning in spot.warnings)
    assert not any("notice" in warning for warning in own.warnings)


def test_a_launch_is_told_where_the_end_of_its_machine_is_announced(call, tmp_path):
    plan = Store(tmp_path).save_plan(small_plan())
    code, out, _ = call("launch", str(plan), "--notice", "/run/spot", "--dry-run", "--json")
    assert code == 0 and "notice: /run/spot" in json.loads(out)["files"]["run.yaml"]


@pytest.mark.parametrize("where", ["spot", "http://169.254.169.254/latest", "ftp://127.0.0.1/x"])
def test_what_nobody_may_be_asked_is_refused_before_the_start(call, tmp_path, where):
    plan = Store(tmp_path).save_plan(small_plan())
    code, out, err = call("launch", str(plan), "--notice", where, "--dry-run")
    assert (code, out) == (2, "") and where in err, err
