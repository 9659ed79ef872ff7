"""Calibration end to end, with real worker processes on tiny shapes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from advisor.calibration.detect import resolve_key
from advisor.calibration.measure import Worker, WorkerDied, base_workload, burst_config
from advisor.calibration.observations import completed
from advisor.calibration.profiles import load_profile, profile_of
from advisor.calibration.remeasure import measure_one
from advisor.calibration.setting_effects import switched
from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.options import CalibrationOptions
from advisor.prediction.batch import predict_batch
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Basis, Kernels, Workload
from advisor.store.calibration import Burst, Verdict
from advisor.store.store import Store, load_calibration
from advisor.workflows.calibrate import calibrate, calibrating, resolve, to_document
from tests.terminal import advisor, document
from trainer.messages import BurstRequest, WorkerDevice
from trainer.prepare import prepare
from trainer.schema import CheckpointConfig, DataConfig, EvalConfig, RunConfig, make_shape

SECONDS = 30  # a quiet machine needs 8; one that others share makes it more
TINY = ("--gpu", "cpu", "--depths", "1-3", "--seq-len", "64", "--vocab-size", "256", "--budget-seconds", str(SECONDS))


def burst(**changes) -> BurstRequest:
    shape = make_shape("nanochat", depth=1, vocab_size=256, seq_len=64)
    config = RunConfig(
        model=shape, steps=1000, micro_batch=2, eval=EvalConfig(tokens=0), checkpoint=CheckpointConfig(final=False)
    )
    return BurstRequest(
        config=replace(config, **changes), seconds=0.2, least_steps=3, most_warmup=5, limit_seconds=10.0
    )


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory) -> tuple[Path, dict, float]:
    """One tiny calibration by the command line: its home, its JSON and its wall seconds."""
    home = tmp_path_factory.mktemp("calibrated")
    began = time.monotonic()
    done = advisor("calibrate", *TINY, "--price", "3.6", "--json", ADVISOR_HOME=home)
    assert done.returncode in (0, 1) and done.stdout, done.stderr  # 1: beside much other work its verdict is "rejected"
    return home, json.loads(done.stdout) | {"remarks": done.stderr.splitlines()}, time.monotonic() - began


def test_a_calibration_keeps_its_budget_and_says_what_it_cost(calibrated):
    _, said, wall = calibrated
    assert said["cost"]["seconds"] <= SECONDS * 1.1
    assert said["cost"]["usd"] == pytest.approx(3.6 * said["cost"]["seconds"] / 3600, rel=1e-3)
    assert wall < SECONDS * 1.1 + 90  # process start, the held-out fits and the worker's start on a loaded machine


def test_it_says_what_it_is_doing_and_counts_only_bursts(calibrated):
    _, said, _ = calibrated
    ceilings, rehearsal, *bursts = said["remarks"]
    assert ceilings.startswith("ceilings: ") and rehearsal.startswith("rehearsal: ")
    assert [line.split(":")[0] for line in bursts] == [f"burst {n + 1}" for n in range(said["bursts"])]


def test_the_document_is_raw_and_varied(calibrated):
    home, said, _ = calibrated
    calibration = Store(home).load_calibration(said["calibration"])
    done = completed(calibration.bursts)
    if 4 * min(burst.seconds for burst in done) > SECONDS / 2:
        pytest.skip("this machine is so busy that four bursts take longer than the calibration may")
    assert calibration.status == "complete" and len(done) >= 4
    assert calibration.quality and said["quality"]["verdict"] == calibration.quality.verdict
    for field in (lambda w: w.shape.depth, lambda w: w.micro_batch, lambda w: w.shape.seq_len):
        assert len({field(b.workload) for b in done}) >= 2
    assert all(len(b.step_seconds) >= 3 and b.reference_seconds for b in done)
    assert all(b.first_loss != b.last_loss and b.grad_norm > 0 for b in done)


def test_the_profile_predicts_a_calibrated_configuration_as_measured(calibrated):
    home, said, _ = calibrated
    calibration = Store(home).load_calibration(said["calibration"])
    profile = profile_of(calibration)
    first = completed(calibration.bursts)[0].workload
    shape = make_shape("nanochat", depth=first.shape.depth, vocab_size=256, seq_len=first.shape.seq_len)
    same = Workload(
        shape=shape, micro_batch=first.micro_batch, grad_accum=first.grad_accum, gpu="cpu", precision=profile.precision
    )
    [predicted] = predict_batch(profile, [same])
    assert predicted.step_seconds.basis is Basis.MEASURED
    assert predicted.tokens_per_second.value == pytest.approx(same.step_tokens / predicted.step_seconds.value)
    assert predicted.fits is True


def test_settings_are_measured_one_by_one_on_demand(advisor_home):
    """Each between two bursts without it, and none of them is evidence for the fit."""
    sizes = {"depths": (1, 2), "seq_len": 64, "vocab_size": 256}
    options = CalibrationOptions(gpu="cpu", **sizes, budget_seconds=4.0, settings=True)
    done = to_document(calibrate(options, Store(advisor_home), fewest=4))
    stored = Store(advisor_home).newest_calibration("cpu")
    names, bursts = [burst.setting for burst in stored.setting_bursts], stored.setting_bursts
    assert names[::2] == [None] * (len(names) // 2 + 1) and None not in names[1::2]
    assert names[1] == "--activation-checkpointing selective"
    assert [b.workload.activation_checkpointing for b in bursts[:3]] == ["none", "selective", "none"]
    assert bursts[0].workload in {b.workload for b in stored.bursts} and len(stored.bursts) == done["bursts"]
    assert {effect["setting"] for effect in done["setting_effects"]} == set(names[1::2])
    speeds = [effect["speed"] for effect in done["setting_effects"] if effect["outcome"] == "completed"]
    assert speeds and all(0 < s["low"] < s["value"] < s["high"] and s["basis"] == "measured" for s in speeds)


@pytest.mark.parametrize(
    ("device", "precision", "has", "has_not"),
    [
        ("cpu", "fp32", {"--precision bf16", "attention: math", "--no-compile"}, {"--precision fp16", "tf32: false"}),
        ("8.9", "fp32", {"tf32: false", "--precision fp16", "attention: cudnn"}, {"--precision fp32"}),
        ("7.5", "fp32", {"attention: flash", "--optimizer muon", "optimizer.fused: false"}, {"tf32: false"}),
    ],
)
def test_what_a_device_has_is_what_is_switched(device, precision, has, has_not):
    kind = "cpu" if device == "cpu" else "cuda"
    worker = WorkerDevice(type=kind, name=None, memory_bytes=1 << 34, auto_precision=precision)
    settings = resolve(CalibrationOptions(gpu="auto", compile=True), worker, None)
    base = base_workload(settings, 4)
    found = {name: ran for name, *ran in switched(settings, base, None if kind == "cpu" else device)}
    assert has <= found.keys() and not has_not & found.keys()
    configs = [burst_config(*ran) for ran in found.values()]
    assert all(config != burst_config(settings, base) and not config.problems() for config in configs)


def test_kernels_of_an_earlier_calibration_go_to_its_plans(advisor_home):
    calibration = load_calibration(sorted((Path(__file__).parents[2] / "benchmarks" / "raw").glob("cpu-*.yaml"))[0])
    settings = replace(calibration.settings, kernels=Kernels(attention="math", fused=False))
    Store(advisor_home).save_calibration(replace(calibration, settings=settings))
    run = document("plan", "--gpu", "cpu", "--deadline", "5min", expect=0)["run"]
    assert (run["attention"], run["optimizer"]["fused"], run["tf32"]) == ("math", False, True)


def test_a_card_that_is_not_here_is_an_error_that_says_what_is():
    done = advisor("calibrate", "--gpu", "l4", "--budget-seconds", "10")
    assert done.returncode == 1
    assert "no such GPU here" in done.stderr and "finds 0" in done.stderr
    assert "advisor calibrate --gpu cpu" in done.stderr


@pytest.mark.long
def test_a_calibration_that_measured_nothing_says_so_and_leaves_nothing(advisor_home):
    done = advisor("calibrate", "--gpu", "cpu", "--depths", "500", "--budget-seconds", "10")
    assert done.returncode == 1
    assert "nothing was measured: even depth 500" in done.stderr and "smaller --depths" in done.stderr
    assert Store(advisor_home).list_calibrations() == []


def test_bursts_that_all_fail_say_why_and_do_not_use_up_the_budget(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(f"{i} and {i * i}" for i in range(20_000)))
    prepare([tmp_path / "text.txt"], tmp_path / "tokens", vocab_size=512)
    began = time.monotonic()
    done = advisor("calibrate", *TINY, "--data", str(tmp_path / "tokens"), "--budget-seconds", "60")
    assert done.returncode == 1 and time.monotonic() - began < 50
    assert "every burst failed" in done.stderr and "needs a vocabulary of 512" in done.stderr
    assert "the rehearsal did not complete" in done.stderr


def test_an_unknown_card_is_refused_before_anything_runs():
    done = advisor("calibrate", "--gpu", "h2000")
    assert done.returncode == 2 and "h200" in done.stderr


def test_another_card_than_the_one_asked_for_is_an_error():
    found = WorkerDevice(type="cuda", name="NVIDIA H200", memory_bytes=150 * 10**9, auto_precision="bf16")
    assert resolve_key("auto", found) == require_gpu("h200").key
    with pytest.raises(AdvisorError, match="NVIDIA H200"):
        resolve_key("l4", found)
    assert resolve_key("auto", replace(found, name="NVIDIA Imaginary X1")) == "nvidia-imaginary-x1"


@pytest.mark.long
def test_an_interrupted_calibration_keeps_its_bursts_and_goes_on(tmp_path):
    env = {**os.environ, "ADVISOR_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "advisor", "calibrate", *TINY]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    store = Store(tmp_path)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not (store.list_calibrations() and _bursts(store)):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    # 130, or the signal itself where it came while the interpreter was already leaving
    assert process.wait(300) in (130, -signal.SIGINT)
    before = store.newest_calibration("cpu")
    assert before.status == "partial" and before.bursts
    assert before.quality and (len(before.bursts) > 3 or before.quality.reason.startswith("it was interrupted after"))
    done = advisor("calibrate", *TINY, "--json", ADVISOR_HOME=tmp_path)
    after = store.newest_calibration("cpu")
    assert after.id == before.id and after.status == "complete"
    # beside other work its bursts may scatter so much that it is rejected, which it says
    assert done.returncode == int(after.quality.verdict is Verdict.REJECTED), done.stderr
    assert after.bursts[: len(before.bursts)] == before.bursts


def _bursts(store: Store) -> tuple[Burst, ...]:
    return store.newest_calibration("cpu").bursts


@pytest.mark.long
def test_a_worker_outlives_a_bad_burst_and_is_replaced_after_its_death():
    """A burst that cannot run, one without memory for it, a kill, no answer: each is an outcome."""
    rows_of_petabytes = make_shape("nanochat", depth=1, vocab_size=1 << 42, seq_len=64)
    with Worker("cpu") as worker:
        worker.start()
        first = worker.pid
        answer = worker.burst(burst(data=DataConfig(path="/nowhere")), timeout=300)
        assert answer.outcome == "failed" and "/nowhere" in answer.reason
        assert worker.burst(burst(), timeout=300).outcome == "completed"
        assert worker.pid == first
        assert worker.burst(burst(model=rows_of_petabytes), timeout=300).outcome == "out_of_memory"
        assert worker.burst(burst(), timeout=300).outcome == "completed"  # of another worker, at once
        assert worker.pid != first
        second = worker.pid
        os.kill(second, signal.SIGKILL)
        with pytest.raises(WorkerDied) as death:
            worker.burst(burst(), timeout=300)
        assert death.value.outcome == "out_of_memory"
        assert worker.burst(burst(), timeout=300).outcome == "completed"
        assert worker.pid != second
        with pytest.raises(WorkerDied) as death:
            worker.burst(replace(burst(), seconds=30.0, limit_seconds=60.0), timeout=0.5)
        assert death.value.outcome == "timed_out"


def test_a_choice_that_does_not_run_is_no_recommendation(calibrated, tmp_path):
    shutil.copytree(calibrated[0] / "calibrations", tmp_path / "calibrations")
    store = Store(tmp_path)
    profile = profile_of(store.newest_calibration("cpu"))
    shape = make_shape("nanochat", depth=1, vocab_size=1 << 42, seq_len=64)
    too_large = Workload(shape=shape, micro_batch=4, gpu="cpu", precision="fp32")
    with pytest.raises(AdvisorError, match="does not run here: out_of_memory") as refused:
        measure_one(profile, too_large, store)
    assert "--micro-batch 2" in refused.value.hint
    bursts = store.newest_calibration("cpu").bursts
    assert [b.outcome for b in bursts].count("out_of_memory") == 1


def test_without_calibration_a_card_has_a_wide_prior_and_a_cpu_has_none(tmp_path):
    profile = prior_profile(require_gpu("h200"))
    shape = make_shape("nanochat", depth=16, vocab_size=65536, seq_len=2048)
    [predicted] = predict_batch(profile, [Workload(shape=shape, micro_batch=8, gpu=profile.key, compile=True)])
    assert predicted.step_seconds.basis is Basis.PRIOR
    assert predicted.step_seconds.high / predicted.step_seconds.low > 1.15
    assert 0.2 < predicted.mfu.value < 0.7  # published compiled runs of this shape: 0.41-0.50 (sources §1.3)
    with pytest.raises(AdvisorError, match="never calibrated"):
        load_profile("cpu", Store(tmp_path))


def test_cancelling_ends_a_calibration_that_ignores_interrupts(advisor_home):
    """As one is that an app started by nohup starts."""
    script = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as deaf:
        deaf.stdout.readline()
        started = psutil.Process(deaf.pid).create_time()
        reaper = threading.Thread(target=deaf.wait)  # else it stays a zombie, which is not gone
        reaper.start()
        state = {"schema": 1, "pid": deaf.pid, "process_started": started, "started": "2026-11-21T12:00:00+00:00",
                 "budget_seconds": 60.0}  # fmt: skip
        (advisor_home / "calibrating.json").write_text(json.dumps(state))
        calibrating(Store(advisor_home)).cancel(1.0)
        reaper.join()
    assert deaf.returncode == -signal.SIGTERM


def test_a_calibration_that_must_measure_four_takes_longer_than_its_budget(advisor_home):
    """One second holds no burst; the quickstart asks for as many configurations as a verdict needs."""
    said: list[str] = []
    options = CalibrationOptions(gpu="cpu", depths=[1, 2], seq_len=64, vocab_size=256, budget_seconds=1.0)
    done = calibrate(options, Store(advisor_home), on_event=lambda event: said.append(event.text), fewest=4)
    assert done.calibration.status == "complete" and done.held_out is not None
    measured = {burst.workload for burst in completed(done.calibration.bursts)}
    assert len(measured) == 4 and len({w.shape.depth for w in measured}) == 2
    late = [text for text in said if "so it takes longer" in text]
    assert late[-1].startswith("3 of 4 configurations measured, so it takes longer: depth ")
