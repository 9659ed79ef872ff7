"""Runs of other trainers, scored against the plan beside their log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor.readers.own_log import run_table_of
from advisor.records import Workload
from advisor.store.store import default_store
from advisor.workflows.compare import workload_of
from tests.advisor.history.script import RECORDED
from tests.advisor.plans import altered, guess, small_plan
from trainer.runlog import load_run_log
from trainer.schema import config_from_dict


def nanogpt_log(folder: Path, *, tokens: int = 64, seconds: float = 0.022, last: int = 20, val: float = 4.0) -> Path:
    """As nanoGPT prints it: iteration 0 compiles, then every step takes as long; evaluations before and after."""
    lines = [f"tokens per iteration will be: {tokens}", "number of parameters: 0.02M",
             "step 0: train loss 4.2000, val loss 4.2500",
             "iter 0: loss 4.2000, time 900.00ms, mfu -100.00%"]  # fmt: skip
    for step in range(1, last + 1):
        lines.append(f"iter {step}: loss {4.2 - step / 100:.4f}, time {1000 * seconds:.2f}ms, mfu 1.00%")
    lines.insert(-1, f"step {last}: train loss {val - 0.1:.4f}, val loss {val:.4f}")
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def planned(folder: Path, **promised) -> None:
    plan = small_plan(steps=20, step_seconds=0.02)
    plan = altered(plan, **promised)
    default_store().save_plan(plan, folder / "plan.yaml")


@pytest.mark.parametrize("of", ["folder", "log"])
def test_a_run_of_another_trainer_is_scored_against_the_plan_beside_it(call, tmp_path, of):
    log = nanogpt_log(tmp_path)
    planned(tmp_path, loss=guess(5.0))
    code, out, _ = call("compare", str(tmp_path if of == "folder" else log), "--json")
    found = json.loads(out)
    assert code == 0 and found["outcome"] == "completed" and found["complete"]
    step, rate, loss = found["step_seconds"], found["tokens_per_second"], found["loss"]
    assert step["actual"] == pytest.approx(0.022) and step["error"] == pytest.approx(0.1)  # 22 ms, 20 ms promised
    assert rate["actual"] == pytest.approx(64 / 0.022) and rate["error"] == pytest.approx(1 / 1.1 - 1)
    assert loss["actual"] == 4.0 and loss["error"] == pytest.approx(-0.2)
    rows = {row.quantity: row.actual for row in default_store().scores()}
    assert rows == {"step_seconds": 0.022, "tokens_per_second": pytest.approx(64 / 0.022), "loss": 4.0}
    assert default_store().observations("cpu") == []  # profiles are of our own trainer's steps


def test_what_another_trainers_log_does_not_hold_is_left_unscored(call, tmp_path):
    nanogpt_log(tmp_path)
    planned(tmp_path, loss=guess(5.0), energy_kwh=guess(0.1), peak_allocated_bytes=guess(1e9))
    found = json.loads(call("compare", str(tmp_path), "--json")[1])
    for name in ("wall_clock_seconds", "cost_usd", "energy_kwh", "peak_allocated_bytes", "peak_reserved_bytes"):
        assert found[name]["predicted"] is not None and found[name]["actual"] is None and found[name]["error"] is None
    assert found["gap_seconds"] is None and found["causes"] == []
    assert found["drift_factor"] is None and found["step_seconds_drift_corrected"]["actual"] is None


def test_a_clock_and_memory_that_are_logged_are_scored(call, tmp_path):
    """20 steps of 20 ms in 6 s where 6.4 s were promised; 1.1 GiB at most where 1 GiB was."""
    head = "step,train_loss,val_loss,step_time_s,elapsed_s,max_memory_allocated_gib,tokens"
    rows = [f"{s},{4 - s / 100},{3.9 if s == 20 else ''},0.02,{0.3 * s},{1.1 if s > 5 else 1.0},{64 * s}"
            for s in range(1, 21)]  # fmt: skip
    (tmp_path / "metrics.csv").write_text("\n".join((head, *rows)) + "\n")
    planned(tmp_path, peak_allocated_bytes=guess(2**30))
    found = json.loads(call("compare", str(tmp_path / "metrics.csv"), "--json")[1])
    wall, memory = found["wall_clock_seconds"], found["peak_allocated_bytes"]
    assert wall["actual"] == pytest.approx(6.0) and wall["error"] == pytest.approx(6.0 / 6.4 - 1)
    assert memory["actual"] == pytest.approx(1.1 * 2**30) and memory["error"] == pytest.approx(0.1)
    assert found["cost_usd"]["actual"] == pytest.approx(6.0 / 3600 * 3.6)  # the plan's price
    causes = {cause["name"]: cause["seconds"] for cause in found["causes"]}
    assert found["gap_seconds"] == pytest.approx(-0.4) == pytest.approx(sum(causes.values()))
    assert causes["steps slower"] == pytest.approx(0.0) and "start-up" not in causes


def test_a_run_cut_short_of_another_trainer_has_no_totals(call, tmp_path):
    nanogpt_log(tmp_path, last=12)
    planned(tmp_path, loss=guess(5.0))
    found = json.loads(call("compare", str(tmp_path), "--json")[1])
    assert not found["complete"] and found["outcome"] is None and not found["recorded"]
    assert found["loss"]["actual"] is None and found["step_seconds"]["error"] == pytest.approx(0.1)


def test_another_run_than_the_planned_one_is_not_scored(call, tmp_path):
    nanogpt_log(tmp_path, tokens=128)
    planned(tmp_path)
    code, out, _ = call("compare", str(tmp_path))
    assert code == 0 and "128 tokens a step in the log, 64 in the plan" in out
    found = json.loads(call("compare", str(tmp_path), "--json")[1])
    assert found["step_seconds"] == {
        "predicted": None, "actual": pytest.approx(0.022), "error": None, "inside_interval": None,
    }  # fmt: skip
    assert default_store().scores() == []


def test_runs_of_two_trainers_are_compared(call, tmp_path, run_folder):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    logs = [nanogpt_log(tmp_path / "a", seconds=0.02), nanogpt_log(tmp_path / "b", seconds=0.03)]
    document = json.loads(call("compare", *map(str, logs), str(run_folder()), "--json")[1])
    assert len(document["runs"]) == 3 and document["side_by_side"][-1]["at"] == "tokens"
    slower = document["comparison"]["speeds"][0]
    assert slower["ratio"]["value"] == pytest.approx(2 / 3) and slower["verdict"] == "regression: slower"


def test_the_workload_of_our_own_log_is_its_configuration():
    run = run_table_of(load_run_log(RECORDED), "small.jsonl")
    header = json.loads(RECORDED.read_text(encoding="utf-8").splitlines()[0])
    config = config_from_dict(header["config"])
    assert workload_of(run, "cpu") == Workload(
        shape=config.model, micro_batch=config.micro_batch, grad_accum=config.grad_accum, gpu="cpu",
        gpus=header["world_size"], precision=header["precision"], compile=config.compile,
        activation_checkpointing=config.activation_checkpointing, optimizer=config.optimizer.name,
    )  # fmt: skip
