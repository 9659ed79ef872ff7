"""Another optimizer, sharding or precision is one more record: a prediction compares no names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advisor.hardware.catalog import require_gpu
from advisor.laws import flops
from advisor.prediction.batch import predict_batch
from advisor.prediction.software import software_of
from advisor.prediction.uncalibrated import prior_profile
from advisor.prediction.wallclock import state_bytes
from advisor.records import Prediction, Workload
from advisor.settings import OPTIMIZERS, PRECISIONS, SHARDINGS, Optimizer, Sharding
from trainer.schema import make_shape

SHAPE = make_shape("llama", depth=24, vocab_size=32000, seq_len=2048)
EIGHT = Workload(shape=SHAPE, micro_batch=4, gpu="h100-80gb-sxm", gpus=8, sharding="full", grad_accum=2)
PARAMETERS = flops.parameters(SHAPE)


def predicted(w: Workload) -> Prediction:
    profile = prior_profile(require_gpu(w.gpu), compile=w.compile, software=w.software)
    return predict_batch(profile, [w])[0]


@pytest.mark.parametrize("software", [None, "torchtitan"])
def test_an_optimizer_with_one_moment_is_one_record(monkeypatch, software):
    """Lion keeps one fp32 moment: 4 bytes less for each weight, divided over the eight GPUs of a fully sharded run."""
    monkeypatch.setitem(OPTIMIZERS, "lion", Optimizer(name="lion", moments=1, matrix_moments=1))
    how = None if software is None else software_of(software)
    adamw, lion = (predicted(replace(EIGHT, optimizer=name, software=how)) for name in ("adamw", "lion"))
    less = adamw.peak_allocated_bytes.value - lion.peak_allocated_bytes.value
    assert less == pytest.approx(4 * PARAMETERS / 8, rel=0.02 if software is None else 0.15)
    assert state_bytes(SHAPE, "adamw") - state_bytes(SHAPE, "lion") == 4 * PARAMETERS
    assert lion.step_seconds.value <= adamw.step_seconds.value


def test_a_sharding_of_moments_and_weights_alone_is_one_record(monkeypatch):
    """It keeps whole gradients: 4 bytes a weight where full sharding keeps an eighth of them."""
    kept = Sharding(name="kept", stage=3, moments=True, weights=True, words="gradients kept", published="full")
    monkeypatch.setitem(SHARDINGS, "kept", kept)
    how = replace(software_of("torchtitan"), state_chance=1.0)
    full, whole = (predicted(replace(EIGHT, software=how, sharding=name)) for name in ("full", "kept"))
    more = whole.peak_allocated_bytes.value - full.peak_allocated_bytes.value
    assert more == pytest.approx(4 * PARAMETERS * 7 / 8, rel=0.1)
    assert whole.step_seconds.value == pytest.approx(full.step_seconds.value, rel=0.05)


def test_every_record_is_an_option_in_the_order_of_zeros_stages():
    from advisor import options

    assert [SHARDINGS[name].stage for name in options.SHARDINGS] == [0, 1, 2, 3]
    assert set(PRECISIONS) == set(options.PRECISIONS) - {"auto"}
