"""The training step, and whole runs with every way to end."""

from __future__ import annotations

import math
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import fields, replace

import pytest
import torch

from tests.trainer.small import SHAPE, config, start, wait_for_step
from trainer.budget import read_spent, with_log
from trainer.data import open_tokens
from trainer.device import DeviceContext
from trainer.loop import StepRecord, Trainer
from trainer.parallel import World
from trainer.run import run
from trainer.runlog import load_run_log, read_records
from trainer.saving import Saver
from trainer.schema import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    LossStop,
    OptimizerConfig,
    Outcome,
    RunConfig,
    StopConfig,
)


def trainer(settings: RunConfig, precision: str = "fp32", **options) -> Trainer:
    context = DeviceContext(device=torch.device("cpu"), precision=precision)
    tokens = open_tokens(settings.data, settings.model.vocab_size, settings.model.seq_len, settings.seed)
    return Trainer(settings, context, tokens, **options)


def losses(records) -> list[float]:
    return [r["loss"] if isinstance(r, dict) else r.loss for r in records]


# --- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "name"), [("fp32", "adamw"), ("bf16", "muon"), ("fp16", "adamw")])
def test_it_learns_from_ln_v_down(precision, name):
    settings = config(steps=80, optimizer=OptimizerConfig(name=name, learning_rate=3e-3))
    records = list(trainer(settings, precision).steps(80))
    assert records[0].loss == pytest.approx(math.log(64), abs=0.05)
    assert records[-1].loss < 3.2
    assert [r.step for r in records] == list(range(1, 81))
    assert all(r.grad_norm > 0 for r in records)


def test_a_record_counts_tokens_and_times_phases_on_sampled_steps():
    records = list(trainer(config(grad_accum=3), phases_every=5).steps(11))
    phases = [name for name in (f.name for f in fields(StepRecord)) if name.endswith("_seconds")]
    assert len(phases) == 5
    sampled = [r.step for r in records if r.forward_seconds is not None]
    assert sampled == [1, 2, 3, 6, 11]
    for record in records:
        assert record.tokens == record.step * 4 * 3 * 16
        taken = [getattr(record, phase) for phase in phases]
        if record.step in sampled:
            assert all(seconds > 0 for seconds in taken) and sum(taken) <= record.seconds
        else:
            assert taken == [None] * 5
        assert record.allocated_peak_bytes is None and record.resident_peak_bytes > 1 << 20


def test_step_seconds_run_end_to_end_and_skip_what_is_left_out():
    net = trainer(config())
    net.step()
    time.sleep(0.2)
    assert net.step().seconds > 0.2
    time.sleep(0.2)
    net.restart_clock()
    assert net.step().seconds < 0.2


def test_accumulated_gradients_equal_one_large_batch():
    whole = list(trainer(config(micro_batch=8)).steps(6))
    parts = list(trainer(config(micro_batch=2, grad_accum=4)).steps(6))
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-5)
    assert [r.grad_norm for r in parts] == pytest.approx([r.grad_norm for r in whole], rel=1e-3)


def test_the_norm_is_logged_before_clipping():
    free = trainer(config(optimizer=OptimizerConfig(grad_clip=None)))
    tight = trainer(config(optimizer=OptimizerConfig(grad_clip=1e-3)))
    first_free, first_tight = free.step(), tight.step()
    assert first_tight.grad_norm == pytest.approx(first_free.grad_norm, rel=1e-6)
    assert first_tight.clipped and not first_free.clipped


def test_clipping_scales_the_gradient_to_the_limit():
    net = trainer(config(optimizer=OptimizerConfig(grad_clip=0.01)))
    tokens, targets = net.tokens.train_batch(0, 0, 0, 1, 4, 1)
    net.model.loss(tokens, targets).backward()
    net._clip()
    norm = torch.cat([p.grad.flatten() for p in net.model.parameters() if p.grad is not None]).norm().item()
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_an_evaluation_is_the_mean_over_its_batches_and_repeats():
    net = trainer(config(eval=EvalConfig(tokens=640)))
    net.step()
    with torch.no_grad():
        batches = list(net.tokens.eval_batches(640, 4))
        expected = sum(net.model(x, y).item() for x, y in batches) / len(batches)
    first, second = net.evaluate(), net.evaluate()
    assert first.loss == second.loss == pytest.approx(expected, rel=1e-6)
    assert first.tokens == 640


def test_fp16_skips_a_step_that_overflows_and_goes_on():
    net = trainer(config(), "fp16")
    net.step()
    net._scaler.update(new_scale=2.0**120)
    before = net.model.head_weight.detach().clone()
    record = net.step()
    assert not math.isfinite(record.grad_norm) and math.isfinite(record.loss)
    assert torch.equal(before, net.model.head_weight)
    net._scaler.update(new_scale=2.0**10)
    assert math.isfinite(net.step().grad_norm)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_resumed_trainer_continues_bit_for_bit(tmp_path, precision, name):
    settings = config(optimizer=OptimizerConfig(name=name))
    unbroken = list(trainer(settings, precision).steps(8))
    first = trainer(settings, precision)
    list(first.steps(5))
    saver = Saver(lambda: tmp_path, World(), torch.device("cpu"), background=True)
    saver.begin(first.snapshot({"note": 7}))
    list(first.steps(1))  # the copy is of the fifth step whatever the run does meanwhile
    saver.finish()
    second = trainer(replace(settings, seed=settings.seed), precision)
    second.step()  # whatever state it was in is replaced
    assert second.resume(tmp_path, pytest.fail)["note"] == 7
    assert losses(second.steps(3)) == losses(unbroken[5:])


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_writes_its_whole_story(tmp_path):
    settings = config(
        steps=7, eval=EvalConfig(every_steps=3, tokens=128), checkpoint=CheckpointConfig(every_steps=2, keep=2)
    )
    assert run(settings, tmp_path) is Outcome.COMPLETED
    log = load_run_log(tmp_path / "log.jsonl")
    assert [r["step"] for r in log.steps] == list(range(1, 8))
    assert [r["step"] for r in log.evals] == [3, 6, 7]
    assert [r["step"] for r in log.checkpoints] == [2, 4, 6, 7]
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-00000006", "step-00000007"]
    assert log.witnesses and log.witnesses[0]["reference_seconds"] > 0
    header = log.header
    assert header["parameters"] == 2 * 64 * 32 + 2 * 12 * 32 * 32  # sources §1.1: 2Vd + 12Ld²
    assert header["tokens_per_step"] == 64 and header["resumed_from_step"] == 0 and header["startup_seconds"] > 0
    assert log.final["outcome"] == "completed" and log.final["step"] == 7
    assert {f.name for f in fields(StepRecord)} <= set(log.steps[0])


def test_a_finished_run_started_again_does_nothing_more(tmp_path):
    for _ in range(2):
        assert run(config(steps=3), tmp_path) is Outcome.COMPLETED
    log = load_run_log(tmp_path / "log.jsonl")
    assert log.attempts == 2 and len(log.steps) == 3 and len(log.checkpoints) == 1
    assert log.header["resumed_from_step"] == 3


def test_a_longer_run_goes_on_from_a_shorter_one(tmp_path):
    constant = config(steps=4).schedule
    settings = config(steps=8, schedule=replace(constant, final_fraction=1.0))
    run(settings, tmp_path / "unbroken")
    run(replace(settings, steps=4), tmp_path / "broken")
    run(settings, tmp_path / "broken")
    unbroken, broken = (load_run_log(tmp_path / name / "log.jsonl") for name in ("unbroken", "broken"))
    assert losses(broken.steps) == losses(unbroken.steps)


@pytest.mark.parametrize(
    "optimizer", [OptimizerConfig(learning_rate=1e30, grad_clip=None), OptimizerConfig(learning_rate=1e30)]
)
def test_a_diverging_run_says_so_and_leaves_no_checkpoint(tmp_path, optimizer):
    assert run(config(optimizer=optimizer, steps=50), tmp_path) is Outcome.DIVERGED
    final = load_run_log(tmp_path / "log.jsonl").final
    assert final["outcome"] == "diverged" and f"step {final['step']}" in final["reason"]
    assert not (tmp_path / "checkpoints").exists()


def test_a_loss_condition_stops_with_a_checkpoint(tmp_path):
    settings = config(steps=30, stop=StopConfig(loss=(LossStop(step=5, above=0.1),)))
    assert run(settings, tmp_path) is Outcome.STOPPED
    log = load_run_log(tmp_path / "log.jsonl")
    assert log.final["step"] == 5 and "above 0.1 at step 5" in log.final["reason"]
    assert [r["step"] for r in log.checkpoints] == [5]
    # the figure that is shown while a run continues, also after it is resumed: the mean of the last five losses
    assert run(settings, tmp_path) is Outcome.STOPPED
    log = load_run_log(tmp_path / "log.jsonl")
    losses = [record["loss"] for record in log.steps]
    assert len(losses) == 6 and f"so far, {statistics.fmean(losses[1:]):.4f}, was above" in log.final["reason"]


def test_a_loss_condition_that_holds_does_not_stop(tmp_path):
    settings = config(steps=6, stop=StopConfig(loss=(LossStop(step=2, above=50.0),)))
    assert run(settings, tmp_path) is Outcome.COMPLETED


def test_the_time_limit_counts_earlier_attempts_and_leaves_room_to_save(tmp_path):
    """Nobody has timed a checkpoint: a second is kept free for leaving alone, so that nothing fits into half of one."""
    settings = config(steps=10_000, stop=StopConfig(max_seconds=0.5))
    assert run(settings, tmp_path) is Outcome.STOPPED
    log = load_run_log(tmp_path / "log.jsonl")
    assert log.final["step"] == 0 and "0.5 s allowed" in log.final["reason"]
    limit = log.used_seconds + 6.0
    assert run(replace(settings, stop=StopConfig(max_seconds=limit)), tmp_path) is Outcome.STOPPED
    log = load_run_log(tmp_path / "log.jsonl")
    assert log.final["step"] > 0 and log.checkpoints[-1]["step"] == log.final["step"]
    assert log.used_seconds < limit


def test_attempts_that_failed_before_their_header_count_against_the_time_limit(tmp_path):
    nowhere = config(data=DataConfig(path=str(tmp_path / "nowhere")))
    for _ in range(2):
        assert run(nowhere, tmp_path) is Outcome.FAILED
    records, _ = read_records(tmp_path / "log.jsonl")
    spent = sum(r["seconds"] for r in records if r["kind"] == "final")
    assert spent > 0
    (tmp_path / "budget.json").unlink()
    assert read_spent(tmp_path).seconds == 0
    assert with_log(read_spent(tmp_path), load_run_log(tmp_path / "log.jsonl")).seconds == pytest.approx(spent)


def test_a_stop_without_a_checkpoint_says_so(tmp_path):
    (tmp_path / "checkpoints").symlink_to("/dev/null/nowhere")
    settings = config(steps=30, stop=StopConfig(loss=(LossStop(step=5, above=0.1),)))
    assert run(settings, tmp_path) is Outcome.STOPPED
    log = load_run_log(tmp_path / "log.jsonl")
    assert not log.checkpoints and log.messages[-1]["level"] == "warning"
    assert "no checkpoint could be written" in log.final["reason"]


def test_what_was_wrong_with_a_checkpoint_is_said_by_the_attempt_that_met_it(tmp_path):
    settings = config(steps=4, checkpoint=CheckpointConfig(every_steps=2))
    run(settings, tmp_path)
    (tmp_path / "checkpoints" / "step-00000004" / "model.safetensors").write_bytes(b"damaged")
    run(settings, tmp_path)
    log = load_run_log(tmp_path / "log.jsonl")
    assert log.header["resumed_from_step"] == 2
    assert [m["attempt"] for m in log.messages if "step-00000004" in m["text"]] == [2]


def test_text_that_is_not_there_fails_with_the_reason_in_the_log(tmp_path, capsys):
    settings = config(data=DataConfig(path=str(tmp_path / "nowhere")))
    assert run(settings, tmp_path) is Outcome.FAILED
    records, _ = read_records(tmp_path / "log.jsonl")
    assert records[-1]["kind"] == "final" and "nowhere" in records[-1]["reason"]
    assert "Traceback" in capsys.readouterr().out


def test_checkpoints_come_by_time_too(tmp_path):
    settings = config(steps=6, checkpoint=CheckpointConfig(every_seconds=1e-6, keep=1, final=False))
    run(settings, tmp_path)
    assert [r["step"] for r in load_run_log(tmp_path / "log.jsonl").checkpoints] == [1, 2, 3, 4, 5, 6]


# --- processes -------------------------------------------------------------------------------------------------------


def test_a_terminated_run_saves_exits_cleanly_and_resumes_the_identical_losses(tmp_path):
    settings = config(steps=200, eval=EvalConfig(every_steps=50, tokens=64), checkpoint=CheckpointConfig(final=False))
    first = start(tmp_path, settings)
    wait_for_step(tmp_path, 20, first)
    first.send_signal(signal.SIGTERM)
    output, _ = first.communicate(timeout=300)
    assert first.returncode == 0, output
    stopped = load_run_log(tmp_path / "log.jsonl")
    assert stopped.final["outcome"] == "stopped" and "SIGTERM" in stopped.final["reason"]
    assert stopped.checkpoints[-1]["step"] == stopped.steps[-1]["step"] == stopped.final["step"] < 200
    second = start(tmp_path, settings)
    output, _ = second.communicate(timeout=300)
    assert second.returncode == 0, output
    run(settings, tmp_path / "unbroken")
    resumed, unbroken = (load_run_log(folder / "log.jsonl") for folder in (tmp_path, tmp_path / "unbroken"))
    assert resumed.header["resumed_from_step"] == stopped.final["step"] and resumed.header["attempt"] == 2
    assert losses(resumed.steps) == losses(unbroken.steps)
    assert losses(resumed.evals) == losses(unbroken.evals)


def test_ctrl_c_stops_after_the_step_in_progress(tmp_path):
    process = start(tmp_path, config(steps=100_000))
    wait_for_step(tmp_path, 3, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "stopped: received SIGINT" in output and "Traceback" not in output


def test_out_of_memory_is_an_outcome_with_its_own_exit_code(tmp_path):
    settings = config(micro_batch=4096, model=replace(SHAPE, seq_len=1024), steps=3)
    process = start(tmp_path, settings, limit_bytes=1 << 30)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 3, output
    log = load_run_log(tmp_path / "log.jsonl")
    assert log.final["outcome"] == "out_of_memory" and log.attempts == 1


def test_a_wrong_configuration_is_refused_with_all_its_problems(tmp_path):
    (tmp_path / "run.yaml").write_text("steps: 0\nmicro_batch: 2\nmodle: {}\n")
    command = [sys.executable, "-m", "trainer", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "did you mean model?" in done.stderr and "model: missing" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_diverged_run_exits_with_its_own_code(tmp_path):
    process = start(tmp_path, config(optimizer=OptimizerConfig(learning_rate=1e30)))
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 4 and "diverged" in output
