"""Plans on invented devices: limits kept, batch rule obeyed, words and exit codes for goals that cannot be met."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.laws import flops
from advisor.laws.hyperparameters import batch_band, scale_flops
from advisor.options import Goal
from advisor.planning import recipe
from advisor.planning.answer import bare_plan, measured_plan
from advisor.planning.explain import verdict
from advisor.planning.recipe import MICRO_BATCHES
from advisor.prediction.batch import predict_batch
from advisor.prediction.loss import allocation_score
from advisor.prediction.uncalibrated import prior_profile
from advisor.report.plan import sentence
from tests.advisor.devices import big_gpu, small_cpu
from tests.advisor.small_plans import GPU, NOW, RENTED, data_of, plan_cpu, plan_gpu
from trainer.schema import make_shape

# Recipe


def test_learning_rate_of_the_published_run():
    """d16 at 6.71 B tokens: DeepSeek 1.27e-3, Step Law 2.2e-3 (sources §5.3); the lower one counts."""
    shape = make_shape("nanochat", depth=16, vocab_size=65536, seq_len=2048)
    batch = batch_band(scale_flops(shape), 6.71e9).median
    assert recipe.optimizer("adamw", shape, 6.71e9, batch).learning_rate == pytest.approx(1.27e-3, rel=0.03)
    assert recipe.optimizer("adamw", shape, 6.71e9, batch / 4).learning_rate == pytest.approx(1.27e-3 / 2, rel=0.04)


@given(st.integers(1, 32), st.floats(4, 12), st.floats(2, 8))
def test_learning_rate_stays_sane(depth, log_tokens, log_batch):
    shape = make_shape("nanochat", depth=depth, vocab_size=4096, seq_len=256)
    assert 1e-4 <= recipe.optimizer("adamw", shape, 10**log_tokens, 10**log_batch).learning_rate <= 3e-3


@given(st.integers(1, 10**6), st.integers(10**4, 10**9), st.sampled_from((256, 2048, 32768)))
def test_schedule_and_evaluation_are_valid(steps, tokens, micro_tokens):
    assert recipe.schedule(steps).warmup_steps <= max(1, steps // 2)
    every, batches = recipe.evaluation(steps, tokens, micro_tokens, None)
    assert batches >= 1 and batches == int(batches)
    assert 1 <= -(-steps // every) <= recipe.EVALUATIONS


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
    assert abs(math.log2(workload.step_tokens / wanted)) <= 0.25 + 0.15


# Limits


def test_sure_keeps_the_high_end():
    plain, sure = plan_cpu(deadline_seconds=600.0), plan_cpu(deadline_seconds=600.0, sure=True)
    assert plain.bill.wall_clock.total_seconds.high > 600 >= sure.bill.wall_clock.total_seconds.high
    assert any("--sure" in reason and "or up to" in reason for reason in plain.reasons)


# Tokens and depth


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
    off = abs(math.log(plan.chosen.standing.ratio / 12))
    assert all(off <= abs(math.log(50e6 / counted[c.depth] / 12)) + 0.01 for c in others)


def test_more_time_means_a_deeper_model():
    depths = [plan_gpu(deadline_seconds=hours * 3600.0).chosen.depth for hours in (0.2, 2, 20)]
    assert depths == sorted(depths) and depths[0] < depths[-1]


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
        assert all(c.workload.micro_batch * c.workload.grad_accum * gpus == sequences for c in plan.considered)
    else:
        share = plan.workload.step_tokens / asked - 1
        assert 0 < abs(share) <= 0.05
        assert len(warned) == 1 and f" {100 * abs(share):.0f} %" in warned[0] and f"{2048 * gpus:,}" in warned[0]


def test_no_recommendation_exceeds_the_memory_with_margin():
    tight = big_gpu(memory_bytes=24 * 2**30)
    plan = plan_gpu(profile=tight, deadline_seconds=7200.0, depth=16)
    assert tight.memory.device_total_bytes(plan.workload).high <= 0.97 * 24 * 2**30
    assert any(
        c.standing.why and c.standing.why.startswith(("does not fit memory", "may not fit")) for c in plan.considered
    )


def test_recomputation_only_where_nothing_else_fits():
    roomy = plan_gpu(depth=12, deadline_seconds=3600.0)
    assert roomy.run.activation_checkpointing == "none"
    starved = plan_gpu(depth=12, deadline_seconds=3600.0, profile=big_gpu(memory_bytes=int(4.6 * 2**30)))
    assert starved.run.activation_checkpointing == "full"


def test_what_fits_fits_with_its_gradients_kept_and_what_does_not_has_the_accumulation_it_would_have():
    limit = 22.5 * 2**30  # where gradients decide: sizes fit alone that do not fit accumulated
    plan = plan_gpu(profile=big_gpu(memory_bytes=int(limit)), budget_usd=60.0)
    too_large = [c for c in plan.considered if c.standing.why.startswith(("does not fit memory", "may not fit"))]
    assert any(c.depth == plan.chosen.depth for c in too_large)
    for c in plan.considered:
        assert (c.prediction.device_bytes.high > 0.97 * limit) == (c in too_large)
        assert c.tokens == c.steps * c.workload.micro_batch * c.workload.grad_accum * 2048
    batch = plan.workload.step_tokens
    for c in (c for c in plan.considered if c.depth == plan.chosen.depth):
        assert c.workload.micro_batch * c.workload.grad_accum * 2048 == pytest.approx(batch, rel=0.2)


def test_a_depth_is_said_not_to_fit_only_after_recomputing_its_activations():
    plan = plan_gpu(profile=big_gpu(memory_bytes=12 * 2**30), budget_usd=60.0)
    depths = {c.depth: c for c in reversed(plan.considered)}
    unfit = {d for d, c in depths.items() if c.standing.why.startswith("does not fit")}
    full = {d for d, c in depths.items() if c.workload.activation_checkpointing == "full"}
    assert unfit and unfit < full and plan.chosen.depth in full - unfit
    assert 8 not in full and "activation checkpointing" in sentence(plan)


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
    assert plan.chosen.standing.epochs == pytest.approx(epochs, rel=0.01)
    said = [w for w in plan.warnings if "the data would be seen" in w]
    assert bool(said) == bool(words) and (not words or words in said[0])


def test_no_time_is_spent_on_a_seventeenth_epoch_unasked():
    plan = plan_cpu(deadline_seconds=36000.0, data_meta=data_of(500_000))
    assert all(c.standing.epochs <= 16 for c in plan.considered if not c.standing.why)
    small = min((c for c in plan.considered if not c.standing.why), key=lambda c: c.depth)
    assert small.standing.epochs == pytest.approx(16, abs=0.1) and small.total_seconds.value < 36000


def test_with_data_for_none_of_them_the_smallest_model_is_chosen():
    """Thirty thousand tokens feed no depth: larger ones cost more and gain nothing."""
    plan = plan_cpu(deadline_seconds=36000.0, data_meta=data_of(30_000))
    assert plan.chosen.depth == 1 and "depth 2 is as good" in plan.reasons[1]


# Goals that cannot be met


def test_a_hopelessly_short_limit_gives_a_plan_with_a_warning_when_every_depth_is_thin():
    plan = plan_cpu(deadline_seconds=600.0, depth=8)
    assert plan.chosen.depth == 8
    [text] = [text for text in plan.warnings if text.startswith("this size is too large for the time: ")]
    assert text.endswith("a smaller model would be trained better, or allow more time")  # it was too short "for any"
    smaller = plan_cpu(deadline_seconds=600.0)
    assert smaller.chosen.depth < 8 and smaller.chosen.score < plan.chosen.score


# The record


def test_the_same_inputs_give_the_same_plan():
    assert plan_cpu(deadline_seconds=300.0) == plan_cpu(deadline_seconds=300.0)
    assert plan_cpu(deadline_seconds=300.0).id != plan_cpu(deadline_seconds=301.0).id


def test_the_sentence_says_it_all():
    text = sentence(plan_cpu(deadline_seconds=100.0))
    assert text.startswith("Train depth 1 (1.25 M parameters) on this CPU, micro-batches of ")
    assert " tokens: " in text and text.endswith("$0.00 without electricity.")


def test_measuring_the_choice_keeps_it():
    plan = plan_cpu(deadline_seconds=300.0)
    again = measured_plan(plan, small_cpu(), now=NOW)
    assert again.workload == plan.workload and again.goal == plan.goal
    assert again.run.steps == pytest.approx(plan.run.steps, rel=0.02)
    assert len(again.considered) == len(plan.considered)


def test_activations_are_recomputed_where_that_is_faster_than_the_little_that_fits_without():
    """A larger micro-batch may earn more than recomputation costs: depth 24 fits an L4 at micro-batch 1 as it is."""
    goal = replace(GPU, gpu="l4", tokens=10**9, depth=24, usd_per_gpu_hour=RENTED)
    free, plain = (
        bare_plan(replace(goal, activation_checkpointing=c), prior_profile(require_gpu("l4")), now=NOW)
        for c in (None, "none")
    )
    assert plain.run.micro_batch <= 2 and free.run.activation_checkpointing != "none"
    assert free.prediction.tokens_per_second.value > 1.1 * plain.prediction.tokens_per_second.value
    others = [c for c in free.considered if c.depth == 24 and c.workload.activation_checkpointing == "none"]
    assert plain.run.micro_batch in [c.workload.micro_batch for c in others]
    assert pytest.approx(plain.chosen.tokens_per_second.value, rel=1e-3) in [c.tokens_per_second.value for c in others]
    roomy = bare_plan(replace(goal, depth=10), prior_profile(require_gpu("l4")), now=NOW)
    assert roomy.run.activation_checkpointing == "none"
    again = [
        c
        for c in roomy.considered
        if c.depth == 10 and c.workload.activation_checkpointing == "full" and c.standing.why
    ]
    assert len([c for c in again if "memory" not in c.standing.why]) <= 1  # the best of them says enough


def test_a_verdict_never_calls_a_better_score_beaten():
    plan = plan_gpu(budget_usd=20.0)
    chosen = plan.chosen
    wider = replace(chosen, prediction=replace(chosen.prediction, parameters=chosen.parameters + 1))
    larger = wider.judged(score=chosen.score / 1.0005, why="")
    assert verdict(chosen, chosen).startswith("chosen: score ")
    assert verdict(larger, chosen).startswith("equal score, but larger: score ")
    assert verdict(larger.judged(score=1.01 * chosen.score), chosen) == f"beaten: score {1.01 * chosen.score:.4g}"
    assert verdict(larger.judged(why="too slow"), chosen) == "too slow"


def test_one_percent_of_the_score_is_worth_six_percent_of_compute():
    """As `report.search.SCORE` says: both parameters and tokens grow by the square root."""
    more = math.sqrt(1.06)
    there, here = allocation_score(5e8 * more, 6e9 * more, best_ratio=12), allocation_score(5e8, 6e9, best_ratio=12)
    assert 1 - there / here == pytest.approx(0.01, rel=0.05)


def test_several_gpus_pay_for_communication_and_unknown_links_are_refused():
    one, eight = (plan_gpu(gpus=n, depth=12, tokens=10**9, micro_batch=8, global_batch_tokens=8 * 8 * 2048)
                  for n in (1, 8))  # fmt: skip
    assert 7 < eight.prediction.tokens_per_second.value / one.prediction.tokens_per_second.value < 8
    profile = big_gpu()
    unlinked = replace(profile, spec=replace(profile.spec, interconnect=""))
    with pytest.raises(AdvisorError, match="the links between the GPUs are unknown") as caught:
        plan_gpu(gpus=2, profile=unlinked, deadline_seconds=3600.0)
    assert caught.value.exit_code == 3 and "--gpus 1" in caught.value.hint
