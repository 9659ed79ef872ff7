"""Which burst comes next, and from raw bursts to drift-corrected observations, here and on other machines."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.calibration import design, observations
from advisor.calibration.fit import fit
from advisor.calibration.profiles import profile_of
from advisor.engines.engines import backend_of, parse_place
from advisor.options import CalibrationOptions
from advisor.prediction.prior import measured_prior
from advisor.prediction.throughput import Rates, predict_log, sizes
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
from advisor.store.store import Store, load_calibration
from advisor.workflows.calibrate_elsewhere import _request, several
from tests.advisor.test_security import SECRETS
from trainer.messages import Ceilings, CopyTiming, MatmulTiming
from trainer.schema import ConfigError, make_shape

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
    recorded = replace(recorded, bursts=recorded.bursts[:9])  # as good as all 43, and sooner
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
    before = profile_of(recorded).posterior.theta.tolist()
    assert profile_of(recorded, [run]).posterior.theta.tolist() == before
    alone = replace(run, workload=replace(workload, gpus=1))
    assert profile_of(recorded, [alone]).posterior.theta.tolist() != before
    assert measured_run_from_dict(measured_run_to_dict(run)) == run


def test_partitions_that_are_named_together_are_places_of_their_own():
    """Slurm would start one job in whichever is free first."""
    places = [
        parse_place("slurm:h100,l40s", account="me"),
        parse_place("ssh:there"),
        parse_place("slurm:h100", account="me"),
    ]
    found = several(places, CalibrationOptions())
    assert [(place.engine, place.name, place.account) for place in found] == [
        ("slurm", "h100", "me"), ("slurm", "l40s", "me"), ("ssh", "there", None)]  # fmt: skip
    assert [place.name for place in several([parse_place("slurm")], CalibrationOptions())] == [None]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "slurm:a", "--on", "skypilot"], "cannot be calibrated from here"),
        (["--on", "local"], "cannot be calibrated from here"),
        (["--on", "ssh:there", "--data", "."], "random tokens"),
        (["--on", "ssh:-oProxyCommand=x"], "is not a place"),
        (["--detach"], "--detach is for a calibration on another machine"),
        (["--qos", "high"], "--qos is for a calibration on another machine"),
    ],
)
def test_what_nobody_elsewhere_can_be_asked_is_refused_before_anything_is_handed_over(call, advisor_home, words, said):
    code, out, err = call("calibrate", *words)
    assert (code, out) == (2, "") and said in err, err
    assert not Path(advisor_home, "measuring").exists()


def test_what_is_handed_over_has_nothing_of_the_environment(tmp_path, monkeypatch):
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    asked = _request(CalibrationOptions(gpu="cpu"), parse_place("ssh:there"), tmp_path, datetime.now(UTC))
    assert (
        asked.seconds == 90 and asked.command == "calibrate --gpu cpu"
    )  # and with --settings up to twice that besides
    more = CalibrationOptions(gpu="cpu", settings=True, depths=(1, 2), compile=False, fresh=True)
    more = _request(more, parse_place("ssh:there"), tmp_path, datetime.now(UTC))
    assert (more.seconds, more.command) == (270, "calibrate --gpu cpu --no-compile --depths 1,2 --settings")
    request = backend_of("ssh", Store(tmp_path / "home")).measuring(asked)
    assert "-m advisor calibrate --gpu cpu\n" in request.files["job/run.sh"]
    handed_over = "\n".join([*request.files.values(), request.script, str(request.record)])
    assert not any(secret in handed_over for secret in SECRETS.values())
