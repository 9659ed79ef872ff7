"""The script that a plan writes for TRL, held against TRL's own parser."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.terminal import advisor

PARSE = """
import dataclasses, json, sys
from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser
parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
data, training, model = parser.parse_args_and_config(args=sys.argv[1:])
print(json.dumps({"micro": training.per_device_train_batch_size, "length": training.max_length, "rank": model.lora_r,
                  "peft": model.use_peft, "four_bits": model.load_in_4bit, "packing": training.packing,
                  "checkpointing": training.gradient_checkpointing, "model": model.model_name_or_path}))
"""
PARSE_GRPO = """
import json, sys
from trl import GRPOConfig, ModelConfig, ScriptArguments, TrlParser
try:
    from trl.scripts.grpo import GRPOScriptArguments as ScriptArguments
except ImportError:
    pass
data, training, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config(args=sys.argv[1:])
print(json.dumps({"group": training.num_generations, "longest": training.max_completion_length,
                  "steps": training.max_steps, "mode": training.vllm_mode, "beta": training.beta,
                  "share": training.vllm_gpu_memory_utilization, "rewards": data.reward_funcs}))
"""


def test_trl_takes_every_option_of_a_script_for_grpo(trainers_python: Path, tmp_path: Path):
    script = tmp_path / "run.sh"
    words = ("--rl", "grpo", "--model", "Qwen/Qwen3-8B", "--gpu", "8xh100", "--prompts", "1280",
             "--response-max", "2048", "--software", "trl", "--placement", "colocated")  # fmt: skip
    advisor("plan", *words, "--out", str(script), expect=0)
    given = shlex.split(script.read_text().replace("\\\n", " "), comments=True)
    assert given[:2] == ["trl", "grpo"]
    options = given[given.index("--model_name_or_path") :]  # without those of accelerate
    at = options.index("--bf16")
    options[at : at + 2] = ["--use_cpu", "true"]
    done = subprocess.run([trainers_python, "-c", PARSE_GRPO, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "group": 8, "longest": 2048, "steps": 10, "mode": "colocate", "share": 0.3, "beta": 0.001,
        "rewards": ["accuracy_reward"],
    }  # fmt: skip


VERL = "import importlib.util; print(importlib.util.find_spec('verl').submodule_search_locations[0])"


def test_verl_has_every_option_of_the_script(trainers_python: Path, tmp_path: Path):
    where = subprocess.run([trainers_python, "-c", VERL], capture_output=True, text=True)
    if where.returncode:
        pytest.skip("verl is not installed: make engines")
    whole = Path(where.stdout.strip()) / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    options = yaml.safe_load(whole.read_text())
    words = ("--model", "Qwen/Qwen3-8B", "--gpu", "4xh100", "--prompts", "1280", "--placement", "colocated", "--lora")
    for algorithm in ("grpo", "ppo"):
        script = tmp_path / f"{algorithm}.sh"
        advisor("plan", "--rl", algorithm, *words, "--out", str(script), expect=0)
        given = shlex.split(script.read_text().replace("\\\n", " "), comments=True)
        assert given[:3] == ["python3", "-m", "verl.trainer.main_ppo"]
        for word in given[3:]:
            place = options
            for name in word.partition("=")[0].split("."):
                assert name in place, word
                place = place[name]


def test_trl_takes_every_option_of_the_script(trainers_python: Path, tmp_path: Path):
    script = tmp_path / "run.sh"
    words = ("--gpu", "h100-80gb-sxm", "--model", "Qwen/Qwen3-8B", "--finetune", "qlora", "--examples", "50k",
             "--length", "512", "--lora-rank", "8")  # fmt: skip
    advisor("plan", *words, "--out", str(script), expect=0)
    plan = json.loads(advisor("plan", *words, "--json", expect=0).stdout)
    work = plan["chosen"]["prediction"]["workload"]
    given = shlex.split(script.read_text().replace("\\\n", " "), comments=True)
    assert given[:2] == ["trl", "sft"]
    # a card that is not here is not asked for its bf16 units
    options = ["bf16" if word == "--bf16" else word for word in given[2:]]
    at = options.index("bf16")
    options[at : at + 2] = ["--use_cpu", "true"]
    done = subprocess.run([trainers_python, "-c", PARSE, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "micro": work["micro_batch"], "length": 512, "rank": 8, "peft": True, "four_bits": True, "packing": True,
        "checkpointing": work["activation_checkpointing"] == "full", "model": "Qwen/Qwen3-8B",
    }  # fmt: skip
