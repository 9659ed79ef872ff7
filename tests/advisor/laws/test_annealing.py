"""Schedules as the trainer has them, and the annealing law against independent sums and the published constants."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.laws.annealing import FULL_DECAY_NATS, annealing_sums, cosine, learning_rate_shares, planned_shares
from trainer.optim import learning_rate_factor
from trainer.schema import ScheduleConfig


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
