"""Beliefs about uncalibrated cards: the shipped file, what it says of cards, and how wide it stays."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus, require_gpu
from advisor.prediction import prior
from advisor.prediction.batch import predict_batch
from advisor.prediction.prior import datasheet_rates, load_prior, power_headroom
from advisor.prediction.throughput import TERMS
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Software, Workload
from advisor.store.folders import profiles_folder
from trainer.schema import make_shape

GENERATIONS = sorted({spec.generation for spec in load_gpus().values()})
MATMUL, TRAFFIC = TERMS.index("matmul"), TERMS.index("traffic")


@pytest.fixture
def document() -> dict:
    return yaml.safe_load((profiles_folder() / "prior.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("compiled", [True, False, None])
@pytest.mark.parametrize("generation", [*GENERATIONS, None, "Rubin"])
def test_covariance_is_positive_definite_and_symmetric(generation: str | None, compiled: bool | None):
    belief = load_prior(generation, "bf16", compiled)
    assert belief.mean.shape == (len(TERMS),)
    assert np.allclose(belief.covariance, belief.covariance.T)
    assert np.linalg.eigvalsh(belief.covariance).min() > 1e-5
    assert 0.02 < belief.discrepancy < 0.2


@pytest.mark.parametrize("generation", GENERATIONS)
def test_products_are_believed_to_reach_a_possible_share_of_peak(generation: str):
    share = math.exp(-load_prior(generation, "bf16", True).mean[MATMUL])
    assert 0.35 < share < 1.3  # above one only where cards boost beyond the datasheet's clock


def test_cards_at_half_rate_are_a_generation_apart():
    """Data sheets: an RTX 4090 has 165 dense TFLOP/s with fp32 sums at 82.6 in fp32, an RTX 6000 Ada 364 at 91."""
    named = {key: require_gpu(key).generation for key in ("rtx-4090", "rtx-6000-ada", "l4", "l40", "l40s", "rtx-3090")}
    assert named == {
        "rtx-4090": "Ada half-rate", "rtx-6000-ada": "Ada", "l4": "Ada", "l40": "Ada half-rate", "l40s": "Ada",
        "rtx-3090": "Ampere half-rate",
    }  # fmt: skip
    others = ("a100-80gb-sxm", "a10", "h100-80gb-sxm", "v100-16gb-sxm2", "t4")
    assert {require_gpu(key).generation for key in others} == {"Ampere", "Hopper", "Volta", "Turing"}


def test_an_encoder_benchmark_speaks_of_cards_without_decoder_runs():
    """On BERT an RTX 6000 Ada gave 0.85 of an RTX 4090; its data sheet alone would make it twice as fast."""
    steps = {}
    for key in ("rtx-6000-ada", "rtx-4090"):
        spec = require_gpu(key)
        shape = make_shape("nanochat", depth=20, vocab_size=32768, seq_len=2048)
        [found] = predict_batch(prior_profile(spec), [Workload(shape=shape, micro_batch=4, gpu=key, compile=True)])
        steps[key] = found.step_seconds
    ratio = steps["rtx-4090"].value / steps["rtx-6000-ada"].value
    assert 0.85 < ratio < 1.3
    assert steps["rtx-6000-ada"].high / steps["rtx-6000-ada"].value > steps["rtx-4090"].high / steps["rtx-4090"].value


def test_a_generation_without_runs_is_believed_less():
    measured, unmeasured = load_prior("Hopper", "bf16", True), load_prior("Rubin", "bf16", True)
    more = unmeasured.covariance[MATMUL, MATMUL] - measured.covariance[MATMUL, MATMUL]
    assert more > 0.2**2 - 0.05**2  # the spread between generations, less what the rows left of Hopper's own
    assert "none of Rubin" in unmeasured.source and "Hopper" in measured.source


def test_compiling_saves_traffic_and_not_knowing_is_wider():
    compiled, eager, unknown = (load_prior("Hopper", "bf16", c) for c in (True, False, None))
    assert compiled.mean[TRAFFIC] < unknown.mean[TRAFFIC] < eager.mean[TRAFFIC]
    assert unknown.covariance[TRAFFIC, TRAFFIC] > max(
        compiled.covariance[TRAFFIC, TRAFFIC], eager.covariance[TRAFFIC, TRAFFIC]
    )


def test_a_lower_power_limit_slows_products_and_widens_the_belief():
    full = require_gpu("h100-80gb-sxm")
    capped = dataclasses.replace(full, tdp_watts=full.tdp_watts / 4)
    one, two = (load_prior("Hopper", "bf16", True, spec) for spec in (full, capped))
    assert power_headroom(full, "bf16") == pytest.approx(math.log(700 / 989.4))
    assert two.mean[MATMUL] - one.mean[MATMUL] == pytest.approx(0.2 * math.log(4), rel=0.5)
    assert two.covariance[MATMUL, MATMUL] > one.covariance[MATMUL, MATMUL]
    assert two.mean[TRAFFIC] == one.mean[TRAFFIC]


def test_no_card_is_believed_much_faster_than_its_data_sheet():
    """GeForce cards boost some 8 % beyond their peak; whatever watts a card has to spare, none does much more."""
    for spec in load_gpus().values():
        for precision in ("bf16", "fp16"):
            belief = load_prior(spec.generation, precision, True, spec)
            assert datasheet_rates(spec, precision) is None or belief.mean[MATMUL] > -0.2, spec.key


def test_the_bound_on_products_is_a_gaussian_update():
    mean, covariance = np.zeros(len(TERMS)), np.eye(len(TERMS))
    assert prior.bounded(mean, covariance)[0] is mean  # slower than peak: nothing to add
    mean = np.full(len(TERMS), -0.58)  # as sure as the bound, half way between
    found, less = prior.bounded(mean, prior.FASTEST[1] ** 2 * covariance)
    assert found[MATMUL] == pytest.approx(-0.33) and found[TRAFFIC] == -0.58
    assert less[MATMUL, MATMUL] == pytest.approx(prior.FASTEST[1] ** 2 / 2)


def test_fp32_is_believed_less():
    half, single = (load_prior("Ampere", p, False) for p in ("bf16", "fp32"))
    assert single.covariance[MATMUL, MATMUL] > half.covariance[MATMUL, MATMUL] + 0.005


def test_beliefs_are_not_shared_between_calls():
    load_prior("Rubin", "fp32", True).mean[:] = 0
    assert load_prior("Rubin", "fp32", True).mean.any()


def test_datasheet_rates_are_the_datasheets():
    rates = datasheet_rates(require_gpu("a100-80gb-sxm"), "bf16")
    assert (rates.matmul_flops, rates.bandwidth) == (312e12, 2039e9)
    assert datasheet_rates(require_gpu("v100-32gb-sxm2"), "bf16") is None


def test_file_records_held_out_errors_within_what_is_promised(document: dict):
    """Owners left out one at a time, every owner counted once; docs/accuracy.md has what was asked beside it."""
    for way in ("leave_one_owner_out", "leave_one_gpu_out"):
        held = document["held_out"][way]
        assert held["rows"] == document["provenance"]["rows"] > 300 and held["owners"] > 20
        assert held["median"] <= 0.2 and 0.74 <= held["inside_80_percent"] <= 0.88


def test_untuned_software_is_believed_slower_and_less():
    """People's loops: compiled with fused attention they agree within a quarter, eager ones and wrappers do not."""
    spec = require_gpu("a100-80gb-sxm")
    tuned, loose, wrapper = (
        load_prior("Ampere", "bf16", compiled, spec, software=Software(kind=kind))
        for kind, compiled in (("plain", True), ("plain", False), ("wrapper", False))
    )
    together = np.full(len(TERMS), 1 / len(TERMS))
    tuned_sd, loose_sd, wrapper_sd = (
        math.sqrt(together @ b.covariance @ together) for b in (tuned, loose, wrapper)
    )  # fmt: skip
    assert tuned_sd < 0.25 < 0.28 < loose_sd <= wrapper_sd + 0.05
    assert math.expm1(1.2816 * tuned_sd) < 0.4


def test_cards_without_tensor_units_multiply_16_bit_numbers_at_their_fp32_rate():
    spec = require_gpu("p100-16gb-sxm2")
    assert datasheet_rates(spec, "fp16").matmul_flops == spec.fp32_flops


def test_unusable_file_says_how_to_mend_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "prior.yaml").write_text("schema: 99\n", encoding="utf-8")
    monkeypatch.setattr(prior, "profiles_folder", lambda: tmp_path)
    prior._shared.cache_clear()
    with pytest.raises(AdvisorError) as failure:
        load_prior("Hopper", "bf16", True)
    prior._shared.cache_clear()
    assert "fit_prior.py" in failure.value.hint
