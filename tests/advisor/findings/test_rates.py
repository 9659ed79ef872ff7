"""MFU against the handbook's golden runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.case import Case, Finding, Insufficient, Severity
from advisor.findings.detectors import rates
from advisor.findings.run_metrics import flops_per_token, mfu
from advisor.records import Workload
from tests.advisor.findings import build
from trainer.schema import make_shape

D16 = Workload(
    shape=make_shape("nanochat", depth=16, vocab_size=65536, seq_len=2048),
    micro_batch=8,
    grad_accum=16,
    gpu="h100-80gb-sxm",
    gpus=2,
    compile=True,
)


def d16_case(tokens_per_second: float, **columns):
    """nanochat d16 on two H100: 524,288 tokens per step."""
    table = build.run(seconds=524_288 / tokens_per_second, facts={"step_tokens": 524_288}, **columns)
    return build.case(table, D16)


def test_mfu_of_the_published_d16_run():
    assert mfu(d16_case(430_600)) == pytest.approx(0.4383, abs=5e-4)  # sources §8.3, over 989 TFLOP/s


def test_flops_of_nanochat_as_of_2026():
    # sources §1.1: d24 at HEAD has 1,384,122,122 parameters and 4,775,225,616 FLOPs per token
    w = dataclasses.replace(D16, shape=make_shape("nanochat", depth=24, vocab_size=32768, seq_len=2048))
    new = build.case(build.run(facts={"parameters": 1_384_122_122}), w)
    old = build.case(build.run(facts={"parameters": 780_140_544}), w)
    assert flops_per_token(new) == 4_775_225_616
    assert flops_per_token(old) == 6 * (12 * 24 * 1536**2 + 32768 * 1536) + 12 * 24 * 1536 * 2048


def test_warm_up_does_not_enter_the_rate():
    seconds = np.full(400, 524_288 / 430_600)
    seconds[:8] = [60, 30, 9, 5, 3, 2, 2, 2]
    case = d16_case(430_600)
    columns = {**case.run.columns, "seconds": seconds}
    slow_start = dataclasses.replace(case, run=dataclasses.replace(case.run, columns=columns))
    assert mfu(slow_start) == pytest.approx(0.4383, abs=5e-4)


def test_impossible_mfu():
    # 365,152 tok/s x 854,438,400 FLOPs per token (6·123,532,032 + 12·12·768·1024) = 312e12: all of an A100
    case = build.case(build.run(seconds=524_288 / 365_152, facts={"step_tokens": 524_288}))
    found = rates.detect_impossible_mfu(case)
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert found.title.startswith("The log's speed would be 100 %")
    assert rates.detect_impossible_mfu(d16_case(430_600)) is None


def test_impossible_mfu_needs_shape_and_card():
    assert isinstance(rates.detect_impossible_mfu(dataclasses.replace(build.case(), workload=None)), Insufficient)


def test_logged_mfu_over_an_a100_peak_on_an_h100():
    # nanoGPT divides by 312 TFLOP/s whatever the card: 989/312 x 43.8 % = 139 %
    found = rates.detect_logged_mfu(d16_case(430_600, mfu=0.4383 * 989 / 312))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert "139 %" in found.title and "43.8 %" in found.title
    assert found.causes == ("the log divides by an A100's 312 TFLOP/s",)
    assert rates.detect_logged_mfu(d16_case(430_600, mfu=0.436)) is None


def test_logged_mfu_over_the_sparse_peak():
    found = rates.detect_logged_mfu(d16_case(430_600, mfu=0.4383 / 2))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    assert "the log divides by the peak with 2:4 sparsity" in found.causes


def test_logged_mfu_that_was_not_collected_is_not_judged():
    assert isinstance(rates.detect_logged_mfu(d16_case(430_600, mfu=0.0)), Insufficient)
    assert isinstance(rates.detect_logged_mfu(d16_case(430_600, mfu=-1.0)), Insufficient)


def test_a_tiny_mfu_is_named_where_it_cannot_be_recomputed():
    table = build.run(mfu=0.0006)
    found = rates.detect_logged_mfu(Case(run=table))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE and "0.06 %" in found.title
    assert isinstance(rates.detect_logged_mfu(Case(run=build.run(mfu=0.35))), Insufficient)
