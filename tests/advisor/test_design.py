"""Bursts are chosen for what they teach about the coming decision, within the seconds left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.calibration import design
from advisor.calibration.fit import fit
from advisor.prediction.prior import measured_prior
from advisor.prediction.throughput import Rates, predict_log, sizes
from advisor.records import MeasuredStep, Workload
from trainer.schema import make_shape

RATES = Rates(matmul_flops=3e11, bandwidth=5e10, launch_seconds=3e-6)
COST = design.BurstCost()


def base(depth: int) -> Workload:
    shape = make_shape("nanochat", depth=depth, vocab_size=4096, seq_len=256)
    return Workload(shape=shape, micro_batch=1, gpu="cpu", precision="fp32")


def pool(depths=(2, 4, 6, 8), fits=lambda w: True) -> list[Workload]:
    return design.candidates([base(d) for d in depths], seq_lens=(256, 128), most_tokens=8192, fits=fits)


def believe(observed=()):
    return fit(
        [MeasuredStep(workload=w, step_seconds=s, noise=0.03) for w, s in observed], RATES, measured_prior(), 0.0
    )


def chosen(posterior, options, count=4, seconds_left=60.0):
    weights = design.target_weights(posterior, sizes(options), 256)
    return design.choose(posterior, options, weights, COST, count=count, seconds_left=seconds_left)


def test_candidates_stop_where_memory_does():
    options = pool(fits=lambda w: w.micro_tokens <= 1024)
    assert max(w.micro_tokens for w in options) == 1024
    assert {w.shape.seq_len for w in options} == {128, 256}
    assert sum(w.grad_accum == 2 for w in options) == 4  # one per depth


def test_the_first_round_varies_size_and_batch():
    picks = chosen(believe(), pool(), count=6)
    assert len({w.shape.depth for w in picks}) >= 2
    assert len({w.micro_batch for w in picks}) >= 3


def test_what_was_measured_well_is_not_measured_again():
    options = pool()
    done = base(2), replace(base(2), micro_batch=16)
    observed = [(w, 1e-3 * w.micro_tokens / 256) for w in done for _ in range(4)]
    assert not set(chosen(believe(observed), options)) & set(done)


@settings(max_examples=25)
@given(seconds=st.floats(0, 40))
def test_never_more_than_the_seconds_left(seconds):
    posterior, options = believe(), pool()
    picks = chosen(posterior, options, count=5, seconds_left=seconds)
    z = sizes(picks) if picks else None
    spent = 0.0 if z is None else COST.seconds(z, np.exp(predict_log(posterior, z).mean)).sum()
    assert spent <= seconds


def test_a_burst_removes_variance_where_it_counts():
    posterior, options = believe(), pool()
    before = predict_log(posterior, sizes(options)).deviation
    first = chosen(posterior, options, count=1)[0]
    after = predict_log(believe([(first, 0.2)]), sizes(options)).deviation
    assert np.mean(after) < 0.85 * np.mean(before)


def test_a_compiled_block_is_dearer_the_first_time_only():
    z = sizes([base(2), base(1), base(4)])  # depths 1 and 2 share a width of 128
    shapes = design.block_shapes(z)
    cost = design.BurstCost(compile_seconds=10.0, compiled=frozenset({shapes[0]}))
    extra = cost.seconds(z, np.full(3, 0.1)) - COST.seconds(z, np.full(3, 0.1))
    assert extra == pytest.approx([0.0, 0.0, 10.0])


def test_missing_contrast_asks_for_a_second_value_of_each():
    options = pool()
    wanted = design.missing_contrast([base(2), replace(base(2), micro_batch=4)], options)
    assert wanted and all(w.shape.depth != 2 or w.shape.seq_len != 256 or w.grad_accum != 1 for w in wanted)
    other = [next(w for w in options if w.shape.seq_len == 128), next(w for w in options if w.grad_accum == 2)]
    varied = [base(2), replace(base(4), micro_batch=4), *other]
    assert design.missing_contrast(varied, options) == []
