"""What saving takes beside the notice that a provider gives."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.planning.answer import bare_plan
from advisor.prediction.uncalibrated import prior_profile
from advisor.prediction.wallclock import NOTICE_SECONDS, save_seconds, short_notice
from advisor.store.store import Store
from tests.advisor.plans import goal_of, guess, small_plan
from trainer.schema import EvalConfig


def test_saving_takes_the_longer_of_a_step_and_an_evaluation_and_a_checkpoint():
    """Two checkpoints of 20 s in all, five evaluations of 30 s in all, steps of 4 s; high ends are a tenth above."""
    plan = small_plan(steps=50)
    run = replace(
        plan.run, eval=EvalConfig(every_steps=10, tokens=64), checkpoint=replace(plan.run.checkpoint, every_steps=25)
    )
    clock = replace(plan.bill.wall_clock, checkpoints_seconds=guess(20.0), evals_seconds=guess(30.0))
    assert round(save_seconds(run, clock, guess(4.0)), 6) == 1.1 * (6.0 + 10.0)
    assert round(save_seconds(run, clock, guess(8.0)), 6) == 1.1 * (8.0 + 10.0)


def test_only_what_a_provider_states_is_too_short():
    assert short_notice("gcp", 29.0) is None and short_notice("lambda", 1e6) is None and short_notice(None, 1e6) is None
    assert "30 s of notice" in short_notice("gcp", 31.0) and "2 min" in short_notice("aws", 121.0)


def test_a_machine_that_goes_before_the_run_has_saved_is_not_planned_on():
    """A step of this model on eight cards and its checkpoint take longer than Google's half minute."""
    words = "--gpu h100-80gb-sxm --gpus 8 --budget 5000 --depth 32 --provider gcp"
    profile, now = prior_profile(require_gpu("h100-80gb-sxm")), datetime(2026, 11, 22, tzinfo=UTC)
    own = bare_plan(goal_of(shlex.split(f"{words} --spot none")), profile, now=now)
    assert save_seconds(own.run, own.bill.wall_clock, own.prediction.step_seconds) > NOTICE_SECONDS["gcp"]
    with pytest.raises(AdvisorError, match=r"saves before it is taken away.* Google Cloud gives 30 s") as refused:
        bare_plan(goal_of(shlex.split(f"{words} --spot only")), profile, now=now)
    assert "--spot none" in refused.value.hint
    either = bare_plan(goal_of(shlex.split(f"{words} --spot any")), profile, now=now)
    assert not either.offer.spot


def test_what_is_planned_on_spot_machines_saves_in_time():
    profile, now = prior_profile(require_gpu("h100-80gb-sxm")), datetime(2026, 11, 22, tzinfo=UTC)
    words = "--gpu h100-80gb-sxm --gpus 8 --budget 500 --depth 16 --provider gcp --spot only"
    plan = bare_plan(goal_of(shlex.split(words)), profile, now=now)
    needed = save_seconds(plan.run, plan.bill.wall_clock, plan.prediction.step_seconds)
    assert plan.offer.spot and needed <= NOTICE_SECONDS["gcp"]


def test_a_launch_is_told_where_the_end_of_its_machine_is_announced(call, tmp_path):
    plan = Store(tmp_path).save_plan(small_plan())
    code, out, _ = call("launch", str(plan), "--notice", "/run/spot", "--dry-run", "--json")
    assert code == 0 and "notice: /run/spot" in json.loads(out)["files"]["run.yaml"]


@pytest.mark.parametrize("where", ["spot", "http://169.254.169.254/latest", "ftp://127.0.0.1/x"])
def test_what_nobody_may_be_asked_is_refused_before_the_start(call, tmp_path, where):
    plan = Store(tmp_path).save_plan(small_plan())
    code, out, err = call("launch", str(plan), "--notice", where, "--dry-run")
    assert (code, out) == (2, "") and where in err, err


def test_launch_asks_the_trainer_for_a_trace(call, tmp_path):
    plan = Store(tmp_path).save_plan(small_plan())
    code, out, _ = call("launch", str(plan), "--trace", "3", "--dry-run", "--json")
    assert code == 0 and "trace_steps: 3" in json.loads(out)["files"]["run.yaml"]
    code, _, err = call("launch", str(plan), "--trace", "1000000", "--dry-run")
    assert code == 2 and "needs a run of 1000008 steps" in err, err
