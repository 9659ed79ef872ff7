"""Spot machines: the interruptions of a run's machines add up in every plan; a run that never ends says so."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.planning.goal import interruptions
from advisor.prediction.layout_runs import whole_run
from advisor.prediction.wallclock import checkpoint_interval_seconds, lost_share
from advisor.records import Basis, Estimate
from benchmarks.interruptions import simulated
from tests.advisor.plans import goal_of

HOUR = 3600.0


def lost(mean: float, stall: float, again: float) -> float:
    every = float(checkpoint_interval_seconds(stall, mean))
    return float(lost_share(np.array(every), np.array(stall), np.array(again), np.array(mean)))


@pytest.mark.parametrize(("gpus", "machines"), [(1, 1), (8, 1), (9, 2), (64, 8), (1024, 128)])
def test_the_rates_of_machines_add_up(gpus: int, machines: int):
    for words in ("--spot only", "--spot only --interruptions 12h"):
        goal = goal_of(f"--gpu h100-80gb-sxm --gpus {gpus} --params 1B --tokens 1B {words}".split())
        alone, together = (interruptions(goal, spot=True, gpus=n).value for n in (1, gpus))
        assert alone / together == pytest.approx(machines)


@given(
    mean_hours=st.floats(1, 5000),
    machines=st.integers(1, 127),
    stall=st.floats(0.5, 300),
    again=st.floats(60, 3600),
)
def test_more_machines_and_more_interruptions_never_cost_less(mean_hours, machines, stall, again):
    """Between hourly interruptions and those of on-demand machines, on 1 to 128 machines."""
    fewer, more = (lost(mean_hours * HOUR / n, stall, again) for n in (machines, machines + 1))
    rarer = lost(1.5 * mean_hours * HOUR / machines, stall, again)
    assert rarer <= fewer * 1.001 and fewer <= more * 1.001  # the interval is whole seconds


@pytest.mark.parametrize(
    ("mean", "every", "stall", "again"),
    [(14 * HOUR, 1800.0, 20.0, 900.0), (HOUR, 400.0, 20.0, 900.0), (1000.0, 120.0, 5.0, 700.0)],
)
def test_the_expected_loss_is_that_of_a_simulation(mean, every, stall, again):
    expected = 1 + float(lost_share(np.array(every), np.array(stall), np.array(again), np.array(mean)))
    assert simulated(mean, every, stall, again, segments=40_000) == pytest.approx(expected, rel=0.05)


def test_a_layout_on_spot_machines_takes_longer():
    step = Estimate(value=10.0, low=8.0, high=12.0, basis=Basis.PRIOR)
    taken = Estimate(value=14 * HOUR / 8, low=4 * HOUR / 8, high=48 * HOUR / 8, basis=Basis.PRIOR)
    steady, spot = (whole_run(step, 50_000, 64, 8 * 10**9, taken=t) for t in (None, taken))
    (steady, _), (spot, failures) = ((clock.total_seconds, count) for clock, count in (steady, spot))
    assert failures == pytest.approx(spot.value / taken.value)
    assert 1.1 < spot.value / steady.value < 2
    assert spot.low < spot.value < spot.high


def test_plans_of_every_kind_count_them(call):
    shared = "--tokens 20B --json --spot"
    kinds = {
        "plain": f"--gpu h100 --gpus 64 --params 7B {shared}",
        "layout": f"--layout any --model llama-3-8b --gpu h100 --gpus 64 {shared}",
        "fine-tune": f"--gpu h100 --gpus 8 --model llama-3-8b --finetune full {shared}",
    }
    for name, words in kinds.items():
        hours = {}
        for spot in ("none", "only"):
            code, out, err = call("plan", *words.split(), spot)
            assert code == 0, (name, err)
            hours[spot] = json.loads(out)["chosen"]["bill"]["wall_clock"]["total_seconds"]["value"] / HOUR
        assert hours["only"] > 1.01 * hours["none"], name


def test_a_run_that_never_ends_is_not_offered(call):
    words = "plan --layout any --model llama-3-70b --gpu h100 --gpus 4096 --tokens 1T --spot only"
    code, _, err = call(*words.split())
    assert code == 3 and "it never ends" in err


def test_one_gpu_is_never_priced_as_eight(call):
    words = "plan --gpu h100 --gpus 8 --params 1.5B --tokens 100B --json"
    points = {p["gpus"]: p for p in json.loads(call(*words.split())[1])["search"]["scaling"]}
    alone = json.loads(call(*words.replace("--gpus 8", "--gpus 1").split())[1])["chosen"]
    assert points[1]["cost_usd"] == pytest.approx(alone["bill"]["cost_usd"]["value"], rel=0.05)


def test_the_sentence_about_more_gpus_is_that_of_its_table(call):
    words = "plan --gpu h100 --gpus 64 --params 1.5B --tokens 100B --spot only --json"
    search = json.loads(call(*words.split())[1])["search"]
    burdens = {p["gpus"]: p["cost_usd"] * p["total_seconds"] for p in search["scaling"]}
    least = min(burdens, key=burdens.get)
    assert search["pays_up_to_gpus"] == (None if least == max(burdens) else least)
    assert math.isfinite(burdens[least])
