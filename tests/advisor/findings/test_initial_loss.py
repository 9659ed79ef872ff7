"""The first loss against ln V (sources §7.1)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors.first_loss import (
    detect_end_against_uniform,
    detect_initial_loss,
)
from tests.advisor.findings.build_learning import LN_V, STEPS, healthy_loss, learning_case, learning_run


def test_a_healthy_start_is_silent():
    case = learning_case()
    assert detect_initial_loss(case) is None
    assert detect_end_against_uniform(case) is None


def test_without_a_vocabulary_nothing_is_judged():
    case = learning_case(learning_run(facts={"vocab_size": None}))
    for detector in (detect_initial_loss, detect_end_against_uniform):
        assert isinstance(detector(case), Insufficient)


def test_a_sum_over_the_micro_batch_is_named():
    table = learning_run(loss=32 * healthy_loss(), facts={"micro_batch": 32, "seq_len": 1024, "grad_accum": 16})
    found = detect_initial_loss(learning_case(table))
    assert isinstance(found, Finding) and found.code == "initial_loss_high" and found.severity is Severity.ERROR
    assert "micro-batch (32)" in found.causes[0]


def test_a_loss_in_bits_is_recognised():
    found = detect_initial_loss(learning_case(learning_run(loss=healthy_loss() / math.log(2))))  # 15.6 for GPT-2
    assert isinstance(found, Finding) and any("bits" in cause for cause in found.causes)


def test_a_declared_unit_of_bits_is_converted():
    table = learning_run(loss=healthy_loss() / math.log(2), facts={"loss_unit": "bits"})
    assert detect_initial_loss(learning_case(table)) is None


def test_normal_embeddings_tied_to_the_head_are_named():
    # sources §7.1: d = 768, σ = √768 = 27.7 gives a first loss of 105 to 118
    loss = np.r_[112.0, healthy_loss()[1:]]
    found = detect_initial_loss(learning_case(learning_run(loss=loss, facts={"width": 768})))
    assert isinstance(found, Finding) and any("N(0, 1)" in cause for cause in found.causes)
    assert any("standard deviation of about 27.2" in cause for cause in found.causes)  # the handbook's 27.7, 2 % off


def test_another_vocabulary_is_read_off_the_first_loss():
    # ln 32,000 = 10.373 where 128,256 tokens (11.762) were declared
    loss = healthy_loss(start=math.log(32_000), noise=0.0)
    found = detect_initial_loss(learning_case(learning_run(loss=loss, facts={"vocab_size": 128_256})))
    assert isinstance(found, Finding) and found.code == "initial_loss_low"
    assert any("LLaMA 1" in cause for cause in found.causes)


def test_fine_tuning_starts_low_and_is_a_note_only():
    found = detect_initial_loss(learning_case(learning_run(loss=healthy_loss(start=1.7, end=0.6))))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE


def test_a_late_first_row_cannot_show_a_low_start():
    table = learning_run(loss=healthy_loss(start=7.0), step=np.arange(50, 50 * STEPS + 1, 50))
    assert isinstance(detect_initial_loss(learning_case(table)), Insufficient)


def test_a_falling_loss_above_uniform_is_worse_than_nothing():
    # report: 450 → 92.7 on a vocabulary of 4,000 (ln 4000 = 8.294), perplexity 10^40
    loss = np.linspace(450.649, 92.71, STEPS)
    found = detect_end_against_uniform(learning_case(learning_run(loss=loss, facts={"vocab_size": 4000})))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert "8.294" in found.title and "10^4" in found.evidence[1].text
    assert found.saved_usd is not None and found.saved_usd.value == pytest.approx(2000 / 3600 * 3.6, rel=0.02)


def test_a_loss_resting_at_ln_v_looks_like_random_tokens():
    loss = LN_V + 0.01 * np.random.default_rng(1).standard_normal(STEPS)
    found = detect_end_against_uniform(learning_case(learning_run(loss=loss)))
    assert isinstance(found, Finding) and "random" in found.title


def test_a_first_loss_above_any_vocabulary_where_none_is_known():
    table = learning_run(loss=healthy_loss(start=22.0, end=20.0), eval_loss=None)
    table.facts.clear()
    table.facts["seq_len"] = 512
    found = detect_initial_loss(learning_case(table))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE and "any vocabulary" in found.title
    table.facts.clear()  # not a language model: a sum over parts of a picture may be anything
    assert isinstance(detect_initial_loss(learning_case(table)), Insufficient)
