"""A calibration on one card as evidence about another: how far beliefs move, and how sure they become."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from advisor.calibration.fit import fit
from advisor.calibration.profiles import calibrated_elsewhere, load_profile
from advisor.hardware.catalog import load_gpus, require_gpu
from advisor.prediction.batch import predict_batch
from advisor.prediction.prior import (
    OtherCalibration,
    calibration_prior,
    datasheet_rates,
    load_prior,
    measured_prior,
    relative_to_datasheet,
    transferred,
)
from advisor.prediction.throughput import TERMS, Rates, predict_log, sizes, terms
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import MeasuredStep, Workload
from advisor.store.store import Store, load_calibration
from trainer.schema import make_shape

L4, L40S, H100 = (require_gpu(key) for key in ("l4", "l40s", "h100-80gb-sxm"))
SHAPE = make_shape("nanochat", depth=12, vocab_size=32768, seq_len=2048)


def elsewhere(spec=L4, shift: float = 0.0, deviation: float = 0.05) -> OtherCalibration:
    """A calibration whose coefficients all came out `shift` (of logs) above what was believed."""
    believed = load_prior(spec.architecture, "bf16", True, spec)
    return OtherCalibration(
        theta=believed.mean + shift,
        covariance=deviation**2 * np.eye(len(TERMS)),
        prior_mean=believed.mean,
        prior_covariance=100.0 * np.eye(len(TERMS)),
        spec=spec,
        precision="bf16",
        compile=True,
        source=f"calibration x on {spec.key}",
    )


def step(spec, found: OtherCalibration | None):
    workload = Workload(shape=SHAPE, micro_batch=8, gpu=spec.key, compile=True)
    [prediction] = predict_batch(prior_profile(spec, elsewhere=found), [workload])
    return prediction.step_seconds


def test_seconds_stay_the_same_when_rates_change():
    z = sizes([Workload(shape=SHAPE, micro_batch=8, gpu="l4")])
    theta = np.linspace(-0.5, 5, len(TERMS))
    measured = Rates(matmul_flops=90e12, bandwidth=2.5e11, launch_seconds=8e-6)
    datasheet = datasheet_rates(L4, "bf16")
    moved = relative_to_datasheet(theta, measured, datasheet)
    assert terms(z, datasheet) * np.exp(moved) == pytest.approx(terms(z, measured) * np.exp(theta))


def test_a_calibration_starts_from_what_published_runs_say_of_its_card():
    """At any ceilings the same seconds as without a calibration, and the same doubt about software nobody measured."""
    measured = Rates(matmul_flops=90e12, bandwidth=2.5e11, launch_seconds=8e-6)
    start, believed = calibration_prior(L4, "bf16", True, measured), load_prior("Ada", "bf16", True, L4)
    z, datasheet = sizes([Workload(shape=SHAPE, micro_batch=8, gpu="l4")]), datasheet_rates(L4, "bf16")
    assert terms(z, measured) * np.exp(start.mean) == pytest.approx(terms(z, datasheet) * np.exp(believed.mean))
    assert np.diag(start.covariance) == pytest.approx(np.diag(believed.covariance))


def test_a_cpu_is_calibrated_from_physical_floors():
    rates = Rates(matmul_flops=3e11, bandwidth=5e10, launch_seconds=3e-6)
    assert calibration_prior(None, "fp32", False, rates).mean.tolist() == measured_prior().mean.tolist()


def test_few_bursts_move_a_calibrated_card_and_none_leave_it_wide():
    """Bursts a third slower than believed: one moves the belief part of the way, five most of it, and narrow it."""
    rates = datasheet_rates(H100, "bf16")
    start = calibration_prior(H100, "bf16", True, rates)
    plain = Workload(shape=SHAPE, micro_batch=8, gpu=H100.key, compile=True)
    workloads = [
        dataclasses.replace(plain, shape=dataclasses.replace(SHAPE, depth=depth), micro_batch=size)
        for depth, size in ((6, 8), (10, 4), (12, 16), (16, 2), (20, 8))
    ]
    held = sizes([plain])
    before = predict_log(fit((), rates, start, drift=0.0), held)
    moved, deviations = [], [float(before.deviation[0])]
    for count in (1, 5):
        believed = predict_log(fit((), rates, start, drift=0.0), sizes(workloads[:count])).mean
        seen = [MeasuredStep(workload=w, step_seconds=1.33 * float(np.exp(m)), noise=0.02)
                for w, m in zip(workloads, believed, strict=False)]  # fmt: skip
        after = predict_log(fit(seen, rates, start, drift=0.0), held)
        moved.append(float(after.mean[0] - before.mean[0]))
        deviations.append(float(after.deviation[0]))
    assert 0.3 * np.log(1.33) < moved[0] < moved[1] < 1.05 * np.log(1.33) and moved[1] > 0.9 * np.log(1.33)
    assert deviations[0] > deviations[1] > deviations[2]


def test_a_calibration_that_confirms_the_belief_moves_nothing():
    assert step(H100, elsewhere()).value == pytest.approx(step(H100, None).value)


@pytest.mark.parametrize("shift", [-0.3, 0.3])
def test_beliefs_move_towards_what_another_card_showed_but_not_beyond(shift: float):
    before = step(H100, None).value
    after = step(H100, elsewhere(shift=shift)).value
    assert 0.2 < np.log(after / before) / shift < 1.0


def test_a_card_of_the_same_architecture_says_more():
    moved = [np.log(step(spec, elsewhere(shift=0.3)).value / step(spec, None).value) for spec in (L40S, H100)]
    assert moved[0] > moved[1]


def test_a_poor_calibration_says_less():
    good, poor = (step(H100, elsewhere(shift=0.3, deviation=d)).value for d in (0.02, 0.5))
    assert good > poor > step(H100, None).value


def test_the_interval_keeps_the_transfers_own_uncertainty():
    """However sure the other card's calibration is, a card is not known to 5 % from another."""
    sure = step(H100, elsewhere(deviation=1e-3))
    assert np.log(sure.high / sure.value) > 1.28 * 0.05


@pytest.mark.parametrize("here", ["Ampere", "Hopper", "Blackwell", "Volta", "CDNA3"])
@pytest.mark.parametrize("there", ["Ada", "Hopper", "Blackwell", "Turing"])
def test_covariances_stay_covariances(here: str, there: str):
    one, other = (next(s for s in load_gpus().values() if s.architecture == a) for a in (here, there))
    precision = "fp16"
    seen = dataclasses.replace(elsewhere(other), precision=precision)
    found = transferred(load_prior(here, precision, True, one), one, True, seen)
    assert np.linalg.eigvalsh(found.covariance).min() > 0
    assert np.isfinite(found.mean).all() and "updated by calibration x" in found.source


def test_another_precision_says_nothing():
    assert step(H100, dataclasses.replace(elsewhere(shift=0.3), precision="fp32")) == step(H100, None)


def test_what_a_calibration_merely_started_from_says_nothing():
    """Bursts that told nothing leave its posterior at its prior, wherever that lay."""
    start = elsewhere(shift=1.0, deviation=0.3)
    empty = dataclasses.replace(start, prior_mean=start.theta, prior_covariance=start.covariance)
    assert step(H100, empty).value == pytest.approx(step(H100, None).value)


def test_the_store_knows_of_other_cards(tmp_path: Path):
    """A recorded session, filed under another card's name: only the way from the store to the profile is tested."""
    store = Store(tmp_path)
    session = sorted((Path(__file__).parents[2] / "benchmarks" / "raw").glob("cpu-*.yaml"))[0]
    recorded = load_calibration(session)
    card = dataclasses.replace(recorded.device, type="cuda")
    store.save_calibration(dataclasses.replace(recorded, device_key="l4", device=card))
    profile = load_profile("h100-80gb-sxm", store, precision="fp32")
    assert not profile.calibrated and any("on l4" in source for source in profile.sources)
    alone = load_profile("h100-80gb-sxm", store, precision="fp32", transfer=False)
    assert not any("on l4" in source for source in alone.sources)
    assert (profile.posterior.theta != alone.posterior.theta).any()
    assert calibrated_elsewhere(require_gpu("l4"), store) is None  # its own is no other card's


def test_a_calibration_that_went_on_is_learnt_from_anew(tmp_path: Path):
    """The same file, first after a few bursts and then whole: what is believed of other cards follows it."""
    store = Store(tmp_path)
    session = sorted((Path(__file__).parents[2] / "benchmarks" / "raw").glob("cpu-*.yaml"))[0]
    recorded = load_calibration(session)
    filed = dataclasses.replace(recorded, device_key="l4", device=dataclasses.replace(recorded.device, type="cuda"))
    store.save_calibration(dataclasses.replace(filed, bursts=filed.bursts[:4]))
    partial = load_profile("h100-80gb-sxm", store, precision="fp32").posterior
    store.save_calibration(filed)
    whole = load_profile("h100-80gb-sxm", store, precision="fp32").posterior
    assert (whole.theta != partial.theta).any()
    fresh = Store(tmp_path / "another")
    fresh.save_calibration(filed)
    assert whole.theta.tolist() == load_profile("h100-80gb-sxm", fresh, precision="fp32").posterior.theta.tolist()
