"""The search's arrays are the numbers that a single plan is made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.calibrate.profiles import prior_profile
from advisor.catalog import require_gpu
from advisor.hardware.offers import Offer, cheapest_offer
from advisor.laws.hyperparameters import scale_flops
from advisor.plan import recipe
from advisor.plan.bills import Bills, Limits
from advisor.plan.field import Device, Field, make_field
from advisor.plan.goal import Brief, make_brief, rent
from advisor.plan.offers import offers_for
from advisor.plan.trial import make_bill, make_trial
from advisor.plan.weigh import promising, weigh
from advisor.predict.batch import predict_batch
from advisor.predict.power import measured_power
from advisor.prices import load_prices
from advisor.records import Estimate, Goal, Workload
from tests.advisor.devices import big_gpu, small_cpu, token_meta

GOAL = Goal(gpu="h200-141gb-sxm", budget_usd=40.0, deadline_seconds=4 * 3600.0)


def offer(gpus: int, usd_per_hour: float = 3.0, *, gpu: str = "h200-141gb-sxm", spot: bool = False) -> Offer:
    most = 1.4 * usd_per_hour * gpus if spot else None
    return Offer(gpu=gpu, gpus=gpus, provider="p", spot=spot, usd_per_hour=usd_per_hour * gpus, source="p",
                 most_usd_per_hour=most)  # fmt: skip


def device(profile=None, goal: Goal = GOAL, data_meta=None, offers=None) -> Device:
    offers = offers or (offer(1), offer(8), offer(2, 1.5, spot=True))
    brief = make_brief(goal, profile or big_gpu(), data_meta, rent(offers[0], goal))
    return Device(profile=profile or big_gpu(), brief=brief, offers=offers)


def brief_of(field: Field, place: int) -> Brief:
    """The brief that a plan for this row's offer alone would have."""
    mine, chosen = field.devices[field.device[place]], field.offers[field.offer[place]]
    goal = replace(mine.brief.goal, gpu=chosen.gpu, gpus=chosen.gpus)
    return make_brief(goal, mine.profile, None, rent(chosen, goal))


def workload(field: Field, place: int) -> Workload:
    brief, row = field.devices[field.device[place]].brief, field.rows(np.array([place]))
    return Workload(
        shape=brief.shape(int(row.depth[0])),
        micro_batch=int(row.micro_batch[0]),
        grad_accum=int(row.grad_accum[0]),
        gpu=field.offers[field.offer[place]].gpu,
        gpus=int(row.gpus[0]),
        precision=brief.precision,
        compile=brief.compile,
        activation_checkpointing="full" if row.full[0] else "none",
        optimizer=brief.goal.optimizer,
    )


METERED = measured_power([0.1, 0.4], [300.0, 500.0], 700.0)
FIELDS = {
    "calibrated": make_field([device()]),
    "prior": make_field([device(prior_profile(require_gpu("h200-141gb-sxm")))]),
    "tariff": make_field([device(goal=replace(GOAL, usd_per_kwh=0.3, optimizer="muon", power_cap_watts=600.0))]),
    "metered": make_field([device(replace(big_gpu(), costs=replace(big_gpu().costs, power=METERED)),
                                  replace(GOAL, usd_per_kwh=0.3))]),
    "interrupted": make_field([device(goal=replace(GOAL, interruption_seconds=3 * 3600.0))]),
    "only spot is": make_field([device(goal=replace(GOAL, interruption_seconds=3 * 3600.0, spot="any"))]),
}  # fmt: skip


def same(estimate: Estimate, value: float, high: float) -> bool:
    return estimate.value == pytest.approx(value) and estimate.high == pytest.approx(high)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FIELDS)), st.integers(0, 10**6), st.integers(1, 30_000))
def test_every_number_of_a_row_equals_the_single_plans(name, number, steps):
    field = FIELDS[name]
    place = number % len(field)
    brief, w = brief_of(field, place), workload(field, place)
    profile = field.devices[0].profile
    [prediction] = predict_batch(profile, [w])
    bill = make_bill(brief, profile, prediction, steps)
    row = field.rows(np.array([place]))
    bills, s = Bills(row), np.array([[float(steps)]])
    seconds, high = bills.seconds(s), bills.seconds_high(s)
    assert row.step.value[0] == pytest.approx(prediction.step_seconds.value)
    assert same(profile.memory.device_total_bytes(w), row.memory.value[0], row.memory.high[0])
    assert bool(row.fits[0]) == prediction.fits and row.step_tokens[0] == w.step_tokens
    assert same(bill.clock.total_seconds, seconds[0, 0], high[0, 0])
    assert same(bill.cost_usd, bills.usd(seconds)[0, 0], bills.usd_high(s)[0, 0])
    tokens = steps * w.step_tokens
    if tokens > 300:
        assert recipe.recommended_batch(row.batch_scale, np.array([tokens]))[0] == pytest.approx(
            recipe.recommended_batch(scale_flops(w.shape), tokens)
        )


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("limits", [(3600.0, None), (None, 12.0), (7200.0, 12.0), (60.0, None)])
def test_the_most_steps_are_those_that_bisection_finds(sure, limits):
    goal = replace(GOAL, deadline_seconds=limits[0], budget_usd=limits[1], sure=sure)
    field = make_field([device(goal=goal)])
    some = field.rows(np.arange(0, len(field), 97))
    found = Bills(some).most_steps(Limits(deadline_seconds=limits[0], budget_usd=limits[1], sure=sure))[:, 0]
    for place, steps in enumerate(found):
        [prediction] = predict_batch(some.devices[0].profile, [workload(some, place)])
        trial = make_trial(brief_of(some, place), some.devices[0].profile, prediction)
        expected = trial.bill.run.steps
        if trial.obstacle is None or steps > 20:
            assert expected * 0.998 - 1 <= steps <= expected
        else:
            assert steps <= 20


def test_data_end_a_run_at_sixteen_epochs():
    data = token_meta(tokens=10**7, validation_tokens=10**5, vocab_size=65536)
    field = make_field([device(data_meta=data)])
    tokens = Bills(field).tokens(Bills(field).most_steps(Limits(deadline_seconds=1e5)))
    assert tokens.max() <= 16 * 10**7


def test_what_is_passed_over_is_never_missed():
    """The few promising configurations give the same front as all of them."""
    for field in FIELDS.values():
        limits = Limits(deadline_seconds=GOAL.deadline_seconds, budget_usd=GOAL.budget_usd)
        few = field.rows(promising(field))
        assert len(few) < len(field) / 2
        whole, part = (weigh(f, limits, spot=True).standing for f in (field, few))
        assert part.score.min() == pytest.approx(whole.score.min(), rel=1e-4)
        assert part.usd.min() == pytest.approx(whole.usd.min(), rel=0.02)


def test_offers_are_the_cheapest_machine_of_each_kind():
    on_demand, spot = offers_for(replace(GOAL, spot="any"), "h100-80gb-sxm", 8)
    assert not on_demand.spot and spot.spot and spot.usd_per_hour < on_demand.usd_per_hour
    assert on_demand.provider != "vast" and spot.provider != "vast"
    assert offers_for(GOAL, "h100-80gb-sxm", 8) == (on_demand,)
    assert offers_for(replace(GOAL, spot="only"), "h100-80gb-sxm", 8) == (spot,)
    dearer = cheapest_offer("h100-80gb-sxm", 8, spot=False, providers=("aws",))
    assert dearer.provider == "aws" and dearer.usd_per_hour > on_demand.usd_per_hour
    assert offers_for(GOAL, "tpu-v4", 1) == () and offers_for(GOAL, "cpu", 1)[0].usd_per_hour == 0.0
    [given_price] = offers_for(replace(GOAL, usd_per_gpu_hour=2.5), "tpu-v4", 4)
    assert given_price.usd_per_hour == 10.0 and given_price.source == "given"


def test_gpus_of_several_small_machines_are_no_offer():
    """Lambda rents a GH200 one by one: two share no link. Beyond a node whole nodes are taken, or whole racks."""
    assert offers_for(GOAL, "gh200-96gb", 1) and not offers_for(GOAL, "gh200-96gb", 2)
    [sixteen] = offers_for(GOAL, "h100-80gb-sxm", 16)
    nodes = [r for r in load_prices() if r.gpu == "h100-80gb-sxm" and r.gpu_count == 8 and r.on_demand_usd_per_hour]
    assert sixteen.usd_per_hour == 2 * min(r.on_demand_usd_per_hour for r in nodes if r.provider != "vast")
    [rack] = offers_for(GOAL, "gb200", 8)
    assert " 2 x " in rack.source


def test_a_cpus_field_has_one_kind_of_checkpointing():
    goal = Goal(gpu="cpu", deadline_seconds=600.0)
    field = make_field([device(small_cpu(), goal, offers=offers_for(goal, "cpu", 1))])
    assert not field.full.any() and set(field.depth) <= set(range(2, 17))
