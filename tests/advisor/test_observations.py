"""From raw bursts to drift-corrected observations."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from advisor.calibration import observations
from advisor.calibration.profiles import profile_of
from advisor.records import Basis, MeasuredStep, Workload
from advisor.store.calibration import (
    AccuracySession,
    Burst,
    calibration_from_dict,
    calibration_to_dict,
    measured_run_from_dict,
    measured_run_to_dict,
)
from advisor.store.disk import read_yaml
from advisor.store.store import load_calibration
from trainer.messages import Ceilings, CopyTiming, MatmulTiming
from trainer.schema import ConfigError, make_shape

RECORDED = sorted((Path(__file__).parents[2] / "benchmarks" / "raw").glob("cpu-*.yaml"))[0]


def workload(depth: int, micro_batch: int = 4) -> Workload:
    shape = make_shape("nanochat", depth=depth, vocab_size=4096, seq_len=256)
    return Workload(shape=shape, micro_batch=micro_batch, gpu="cpu", precision="fp32")


def burst(depth: int, seconds: float, reference: float, micro_batch: int = 4, **changes):
    plain = Burst(
        workload=workload(depth, micro_batch),
        started=0.0,
        seconds=1.0,
        outcome="completed",
        reason=None,
        trained=True,
        step_seconds=tuple(seconds * f for f in (0.99, 1.0, 1.01)),
        reference_seconds=(reference,) * 3,
    )
    return replace(plain, **changes)


def drifting(exponent: float, seed: int = 0, noise: float = 0.01):
    """Ten configurations visited four times on a machine whose speed wanders by a factor of about two."""
    rng = np.random.default_rng(seed)
    bursts = []
    for _ in range(4):
        for depth in range(1, 11):
            speed = math.exp(0.3 * rng.standard_normal())
            bursts.append(
                burst(depth, 0.1 * depth * speed**exponent * math.exp(noise * rng.standard_normal()), 0.01 * speed)
            )
    return bursts


@pytest.mark.parametrize("exponent", (0.5, 0.8, 1.0))
def test_the_exponent_of_drift_is_learnt_from_repeated_bursts(exponent):
    drift = observations.drift_of(drifting(exponent))
    assert drift.exponent == pytest.approx(exponent, abs=0.05)
    assert drift.reference_seconds == pytest.approx(0.01, rel=0.2)


def test_correction_removes_the_drift():
    bursts = drifting(0.8)
    drift = observations.drift_of(bursts)
    seen = observations.observations(bursts, drift)
    per_depth = np.log([o.step_seconds / o.workload.shape.depth for o in seen])
    assert len(seen) == 10
    assert np.std(per_depth) < 0.03  # uncorrected: 0.3 · 0.8 / 2 = 0.12


def test_without_a_reference_nothing_is_corrected():
    bursts = [burst(2, 0.2, 1.0, reference_seconds=())]
    drift = observations.drift_of(bursts)
    assert drift.reference_seconds is None and drift.exponent == 0.0
    assert observations.observations(bursts, drift)[0].step_seconds == pytest.approx(0.2)


def test_bursts_that_did_not_train_are_no_evidence():
    bursts = [burst(2, 0.2, 0.01), burst(3, 0.3, 0.01, trained=False), burst(4, 0.4, 0.01, outcome="out_of_memory")]
    seen = observations.observations(bursts, observations.drift_of(bursts))
    assert [o.workload.shape.depth for o in seen] == [2]


def test_repeated_bursts_narrow_the_noise():
    once, often = ([burst(2, 0.2, 0.01)] * n for n in (1, 9))
    noises = [observations.observations(b, observations.drift_of(b))[0].noise for b in (once, often)]
    assert noises[1] < 0.5 * noises[0]


def test_a_recorded_calibration_survives_the_document():
    recorded = load_calibration(RECORDED)
    assert isinstance(recorded, AccuracySession) and (len(recorded.bursts), len(recorded.held_out)) == (43, 34)
    assert recorded.bursts[0].workload.gpu == "cpu" and recorded.bursts[0].workload.shape.depth == 3
    assert calibration_from_dict(calibration_to_dict(recorded)) == recorded


def test_every_wrong_field_of_a_document_is_named_and_unknown_ones_are_passed_over():
    raw = read_yaml(RECORDED, "accuracy session") | {"written_later": 1}
    raw["bursts"][1]["written_later"] = 1
    assert calibration_from_dict(raw) == load_calibration(RECORDED)
    del raw["device"]["name"], raw["bursts"][2]["workload"]["depth"]
    raw["bursts"][0]["step_seconds"][1] = "soon"
    with pytest.raises(ConfigError) as caught:
        calibration_from_dict(raw)
    assert caught.value.problems == [
        "device.name: missing",
        "bursts[0].step_seconds[1]: expected a number, found 'soon'",
        "bursts[2].workload.shape.depth: missing",
    ]


def test_rates_are_the_best_product_and_the_copy_that_misses_the_cache():
    small, large = CopyTiming(bytes=100, seconds=(1.0,)), CopyTiming(bytes=1000, seconds=(50.0,))
    ceilings = Ceilings(
        precision="fp32",
        matmul=(
            MatmulTiming(m=10, k=10, n=10, seconds=(1.0,)),
            MatmulTiming(m=100, k=10, n=10, seconds=(4.0, 5.0, 6.0)),
        ),
        copy=(small, large),
        launch_seconds=(3e-6, 1e-6, 2e-6),
    )
    rates = observations.rates_of(ceilings)
    assert (rates.matmul_flops, rates.bandwidth, rates.launch_seconds) == (4000.0, 20.0, 2e-6)
    as_slow_as_its_launch = replace(small, seconds=(10.0,))  # a card's small copy
    assert observations.rates_of(replace(ceilings, copy=(as_slow_as_its_launch, large))).bandwidth == 20.0


def test_metered_bursts_say_what_the_device_draws():
    """A recorded calibration as if its machine had an energy counter."""
    recorded = load_calibration(RECORDED)
    assert profile_of(recorded).costs.power is None
    bursts = observations.completed(recorded.bursts)
    metered = tuple(replace(b, watts=150.0) for b in bursts)
    power = profile_of(replace(recorded, bursts=(*metered, bursts[0]))).costs.power
    assert power.basis == Basis.MEASURED and power.sides(0.3)[1] == pytest.approx(150.0)
    run = MeasuredStep(run_id="r", created="2026", workload=bursts[0].workload, step_seconds=0.1, steps=9, watts=90.0)
    assert profile_of(recorded, [run]).costs.power.sides(0.1)[1] == pytest.approx(90.0)
    assert profile_of(recorded, [replace(run, watts=None)]).costs.power is None


def test_a_run_on_several_devices_teaches_no_step_time():
    """Its steps hold communication: taken for one device's they would make every later prediction slower."""
    recorded = load_calibration(RECORDED)
    workload = replace(observations.completed(recorded.bursts)[0].workload, gpus=4)
    run = MeasuredStep(run_id="r", created="2026", workload=workload, step_seconds=9.0, steps=500)
    assert profile_of(recorded, [run]).posterior.theta.tolist() == profile_of(recorded).posterior.theta.tolist()
    alone = replace(run, workload=replace(workload, gpus=1))
    assert profile_of(recorded, [alone]).posterior.theta.tolist() != profile_of(recorded).posterior.theta.tolist()
    assert measured_run_from_dict(measured_run_to_dict(run)) == run
