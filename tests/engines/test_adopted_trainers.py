"""Trainers of others as they are: TRL, LitGPT, Hugging Face's Trainer, Lightning, a script in nanoGPT's manner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE, ROOT = Path(__file__).parent / "adopted", Path(__file__).resolve().parents[2]
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def advisor(folder: Path, *words: str) -> dict:
    paths = os.pathsep.join((str(ROOT), str(HERE)))
    environment = {**os.environ, **OFFLINE, "ADVISOR_HOME": str(folder / "home"), "PYTHONPATH": paths}
    command = [sys.executable, "-m", "advisor", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def adopt(folder: Path, seconds: int, *words: str, plan: tuple[str, ...] = ("--steps", "20")) -> dict:
    return advisor(folder, "adopt", "--json", "--budget-seconds", str(seconds), *plan, "--", *words)


def verdicts(found: dict) -> dict[str, str]:
    return {verdict["name"]: verdict["verdict"] for verdict in found["adopted"]["verdicts"]}


def check_it_ended(scored: dict, plan: dict) -> None:
    """As planned, or by its own limit where the machine slowed meanwhile."""
    assert scored["outcome"] in ("completed", "stopped"), scored
    assert scored["outcome"] == "stopped" or scored["steps"] == plan["steps"]


def works(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "works")


def test_trl_from_its_command_to_a_score(trainers_python, tmp_path):
    """Adopted, planned for three minutes, launched, compared."""
    made = [trainers_python, HERE / "tiny_llama.py", tmp_path]
    subprocess.run(made, check=True, capture_output=True, env={**os.environ, **OFFLINE}, timeout=300)
    trl = ("-m", "trl.scripts.sft", "--model_name_or_path", "model", "--dataset_name", "data", "--packing")
    sizes = ("--max_length", "128", "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2")
    rest = ("--output_dir", "out", "--bf16", "false")
    found = adopt(tmp_path, 280, str(trainers_python), *trl, *sizes, *rest, plan=("--deadline", "3min"))
    assert found["adopted"]["recipe"]["name"] == "trl-sft"
    assert verdicts(found) == works("micro_batch", "grad_accum", "seq_len", "steps")
    shape = found["adopted"]["bursts"][0]["shape"]
    assert (shape["rows"], shape["calls"]) == (4, 2) and shape["length"] == pytest.approx(128, rel=0.02)
    advisor(tmp_path, "launch", found["plan_file"], "--json")
    scored = advisor(tmp_path, "compare", "latest", "--json")
    check_it_ended(scored, found["plan"])
    clock = scored["wall_clock_seconds"]["actual"]  # none of a run that its own limit stopped
    assert (clock is None) == (scored["outcome"] == "stopped")
    assert clock is None or clock <= 180 + 10  # a step and its saving more


TINY = {"name": "tiny", "block_size": 256, "vocab_size": 512, "padded_vocab_size": 512, "n_layer": 2, "n_head": 4,
        "n_embd": 64}  # fmt: skip


def test_litgpt_from_its_command_to_a_score(litgpt_python, tmp_path, monkeypatch):
    """Its length is set in tokens, and the micro-batches of a step follow from its micro-batch."""
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")  # minutes of compilation for a model of two layers
    program = str(litgpt_python.parent / "litgpt")
    model = ("pretrain", "tiny", "--model_config", json.dumps(TINY), "--precision", "32-true", "--devices", "1")
    data = ("--data", "litgpt_data.Synthetic", "--logger_name", "csv", "--out_dir", "out")
    batch = ("--train.micro_batch_size", "4", "--train.global_batch_size", "16", "--train.max_seq_length", "128")
    rest = ("--train.max_norm", "1.0", "--train.lr_warmup_steps", "2", "--train.max_tokens", "1000000",
            "--eval.max_iters", "1", "--eval.final_validation", "false")  # fmt: skip
    found = adopt(tmp_path, 240, program, *model, *data, *batch, *rest, plan=("--deadline", "60s"))
    assert found["adopted"]["recipe"]["name"] == "litgpt-pretrain"
    assert verdicts(found) == works("micro_batch", "seq_len", "tokens"), found["adopted"]["verdicts"]
    shape = found["adopted"]["bursts"][0]["shape"]
    assert (shape["rows"], shape["calls"], shape["length"]) == (4, 4, 128)
    plan = found["plan"]
    assert plan["steps_are_set"] and plan["tokens_per_step"] == 16 * 128
    assert {"name": "tokens", "value": plan["steps"] * 2048} in plan["values"]
    advisor(tmp_path, "launch", found["plan_file"], "--json")
    scored = advisor(tmp_path, "compare", "latest", "--json")
    check_it_ended(scored, plan)
    assert (tmp_path / "out" / "final" / "lit_model.pth").exists()


def test_a_script_around_hugging_faces_trainer(trainers_python, tmp_path):
    words = (
        str(trainers_python),
        str(HERE / "hf_script.py"),
        "--output_dir",
        "out",
        "--per_device_train_batch_size",
        "8",
    )
    found = adopt(tmp_path, 400, *words, plan=("--epochs", "2"))
    assert found["adopted"]["recipe"]["name"] == "hf-trainer"
    assert found["plan"]["steps"] == 2 * 512  # 4096 rows, by 8
    told = verdicts(found)
    assert told["micro_batch"] == told["grad_accum"] == "works", found["adopted"]["verdicts"]
    assert found["adopted"]["bursts"][0]["shape"]["length"] == 64


def test_the_same_script_by_its_log_alone(trainers_python, tmp_path):
    """Its rows have no step and no tokens: its bar counts the steps, and its epochs tell what a step holds."""
    words = (str(trainers_python), "-I", str(HERE / "hf_script.py"), "--output_dir", "out",
             "--per_device_train_batch_size", "8")  # fmt: skip
    found = adopt(tmp_path, 400, *words, plan=("--epochs", "2"))
    base = found["adopted"]["bursts"][0]
    assert (base["source"], base["step_printed"], found["plan"]["basis"]) == ("log", True, "log")
    told = verdicts(found)
    assert told["micro_batch"] == told["grad_accum"] == "works", found["adopted"]["verdicts"]
    assert found["plan"]["steps"] == 2 * 512


def test_a_plain_lightning_script(trainers_python, tmp_path):
    """Its samples have no tokens."""
    found = adopt(tmp_path, 120, str(trainers_python), str(HERE / "lightning_script.py"), plan=("--samples", "3200"))
    assert verdicts(found) == works("micro_batch", "grad_accum", "steps")
    assert found["plan"]["tokens_per_step"] is None
    assert (found["plan"]["rows_per_step"], found["plan"]["steps"]) == (16, 200)


def test_a_lightning_command_line_and_its_file(trainers_python, tmp_path):
    (tmp_path / "fit.yaml").write_text("data: {batch_size: 64}\ntrainer: {max_steps: 100000, max_epochs: -1}\n")
    script = (str(trainers_python), str(HERE / "lightning_cli.py"), "fit", "--config", "fit.yaml")
    found = adopt(tmp_path, 280, *script, "--trainer.accumulate_grad_batches", "2")
    assert found["adopted"]["recipe"]["name"] == "lightning-cli"
    told = verdicts(found)
    assert told["micro_batch"] == told["grad_accum"] == told["steps"] == "works", found["adopted"]["verdicts"]
    shape = found["adopted"]["bursts"][0]["shape"]
    assert (shape["rows"], shape["calls"]) == (64, 2)


def test_a_script_in_nanogpts_manner(tmp_path):
    found = adopt(tmp_path, 90, sys.executable, str(HERE / "train.py"), "--gradient_accumulation_steps=4")
    assert found["adopted"]["recipe"]["name"] == "nanogpt"
    told = verdicts(found)
    assert told["micro_batch"] == told["grad_accum"] == told["seq_len"] == "works", found["adopted"]["verdicts"]
