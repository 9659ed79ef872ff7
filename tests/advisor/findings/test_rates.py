"""MFU and the phase of a schedule against the handbook's golden runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.detectors.learning_rate import phase_of_schedule
from advisor.findings.run_metrics import flops_per_token, mfu
from advisor.laws.annealing import learning_rate_shares
from advisor.records import Workload
from tests.advisor.findings import build
from tests.advisor.findings.build_learning import learning_run
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


def test_the_phase_of_a_schedule():
    # nanochat's pair of sources §4.5: d16 at multiplier 0.3125 at step 12,000 of 12,800 with a decay over 20 % to 0
    rates = 0.02 * learning_rate_shares("wsd", 12_800, final_share=0.0, decay_share=0.2)
    table = learning_run(12_800, learning_rate=rates, eval_loss=None)
    assert phase_of_schedule(table, 12_001) == pytest.approx(0.3125, abs=1e-3)
    assert phase_of_schedule(table, 20_000) is None
