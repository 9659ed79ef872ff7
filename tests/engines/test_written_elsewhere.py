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
                  "share": training.vllm_gpu_memory_utilization, "rewards": data.reward_funcs,
                  "sleeps": training.vllm_enable_sleep_mode}))
"""


PARSE_SERVER = """
import dataclasses, json, sys
from trl.scripts.vllm_serve import ScriptArguments
from trl import TrlParser
(made,) = TrlParser(ScriptArguments).parse_args_and_config(args=sys.argv[1:])
print(json.dumps({"model": made.model, "tensor": made.tensor_parallel_size, "copies": made.data_parallel_size}))
"""


def parsed(python: Path, program: str, options: list[str]) -> dict:
    done = subprocess.run([python, "-c", program, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("placement", ["colocated", "split"])
def test_trl_takes_every_option_of_a_script_for_grpo(trainers_python: Path, tmp_path: Path, placement: str):
    script = tmp_path / "run.sh"
    words = ("--rl", "grpo", "--model", "Qwen/Qwen3-8B", "--gpu", "8xh100", "--prompts", "1280",
             "--response-max", "2048", "--software", "trl", "--placement", placement)  # fmt: skip
    advisor("plan", *words, "--out", str(script), expect=0)
    given = shlex.split(script.read_text().replace("\\\n", " "), comments=True)
    at = given.index("grpo")
    assert given[at - 1] == "trl"
    options = given[given.index("--model_name_or_path") :]  # without those of accelerate
    place = options.index("--bf16")
    options[place : place + 2] = ["--use_cpu", "true"]
    found = parsed(trainers_python, PARSE_GRPO, options)
    together = placement == "colocated"
    assert found == {
        "group": 8, "longest": 2048, "steps": 10, "mode": "colocate" if together else "server",
        "share": 0.3, "beta": 0.001, "rewards": ["accuracy_reward"], "sleeps": together,
    }  # fmt: skip
    if not together:  # another command on other GPUs, before it
        server = given[given.index("vllm-serve") + 1 : given.index("&")]
        made = parsed(trainers_python, PARSE_SERVER, server)
        devices = [word.partition("=")[2].split(",") for word in given if word.startswith("CUDA_VISIBLE_DEVICES=")]
        assert sorted(sum(devices, [])) == [str(n) for n in range(8)]
        assert made["model"] == "Qwen/Qwen3-8B" and made["tensor"] * made["copies"] == len(devices[0])


VERL = "import importlib.util; print(importlib.util.find_spec('verl').submodule_search_locations[0])"
DENSE, EXPERTS = ("Qwen/Qwen3-8B", "8xh100"), ("Qwen/Qwen3-30B-A3B", "32xh100")


@pytest.mark.parametrize(
    ("model", "more", "module"),
    [
        (DENSE, ("--placement", "colocated", "--lora"), "trainer.main_ppo"),
        (DENSE, ("--placement", "colocated", "--rollout-precision", "fp8"), "trainer.main_ppo"),
        (DENSE, ("--placement", "split", "--reference", "no"), "experimental.one_step_off_policy.main_ppo"),
        (DENSE, ("--placement", "split", "--staleness", "0.5"),
         "experimental.fully_async_policy.fully_async_main"),
        (DENSE, ("--judge", "Qwen/Qwen3-32B", "--judge-gpus", "2", "--dropped-groups", "0.3"), None),
        (EXPERTS, ("--placement", "colocated"), "trainer.main_ppo"),
        (EXPERTS, ("--placement", "split"), "experimental.one_step_off_policy.main_ppo"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_verl_has_every_option_of_the_script(trainers_python: Path, tmp_path: Path, model, more, module, algorithm):
    where = subprocess.run([trainers_python, "-c", VERL], capture_output=True, text=True)
    if where.returncode:
        pytest.skip("verl is not installed: make engines")
    script, verl = tmp_path / "run.sh", Path(where.stdout.strip())
    words = ("--model", model[0], "--gpu", model[1], "--prompts", "1280", *more)
    advisor("plan", "--rl", algorithm, *words, "--out", str(script), expect=0)
    given = shlex.split(script.read_text().replace("\\\n", " "), comments=True)
    assert given[:2] == ["python3", "-m"] and (module is None or given[2] == f"verl.{module}")
    config = next((word.partition("=")[2] for word in given if word.startswith("--config-name=")), "ppo_trainer")
    kind = "ppo_megatron_trainer" if "megatron" in config else "ppo_trainer"
    options = yaml.safe_load((verl / "trainer" / "config" / f"_generated_{kind}.yaml").read_text())
    own = verl / Path(*given[2].split(".")[1:]).parent / "config"
    for file in [own / f"{config}.yaml", *own.glob(f"*{kind}.yaml")][:2] if "experimental" in given[2] else ():
        if file.exists():
            options = merged(options, yaml.safe_load(file.read_text()))
    for word in given[3:]:
        if word.startswith("--"):
            continue
        place = options
        for name in word.partition("=")[0].split("."):
            assert name in place, word
            place = place[name]


def merged(under: dict, over: dict) -> dict:
    both = {name: merged(under[name], one) for name, one in over.items()
            if isinstance(one, dict) and isinstance(under.get(name), dict)}  # fmt: skip
    return under | over | both


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
