"""Speed against what the card gives at this shape; batches by the curve."""

from __future__ import annotations

import dataclasses

import pytest

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors import speed
from advisor.prediction.batch import predict_batch
from advisor.readers.run_table import Status
from advisor.records import Workload
from tests.advisor.findings import build
from trainer.schema import make_shape

SMALL_ON_L4 = Workload(
    shape=make_shape("gpt2", depth=8, width=384, heads=8, vocab_size=4000, seq_len=512),
    micro_batch=20,
    gpu="l4",
    precision="bf16",
    compile=True,
)


def slow_case():
    """10,240 tokens in 2.184 s on an L4: N_mm 15,691,776, 113,025,024 FLOPs per token, 0.438 % of 121 TFLOP/s."""
    table = build.run(seconds=2.184, facts={"step_tokens": 10_240, "planned_steps": 50_000}, status=Status.INCOMPLETE)
    return build.case(table, SMALL_ON_L4, usd_per_hour=0.70)


def test_software_bound():
    case = slow_case()
    found = speed.detect_software_bound(case)
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert "0.438 % of peak" in found.title
    assert "neither a bigger batch nor a faster GPU will mend it" in found.actions
    factor = case.expected.tokens_per_second.value / (10_240 / 2.184)
    assert factor > 20
    # 50,000 steps of 2.184 s are 30.33 h and $21.23; all but 1/factor of it is lost
    assert found.saved_hours.value == pytest.approx(30.33 * (1 - 1 / factor), rel=1e-3)
    assert found.saved_usd.value == pytest.approx(21.23 * (1 - 1 / factor), rel=1e-3)
    assert found.saved_usd.low <= found.saved_usd.value <= found.saved_usd.high


def test_as_fast_as_promised_is_no_finding():
    case = build.case()
    assert speed.detect_software_bound(case) is None
    slower = dataclasses.replace(
        case, run=build.healthy(seconds=build.expected(case.workload).step_seconds.value * 1.3)
    )
    assert speed.detect_software_bound(slower) is None  # below 1.5x: a matter of taste and versions


def test_guessed_workloads_are_no_error_at_four_times():
    case = dataclasses.replace(
        build.case(build.healthy(seconds=10.0)), unsure=("the number of GPUs is not printed: one was assumed",)
    )
    found = speed.detect_software_bound(case)
    assert isinstance(found, Finding) and found.severity is Severity.NOTE


def test_software_bound_without_a_card():
    case = dataclasses.replace(build.case(), expected=None)
    assert isinstance(speed.detect_software_bound(case), Insufficient)


def test_bigger_batch_where_the_curve_says_so():
    case = build.case(w=build.workload(micro_batch=1, grad_accum=512))
    found = speed.detect_bigger_batch(case)
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    chosen = speed.best_batch(case)
    assert chosen.same_global_batch and chosen.micro_batch * chosen.grad_accum == 512
    bigger = dataclasses.replace(case.workload, micro_batch=chosen.micro_batch, grad_accum=chosen.grad_accum)
    small, big = predict_batch(case.profile, [case.workload, bigger])
    assert chosen.gain == pytest.approx(big.tokens_per_second.value / small.tokens_per_second.value - 1)
    assert f"micro_batch: {chosen.micro_batch}" in found.actions[0]


def test_no_bigger_batch_for_a_run_that_is_faster_than_the_curve():
    case = build.case(w=build.workload(micro_batch=1, grad_accum=512))
    fast = (
        case.expected.step_seconds.value * case.expected.tokens_per_second.value / case.expected.tokens_per_second.high
    )
    quick = dataclasses.replace(case, run=build.healthy(case.workload, seconds=0.9 * fast))
    assert speed.detect_bigger_batch(quick) is None


def test_no_bigger_batch_where_the_software_is_slow():
    assert speed.detect_bigger_batch(slow_case()) is None
