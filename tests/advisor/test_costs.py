"""Bills of very many runs: against arithmetic on one run, at their limits, and against the batch rule in words."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.hardware.catalog import require_gpu
from advisor.hardware.offers import Offer, cheapest_offer
from advisor.laws.hyperparameters import scale_flops
from advisor.options import Goal
from advisor.planning import recipe
from advisor.planning.candidates import KINDS, Device, make_candidates
from advisor.planning.choose import Selection
from advisor.planning.costs import Costs
from advisor.planning.evaluate import LEAST_STEPS, Violation, runs_of
from advisor.planning.goal import Limits, make_brief
from advisor.planning.offers import offers_for
from advisor.planning.run import config_of, make_run
from advisor.prediction.batch import predict_batch, step_seconds_many
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.micro_batch import ENOUGH
from advisor.prediction.power import measured_power
from advisor.prediction.uncalibrated import prior_profile
from tests.advisor.devices import big_gpu, small_cpu

GOAL = Goal(gpu="h200-141gb-sxm", budget_usd=40.0, deadline_seconds=4 * 3600.0)


def offer(gpus: int, usd_per_hour: float = 3.0, *, gpu: str = "h200-141gb-sxm", spot: bool = False) -> Offer:
    most = 1.4 * usd_per_hour * gpus if spot else None
    return Offer(gpu=gpu, gpus=gpus, provider="p", spot=spot, usd_per_hour=usd_per_hour * gpus, source="p",
                 most_usd_per_hour=most)  # fmt: skip


def device(profile=None, goal: Goal = GOAL, data_meta=None, offers=None) -> Device:
    offers = offers or (offer(1), offer(8), offer(2, 1.5, spot=True))
    brief = make_brief(goal, profile or big_gpu(), data_meta, offers[0])
    return Device(profile=profile or big_gpu(), brief=brief, offers=offers)


METERED = measured_power([0.1, 0.4], [300.0, 500.0], 700.0)
CANDIDATES = {
    "calibrated": make_candidates([device()]),
    "prior": make_candidates([device(prior_profile(require_gpu("h200-141gb-sxm")))]),
    "tariff": make_candidates([device(goal=replace(GOAL, usd_per_kwh=0.3, optimizer="muon", power_cap_watts=600.0))]),
    "metered": make_candidates([device(replace(big_gpu(), costs=replace(big_gpu().costs, power=METERED)),
                                       replace(GOAL, usd_per_kwh=0.3))]),
    "interrupted": make_candidates([device(goal=replace(GOAL, interruption_seconds=3 * 3600.0))]),
    "only spot is": make_candidates([device(goal=replace(GOAL, interruption_seconds=3 * 3600.0, spot="any"))]),
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(CANDIDATES)), st.integers(0, 10**6), st.integers(1, 30_000))
def test_a_bill_is_what_its_run_configuration_costs(name, number, steps):
    """Count evaluations and checkpoints from the configuration that the trainer gets, and add the parts by hand."""
    candidates = CANDIDATES[name]
    place = number % len(candidates)
    costs = Costs(candidates.rows(np.array([place])))
    seconds = costs.seconds(np.array([[float(steps)]])).item()
    made = make_run(candidates, Selection(place=place, steps=steps, seconds=0.0, usd=0.0, score=0.0))
    there = candidates.machines.devices[candidates.device[place]]
    run = config_of(there, made, float(costs.terms.checkpoints.every_seconds[0, 0]))
    bill, clock, step = made.bill, made.bill.wall_clock, float(candidates.step.value[place])  # the mean
    gpus, measured = made.offer.gpus, there.profile.costs
    assert clock.total_seconds.value == pytest.approx(seconds, rel=1e-12)
    evals = math.ceil(steps / run.eval.every_steps)
    batches = math.ceil(run.eval.tokens / (run.micro_batch * run.model.seq_len) / gpus)
    forward = step * measured.forward_fraction / run.grad_accum
    assert clock.steps_seconds.value == pytest.approx(steps * step)
    assert clock.evals_seconds.value == pytest.approx(evals * batches * forward)
    working = clock.steps_seconds.value + clock.evals_seconds.value
    written = max(0, math.ceil(working / run.checkpoint.every_seconds - 1e-9) - 1) + 1
    write = bill.disk_bytes / 3 / measured.checkpoint_bytes_per_second.value
    assert clock.write_seconds.value == pytest.approx(write)
    held = bill.disk_bytes / 3 / (gpus if made.prediction.workload.sharding == "full" else 1)
    stall = min(write, 1.0 + held / 4e9) if there.profile.device_type == "cuda" else write
    assert clock.checkpoints_seconds.value == pytest.approx((written - 1) * stall + write, abs=1.01 * stall)
    parts = (clock.startup_seconds, clock.compile_seconds, clock.steps_seconds, clock.evals_seconds,
             clock.checkpoints_seconds, clock.interruptions_seconds, clock.provisioning_seconds,
             clock.download_seconds)  # fmt: skip
    assert clock.total_seconds.value == pytest.approx(sum(part.value for part in parts if part))
    rent = seconds / 3600 * made.offer.usd_per_hour + bill.storage_usd.value
    energy = (bill.energy_kwh.value if bill.energy_kwh else 0.0) * 1.15 * 1.25 * there.brief.usd_per_kwh
    assert bill.cost_usd.value == pytest.approx(rent + energy)
    usd = costs.usd(np.array([[seconds]]), np.array([[float(made.steps)]]))
    assert usd.item() == pytest.approx(bill.cost_usd.value)


@pytest.mark.parametrize("name", sorted(CANDIDATES))
def test_rows_are_the_predictions_of_one_at_a_time(name):
    candidates = CANDIDATES[name]
    profile = candidates.machines.devices[0].profile
    for place in range(0, len(candidates), max(1, len(candidates) // 40)):
        workload = candidates.workload(place)
        [prediction] = predict_batch(profile, [workload])
        alone = WorkloadArrays.of([workload]), np.array([workload.grad_accum]), np.array([workload.gpus])
        step = step_seconds_many(profile, *alone, expected=True)
        held = profile.memory.device_total_bytes(workload)
        assert candidates.step.value[place] == pytest.approx(step.value[0], rel=1e-12)
        assert candidates.step.high[place] == pytest.approx(step.high[0], rel=1e-12)
        assert candidates.memory.high[place] == pytest.approx(held.high)
        assert bool(candidates.fits[place]) == prediction.fits


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("limits", [(3600.0, None), (None, 12.0), (7200.0, 12.0), (60.0, None)])
def test_the_most_steps_are_those_that_bisection_finds(sure, limits):
    limit = Limits(deadline_seconds=limits[0], budget_usd=limits[1], sure=sure)
    candidates = make_candidates([device(goal=replace(GOAL, sure=sure))])
    some = candidates.rows(np.arange(0, len(candidates), 29))
    costs = Costs(some)
    low, high = np.zeros((len(some), 1)), np.full((len(some), 1), 1e7)
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        keeps = (np.maximum(*costs.overruns(np.maximum(middle, 1), limit)) <= 1) & (middle > 0)
        low, high = np.where(keeps, middle, low), np.where(keeps, high, np.maximum(middle, 1))
    steps = costs.most_steps(limit)
    assert ((np.maximum(*costs.overruns(np.maximum(steps, 1), limit)) <= 1) | (steps == 0)).all()
    worth = low >= LEAST_STEPS  # fewer are never run
    assert worth.any() and (steps[worth] >= 0.998 * low[worth] - 1).all()
    assert (steps <= low * (1 + 1e-4) + 1).all()


@pytest.mark.parametrize("name", sorted(CANDIDATES))
def test_the_batch_rule_leaves_the_smallest_of_the_fast_micro_batches(name):
    """Against every micro-batch of a few global batches: nothing smaller that fits is within 2 % of the fastest."""
    candidates = CANDIDATES[name]
    machine = candidates.machines.devices[0]
    for place in np.nonzero(candidates.ruled & candidates.fits)[0][::37]:
        brief = machine.brief.pinned(
            depth=int(candidates.depth[place]), global_batch_tokens=int(candidates.step_tokens[place])
        )
        own = replace(machine, brief=brief, offers=(candidates.machines.offers[candidates.offer[place]],))
        every = make_candidates([own], every_micro_batch=True)
        # whole micro-batches make more or less of a global batch: only the same batches are compared
        same = every.fits & (np.abs(np.log(every.step_tokens / candidates.step_tokens[place])) < 0.02)
        rates = (every.step_tokens / every.step.value)[same]
        smaller = every.micro_batch[same] < candidates.micro_batch[place]
        rate = candidates.step_tokens[place] / candidates.step.value[place]
        assert rate >= 0.99 * ENOUGH * rates.max()
        assert (rates[smaller] < 1.01 * rate).all()


def test_a_run_has_the_global_batch_nearest_to_what_the_laws_recommend_for_it():
    candidates = CANDIDATES["prior"]
    limits = Limits(deadline_seconds=GOAL.deadline_seconds, budget_usd=GOAL.budget_usd)
    runs = runs_of(candidates, np.arange(len(candidates)), limits, spot=True)
    standing = runs.rows((runs.violation == 0) & candidates.ruled[runs.place])
    assert len(standing) > 20
    tokens = standing.steps * candidates.step_tokens[standing.place]
    usual = tokens / candidates.counted[standing.place] / 12
    for place, steps in zip(standing.place[usual < 8], standing.steps[usual < 8], strict=True):
        workload = candidates.workload(int(place))
        wanted = recipe.recommended_batch(scale_flops(workload.shape), steps * workload.step_tokens)
        assert 2**-0.5 <= workload.step_tokens / wanted <= 2**0.5
    assert (runs.violation & Violation.BATCH != 0).any()


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


def test_a_cpus_candidates_have_one_kind_of_checkpointing():
    goal = Goal(gpu="cpu", deadline_seconds=600.0)
    candidates = make_candidates([device(small_cpu(), goal, offers=offers_for(goal, "cpu", 1))])
    assert not any(KINDS[kind].checkpointing == "full" for kind in candidates.kind)
    assert set(candidates.depth) <= set(range(2, 17))


def test_the_rent_of_a_layout_or_fine_tune_allows_for_the_age_of_its_price():
    """Today's price is log-normal about the listed one; a price that was given does not move."""
    from advisor.planning.costs import rent_usd
    from advisor.records import Basis, Estimate

    hours = Estimate(value=36000.0, low=30000.0, high=43200.0, basis=Basis.PRIOR)
    listed = Offer(gpu="l4", gpus=1, provider="p", spot=False, usd_per_hour=2.0, source="p", price_deviation=0.14)
    given = Offer(gpu="l4", gpus=1, provider=None, spot=False, usd_per_hour=2.0, source="given")
    assert (rent_usd(hours, given).value, rent_usd(hours, given).high) == pytest.approx((20.0, 24.0))
    beyond = math.hypot(math.log(1.2), 1.28155 * 0.14)
    assert math.log(rent_usd(hours, listed).high / 20.0) == pytest.approx(beyond)
