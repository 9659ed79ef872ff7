"""A plan as other software's file: its own names, the plan's own numbers, and nothing that it cannot start from."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path

import pytest
import yaml

FINETUNE = "--gpu rtx-4090 --model Qwen/Qwen3-8B --finetune qlora --examples 50k --length 512 --epochs 2 --lora-rank 8"
LAYOUT = "--layout any --gpu h100-80gb-sxm --tokens 1T"


def written(call, tmp_path: Path, words: str, name: str) -> tuple[str, dict, str]:
    """The file's text, the plan as JSON, and what the command says."""
    path = tmp_path / name
    _, said, _ = call("plan", *words.split(), "--out", str(path))
    _, answer, _ = call("plan", *words.split(), "--json")
    return path.read_text(encoding="utf-8"), json.loads(answer), " ".join(said.split())


def test_axolotl_gets_its_own_keys(call, tmp_path: Path):
    text, plan, said = written(call, tmp_path, f"{FINETUNE} --software axolotl", "run.yaml")
    found, work = yaml.safe_load(text), plan["chosen"]["prediction"]["workload"]
    assert found["base_model"] == "Qwen/Qwen3-8B" and found["adapter"] == "qlora" and found["load_in_4bit"] is True
    assert (found["sequence_len"], found["num_epochs"], found["lora_r"], found["lora_alpha"]) == (512, 2, 8, 16)
    assert found["micro_batch_size"] == work["micro_batch"]
    assert found.get("gradient_checkpointing", False) == (work["activation_checkpointing"] == "full")
    assert "axolotl train run.yaml" in said and "advisor adopt -- axolotl train run.yaml" in said


def test_a_full_finetune_has_no_adapters(call, tmp_path: Path):
    words = "--gpu h100-80gb-sxm --model llama-3.2-1b --finetune full --examples 5k --software llama-factory"
    found = yaml.safe_load(written(call, tmp_path, words, "run.yaml")[0])
    assert found["finetuning_type"] == "full" and "lora_rank" not in found and "quantization_bit" not in found


def options(text: str) -> dict[str, str | bool]:
    """The options of the one command of a script."""
    words, found = shlex.split(text.replace("\\\n", " "), comments=True), {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            after = words[at + 1] if at + 1 < len(words) else "--"
            found[word[2:]] = True if after.startswith("--") else after
    return found


def test_trl_and_unsloth_start_from_a_script(call, tmp_path: Path):
    text, plan, said = written(call, tmp_path, FINETUNE, "run.sh")
    found, work = options(text), plan["chosen"]["prediction"]["workload"]
    assert found["model_name_or_path"] == "Qwen/Qwen3-8B" and found["max_length"] == "512" and found["lora_r"] == "8"
    assert (
        found["per_device_train_batch_size"] == str(work["micro_batch"]) and "2. put your data in place of DATA" in said
    )
    text, *_ = written(call, tmp_path, f"{FINETUNE} --software unsloth", "run.py")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    given = {keyword.arg: keyword.value for node in calls for keyword in node.keywords}
    assert ast.literal_eval(given["max_seq_length"]) == 512 and ast.literal_eval(given["r"]) == 8


def test_sharding_and_precision_reach_the_file(call, tmp_path: Path):
    words = "--model llama-3.1-8b --finetune full --examples 5k --gpu h100-80gb-sxm --gpus 8"
    text, plan, _ = written(call, tmp_path, words, "run.sh")
    stage = {"optimizer": "zero2", "full": "zero3"}[plan["chosen"]["prediction"]["workload"]["sharding"]]
    assert options(text)["accelerate_config"] == stage and options(text)["num_processes"] == "8"
    text, _, said = written(call, tmp_path, f"{words} --software axolotl", "run.yaml")
    assert stage in yaml.safe_load(text)["deepspeed"] and "axolotl fetch deepspeed_configs &&" in said
    text, _, said = written(call, tmp_path, f"{words} --software llama-factory", "factory.yaml")
    assert stage.removeprefix("zero") in yaml.safe_load(text)["deepspeed"]
    # what it is told to read comes with neither package by itself
    assert "pip install llamafactory bitsandbytes deepspeed" in said and "git clone" in said
    fp16 = "--model Qwen/Qwen3-8B --finetune qlora --examples 5k --gpu v100-16gb-sxm2 --software axolotl"
    found = yaml.safe_load(written(call, tmp_path, fp16, "fp16.yaml")[0])
    assert found["fp16"] is True and "bf16" not in found and "deepspeed" not in found


def test_automodel_gets_its_nested_sections_and_only_those_it_needs(call, tmp_path: Path):
    text, plan, said = written(call, tmp_path, f"{FINETUNE} --software automodel", "run.yaml")
    found, work = yaml.safe_load(text), plan["chosen"]["prediction"]["workload"]
    assert found["peft"]["dim"] == 8 and found["quantization"]["load_in_4bit"] is True and "if" not in found["peft"]
    assert found["step_scheduler"]["local_batch_size"] == work["micro_batch"] and "automodel run.yaml" in said
    words = "--model llama-3.1-8b --finetune full --examples 5k --epochs 1.5 --gpu h100-80gb-sxm --gpus 8"
    text, plan, said = written(call, tmp_path, f"{words} --software automodel", "full.yaml")
    found, work = yaml.safe_load(text), plan["chosen"]["prediction"]["workload"]
    assert found["distributed"]["strategy"] == "fsdp2" and "peft" not in found and "quantization" not in found
    sequences = found["step_scheduler"]["global_batch_size"]
    assert sequences == 8 * work["micro_batch"] and "--nproc-per-node 8" in said
    assert found["step_scheduler"]["max_steps"] == -(-7500 // sequences)  # of 1.5 epochs of 5,000 examples


def test_megatron_bridge_gets_a_script_of_its_own_names(call, tmp_path: Path):
    words = f"{LAYOUT} --model mixtral-8x7b --gpus 64"
    text, plan, said = written(call, tmp_path, words, "run.py")
    assert "1. install nemo (`pip install torch " in said and "--no-build-isolation megatron-bridge`)" in said
    ast.parse(text)
    layout = plan["chosen"]["prediction"]["workload"]["layout"]
    said = dict(line.strip().split(" = ", 1) for line in text.splitlines() if line.strip().startswith("cfg.model."))
    assert said["cfg.model.expert_model_parallel_size"] == str(layout["expert"])
    assert said["cfg.model.pipeline_model_parallel_size"] == str(layout["pipeline"])
    assert 'from_hf_pretrained("mistralai/Mixtral-8x7B-v0.1")' in text and "torchrun --nnodes" not in text


def test_megatron_gets_the_layout_that_was_chosen(call, tmp_path: Path):
    """Stages of 61 layers on several places are written out, the first and the last with fewer."""
    text, plan, said = written(call, tmp_path, f"{LAYOUT} --model deepseek-v3 --gpus 1024 --global-batch 2M", "run.sh")
    assert "1. install megatron (`git clone https://github.com/NVIDIA/Megatron-LM && cd Megatron-LM && uv pip " in said
    found, run = options(text), plan["chosen"]["prediction"]["workload"]
    cut = run["layout"]
    assert int(found["tensor-model-parallel-size"]) == cut["tensor"]
    assert int(found["pipeline-model-parallel-size"]) == cut["pipeline"]
    assert int(found["expert-model-parallel-size"]) == cut["expert"]
    assert int(found["nnodes"]) * int(found["nproc-per-node"]) == 1024
    sequences = cut["data"] * run["micro_batch"] * run["grad_accum"]
    assert int(found["global-batch-size"]) == sequences
    assert int(found["train-iters"]) == -(-1_000_000_000_000 // (sequences * run["shape"]["seq_len"]))
    assert (found["q-lora-rank"], found["qk-head-dim"], found["num-experts"]) == ("1536", "128", "256")
    assert sum(ast.literal_eval(found["moe-layer-freq"])) == 58
    stages = str(found["pipeline-model-parallel-layout"]).split("|")
    assert len(stages) == cut["pipeline"] * cut["virtual"] and "".join(stages).count("t") == 61
    assert len(stages[0]) <= len(stages[1]) + 1 and stages[-1].endswith("L")
    assert "bash run.sh" in said


def test_megatron_fine_tunes_all_weights_from_the_published_ones(call, tmp_path: Path):
    words = "--model mixtral-8x7b --finetune full --examples 10k --epochs 3 --gpu h100-80gb-sxm --gpus 16"
    text, plan, said = written(call, tmp_path, words, "tune.sh")
    found, run = options(text), plan["chosen"]["prediction"]["workload"]
    assert found["load"] == "WEIGHTS" and found["finetune"] and float(found["lr"]) == 2e-5
    assert int(found["expert-model-parallel-size"]) == run["layout"]["expert"]
    # 10,000 examples of 1,024 tokens, three times
    assert int(found["train-iters"]) == 30_000 // int(found["global-batch-size"])
    assert "in place of DATA and WEIGHTS (WEIGHTS: the published weights, converted with Megatron Bridge)" in said
    code, _, refused = call("plan", *f"{words} --software torchtitan --out {tmp_path / 'other.py'}".split())
    assert code == 2 and "no file is written for torchtitan" in refused


@pytest.mark.parametrize(
    ("model", "base", "norm", "bias"),
    [
        ("qwen3-30b-a3b", "1000000", True, None),
        ("qwen2.5-7b", "1000000", None, True),
        ("llama-3.1-8b", "500000", None, None),
        ("mixtral-8x7b", "1000000", None, None),
        ("deepseek-v3", "10000", True, None),
        ("gpt2-xl", None, None, None),
    ],
)
def test_megatron_gets_the_positions_norms_and_biases_of_the_model(call, tmp_path: Path, model, base, norm, bias):
    text, _, said = written(call, tmp_path, f"{LAYOUT} --model {model} --gpus 512 --software megatron", "run.sh")
    found = options(text)
    assert (found.get("rotary-base"), found.get("qk-layernorm"), found.get("add-qkv-bias")) == (base, norm, bias)
    assert "\n#" not in text and "is not known here" not in said
    if model == "deepseek-v3":
        assert (found["moe-router-score-function"], found["moe-router-topk-scaling-factor"]) == ("sigmoid", "2.5")


def test_megatron_takes_positions_and_norms_from_a_config_json(call, tmp_path: Path):
    sizes = {"num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8}
    sizes |= {"intermediate_size": 6144, "vocab_size": 50000, "max_position_embeddings": 2048, "rope_theta": 5e6}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3", **sizes}))
    words = f"{LAYOUT} --model {config} --gpus 8 --software megatron --seq-len 4096"
    text, plan, said = written(call, tmp_path, words, "run.sh")
    assert options(text)["rotary-base"] == "5000000" and options(text)["qk-layernorm"] is True
    assert said.count("4,096 tokens are more than the 2,048 of") == 1 and "2,048 of" in plan["warnings"][0]


@pytest.mark.parametrize(
    ("model", "words"), [("gemma-2-9b", "capped scores"), ("yi-34b", "--rotary-base"), ("glm-4.5-air", "the router")]
)
def test_megatron_is_told_what_the_script_lacks_of_the_model(call, tmp_path: Path, model, words):
    text, _, said = written(call, tmp_path, f"{LAYOUT} --model {model} --gpus 64 --software megatron", "run.sh")
    remark = text.splitlines()[1]
    assert remark.startswith("# ") and words in remark and model in remark and words in said


def test_torchtitan_gets_a_function_of_its_registry(call, tmp_path: Path):
    words = f"{LAYOUT} --model llama-3-70b --gpus 256 --software torchtitan"
    text, plan, said = written(call, tmp_path, words, "titan.py")
    run = plan["chosen"]["prediction"]["workload"]
    assert "from torchtitan.models.llama3.config_registry import llama3_70b" in text
    assert f"config.parallelism.tensor_parallel_degree = {run['layout']['tensor']}\n" in text
    assert f"num_tokens_per_microbatch_per_dp_rank = {run['micro_batch'] * run['shape']['seq_len']}\n" in text
    compile(text, "titan.py", "exec")
    assert "--module titan --config plan" in said


@pytest.mark.parametrize(
    ("words", "name", "said"),
    [
        (FINETUNE, "run.yaml", "trl starts from a .sh file"),
        (f"{FINETUNE} --software torchtune", "run.yaml", "no file is written for torchtune from here"),
        (f"{LAYOUT} --model gpt2 --gpus 8 --software torchtitan", "run.py", "torchtitan has no gpt2"),
        (f"{LAYOUT} --model llama-65b --gpus 64", "run.py", "this one is from https://arxiv.org/abs/2302.13971"),
        (f"{FINETUNE} --depths 4,8", "run.sh", "are of the trainer here"),
    ],
)
def test_what_cannot_be_written_says_what_can(call, tmp_path: Path, words: str, name: str, said: str):
    code, _, error = call("plan", *words.split(), "--out", str(tmp_path / name))
    assert code == 2 and said in " ".join(error.split()) and "hint: " in error
    assert not (tmp_path / name).exists()
