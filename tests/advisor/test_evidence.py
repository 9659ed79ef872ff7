"""From raw bursts to drift-corrected observations."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from advisor.calibrate import evidence
from advisor.calibrate.profiles import profile_of
from advisor.disk import read_yaml
from advisor.records import Basis, Workload
from trainer.schema import make_shape

RAW = Path(__file__).parents[2] / "benchmarks" / "raw"


def workload(depth: int, micro_batch: int = 4) -> Workload:
    shape = make_shape("nanochat", depth=depth, vocab_size=4096, seq_len=256)
    return Workload(shape=shape, micro_batch=micro_batch, gpu="cpu", precision="fp32")


def burst(depth: int, seconds: float, reference: float, micro_batch: int = 4, **changes):
    return {
        "workload": evidence.workload_to_dict(workload(depth, micro_batch)),
        "outcome": "completed",
        "trained": True,
        "step_seconds": [seconds * f for f in (0.99, 1.0, 1.01)],
        "reference_seconds": [reference] * 3,
    } | changes


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
    drift = evidence.drift_of(drifting(exponent))
    assert drift.exponent == pytest.approx(exponent, abs=0.05)
    assert drift.reference_seconds == pytest.approx(0.01, rel=0.2)


def test_correction_removes_the_drift():
    bursts = drifting(0.8)
    drift = evidence.drift_of(bursts)
    seen = evidence.observations(bursts, "cpu", drift)
    per_depth = np.log([o.step_seconds / o.workload.shape.depth for o in seen])
    assert len(seen) == 10
    assert np.std(per_depth) < 0.03  # uncorrected: 0.3 · 0.8 / 2 = 0.12


def test_without_a_reference_nothing_is_corrected():
    bursts = [burst(2, 0.2, 1.0, reference_seconds=[])]
    drift = evidence.drift_of(bursts)
    assert drift.reference_seconds is None and drift.exponent == 0.0
    assert evidence.observations(bursts, "cpu", drift)[0].step_seconds == pytest.approx(0.2)


def test_bursts_that_did_not_train_are_no_evidence():
    bursts = [burst(2, 0.2, 0.01), burst(3, 0.3, 0.01, trained=False), burst(4, 0.4, 0.01, outcome="out_of_memory")]
    seen = evidence.observations(bursts, "cpu", evidence.drift_of(bursts))
    assert [o.workload.shape.depth for o in seen] == [2]


def test_repeated_bursts_narrow_the_noise():
    once, often = ([burst(2, 0.2, 0.01)] * n for n in (1, 9))
    noises = [evidence.observations(b, "cpu", evidence.drift_of(b))[0].noise for b in (once, often)]
    assert noises[1] < 0.5 * noises[0]


def test_a_workload_survives_the_document():
    w = workload(4)
    assert evidence.workload_from_dict(evidence.workload_to_dict(w), "cpu") == w


def test_rates_are_the_best_product_and_the_copy_that_misses_the_cache():
    ceilings = {
        "matmul": [
            {"m": 10, "k": 10, "n": 10, "seconds": [1.0]},
            {"m": 100, "k": 10, "n": 10, "seconds": [4.0, 5.0, 6.0]},
        ],
        "copy": [{"bytes": 100, "seconds": [1.0]}, {"bytes": 1000, "seconds": [50.0]}],
        "launch_seconds": [3e-6, 1e-6, 2e-6],
    }
    rates = evidence.rates_of(ceilings)
    assert (rates.matmul_flops, rates.bandwidth, rates.launch_seconds) == (4000.0, 20.0, 2e-6)
    ceilings["copy"][0]["seconds"] = [10.0]  # as slow as its launch: a card's small copy
    assert evidence.rates_of(ceilings).bandwidth == 20.0


def test_metered_bursts_say_what_the_device_draws():
    """A recorded calibration as if its machine had an energy counter."""
    document = read_yaml(sorted(RAW.glob("cpu-*.yaml"))[0], "accuracy session")
    assert profile_of(document).costs.power is None
    bursts = evidence.completed(document["bursts"])
    metered = [b | {"watts": 150.0} for b in bursts]
    power = profile_of(document | {"bursts": [*metered, *(b | {"watts": None} for b in bursts[:1])]}).costs.power
    assert power.basis == Basis.MEASURED and power.watts(0.3, gpus=2).value == pytest.approx(300.0)
    run = {"run_id": "r", "workload": bursts[0]["workload"], "step_seconds": 0.1, "watts": 90.0}
    assert profile_of(document, [run]).costs.power.watts(0.1).value == pytest.approx(90.0)
    assert profile_of(document, [run | {"watts": None}]).costs.power is None
