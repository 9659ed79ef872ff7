"""The laws, against the handbook, the papers and independent sums; schedules and rates as the trainer has them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.laws import annealing
from advisor.laws.annealing import FULL_DECAY_NATS, annealing_sums, cosine, learning_rate_shares, planned_shares
from advisor.laws.benchmarks import BENCHMARKS, Benchmark, benchmark_of, chance_interval
from advisor.laws.device_faults import ALARMS, CONVICTING, POWER_CAP, REASONS, FallbackReadings, cpu_signs, reasons_in
from advisor.laws.hyperparameters import (
    BatchBand,
    batch_band,
    deepseek_rate,
    off_laws,
    peak_rates,
    scale_flops,
    step_law_rate,
    times_off,
)
from advisor.laws.initial_loss import (
    Divisor,
    is_unscaled,
    largest_of_normals,
    logit_deviation,
    summed_over,
    uniform_loss,
    unscaled_loss,
)
from advisor.laws.pace import drift_spread, log_spread, mean_error, mean_seconds
from advisor.laws.text import LAW_BYTES_PER_TOKEN, bytes_per_token
from trainer.optim import learning_rate_factor
from trainer.schema import ScheduleConfig, make_shape


@pytest.mark.parametrize("schedule", [ScheduleConfig(warmup_steps=30), ScheduleConfig(name="wsd", warmup_steps=10)])
def test_rates_are_the_trainers(schedule: ScheduleConfig):
    wanted = [learning_rate_factor(schedule, step, 500) for step in range(500)]
    assert planned_shares(schedule, 500) == pytest.approx(np.array(wanted))


def test_annealing_sums_of_a_constant_rate_and_of_one_fall():
    travelled, annealed = annealing_sums(np.ones(100), 0)
    assert travelled[-1] == 100 and not annealed.any()
    shares = np.concatenate([np.ones(50), np.full(50, 0.5)])
    _, annealed = annealing_sums(shares, 0)
    assert annealed[49] == 0 and annealed[50] == pytest.approx(0.5)
    assert annealed[-1] == pytest.approx(0.5 * (1 - 0.999**50) / 0.001)  # a geometric series


def test_momentum_is_the_plain_sum_of_decayed_falls():
    shares = learning_rate_shares("cosine", 60, warmup_steps=5, final_share=0.0)
    falls = [0.0, *(1.0 - max(shares[5], 1.0) for _ in range(5)), *(shares[i] - shares[i + 1] for i in range(5, 59))]
    momentum = [sum(falls[j] * 0.999 ** (i - j) for j in range(i + 1)) for i in range(60)]
    travelled, annealed = annealing_sums(shares, 5)
    assert annealed == pytest.approx(np.cumsum(momentum), abs=1e-12)
    assert travelled[-1] == pytest.approx(5 + shares[5:].sum())


@pytest.mark.parametrize(
    ("kind", "middle", "last"), [("cosine", 0.55, 0.1), ("linear", 0.55, 0.1), ("wsd", 1.0, 0.1), ("constant", 1, 1)]
)
def test_the_four_schedules(kind, middle, last):
    shares = learning_rate_shares(kind, 1001, final_share=0.1, decay_share=0.25)
    assert (
        shares[0] == 1
        and shares[500] == pytest.approx(middle, abs=1e-3)
        and shares[-1] == pytest.approx(last, abs=5e-3)
    )
    assert cosine(0.5) == pytest.approx(0.5)


def test_a_schedule_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="'step' is not one of cosine"):
        learning_rate_shares("step", 10)


def test_nanochats_trapezoid():
    # sources §4.5: d16 of 12,800 steps, decaying over the last 20 % to 0, is at multiplier 0.3125 at step 12,000
    assert learning_rate_shares("wsd", 12_800, final_share=0.0, decay_share=0.2)[12_000] == 0.3125


def test_a_full_decay_brings_what_public_runs_gained():
    published = 0.468 * 3e-4 * 1000  # C·peak/(1 − λ) of the 100 M curves; other public runs gain 1.0 to 1.6 times that
    assert published < FULL_DECAY_NATS < 1.6 * published


def test_guessing_on_hellaswag():
    # 10,042 questions of 4 answers: 0.25 ± 1.96·√(0.1875/10042) = 0.2415 … 0.2585
    assert chance_interval(BENCHMARKS["hellaswag"]) == pytest.approx((0.2415, 0.2585), abs=1e-4)


def test_a_hundred_questions_of_two_answers():
    # COPA's 100 questions: standard error √(0.25/100) = 5 %, so 40.2 to 59.8 % say nothing
    assert BENCHMARKS["copa"].standard_error == 0.05
    assert chance_interval(Benchmark(chance=0.5, questions=100)) == pytest.approx((0.402, 0.598), abs=1e-3)


def test_free_answers_are_not_guessed():
    assert chance_interval(BENCHMARKS["gsm8k"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "benchmark"),
    [
        *(("eval/HellaSwag acc_norm", "hellaswag"), ("arc-easy", "arc_easy"), ("bleu", None)),
        *(("quartet", None), ("super_glue/rte", "rte"), ("retrace", None), ("openbook_qa", "openbookqa")),
    ],
)
def test_benchmarks_are_known_by_name(name, benchmark):
    assert benchmark_of(name) == benchmark


# 124 M parameters, 256 tokens in 35 s on a card of 112.6 TFLOP/s: 7.3 tokens/s × 6N = 5.4 GFLOP/s, 244 MiB in use
FALLEN_BACK = FallbackReadings(
    parameters=124e6,
    memory_used_bytes=244 * 2**20,
    flops_per_second=7.3 * 6 * 124e6,
    peak_flops=112.6e12,
    first_step_seconds=8.254,
    later_step_seconds=35.8,
)
# an A100 at work: 12 GB in use, 370 of 400 W, 40 % of its peak
AT_WORK = FallbackReadings(
    parameters=124e6,
    memory_used_bytes=12e9,
    power_watts=370.0,
    power_limit_watts=400.0,
    utilization=0.98,
    flops_per_second=125e12,
    peak_flops=312e12,
    first_step_seconds=30.0,
    later_step_seconds=0.5,
)


def applying(readings: FallbackReadings) -> int:
    return sum(sign.applies for sign in cpu_signs(readings))


def test_a_run_on_the_cpu_is_convicted_by_what_little_is_known():
    assert len(cpu_signs(FALLEN_BACK)) == applying(FALLEN_BACK) == CONVICTING
    assert "5.43 GFLOP/s is what a CPU gives" in cpu_signs(FALLEN_BACK)[1].text


def test_a_run_on_its_card_shows_no_sign():
    assert len(cpu_signs(AT_WORK)) == 5 and applying(AT_WORK) == 0
    assert cpu_signs(FallbackReadings()) == []


@pytest.mark.parametrize(
    ("watts", "limit", "idle"),
    [
        (55, 300, True),  # V100 with 6.7 GB in use, nothing running
        (35 + 66, 350, True),  # L40S: bare idle and what an open context adds (Vadari 2026)
        (120, 350, False),
        (200, 400, False),  # half of the limit: launch- or data-bound (sources §7.4)
    ],
)
def test_idle_power_is_what_a_card_with_an_open_context_draws(watts, limit, idle):
    [sign] = cpu_signs(FallbackReadings(power_watts=watts, power_limit_watts=limit))
    assert sign.applies is idle


def test_a_reading_of_eight_percent_is_no_idle_card():
    # sources §7.4: an L4 read 38 % and 8 % at the same tokens per second
    assert applying(FallbackReadings(utilization=0.08)) == 0 and applying(FallbackReadings(utilization=0.01)) == 1


def test_a_slow_card_is_not_taken_for_a_cpu():
    assert len(cpu_signs(FallbackReadings(flops_per_second=1e11, peak_flops=4e12))) == 0
    assert applying(FallbackReadings(flops_per_second=1e11, peak_flops=6e12)) == 1


def test_sixteen_bit_weights_with_gradients_or_fp32_weights_are_the_least():
    assert applying(replace(AT_WORK, memory_used_bytes=0.49e9)) == 1  # 124 M × 4 bytes = 496 MB
    assert applying(replace(AT_WORK, memory_used_bytes=0.50e9)) == 0


D16 = make_shape("nanochat", depth=16, vocab_size=65536, seq_len=2048)
D16_TOKENS = 6.71e9


def test_deepseeks_scale_leaves_the_head_out():
    head = 6 * 65536 * 1024  # the handbook's C = 1.35e19 of this run has it in (sources §5.2)
    assert scale_flops(D16) * D16_TOKENS == pytest.approx(1.35e19 - head * D16_TOKENS, rel=0.005)
    assert scale_flops(D16) == 72 * 16 * 1024**2 + 12 * 16 * 1024 * 2048


def test_batch_laws_give_the_handbooks_figures():
    scale = 1.35e19 / D16_TOKENS  # with the head, as the handbook counts there
    assert batch_band(scale, D16_TOKENS).deepseek == pytest.approx(528e3, rel=0.005)
    step_law = [batch_band(scale, tokens).step_law for tokens in (1e9, 1e10, 1e11)]
    assert step_law == pytest.approx([80e3, 297e3, 1.11e6], rel=0.01)
    assert batch_band(scale, 12 * 110_100_912).nanochat == 2**19


@pytest.mark.parametrize(
    ("scaling", "log2"), [(110_100_912, 19), (234_881_792, 19), (435_160_240, 20), (729_810_624, 20)]
)
def test_nanochat_batch_at_its_own_depths(scaling, log2):
    """d12, d16, d20 and d24 at ratio 12, rounded to a power of two as nanochat does (sources §8 item 6)."""
    assert round(math.log2(batch_band(1e9, 12 * scaling).nanochat)) == log2


@given(st.lists(st.tuples(st.floats(1e5, 1e12), st.floats(1e3, 1e14)), min_size=1, max_size=20))
def test_arrays_and_numbers_are_one_formula(pairs):
    scales, tokens = np.array(pairs).T
    bands = batch_band(scales, tokens)
    for place, (scale, count) in enumerate(pairs):
        band = batch_band(scale, count)
        assert bands.median[place] == pytest.approx(band.median, rel=1e-12)
        assert band.median == sorted(band.named.values())[1]
        assert band.deepseek == pytest.approx(0.2920 * (scale * count) ** 0.3271, rel=1e-12)


def test_the_plateau_is_four_times_wide():
    band = BatchBand(deepseek=1e5, step_law=2e5, nanochat=8e5)
    assert band.on_plateau(1e5) and band.on_plateau(4e5) and not band.on_plateau(0.99e5) and not band.on_plateau(4.1e5)


def test_learning_rates_of_the_published_run():
    # sources §5.3 for d16: C = 1.35e19 with the head, N without embeddings 2.01e8, D = 6.71e9
    assert deepseek_rate(1.35e19 / D16_TOKENS, D16_TOKENS) == pytest.approx(1.27e-3, rel=0.01)
    assert step_law_rate(201_326_592, D16_TOKENS) == pytest.approx(2.2e-3, rel=0.02)
    rates = peak_rates(D16, D16_TOKENS)
    assert rates["DeepSeek"] == pytest.approx(1.27e-3, rel=0.03)  # without the head, as the law has it
    assert rates["Step Law"] == step_law_rate(201_326_592, D16_TOKENS)


def test_a_rate_is_off_only_beyond_four_times_the_band():
    rates = {"a": 1e-3, "b": 2e-3}
    assert times_off(1.5e-3, rates) == 1 and times_off(4e-3, rates) == 2 and times_off(5e-4, rates) == 0.5
    assert not off_laws(2.6e-4, rates) and off_laws(2.4e-4, rates)
    assert not off_laws(7.9e-3, rates) and off_laws(8.1e-3, rates)


GPT2_VOCAB = 50_257


@pytest.mark.parametrize(("vocab_size", "loss"), [(4000, 8.294), (32_768, 10.397), (50_257, 10.825), (128_256, 11.762)])
def test_the_uniform_guess(vocab_size, loss):
    assert uniform_loss(vocab_size) == pytest.approx(loss, abs=5e-4)


def test_embeddings_of_unit_variance_start_where_the_handbook_says():
    # d = 768: σ = √768 = 27.7 gives a first loss of 105 to 118
    assert 105 <= unscaled_loss(768, GPT2_VOCAB) <= 118
    assert logit_deviation(unscaled_loss(768, GPT2_VOCAB), GPT2_VOCAB) == pytest.approx(math.sqrt(768))


@pytest.mark.parametrize(("loss", "explained"), [(112.0, True), (118.0, True), (128.9, False), (11.0, False)])
def test_unit_variance_explains_the_handbooks_range_alone(loss, explained):
    assert is_unscaled(loss, 768, GPT2_VOCAB) is explained


@pytest.mark.parametrize("deviation", [1.0, 2.0, 4.0, 8.0, 16.0, 27.7])
@pytest.mark.parametrize("vocab", [4000, GPT2_VOCAB])
def test_the_deviation_of_drawn_logits_is_read_off_their_loss(deviation, vocab):
    logits = deviation * np.random.default_rng(0).standard_normal((100, vocab))
    highest = logits.max(axis=1)
    loss = float((highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))).mean())  # a target's logit is 0
    assert logit_deviation(loss, vocab) == pytest.approx(deviation, rel=0.06)


def test_small_logits_add_half_their_variance():
    assert logit_deviation(math.log(1000) + 0.5 * 1.2**2, 1000) == pytest.approx(1.2)


def test_the_likeliest_maximum_of_a_thousand_normals():
    # density n φ(x) Φ(x)^(n−1) has its peak where x Φ(x) = (n − 1) φ(x): 3.115 for n = 1000, reckoned by bisection
    assert largest_of_normals(1000) == pytest.approx(3.115, rel=0.01)


@pytest.mark.parametrize(
    ("factor", "name"), [(1024, "sequence length"), (8, "micro-batch"), (8192, "sequence length × micro-batch")]
)
def test_sums_are_found_over_the_handbooks_three_candidates(factor, name):
    # L0/T, L0/b, L0/(bT)
    sizes = {"sequence length": 1024, "micro-batch": 8, "accumulation steps": 5}
    assert summed_over(factor * math.log(GPT2_VOCAB), GPT2_VOCAB, sizes)[0] == Divisor(name=name, count=factor)


@given(st.floats(1.0, 1e6), st.integers(2, 300_000))
def test_no_divisor_is_named_that_is_off(loss, vocab):
    for divisor in summed_over(loss, vocab, {"a": 7.0, "b": 64.0, "c": 1024.0}):
        assert abs(loss / divisor.count - math.log(vocab)) <= 0.3


def test_a_long_stall_counts_as_five_medians():
    assert mean_seconds(np.array([1.0, 1.0, 1.0, 1.0, 600.0])) == pytest.approx((4 * 1 + 5) / 5)
    assert mean_seconds(np.array([1.0, 1.0, 1.0, 1.0, 3.0])) == pytest.approx(7 / 5)
    assert math.isnan(mean_seconds(np.array([])))


def test_drift_widens_the_interval():
    steady = np.full(1000, 0.1)
    drifting = np.where(np.arange(1000) // 100 % 2, 0.1, 0.2)
    assert drift_spread(steady, 1000) == pytest.approx(0.01)
    # medians ln 0.1 and ln 0.2 by turns: variance (ln 2)²/4 · 10/9, times 2·(1 + 1000/1000)
    assert drift_spread(drifting, 1000) == pytest.approx(math.sqrt(math.log(2) ** 2 / 4 * 10 / 9 * 4), rel=0.01)
    assert drift_spread(drifting, 0) == pytest.approx(math.sqrt(math.log(2) ** 2 / 4 * 10 / 9 * 2), rel=0.01)
    assert drift_spread(np.full(5, 0.1), 1000) == pytest.approx(0.05)  # too short to show any


def test_four_neighbours_tell_of_the_mean_as_much_as_one():
    seconds = np.exp(np.tile([-0.1, 0.0, 0.1, 0.2, 0.3], 20))
    assert log_spread(seconds) == pytest.approx(0.2 / 1.349)  # quartiles 0 and 0.2
    assert mean_error(seconds) == pytest.approx(0.2 / 1.349 * math.sqrt(4 / 100))
    assert mean_error(np.ones(1)) == pytest.approx(0.15 * 2)  # one step says nothing of its spread


PEAK, LATER = 3e-4, 3000  # of the public curves; steps after the fall


def tissue(fall: float) -> float:
    """Nats that a fall by a share of the peak brings within LATER steps (Tissue et al. 2024, refit in sources §4.5)."""
    return 0.468 * PEAK * fall * (1 - 0.999**LATER) / (1 - 0.999)


def multi_power(above: float, below: float) -> float:
    """The same by the Multi-Power Law's published constants of its 100 M run (Luo et al. 2025, sources §4.5)."""
    rate = below * PEAK
    return 437.9 * (above - below) * PEAK * (1 - (1 + 2.132 * rate**-0.655 * rate * LATER) ** -0.598)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.15, 0.1])
def test_a_fall_is_worth_the_same_wherever_it_happens(share):
    assert multi_power(share, share - annealing.SAME_PHASE) == pytest.approx(tissue(annealing.SAME_PHASE), rel=0.1)
    assert tissue(annealing.SAME_PHASE) < 0.007  # nats


def test_nanochats_pair_of_runs():
    # sources §4.5: at step 12,000 d16 is at multiplier 0.3125, d24 still at 1.0; at step 8,000 both are at 1.0
    assert not annealing.same_phase((0.3125, 1.0)) and annealing.same_phase((1.0, 1.0))
    assert annealing.phase_problem((0.3125, 1.0), ("d16", "d24")) == (
        "not in the same learning-rate phase: d16 at 31 %, d24 at 100 % of the peak"
    )
    assert annealing.phase_problem((1.0, 1.0), ("d16", "d24")) is None


def test_a_tenth_and_a_fiftieth_of_the_peak_are_two_phases():
    assert multi_power(0.1, 0.02) == pytest.approx(0.0098, abs=1e-4)  # as much as many a change under test is worth
    assert annealing.phase_problem((0.1, 0.02)) == (
        "not in the same learning-rate phase: learning rates at 2 % and 10 % of their peaks"
    )


def test_the_difference_counts_not_the_ratio():
    assert annealing.same_phase((0.05, 0.01)) and not annealing.same_phase((1.0, 0.8))
    assert annealing.same_phase((0.15, 0.1)) and not annealing.same_phase((0.151, 0.1))


def test_an_unknown_share_is_left_out():
    assert annealing.same_phase((None, 1.0)) and annealing.same_phase(()) and not annealing.same_phase((None, 1.0, 0.5))
    assert annealing.phase_problem((None, 1.0, 0.5), ("a", "b", "c")) == (
        "not in the same learning-rate phase: b at 100 %, c at 50 % of the peak"
    )


@pytest.mark.parametrize(("vocab_size", "expected"), [(4000, 3.2), (32_000, LAW_BYTES_PER_TOKEN), (65_536, 4.83)])
def test_bytes_of_a_token(vocab_size, expected):
    assert bytes_per_token(vocab_size) == pytest.approx(expected, abs=0.02)  # sources §4.3, §4.1 and §4.6


def test_bits_are_the_drivers():
    assert pynvml.nvmlClocksThrottleReasonSwPowerCap == POWER_CAP
    assert (
        pynvml.nvmlClocksThrottleReasonHwSlowdown,
        pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
        pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    ) == ALARMS
    others = (
        pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting,
        pynvml.nvmlClocksThrottleReasonSyncBoost,
        pynvml.nvmlClocksThrottleReasonDisplayClockSetting,
    )
    assert set(REASONS) == {POWER_CAP, *ALARMS, *others}


def test_masks_in_words():
    assert reasons_in([0x1, 0x0]) == ()  # idle
    assert reasons_in([0x80, 0x80, 0x4]) == ("power cap", "power brake")
