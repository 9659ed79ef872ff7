"""The table of cards holds what a plan for the same goal on each card would be."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.laws import flops
from advisor.options import Goal
from advisor.planning.answer import bare_plan
from advisor.planning.what_fits import CardRow, card_rows
from advisor.prediction.batch import predict_batch
from advisor.prediction.profile import Profile
from advisor.prediction.uncalibrated import prior_profile
from trainer.schema import make_shape

NOW = datetime(2026, 11, 22, tzinfo=UTC)
KEYS = ("b200", "h100-80gb-sxm", "l4", "rtx-4090", "v100-16gb-sxm2", "p100-16gb-pcie")
GOALS = [
    Goal(gpu="any", depth=12, seq_len=2048, vocab_size=32768),
    Goal(gpu="any", depth=24, seq_len=2048, vocab_size=32768),
    Goal(gpu="any", depth=16, seq_len=1024, vocab_size=32768, family="llama", gpus=8),
    Goal(gpu="any", depth=48, seq_len=2048, vocab_size=32768, family="gpt2"),
]


def believed(key: str) -> Profile:
    return prior_profile(require_gpu(key))


def row_of(goal: Goal, key: str) -> CardRow:
    [row] = card_rows(goal, [require_gpu(key)], believed)
    return row


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("number", range(len(GOALS)))
def test_a_card_trains_as_a_plan_on_it_would(number, key):
    goal = GOALS[number]
    row = row_of(goal, key)
    try:
        plan = bare_plan(Goal(**{**vars(goal), "gpu": key}), believed(key), now=datetime.now(UTC))
    except AdvisorError as refused:
        assert row.prediction is None and ("fit" in refused.message) == ("fit" in row.problem)
        return
    if not plan.prediction.plannable:  # planned with a warning, because no other GPU is named
        assert (
            row.prediction is None
            and f"({int(100 * plan.prediction.fit_probability)} % chance that it fits)" in row.problem
        )
        return
    assert row.prediction.workload == plan.workload
    assert row.prediction == predict_batch(believed(key), [plan.workload])[0]
    if row.usd_per_billion_tokens is not None:
        hours = 1e9 / row.prediction.tokens_per_second.value / 3600
        assert row.usd_per_billion_tokens.value == pytest.approx(hours * plan.offer.usd_per_hour)


def test_a_model_that_fits_with_activations_recomputed_is_no_model_that_does_not_fit():
    """Of 16 GB the weights, gradients and moments of 780 M parameters take 12.5, activations at 34 bytes 2.6 more."""
    shape = make_shape("nanochat", depth=24, vocab_size=32768, seq_len=2048)
    assert 16 * flops.parameters(shape) == pytest.approx(12.5e9, rel=0.01)
    assert 34 * 2048 * shape.width * 24 == pytest.approx(2.6e9, rel=0.02)
    row = row_of(GOALS[1], "v100-16gb-sxm2")
    assert row.problem is None and row.prediction.workload.activation_checkpointing == "full"
