"""Plans on invented devices: limits kept, batch rule obeyed, words and exit codes for goals that cannot be met."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.calibrate.profiles import prior_profile
from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.hardware.offers import Offer
from advisor.laws import flops
from advisor.laws.hyperparameters import batch_band, scale_flops
from advisor.plan import recipe
from advisor.plan.answer import bare_plan, measured_plan
from advisor.plan.batches import MICRO_BATCHES
from advisor.plan.explain import verdict
from advisor.predict.batch import predict_batch
from advisor.predict.loss import allocation_score
from advisor.predict.power import measured_power
from advisor.records import Basis, Estimate, Goal, Plan
from advisor.report import render
from advisor.report.plan import sentence
from advisor.store.plan_files import dump_plan, load_plan
from advisor.units import format_bytes, format_centre, format_estimate
from tests.advisor.devices import big_gpu, plan_on, small_cpu, token_meta
from trainer.schema import make_shape
from trainer.token_folder import TokenMeta

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
RENTED = 3.0  # dollars an hour
CPU, GPU = Goal(gpu="cpu"), Goal(gpu="h200-141gb-sxm")


def plan_cpu(data_meta=None, profile=None, **wishes) -> Plan:
    return bare_plan(replace(CPU, **wishes), profile or small_cpu(), now=NOW, data_meta=data_meta)


def plan_gpu(price: float | None = RENTED, profile=None, **wishes) -> Plan:
    return bare_plan(replace(GPU, usd_per_gpu_hour=price, **wishes), profile or big_gpu(), now=NOW)


def data_of(tokens: int, vocab_size: int = 4096) -> TokenMeta:
    return token_meta(tokens=tokens, validation_tokens=tokens // 20, vocab_size=vocab_size)


# Recipe


def test_learning_rate_of_the_published_run():
    """d16 at 6.71 B tokens: DeepSeek 1.27e-3, Step Law 2.2e-3 (sources §5.3); the lower one counts."""
    shape = make_shape("nanochat", depth=16, vocab_size=65536, seq_len=2048)
    batch = batch_band(scale_flops(shape), 6.71e9).median
    assert recipe.learning_rate(shape, 6.71e9, batch) == pytest.approx(1.27e-3, rel=0.03)
    assert recipe.learning_rate(shape, 6.71e9, batch / 4) == pytest.approx(1.27e-3 / 2, rel=0.04)


@given(st.integers(1, 32), st.floats(4, 12), st.floats(2, 8))
def test_learning_rate_stays_sane(depth, log_tokens, log_batch):
    shape = make_shape("nanochat", depth=depth, vocab_size=4096, seq_len=256)
    assert 1e-4 <= recipe.learning_rate(shape, 10**log_tokens, 10**log_batch) <= 3e-3


@given(st.integers(1, 10**6), st.integers(10**4, 10**9), st.sampled_from((256, 2048, 32768)))
def test_schedule_and_evaluation_are_valid(steps, tokens, micro_tokens):
    assert recipe.schedule(steps).warmup_steps <= max(1, steps // 2)
    evaluation = recipe.eval_config(steps, tokens, micro_tokens, None)
    assert evaluation.tokens % micro_tokens == 0 and evaluation.tokens > 0
    assert 1 <= -(-steps // evaluation.every_steps) <= recipe.EVALUATIONS


def test_short_runs_keep_their_steps():
    shape = make_shape("nanochat", depth=2, vocab_size=4096, seq_len=256)
    scale = scale_flops(shape)
    assert recipe.recommended_batch(scale, 300_000) == 1000
    assert recipe.recommended_batch(scale, 1e9) == batch_band(scale, 1e9).median


@pytest.mark.parametrize(
    ("card", "wishes"),
    [
        ("l4", {"depth": 12, "deadline_seconds": 1800.0}),
        ("l4", {"depth": 20, "deadline_seconds": 3600.0}),
        ("l4", {"depth": 6, "deadline_seconds": 20 * 86400.0, "usd_per_gpu_hour": 0.0}),
        ("h100-80gb-sxm", {"depth": 12, "counts": (8,), "deadline_seconds": 10 * 86400.0, "usd_per_gpu_hour": 0.0}),
        ("h100-80gb-sxm", {"counts": (64,), "budget_usd": 100_000.0}),
    ],
)
def test_however_many_tokens_limits_allow_the_batch_suits_them(card, wishes):
    plan = bare_plan(Goal(gpu=card, **wishes), prior_profile(require_gpu(card)), now=NOW)
    workload = plan.workload
    wanted = recipe.recommended_batch(scale_flops(workload.shape), plan.run.steps * workload.step_tokens)
    # half of the grid's √2, and what whole micro-batches on all devices add
    assert abs(math.log2(workload.step_tokens / wanted)) <= 0.25 + 0.1


# Limits


@pytest.mark.parametrize("seconds", [60.0, 300.0, 3600.0])
def test_a_deadline_is_used_and_kept(seconds):
    plan = plan_cpu(deadline_seconds=seconds)
    total = plan.prediction.wall_clock.total_seconds
    assert 0.9 * seconds < total.value <= seconds
    assert plan.chosen.tokens == plan.run.steps * plan.run.tokens_per_step()
    assert plan.run.problems() == []


def test_sure_keeps_the_high_end():
    plain, sure = plan_cpu(deadline_seconds=600.0), plan_cpu(deadline_seconds=600.0, sure=True)
    assert plain.prediction.wall_clock.total_seconds.high > 600 >= sure.prediction.wall_clock.total_seconds.high
    assert any("--sure" in reason and "high end" in reason for reason in plain.reasons)


def test_a_budget_buys_seconds():
    plan = plan_gpu(budget_usd=6.0)
    assert 5.5 < plan.prediction.cost_usd.value <= 6.0
    disk = 3 * plan.prediction.checkpoint_bytes * 0.10 / 1e9 / 730  # dollars an hour: two kept and one being written
    hours = plan.prediction.wall_clock.total_seconds.value / 3600
    assert plan.prediction.cost_usd.value == pytest.approx(hours * (3.0 + disk))


def test_the_tighter_of_budget_and_deadline_binds():
    assert plan_gpu(budget_usd=6.0, deadline_seconds=1800.0).prediction.cost_usd.value <= 1.501  # 3 $/h and its disk
    both = plan_gpu(budget_usd=1.0, deadline_seconds=36000.0)
    assert both.prediction.cost_usd.value == pytest.approx(1.0, rel=0.05)


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
    clock = plan.prediction.wall_clock  # start-up draws next to nothing
    loop = (clock.steps_seconds, clock.evals_seconds, clock.checkpoints_seconds, clock.interruptions_seconds)
    hours = sum(part.value for part in loop) / 3600
    assert plan.prediction.energy_kwh.value == pytest.approx(0.1 * hours)
    assert plan.prediction.cost_usd.value == pytest.approx(0.03 * hours) and plan.prediction.cost_usd.value <= 0.01


def test_stated_interruptions_set_the_checkpoints_and_are_billed():
    """Young's interval sqrt(2 delta M) is a little above Daly's; both within 3 % where writes are short."""
    offer = Offer(gpu=GPU.gpu, gpus=1, provider="p", spot=False, usd_per_hour=3.0, source="p")
    goals = [replace(GPU, tokens=10**9, depth=12, interruption_seconds=mean) for mean in (None, 6 * 3600.0)]
    calm, rough = (plan_on(offer, goal, big_gpu(), NOW) for goal in goals)
    assert calm.run.checkpoint.every_seconds > 3 * rough.run.checkpoint.every_seconds
    assumed = calm.prediction.wall_clock.interruptions_seconds  # a failure in five days, half an hour each
    assert 0.004 < assumed.value / calm.prediction.wall_clock.steps_seconds.value < 0.008
    write = rough.prediction.checkpoint_bytes / big_gpu().costs.checkpoint_bytes_per_second.value
    young = math.sqrt(2 * write * 6 * 3600.0)
    assert young - 1.5 * write < rough.run.checkpoint.every_seconds < young
    lost = rough.prediction.wall_clock.interruptions_seconds
    share = lost.value / calm.prediction.wall_clock.steps_seconds.value
    assert 0.5 * young / (6 * 3600) < share < 0.03 and lost.low == lost.value == lost.high  # as it was stated
    assert rough.prediction.wall_clock.total_seconds.value > calm.prediction.wall_clock.total_seconds.value


@pytest.mark.parametrize("depth", [12, 32])
def test_checkpoints_unasked_take_a_hundredth_at_most_and_as_stated_when_asked(depth):
    offer = Offer(gpu=GPU.gpu, gpus=1, provider="p", spot=False, usd_per_hour=3.0, source="p")
    goal = replace(GPU, tokens=2 * 10**10, depth=depth)
    plan = plan_on(offer, goal, big_gpu(), NOW)
    clock = plan.prediction.wall_clock
    assert clock.checkpoints_seconds.value < 0.011 * clock.steps_seconds.value
    asked = plan_on(offer, replace(goal, checkpoint_seconds=900.0), big_gpu(), NOW)
    assert asked.run.checkpoint.every_seconds == 900.0  # the launched run's own configuration
    write = asked.prediction.checkpoint_bytes / big_gpu().costs.checkpoint_bytes_per_second.value
    work = asked.prediction.wall_clock.steps_seconds.value + asked.prediction.wall_clock.evals_seconds.value
    assert asked.prediction.wall_clock.checkpoints_seconds.value == pytest.approx(write * math.ceil(work / 900.0))


def test_a_spot_price_is_a_range_in_the_bill():
    """Twice the price at most: the dollars' high end is twice the value, joined with the time's own in quadrature."""
    offer = Offer(gpu=GPU.gpu, gpus=1, provider="p", spot=True, usd_per_hour=2.0, source="p", most_usd_per_hour=4.0)
    goal = replace(GPU, tokens=10**9, depth=12, spot="only")
    found = plan_on(offer, goal, big_gpu(), NOW).prediction
    total, cost = found.wall_clock.total_seconds, found.cost_usd
    longer, dearer = math.log(total.high / total.value), math.log(2.0)
    assert cost.high / cost.value == pytest.approx(math.exp(math.hypot(longer, dearer)), rel=0.01)
    assert cost.value / cost.low == pytest.approx(total.value / total.low)


def test_a_power_cap_saves_energy_and_is_doubted_where_the_card_was_calibrated_without():
    free, capped = (plan_gpu(tokens=10**9, depth=12, power_cap_watts=cap) for cap in (None, 200.0))
    assert capped.prediction.power_watts.value == capped.prediction.power_watts.high == 200.0
    assert free.prediction.power_watts.value > 200.0
    assert capped.prediction.energy_kwh.value < free.prediction.energy_kwh.value
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
    assert plan.prediction.cost_usd is None and any("cost is unknown" in w for w in plan.warnings)
    with pytest.raises(AdvisorError, match="--budget needs a price"):
        plan_gpu(price=None, profile=nobody_rents_it, budget_usd=5.0)


# Tokens and depth


def test_without_limits_the_families_ratio_and_an_assumed_day():
    plan = plan_gpu()
    counted = flops.scaling_parameters(plan.run.model, "matrices+head")
    assert plan.chosen.tokens / counted == pytest.approx(12, rel=0.01) == plan.ratio
    assert plan.prediction.wall_clock.total_seconds.value <= 86400
    deeper = [c for c in plan.considered if c.depth > plan.chosen.depth]
    assert deeper and all("too slow" in c.rejected for c in deeper)
    assert any("assumed because no limit was given" in reason for reason in plan.reasons)


def test_other_families_count_all_parameters():
    plan = plan_cpu(family="gpt2", depth=2)
    assert plan.chosen.tokens / plan.chosen.parameters == pytest.approx(20, rel=0.02)
    assert "20 per parameter, the custom for gpt2" in plan.reasons[0]


@pytest.mark.parametrize("counts", flops.RATIO_COUNTS)
def test_a_ratio_counts_what_it_says(counts):
    plan = plan_cpu(depth=4, ratio=8.0, ratio_counts=counts)
    assert plan.chosen.tokens / flops.scaling_parameters(plan.run.model, counts) == pytest.approx(8, rel=0.02)


def test_tokens_alone_choose_the_depth_they_suit():
    plan = plan_cpu(tokens=50_000_000)
    others = [c for c in plan.considered if c.depth != plan.chosen.depth]
    assert plan.chosen.tokens == pytest.approx(50e6, rel=0.01)
    counted = {c.depth: flops.scaling_parameters(make_shape("nanochat", depth=c.depth, vocab_size=4096, seq_len=256),
                                                 "matrices+head") for c in others}  # fmt: skip
    off = abs(math.log(plan.ratio / 12))
    assert all(off <= abs(math.log(50e6 / counted[c.depth] / 12)) + 0.01 for c in others)


def test_more_time_means_a_deeper_model():
    depths = [plan_gpu(deadline_seconds=hours * 3600.0).chosen.depth for hours in (0.2, 2, 20)]
    assert depths == sorted(depths) and depths[0] < depths[-1]


def test_the_chosen_depth_has_the_best_score_of_those_that_stand():
    plan = plan_gpu(deadline_seconds=7200.0)
    standing = [c for c in plan.considered if c.rejected is None]
    assert plan.chosen in standing and plan.chosen.score <= 1.001 * min(c.score for c in standing)
    assert plan.prediction.loss is not None and plan.prediction.loss.basis == Basis.PRIOR


# Batch


@pytest.mark.parametrize("wishes", [{"deadline_seconds": 300.0}, {"depth": 4}, {"tokens": 20_000_000, "depth": 6}])
def test_micro_batch_is_the_smallest_within_two_percent(wishes):
    plan = plan_cpu(**wishes)
    step_tokens = plan.workload.step_tokens
    sizes = [b for b in MICRO_BATCHES if b * 256 <= step_tokens * math.sqrt(2)]
    workloads = [
        replace(plan.workload, micro_batch=b, grad_accum=max(1, round(step_tokens / (b * 256)))) for b in sizes
    ]
    rates = {p.workload.micro_batch: p.tokens_per_second.value for p in predict_batch(small_cpu(), workloads)}
    best = max(rates.values())
    smaller = [b for b in sizes if b < plan.run.micro_batch]
    assert rates[plan.run.micro_batch] >= 0.975 * best
    assert all(rates[b] < 0.985 * best for b in smaller)


def test_a_run_of_minutes_keeps_hundreds_of_steps():
    assert plan_cpu(deadline_seconds=100.0).run.steps >= 200


def test_wishes_for_the_batch_are_obeyed():
    plan = plan_cpu(depth=4, micro_batch=3, global_batch_tokens=12_288)
    assert (plan.run.micro_batch, plan.run.grad_accum) == (3, 16)
    assert "as asked" in plan.reasons[2]


@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize("sequences", [8, 72, 250, 256, 1000, 1024])
def test_a_global_batch_is_met_exactly_or_what_it_misses_is_said(gpus, sequences):
    asked = sequences * 2048
    plan = plan_gpu(gpus=gpus, depth=12, tokens=10**9, global_batch_tokens=asked)
    warned = [text for text in plan.warnings if "asked for" in text]
    if sequences % gpus == 0:
        assert plan.workload.step_tokens == asked and "as asked" in plan.reasons[2] and not warned
        assert all(c.micro_batch * c.grad_accum * gpus == sequences for c in plan.considered)
    else:
        share = plan.workload.step_tokens / asked - 1
        assert 0 < abs(share) <= 0.05
        assert len(warned) == 1 and f"{100 * abs(share):.3g} %" in warned[0] and f"{2048 * gpus:,}" in warned[0]


def test_no_recommendation_exceeds_the_memory_with_margin():
    tight = big_gpu(memory_bytes=24 * 2**30)
    plan = plan_gpu(profile=tight, deadline_seconds=7200.0, depth=16)
    assert tight.memory.device_total_bytes(plan.workload).high <= 0.97 * 24 * 2**30
    assert any(c.rejected and c.rejected.startswith("does not fit memory") for c in plan.considered)


def test_recomputation_only_where_nothing_else_fits():
    roomy = plan_gpu(depth=12, deadline_seconds=3600.0)
    assert roomy.run.activation_checkpointing == "none"
    starved = plan_gpu(depth=12, deadline_seconds=3600.0, profile=big_gpu(memory_bytes=int(4.6 * 2**30)))
    assert starved.run.activation_checkpointing == "full"


def test_what_fits_fits_with_its_gradients_kept_and_what_does_not_has_the_accumulation_it_would_have():
    limit = 22.5 * 2**30  # where gradients decide: sizes fit alone that do not fit accumulated
    plan = plan_gpu(profile=big_gpu(memory_bytes=int(limit)), budget_usd=60.0)
    too_large = [c for c in plan.considered if (c.rejected or "").startswith("does not fit memory")]
    assert any(c.depth == plan.chosen.depth for c in too_large)
    for c in plan.considered:
        assert (c.device_bytes.high > 0.97 * limit) == (c in too_large)
        assert c.tokens == c.steps * c.micro_batch * c.grad_accum * 2048
    batch = plan.workload.step_tokens
    for c in (c for c in plan.considered if c.depth == plan.chosen.depth):
        assert c.micro_batch * c.grad_accum * 2048 == pytest.approx(batch, rel=0.2)


def test_a_depth_is_said_not_to_fit_only_after_recomputing_its_activations():
    plan = plan_gpu(profile=big_gpu(memory_bytes=12 * 2**30), budget_usd=60.0)
    depths = {c.depth: c for c in reversed(plan.considered)}
    unfit = {d for d, c in depths.items() if (c.rejected or "").startswith("does not fit")}
    full = {d for d, c in depths.items() if c.activation_checkpointing == "full"}
    assert unfit and unfit < full and plan.chosen.depth in full - unfit
    assert 8 not in full and "activations recomputed" in sentence(plan)


# Data


def test_vocabulary_comes_from_the_data():
    plan = plan_cpu(deadline_seconds=300.0, data="corpus", data_meta=data_of(10**9, vocab_size=8192))
    assert plan.run.model.vocab_size == 8192 and plan.run.data.path == "corpus"
    with pytest.raises(AdvisorError, match="smaller than the data's tokenizer"):
        plan_cpu(deadline_seconds=300.0, vocab_size=100, data_meta=data_of(10**9))


@pytest.mark.parametrize(
    ("epochs", "words"), [(3, None), (6, "up to four times"), (20, "waste"), (50, "expect overfitting")]
)
def test_repeated_data_are_shown_and_warned_about(epochs, words):
    plan = plan_cpu(tokens=6_000_000, depth=2, data_meta=data_of(6_000_000 // epochs))
    assert plan.chosen.epochs == pytest.approx(epochs, rel=0.01)
    said = [w for w in plan.warnings if "the data would be seen" in w]
    assert bool(said) == bool(words) and (not words or words in said[0])


def test_no_time_is_spent_on_a_seventeenth_epoch_unasked():
    plan = plan_cpu(deadline_seconds=36000.0, data_meta=data_of(500_000))
    assert all(c.epochs <= 16 for c in plan.considered if not c.rejected)
    small = min((c for c in plan.considered if c.rejected is None), key=lambda c: c.depth)
    assert small.epochs == pytest.approx(16, abs=0.1) and small.total_seconds.value < 36000


def test_with_data_for_none_of_them_the_smallest_model_is_chosen():
    """Thirty thousand tokens feed no depth: larger ones cost more and gain nothing."""
    plan = plan_cpu(deadline_seconds=36000.0, data_meta=data_of(30_000))
    assert plan.chosen.depth == 1 and "depth 2 is level with it" in plan.reasons[1]


# Goals that cannot be met


def test_too_short_a_deadline_says_what_would_do():
    with pytest.raises(AdvisorError, match="no plan ends within 3 s: depth 2") as caught:
        plan_cpu(deadline_seconds=3.0)
    assert caught.value.exit_code == 3
    feasible = float(caught.value.hint.split("--deadline ")[1].split("s")[0])
    assert plan_cpu(deadline_seconds=feasible).run.steps >= 20


def test_too_small_a_budget_says_what_would_do():
    with pytest.raises(AdvisorError, match="no plan costs") as caught:
        plan_gpu(budget_usd=0.01)
    assert caught.value.exit_code == 3
    assert plan_gpu(budget_usd=float(caught.value.hint.split("--budget ")[1])).run.steps >= 20


def test_tokens_that_do_not_fit_the_deadline():
    with pytest.raises(AdvisorError, match="no plan ends within 60 s") as caught:
        plan_cpu(tokens=10**9, deadline_seconds=60.0)
    assert caught.value.exit_code == 3 and "fewer --tokens" in caught.value.hint


def test_nothing_fits_a_tiny_memory():
    with pytest.raises(AdvisorError, match="nothing fits the memory of cpu.* of 497 MiB usable") as caught:
        plan_cpu(deadline_seconds=60.0, profile=small_cpu(memory_bytes=512 * 2**20))
    assert caught.value.exit_code == 3 and "--seq-len" in caught.value.hint


@pytest.mark.parametrize(
    "wishes",
    [{"deadline_seconds": -1.0}, {"tokens": 0}, {"depth": -2}, {"budget_usd": 0.0}, {"family": "gpt5"}, {"ratio": 0.0},
     {"tokens": 10, "ratio": 2.0, "depth": 2}],
)  # fmt: skip
def test_what_cannot_be_meant_is_a_usage_error(wishes):
    with pytest.raises(AdvisorError) as caught:
        plan_cpu(**wishes)
    assert caught.value.exit_code == 2


def test_a_hopelessly_short_limit_gives_a_plan_with_a_warning_when_every_depth_is_thin():
    plan = plan_cpu(deadline_seconds=600.0, depth=8)
    assert plan.chosen.depth == 8 and any("few tokens" in w for w in plan.warnings)


# The record


def test_a_plan_is_complete_and_survives_its_file(tmp_path):
    plan = plan_gpu(deadline_seconds=3600.0)
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(plan), encoding="utf-8")
    assert load_plan(path) == plan
    assert "calibration h200-1" in plan.inputs and "price: given" in plan.inputs
    assert plan.considered[0] == plan.chosen
    assert plan.run.compile and plan.run.device == "cuda" and plan.run.precision == "bf16"


def test_the_same_inputs_give_the_same_plan():
    assert plan_cpu(deadline_seconds=300.0) == plan_cpu(deadline_seconds=300.0)
    assert plan_cpu(deadline_seconds=300.0).id != plan_cpu(deadline_seconds=301.0).id


def test_the_sentence_says_it_all():
    text = sentence(plan_cpu(deadline_seconds=100.0))
    assert text.startswith("Train depth 1 (1.25 M parameters) on this CPU, micro-batch ")
    assert " tokens: " in text and text.endswith("$0.00.")


def test_measuring_the_choice_keeps_it():
    plan = plan_cpu(deadline_seconds=300.0)
    again = measured_plan(plan, small_cpu(), now=NOW)
    assert again.workload == plan.workload and again.goal == plan.goal
    assert again.run.steps == pytest.approx(plan.run.steps, rel=0.02)
    assert len(again.considered) == len(plan.considered)


@settings(max_examples=25, deadline=None)
@given(st.floats(30, 20_000), st.one_of(st.none(), st.integers(10**5, 10**8)), st.booleans())
def test_any_deadline_is_kept_or_refused(seconds, unique, sure):
    try:
        plan = plan_cpu(deadline_seconds=seconds, data_meta=unique and data_of(unique), sure=sure)
    except AdvisorError as error:
        assert error.exit_code == 3
        return
    total = plan.prediction.wall_clock.total_seconds
    assert (total.high if sure else total.value) <= seconds
    assert plan.run.problems() == [] and plan.run.steps >= 1


# The command


@pytest.fixture
def planned(call):
    return lambda *arguments: call("plan", *arguments)


def test_a_card_nobody_calibrated_is_planned_by_its_prior(planned, tmp_path):
    path = tmp_path / "plan.yaml"
    code, out, _ = planned("--gpu", "l4", "--budget", "$5", "--out", str(path), "--json")
    document = json.loads(out)
    assert code == 0 and load_plan(path).id == document["id"]
    assert document["sentence"].startswith("Train depth")
    assert document["prediction"]["cost_usd"]["value"] <= 5.0
    assert document["prediction"]["step_seconds"]["basis"] == "prior"
    assert document["path"] == str(path)
    assert any("never calibrated" in warning for warning in document["warnings"])


def test_the_terminal_shows_bill_losers_reasons_and_the_next_command(planned, tmp_path):
    code, out, _ = planned("--gpu", "l4", "--deadline", "2h", "--out", str(tmp_path / "plan.yaml"), "--all")
    assert code == 0
    for words in ("Train depth", "in all", "Depths considered", "Micro-batches considered", "chosen", "- ", "! ",
                  "next, on 1 x l4 rented from runpod: advisor launch"):  # fmt: skip
        assert words in out


def test_the_next_commands_can_be_copied_and_give_the_same_plan(planned, monkeypatch):
    monkeypatch.setattr(render.console(), "width", 60)
    wishes = ("--gpu", "l4,rtx-4090", "--budget", "20", "--deadline", "8h", "--provider", "runpod", "--sure")
    _, out, _ = planned(*wishes)
    lines = out.splitlines()
    [again] = [line for line in lines if line.startswith("next: ")]
    words = shlex.split(again.removeprefix("next: "))
    assert words[:2] == ["advisor", "plan"] and words[-2:] == ["--out", "plan.yaml"]
    [launch] = [line for line in lines if line.startswith("then, on ")]
    assert launch.endswith("rented from runpod: advisor launch plan.yaml")
    plans = [json.loads(planned(*w, "--json")[1]) for w in (wishes, words[2:-2])]
    assert plans[0]["chosen"] == plans[1]["chosen"] and plans[0]["goal"] == plans[1]["goal"]
    assert any(line.strip().startswith("advisor calibrate --gpu ") for line in lines)


def test_activations_are_recomputed_where_that_is_faster_than_the_little_that_fits_without():
    """A larger micro-batch may earn more than recomputation costs: depth 24 fits an L4 at micro-batch 1 as it is."""
    goal = replace(GPU, gpu="l4", tokens=10**9, depth=24, usd_per_gpu_hour=RENTED)
    free, plain = (
        bare_plan(replace(goal, activation_checkpointing=c), prior_profile(require_gpu("l4")), now=NOW)
        for c in (None, "none")
    )
    assert plain.run.micro_batch <= 2 and free.run.activation_checkpointing == "full"
    assert free.prediction.tokens_per_second.value > 1.1 * plain.prediction.tokens_per_second.value
    others = [c for c in free.considered if c.depth == 24 and c.activation_checkpointing == "none"]
    assert plain.run.micro_batch in [c.micro_batch for c in others]
    assert pytest.approx(plain.chosen.tokens_per_second.value, rel=1e-3) in [c.tokens_per_second.value for c in others]
    roomy = bare_plan(replace(goal, depth=12), prior_profile(require_gpu("l4")), now=NOW)
    assert roomy.run.activation_checkpointing == "none"
    again = [c for c in roomy.considered if c.depth == 12 and c.activation_checkpointing == "full" and c.rejected]
    assert len([c for c in again if "memory" not in c.rejected]) <= 1  # the best of them says enough


BRIEFLY = [
    ("--gpu", "any", "--budget", "20"),
    ("--gpu", "any", "--budget", "2000", "--deadline", "3d", "--spot", "any", "--kwh-price", "0.3"),
    ("--gpu", "rtx-pro-6000-bw-server", "--gpus", "1,2", "--budget", "20", "--deadline", "8h"),
    ("--gpu", "h200-141gb-nvl", "--price", "3", "--deadline", "2h", "--sure"),
    ("--gpu", "l4", "--tokens", "1B", "--objective", "cost", "--depth", "12"),
]


def printed(arguments: tuple[str, ...], columns: int) -> list[str]:
    command = [sys.executable, "-m", "advisor", "plan", *arguments]
    environment = {**os.environ, "COLUMNS": str(columns)}
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return [line.rstrip() for line in out.splitlines()]


@pytest.mark.parametrize("arguments", BRIEFLY)
def test_the_answer_comes_first_in_twenty_lines_of_eighty_columns(arguments, planned):
    lines = printed(arguments, 80)
    shown = sum(max(1, math.ceil(len(line) / 80)) for line in lines)  # a command is not broken, the terminal folds it
    assert shown <= 20 and all(len(line) <= 80 for line in lines if "advisor " not in line)
    said = " ".join(" ".join(lines).split())
    assert said.startswith("Train depth") and "80 % intervals" in said and "--all" in said
    document = json.loads(planned(*arguments, "--json")[1])
    assert document["sentence"] in said
    shown = [warning for warning in document["warnings"] if " ".join(warning.split()) in said]
    left = len(document["warnings"]) - len(shown)
    assert (f"{left} warnings more" in said) == (left > 1) and ("a warning more" in said) == (left == 1)


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_no_card_is_broken_in_the_tables_of_all_of_it(columns):
    arguments = ("--gpu", "rtx-pro-6000-bw-server,a100-80gb-sxm", "--gpus", "1,2", "--budget", "20", "--all")
    lines = printed(arguments, columns)
    assert max(map(len, (line for line in lines if "advisor " not in line))) <= columns
    table = lines[lines.index(next(line for line in lines if line.startswith("Best for each price"))) :]
    table = table[: table.index("")]
    cards = re.findall(r"(?:rtx|a100)\S*", "\n".join(table))
    assert {card.rstrip(",") for card in cards} == {"rtx-pro-6000-bw-server", "a100-80gb-sxm"}


def test_the_price_is_shown_with_where_and_when_it_was_asked(planned):
    out = planned("--gpu", "l4", "--budget", "5", "--all")[1]
    [row] = [line for line in out.splitlines() if line.startswith("price an hour")]
    assert "$0.49" in row and "runpod" in row and "2025-09 or later" in row


def test_rows_that_recompute_are_marked_and_the_mark_and_the_score_are_explained_once(planned):
    _, out, _ = planned("--gpu", "l4", "--budget", "5", "--all")
    lines = [line.rstrip() for line in out.splitlines()]
    marked = [found for line in lines if (found := re.search(r" (\d+) x (\d+)\* ", line))]
    plan = json.loads(planned("--gpu", "l4", "--budget", "5", "--json")[1])
    again = sorted((c["micro_batch"], c["grad_accum"]) for c in plan["considered"]
                   if c["activation_checkpointing"] == "full")  # fmt: skip
    assert again and sorted((int(m[1]), int(m[2])) for m in marked) == again
    assert sum(line.startswith("* activations recomputed") for line in lines) == 1
    assert sum(line.startswith("score: ") for line in lines) == 1
    _, short, _ = planned("--gpu", "l4", "--depth", "2", "--budget", "5", "--all")
    assert "* activations recomputed" not in short


def test_a_verdict_never_calls_a_better_score_beaten():
    plan = plan_gpu(budget_usd=20.0)
    chosen = plan.chosen
    larger = replace(chosen, parameters=chosen.parameters + 1, score=chosen.score / 1.0005, rejected=None)
    assert verdict(chosen, chosen).startswith("chosen: score ")
    assert verdict(larger, chosen).startswith("level, but larger: score ")
    assert verdict(replace(larger, score=1.01 * chosen.score), chosen) == f"beaten: score {1.01 * chosen.score:.4g}"
    assert verdict(replace(larger, rejected="too slow"), chosen) == "too slow"


def test_one_percent_of_the_score_is_worth_six_percent_of_compute():
    """As `report.search.SCORE` says: both parameters and tokens grow by the square root."""
    more = math.sqrt(1.06)
    there, here = allocation_score(5e8 * more, 6e9 * more, best_ratio=12), allocation_score(5e8, 6e9, best_ratio=12)
    assert 1 - there / here == pytest.approx(0.01, rel=0.05)


def test_memory_is_one_number_wherever_it_is_called_so(planned):
    _, out, _ = planned("--gpu", "l4", "--budget", "5", "--all")
    plan = json.loads(planned("--gpu", "l4", "--budget", "5", "--json")[1])
    balanced = next(o for o in plan["search"]["options"] if o["name"] == "balanced")
    held = plan["chosen"]["device_bytes"]
    assert held == balanced["device_bytes"] and held["value"] > plan["prediction"]["peak_reserved_bytes"]["value"]
    assert held["value"] + balanced["headroom_bytes"] == require_gpu("l4").memory_bytes
    cell = format_estimate(Estimate(**held), format_bytes)
    [bill] = [line for line in out.splitlines() if line.startswith("memory per GPU, all of it")]
    [card] = [line for line in out.splitlines() if line.startswith("memory per GPU ")]
    assert cell in bill and cell in card
    chosen = [line for line in out.splitlines() if "chosen" in line]
    assert len(chosen) == 2 and all(format_centre(Estimate(**held), format_bytes) in line for line in chosen)


def test_the_loss_on_the_way_ends_at_the_promise(planned):
    plan = json.loads(planned("--gpu", "l4", "--budget", "5", "--json")[1])
    course = plan["loss_on_the_way"]
    assert [p["share"] for p in course] == [0.02, 0.1, 0.25, 0.5, 0.75, 1.0]
    assert course[-1]["tokens"] == plan["chosen"]["tokens"] and course[-1]["step"] == plan["run"]["steps"]
    for end in ("value", "low", "high"):
        assert course[-1]["loss"][end] == pytest.approx(plan["prediction"]["loss"][end])
    assert [p["loss"]["value"] for p in course] == sorted((p["loss"]["value"] for p in course), reverse=True)
    small = json.loads(planned("--gpu", "l4", "--depth", "2", "--deadline", "1h", "--json")[1])
    assert small["prediction"]["loss"] is None and small["loss_on_the_way"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--gpu", "l4", "--deadline", "1s"), 3, "no plan ends within 1 s"),
        (("--gpu", "h2000", "--deadline", "1h"), 2, "h200"),
        (("--gpu", "l4", "--deadline", "soon"), 2, "is not a duration"),
        (("--gpu", "cpu", "--deadline", "1h"), 1, "never calibrated"),
        (("--gpu", "l4", "--data", "/nowhere"), 2, "does not exist"),
        (("--gpu", "l4", "--ratio-counts", "total"), 2, "there is no --ratio"),
        (("--gpu", "l4", "--deadline", "8h", "--interruptions", "1s"), 2, "must be at least 60 s"),
        (("--gpu", "h100-80gb-sxm", "--deadline", "8h", "--power-cap", "60"), 2, "its own limit is 700 W"),
    ],
)
def test_what_goes_wrong_is_said_with_a_next_step(planned, arguments, code, words):
    ended, out, err = planned(*arguments)
    assert ended == code and words in err and out == ""


def test_several_gpus_pay_for_communication_and_unknown_links_are_refused():
    one, eight = (plan_gpu(gpus=n, depth=12, tokens=10**9, micro_batch=8, global_batch_tokens=8 * 8 * 2048)
                  for n in (1, 8))  # fmt: skip
    assert 7 < eight.prediction.tokens_per_second.value / one.prediction.tokens_per_second.value < 8
    profile = big_gpu()
    unlinked = replace(profile, spec=replace(profile.spec, interconnect=""))
    with pytest.raises(AdvisorError, match="does not know the links") as caught:
        plan_gpu(gpus=2, profile=unlinked, deadline_seconds=3600.0)
    assert caught.value.exit_code == 3 and "--gpus 1" in caught.value.hint
