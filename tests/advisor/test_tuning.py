"""Settings that are compared in bursts: which there are, what is concluded from them, and what plans take over."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.calibration.effects import Visit, effects, interaction
from advisor.calibration.measure import Worker
from advisor.calibration.profiles import profile_of
from advisor.calibration.tuning import Variant, both, tune, variants
from advisor.errors import AdvisorError
from advisor.records import Kernels
from advisor.report.tuning import NONE, rows, verdict
from advisor.store.calibration import calibration_from_dict, calibration_to_dict
from advisor.store.store import load_calibration
from tests.terminal import advisor, document
from trainer.messages import BurstResult, WorkerDevice
from trainer.schema import EvalConfig, RunConfig, TelemetryConfig, make_shape

RECORDED = sorted((Path(__file__).parents[2] / "benchmarks" / "raw").glob("cpu-*.yaml"))[0]
CPU = WorkerDevice(type="cpu", name="a CPU", memory_bytes=1 << 34, auto_precision="fp32")
L4 = WorkerDevice(type="cuda", name="NVIDIA L4", memory_bytes=24 << 30, compute_capability="8.9", auto_precision="bf16")
T4 = replace(L4, name="Tesla T4", compute_capability="7.5", auto_precision="fp16")


def run(**changes) -> RunConfig:
    shape = make_shape("nanochat", depth=2, width=64, heads=2, vocab_size=128, seq_len=32)
    return RunConfig(
        **({"model": shape, "steps": 10, "micro_batch": 4, "grad_accum": 2, "precision": "fp32"} | changes)
    )


@given(
    micro=st.integers(1, 64),
    accum=st.integers(1, 8),
    device=st.sampled_from((CPU, L4, T4)),
    precision=st.sampled_from(("fp32", "bf16", "fp16")),
    compiled=st.booleans(),
)
def test_every_setting_differs_from_the_base_and_keeps_its_effective_batch(micro, accum, device, precision, compiled):
    base = run(micro_batch=micro, grad_accum=accum, precision=precision, compile=compiled)
    found = list(variants(base, device))
    for variant in found:
        other = variant.of(base)
        assert other != base and not other.problems()
        assert other.tokens_per_step() == base.tokens_per_step()
    assert len({v.name for v in found}) == len(found)


def test_what_a_device_has_is_what_is_tried():
    on_card = {v.name for v in variants(run(), L4)}
    assert {"TF32 off", "bf16", "fp16, scaled loss", "flash attention", "cudnn attention"} <= on_card
    assert not {"TF32 off", "fp32, TF32 off"} & {v.name for v in variants(run(), T4)}
    assert "fp32, TF32 off" in {v.name for v in variants(run(precision="bf16"), L4)}
    on_cpu = {v.name for v in variants(run(), CPU)}
    assert "fp16, scaled loss" not in on_cpu and "math attention" in on_cpu
    assert {"micro-batch 1 × 8", "micro-batch 2 × 4", "micro-batch 8 × 1"} <= on_cpu
    large = run(model=make_shape("gpt2", depth=2, vocab_size=65536, seq_len=1024))  # 4 MiB hold 16 tokens' logits
    assert {v.changes["loss_chunk_tokens"] for v in variants(large, CPU) if v.knob == "loss chunks"} == {4, 64, 4096}


def test_two_settings_at_once():
    one = Variant(knob="compile", name="torch.compile", changes={"compile": True})
    other = Variant(knob="fused optimizer", name="optimizer not fused", changes={"optimizer.fused": False})
    config = both(one, other).of(run())
    assert config.compile and not config.optimizer.fused
    assert both(one, other).name == "torch.compile, optimizer not fused"


def visits(gains: dict[str, float], *, rounds: int, noise: float, rng: random.Random) -> list[Visit]:
    """Bursts of a machine whose speed drifts between rounds; `gains`: log of speed against the base."""
    made = []
    for number in range(rounds):
        drift = rng.gauss(0.0, 0.3)
        for name in (None, *gains, None):
            seconds = math.exp(drift - gains.get(name, 0.0) + rng.gauss(0.0, noise))
            result = BurstResult(outcome="completed", reason=None, trained=True, step_seconds=(seconds,))
            made.append(Visit(setting=name, round=number, started=0.0, result=result))
    return made


def test_gains_are_found_through_drift_and_nothing_is_made_of_noise():
    """Of 300 tables of eight settings that do nothing, at most 5 % may have one that seems to do something."""
    rng, wrong, inside = random.Random(1), 0, 0
    nothing = {f"setting {n}": 0.0 for n in range(8)}
    for _ in range(300):
        found, _ = effects(visits(nothing, rounds=3, noise=0.03, rng=rng), exponent=0.0)
        wrong += any(effect.faster or effect.slower for effect in found.values())
        found, _ = effects(visits({"a": 0.2, "b": -0.1, "c": 0.0}, rounds=3, noise=0.03, rng=rng), exponent=0.0)
        inside += found["a"].speed.low <= 0.2 <= found["a"].speed.high
        assert found["a"].faster
    assert wrong <= 15 and inside >= 285


def test_the_reference_kernel_takes_a_machine_that_slows_within_a_round_out():
    """Twice as slow by the kernel's clock, 2^0.7 by the step's: no effect is left."""
    slow = {"step_seconds": (2**0.7,), "reference_seconds": (2.0,)}
    made = []
    for number in range(3):
        for name, times in ((None, {"step_seconds": (1.0,), "reference_seconds": (1.0,)}), ("late", slow)):
            result = BurstResult(outcome="completed", reason=None, trained=True, **times)
            made.append(Visit(setting=name, round=number, started=0.0, result=result))
    assert effects(made, exponent=0.7)[0]["late"].speed.value == pytest.approx(0.0, abs=1e-12)
    assert effects(made, exponent=0.0)[0]["late"].speed.value == pytest.approx(-0.7 * math.log(2))


def test_what_two_settings_do_together_is_told_from_the_sum_of_both():
    gains = {"a": 0.3, "b": 0.2, "a, b": 0.4}  # 0.1 less than the sum
    made = visits(gains, rounds=4, noise=0.0, rng=random.Random(2))
    noise = effects(made, 0.0)[1]
    together = interaction(made, "a", "b", "a, b", 0.0, noise)
    assert together.value == pytest.approx(-0.1) and together.low < -0.1 < together.high
    assert interaction(made, "a", "b", "never visited", 0.0, noise) is None


def test_a_setting_that_does_not_run_is_a_line_and_one_that_learns_worse_is_said():
    made = visits({"fine": 0.5}, rounds=3, noise=0.0, rng=random.Random(3))
    failed = BurstResult(outcome="out_of_memory", reason="no room")
    made.append(Visit(setting="large", round=0, started=0.0, result=failed))
    found = effects(made, 0.0)[0]
    assert verdict(found["large"]) == "does not run: out_of_memory: no room" and verdict(found["fine"]) == "faster"
    worse = [
        replace(v, result=replace(v.result, losses=(5.0, 4.0 + (0.1 + 0.001 * v.round) * (v.setting == "fine"))))
        for v in made
    ]
    effect = effects(worse, 0.0)[0]["fine"]
    assert effect.loss.value == pytest.approx(0.101) and effect.loss_steps == 2
    assert verdict(effect) == "faster, but learns worse"


@pytest.fixture(scope="module")
def worker():
    with Worker("cpu") as serving:
        serving.start()
        yield serving


def test_bursts_of_the_real_trainer(worker, monkeypatch):
    # a clock that moves by each look at it: the rounds that fit the budget are the same on every machine
    clock = SimpleNamespace(monotonic=partial(next, count(0.0, 0.1)), time=time.time)
    monkeypatch.setattr("advisor.calibration.tuning.time", clock)
    base = run(eval=EvalConfig(tokens=0), telemetry=TelemetryConfig(hz=0))
    tried = [
        Variant(knob="activation-checkpointing", name="full", changes={"activation_checkpointing": "full"}),
        Variant(knob="attention", name="cudnn", changes={"attention": "cudnn"}),  # a CPU has none
    ]
    done = tune(base, tried, worker, budget_seconds=12.0, burst_seconds=0.05)
    full, cudnn = done.effects
    assert full.repeats >= 2 and full.loss_steps >= 5 and abs(full.loss.value) < 1e-4  # the same sums, done twice
    assert cudnn.failure.startswith("failed: RuntimeError") and cudnn.repeats == 0
    assert sum(v.setting == "cudnn" for v in done.visits) == 1, "what does not run is not tried again"
    assert [row[0] for row in rows(done)] == ["full", "cudnn"] and done.best is None
    assert verdict(full) in (NONE, "slower")


def test_a_base_that_does_not_run_is_one_sentence(worker):
    with pytest.raises(AdvisorError, match="the base does not run here: failed, RuntimeError") as refusal:
        tune(run(attention="cudnn"), list(variants(run(), CPU)), worker, budget_seconds=1.0, burst_seconds=0.05)
    assert "smaller" in refusal.value.hint


def test_what_was_tuned_goes_with_a_calibration_to_its_plans():
    calibration = load_calibration(RECORDED)
    assert profile_of(calibration).kernels == Kernels()
    kernels = Kernels(attention="math", loss_chunk_tokens=64, fused=False)
    tuned = replace(calibration, settings=replace(calibration.settings, kernels=kernels))
    read = calibration_from_dict(calibration_to_dict(tuned))
    assert profile_of(read).kernels == kernels
    config = kernels.set_in(run())
    assert (config.attention, config.loss_chunk_tokens, config.optimizer.fused) == ("math", 64, False)
    assert Kernels.of(config) == kernels


def test_an_unknown_kernel_is_refused_with_those_that_there_are():
    assert run(attention="flsh").problems() == [
        "attention: 'flsh' is not one of auto, flash, efficient, cudnn, math (did you mean flash?)"
    ]
    assert run(loss_chunk_tokens=0).problems() == ["loss_chunk_tokens: out of range"]


@pytest.mark.long
def test_a_tuned_device_is_calibrated_with_the_best_and_plans_take_it_over():
    words = ["--depth", "2", "--seq-len", "64", "--vocab-size", "512", "--budget-seconds", "80"]
    tuned = document("tune", "--gpu", "cpu", *words)
    # on a slow machine some are named as untried for want of time, e.g. bf16 where a CPU has to emulate it
    offered = {e["setting"] for e in tuned["effects"]} | set(tuned["untried"])
    assert offered >= {"torch.compile", "math attention"} and offered & {"bf16", "fp32"}  # that which is not its own
    assert tuned["uncalibrated"] is None, tuned["uncalibrated"]
    run = document("plan", "--gpu", "cpu", "--deadline", "5min")["run"]
    assert all(run[name] == tuned["run"][name] for name in ("precision", "compile", "attention", "loss_chunk_tokens"))


def test_too_little_time_and_a_card_that_is_not_here_are_said():
    for words, said in (
        (["--budget-seconds", "12"], "--budget-seconds 12 s: must be at least 30 s"),
        (["--gpu", "l4"], "there is no such GPU here"),
    ):
        done = advisor("tune", *words, CUDA_VISIBLE_DEVICES="")
        assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr
