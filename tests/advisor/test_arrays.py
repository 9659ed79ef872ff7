"""Predictions as arrays are the numbers that one workload at a time gets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.hardware.catalog import require_gpu
from advisor.prediction.batch import fits, predict_batch, step_seconds_many
from advisor.prediction.loss import allocation_score, expected_loss, predict_loss
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Workload
from tests.advisor.devices import big_gpu
from trainer.schema import make_shape

shapes = st.builds(
    lambda depth, vocab, seq: make_shape("nanochat", depth=depth, vocab_size=vocab, seq_len=seq),
    st.integers(1, 32), st.sampled_from((4096, 50304, 65536)), st.sampled_from((256, 2048)),
)  # fmt: skip
rows = st.lists(
    st.tuples(shapes, st.integers(1, 64), st.integers(1, 32), st.sampled_from((1, 2, 8, 32))), min_size=1, max_size=8
)


@settings(max_examples=30, deadline=None)
@given(rows, st.sampled_from(("none", "full")), st.sampled_from(("adamw", "muon")), st.booleans())
def test_arrays_equal_one_by_one(rows, checkpointing, optimizer, calibrated):
    profile = big_gpu() if calibrated else prior_profile(require_gpu("h200-141gb-sxm"))
    for gpus in {row[3] for row in rows}:
        workloads = [
            Workload(shape=shape, micro_batch=micro, grad_accum=accum, gpu=profile.key, gpus=gpus, compile=True,
                     activation_checkpointing=checkpointing, optimizer=optimizer)
            for shape, micro, accum, count in rows if count == gpus
        ]  # fmt: skip
        a = WorkloadArrays.of(workloads)
        accum = np.array([w.grad_accum for w in workloads])
        steps = step_seconds_many(profile, a, accum, np.full(len(workloads), gpus))
        memory = profile.memory.device_total_many(a)
        fit = fits(memory, profile.device_memory_bytes)
        for i, w in enumerate(workloads):
            [one] = predict_batch(profile, [w])
            for side in ("value", "low", "high"):
                assert getattr(steps, side)[i] == pytest.approx(getattr(one.step_seconds, side), rel=1e-9)
            assert bool(fit[i]) == (one.fits is True)
            assert one.fit_probability is None or bool(fit[i]) == (one.fit_probability >= 0.9 - 1e-9)


def test_unknown_links_are_not_a_number():
    profile = prior_profile(require_gpu("tpu-v6e"))
    workloads = [Workload(shape=make_shape("gpt2", depth=12, vocab_size=50304, seq_len=1024), micro_batch=4,
                          gpu="tpu-v6e", compile=True)]  # fmt: skip
    a = WorkloadArrays.of(workloads * 2)
    steps = step_seconds_many(profile, a, np.array([1, 1]), np.array([1, 4]))
    assert steps.value[0] > 0 and np.isnan(steps.value[1])


@settings(max_examples=60, deadline=None)
@given(st.integers(10**4, 10**11), st.integers(10**4, 10**13), st.one_of(st.none(), st.integers(10**3, 10**12)),
       st.sampled_from((4096, 32768)))  # fmt: skip
def test_scores_and_losses_equal_one_by_one(parameters, tokens, unique, vocab):
    n, d = np.array([float(parameters)]), np.array([float(tokens)])
    assert allocation_score(n, d, unique, best_ratio=12.0)[0] == pytest.approx(
        allocation_score(parameters, tokens, unique, best_ratio=12.0)
    )
    one = predict_loss(parameters, tokens, unique, vocab)
    found = expected_loss(n, d, unique, vocab)[0]
    assert np.isnan(found) if one is None else found == pytest.approx(one.value)
