"""Deadlines, budgets, tariffs and prices: used, kept, and said where they cannot be; stages and their gates."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.hardware.offers import Offer
from advisor.laws import flops
from advisor.planning.stages import stages, with_gates
from advisor.prediction.power import measured_power
from advisor.prediction.uncalibrated import prior_profile
from tests.advisor.devices import big_gpu, plan_on, small_cpu
from tests.advisor.plans import altered, guess, small_plan
from tests.advisor.small_plans import GPU, NOW, plan_cpu, plan_gpu


@pytest.mark.parametrize("seconds", [60.0, 300.0, 3600.0])
def test_a_deadline_is_used_and_kept(seconds):
    plan = plan_cpu(deadline_seconds=seconds)
    total = plan.bill.wall_clock.total_seconds
    assert 0.9 * seconds < total.value <= seconds
    assert plan.chosen.tokens == plan.run.steps * plan.run.tokens_per_step()
    assert plan.run.problems() == []


def test_a_budget_buys_seconds():
    plan = plan_gpu(budget_usd=6.0)
    assert 5.5 < plan.bill.cost_usd.value <= 6.0
    disk = 3 * plan.bill.checkpoint_bytes * 0.10 / 1e9 / 730  # dollars an hour: two kept and one being written
    hours = plan.bill.wall_clock.total_seconds.value / 3600
    assert plan.bill.cost_usd.value == pytest.approx(hours * (3.0 + disk))


def test_a_budget_on_ones_own_machine_needs_a_price_or_a_tariff():
    with pytest.raises(AdvisorError, match="needs a price or an electricity tariff") as caught:
        plan_cpu(budget_usd=1.0)
    assert caught.value.exit_code == 2 and "--price" in caught.value.hint
    with pytest.raises(AdvisorError, match="power of cpu, which is unknown"):
        plan_cpu(budget_usd=1.0, usd_per_kwh=0.3)


def test_a_tariff_alone_can_be_the_price():
    profile = small_cpu()
    profile = replace(profile, costs=replace(profile.costs, power=measured_power([0.5], [100.0], None)))
    plan = plan_cpu(budget_usd=0.01, usd_per_kwh=0.30, profile=profile)
    clock = plan.bill.wall_clock  # start-up draws next to nothing
    loop = (clock.steps_seconds, clock.evals_seconds, clock.checkpoints_seconds, clock.interruptions_seconds)
    hours = sum(part.value for part in loop) / 3600
    assert plan.bill.energy_kwh.value == pytest.approx(0.1 * hours)
    assert plan.bill.cost_usd.value == pytest.approx(0.03 * 1.15 * 1.25 * hours) and plan.bill.cost_usd.value <= 0.01


def test_stated_interruptions_set_the_checkpoints_and_are_billed():
    """Young's interval sqrt(2 delta M) is a little above Daly's; both within 3 % where the stalls delta are short."""
    offer = Offer(gpu=GPU.gpu, gpus=1, provider="p", spot=False, usd_per_hour=3.0, source="p")
    goals = [replace(GPU, tokens=10**9, depth=12, interruption_seconds=mean) for mean in (None, 6 * 3600.0)]
    calm, rough = (plan_on(offer, goal, big_gpu(), NOW) for goal in goals)
    assert calm.run.checkpoint.every_seconds > 3 * rough.run.checkpoint.every_seconds
    assumed = calm.bill.wall_clock.interruptions_seconds  # a failure in five days, about 15 minutes each
    assert 0.002 < assumed.value / calm.bill.wall_clock.steps_seconds.value < 0.008
    stall = 1.0 + rough.bill.checkpoint_bytes / 4e9  # copied to the host, written beside the run
    young = math.sqrt(2 * stall * 6 * 3600.0)
    assert young - 1.5 * stall < rough.run.checkpoint.every_seconds < young
    lost = rough.bill.wall_clock.interruptions_seconds
    share = lost.value / calm.bill.wall_clock.steps_seconds.value
    assert 0.5 * young / (6 * 3600) < share < 0.03 and lost.low == lost.value == lost.high  # as it was stated
    assert rough.bill.wall_clock.total_seconds.value > calm.bill.wall_clock.total_seconds.value


@pytest.mark.parametrize("depth", [12, 32])
def test_checkpoints_take_little_unasked_and_as_stated_when_asked(depth):
    offer = Offer(gpu=GPU.gpu, gpus=1, provider="p", spot=False, usd_per_hour=3.0, source="p")
    goal = replace(GPU, tokens=2 * 10**10, depth=depth)
    plan = plan_on(offer, goal, big_gpu(), NOW)
    clock = plan.bill.wall_clock
    assert clock.checkpoints_seconds.value < 0.011 * clock.steps_seconds.value
    asked = plan_on(offer, replace(goal, checkpoint_seconds=900.0), big_gpu(), NOW)
    assert asked.run.checkpoint.every_seconds == 900.0  # the launched run's own configuration
    write = asked.bill.checkpoint_bytes / big_gpu().costs.checkpoint_bytes_per_second.value
    work = asked.bill.wall_clock.steps_seconds.value + asked.bill.wall_clock.evals_seconds.value
    waited = (1.0 + asked.bill.checkpoint_bytes / 4e9) * (math.ceil(work / 900.0) - 1) + write
    assert asked.bill.wall_clock.checkpoints_seconds.value == pytest.approx(waited)


def test_a_spot_price_is_a_range_in_the_bill():
    """Twice the price at most: the dollars' high end is twice the value, joined with the time's own in quadrature."""
    offer = Offer(gpu=GPU.gpu, gpus=1, provider="p", spot=True, usd_per_hour=2.0, source="p", most_usd_per_hour=4.0)
    goal = replace(GPU, tokens=10**9, depth=12, spot="only")
    found = plan_on(offer, goal, big_gpu(), NOW).bill
    total, cost = found.wall_clock.total_seconds, found.cost_usd
    longer, dearer = math.log(total.high / total.value), math.log(2.0)
    assert cost.high / cost.value == pytest.approx(math.exp(math.hypot(longer, dearer)), rel=0.01)
    assert cost.value / cost.low == pytest.approx(total.value / total.low)


def test_a_power_cap_saves_energy_and_is_doubted_where_the_card_was_calibrated_without():
    free, capped = (plan_gpu(tokens=10**9, depth=12, power_cap_watts=cap) for cap in (None, 200.0))
    assert capped.bill.power_watts.value == capped.bill.power_watts.high == 200.0
    assert free.bill.power_watts.value > 200.0
    assert capped.bill.energy_kwh.value < free.bill.energy_kwh.value
    assert any("power limit" in w and "200 W" in w for w in capped.warnings)


def test_a_power_cap_slows_a_card_that_is_only_believed_in():
    spec = require_gpu("rtx-4090")
    free, capped = (prior_profile(spec, power_cap_watts=cap) for cap in (None, 225.0))
    steps = [
        plan_gpu(gpu="rtx-4090", profile=p, tokens=10**9, depth=12).prediction.step_seconds for p in (free, capped)
    ]
    assert 1.03 < steps[1].value / steps[0].value < 1.35  # half the watts, at most a third of the speed
    assert prior_profile(spec, power_cap_watts=600.0).posterior.theta.tolist() == free.posterior.theta.tolist()


def test_an_unknown_price_is_unknown_and_not_zero():
    nobody_rents_it = replace(big_gpu(), key="card-of-my-own")
    plan = plan_gpu(price=None, profile=nobody_rents_it, deadline_seconds=3600.0)
    assert plan.bill.cost_usd is None and any("cost is unknown" in w for w in plan.warnings)
    with pytest.raises(AdvisorError, match="--budget needs a price"):
        plan_gpu(price=None, profile=nobody_rents_it, budget_usd=5.0)


def test_without_limits_the_families_ratio_and_an_assumed_day():
    plan = plan_gpu()
    counted = flops.scaling_parameters(plan.run.model, "matrices+head")
    assert plan.chosen.tokens / counted == pytest.approx(12, rel=0.01) == plan.chosen.standing.ratio
    assert plan.bill.wall_clock.total_seconds.value <= 86400
    deeper = [c for c in plan.considered if c.depth > plan.chosen.depth]
    assert deeper and all("too slow" in c.standing.why for c in deeper)
    assert any("assumed because no limit was given" in reason for reason in plan.reasons)


def test_a_limit_that_nobody_set_is_said_to_be_assumed():
    with pytest.raises(
        AdvisorError, match="no plan ends within 60 min, assumed because no limit was given: "
    ) as caught:
        plan_cpu(ratio=1e6)
    assert "--deadline" in caught.value.hint


def test_nothing_fits_a_tiny_memory():
    with pytest.raises(AdvisorError, match="nothing fits the memory of cpu.* of 497 MiB usable") as caught:
        plan_cpu(deadline_seconds=60.0, profile=small_cpu(memory_bytes=512 * 2**20))
    assert caught.value.exit_code == 3 and "--seq-len" not in caught.value.hint  # 503 MiB even at 16 tokens


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
