"""Any architecture: published models by name, shapes by their number of parameters, and sizes one by one."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import torch

import advisor
from advisor.errors import AdvisorError
from advisor.laws.flops import parameters
from advisor.options import Goal
from advisor.planning import models
from advisor.planning.answer import bare_plan
from advisor.planning.command import plan_command
from advisor.planning.models import CLOSE, named_models, nearest_shape, require_model
from advisor.records import Plan
from tests.advisor.devices import big_gpu, small_cpu, token_meta
from tests.advisor.plans import goal_of
from tests.terminal import advisor as advisor_
from tests.terminal import document
from trainer.model import build_model
from trainer.run import run
from trainer.runlog import load_run_log
from trainer.schema import CheckpointConfig, EvalConfig, Outcome, TelemetryConfig, dump_config, load_config

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ("predict --gpu h100-80gb-sxm --model llama-2-7b --lora-rank 16 --seq-len", 4096),
        ("predict --gpu h100-80gb-sxm --model gpt2 --seq-len", 1024),
        ("plan --layout any --gpu h100-80gb-sxm --gpus 64 --model llama-3-8b --tokens 1T --seq-len", 8192),
        ("plan --gpu h100-80gb-sxm --finetune lora --model llama-2-7b --examples 1k --seq-len", 4096),
    ],
)
def test_a_sequence_longer_than_any_that_the_model_reads_is_said_once(words, most):
    said, longer = f"more than the {most:,} of", [str(length) for length in (most, 2 * most)]
    assert said not in advisor_(*words.split(), longer[0]).stdout
    assert " ".join(advisor_(*words.split(), longer[1]).stdout.split()).count(said) == 1
    found = document(*words.split(), longer[1], expect=None)
    assert said in (found["warnings"][0] if words.startswith("plan") else found["too_long"])


def plan_of(words: str, profile=None, data_meta=None) -> Plan:
    return bare_plan(goal_of(shlex.split(words)), profile or small_cpu(), now=NOW, data_meta=data_meta)


@pytest.mark.parametrize("model", named_models(), ids=lambda model: model.name)
def test_a_named_model_has_the_published_number_of_parameters(model):
    """By the formula, which counts what the trainer builds: of two blocks here, since all of them are alike."""
    assert not model.shape.problems()
    assert parameters(model.shape) == model.parameters
    two = replace(model.shape, depth=2)
    with torch.device("meta"):
        assert sum(weights.numel() for weights in build_model(two).parameters()) == parameters(two)
    assert model.source.startswith("https://")


def test_a_named_model_is_planned_as_it_was_published():
    plan = plan_of("--gpu h200-141gb-sxm --model TinyLlama-1.1b --tokens 2B", big_gpu())
    assert plan.run.model == require_model("tinyllama-1.1b").shape
    assert plan.prediction.parameters == 1_100_048_384
    assert "as in tinyllama-1.1b" in plan.reasons[1] and "1,100,048,384" in plan.reasons[1]


@pytest.mark.parametrize(
    ("name", "depth", "count"),
    [
        ("nanochat-d12", 12, 2 * 65536 * 768 + 12 * 12 * 768**2),
        ("nanochat-d26", 26, 2 * 65536 * 1664 + 12 * 26 * 1664**2),
        ("meta-llama/Meta-Llama-3.1-8B", 32, 8_030_261_248),
        ("meta-llama/Llama-2-70b-hf", 80, 68_976_648_192),
    ],
)
def test_a_model_is_known_by_its_family_and_by_its_owners_spelling(name, depth, count):
    model = require_model(name)
    assert (model.shape.depth, parameters(model.shape), model.parameters) == (depth, count, count)


def test_own_data_bring_their_own_vocabulary_to_a_named_model(tmp_path):
    meta = token_meta(tokens=10**9, vocab_size=8192, validation_tokens=10**6)
    plan = plan_of(f"--gpu h200-141gb-sxm --model gpt2 --tokens 2B --data {tmp_path}", big_gpu(), meta)
    assert (plan.run.model.depth, plan.run.model.width, plan.run.model.vocab_size) == (12, 768, 8192)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--model gpt2-xxl", "gpt2-xl"),
        ("--model llama-3.2-1b", "--family llama --depth 16 --width 2048 --heads 32 --kv-heads 8 --ffn-width 8192"),
        # 2 x 256,000 x 3,584 weights of embeddings where a tied head has half of them
        (
            "--model google/gemma-2-9b",
            "has 9.93 B parameters (google/gemma-2-9b has 9.24 B): --family llama --depth 42",
        ),
        ("--model google/gemma-2-9b", "; `advisor predict` also takes --head-dim 256 --tied"),
        ("--model qwen3-8b", "advisor plan --finetune qlora --model qwen3-8b --gpu any --examples 50k"),
        ("--model mixtral-8x7b", "advisor plan --finetune qlora --model mixtral-8x7b --gpu any --examples 50k"),
        ("--model mixtral-8x7b", "advisor plan --layout any --model mixtral-8x7b"),
        ("--model mixtral", "did you mean mixtral-8x7b or mixtral-8x22b? Any other model: its config.json"),
        ("--model gpt2 --depth 6", "leave --model out"),
        ("--params 1B --width 512", "leave --params out"),
        ("--model gpt2 --family llama", "leave --family out"),
        ("--width 512", "--depth 12"),
    ],
)
def test_a_shape_that_cannot_be_meant_is_refused_with_the_way_out(words, problem):
    with pytest.raises(AdvisorError) as refused:
        goal_of(words.split())
    assert refused.value.exit_code == 2
    assert problem in (refused.value.hint or "")


@pytest.mark.parametrize("family", ["nanochat", "gpt2", "llama"])
@pytest.mark.parametrize("count", [60e6, 124e6, 350e6, 1.5e9, 7e9, 13e9])
def test_a_number_of_parameters_finds_a_shape_near_it(family, count):
    shape = nearest_shape(family, int(count), vocab_size=32768, seq_len=2048)
    assert not shape.problems()
    assert parameters(shape) == pytest.approx(count, rel=2 * CLOSE)


def test_a_number_of_parameters_is_planned_with_its_shape_and_count_in_words():
    plan = plan_of("--gpu h200-141gb-sxm --params 1.5B --family gpt2 --tokens 2B", big_gpu())
    shape = plan.run.model
    assert plan.prediction.parameters == parameters(shape) == pytest.approx(1.5e9, rel=CLOSE)
    assert f"depth {shape.depth} and width {shape.width}" in plan.reasons[1]
    assert f"{parameters(shape):,} parameters" in plan.reasons[1]


def test_a_vocabulary_larger_than_the_model_asked_for_is_refused():
    with pytest.raises(AdvisorError, match="the smallest nanochat with a vocabulary of 32768 has 8.59 M") as refused:
        nearest_shape("nanochat", 10**6, vocab_size=32768, seq_len=2048)
    assert "--vocab-size" in (refused.value.hint or "")


@pytest.mark.parametrize(
    "words",
    [
        "--gpu l4 --model gpt2-xl --budget 10",
        "--gpu l4 --params 1500000000 --budget 10",
        "--gpu l4 --depth 7 --width 320 --heads 10 --kv-heads 5 --ffn-width 900 --family llama --budget 10",
    ],
)
def test_the_command_of_a_shape_gives_the_same_goal(words):
    goal = goal_of(shlex.split(words))
    assert goal_of(shlex.split(plan_command(goal))[2:]) == goal


def test_the_trainer_trains_the_odd_shape_that_was_planned(tmp_path):
    words = "--gpu cpu --family llama --depth 3 --width 48 --heads 6 --kv-heads 2 --ffn-width 100"
    plan = plan_of(f"{words} --vocab-size 300 --seq-len 32 --tokens 20k")
    shape = plan.run.model
    assert (shape.depth, shape.width, shape.heads, shape.kv_heads, shape.ffn_width) == (3, 48, 6, 2, 100)
    short = replace(
        plan.run,
        steps=3,
        micro_batch=2,
        grad_accum=1,
        eval=EvalConfig(tokens=0),
        checkpoint=CheckpointConfig(every_seconds=None, final=False),
        telemetry=TelemetryConfig(hz=0),
    )
    (tmp_path / "run.yaml").write_text(dump_config(short))
    assert run(load_config(tmp_path / "run.yaml"), tmp_path / "out") is Outcome.COMPLETED
    [header] = load_run_log(tmp_path / "out" / "log.jsonl").headers
    assert header["parameters"] == plan.prediction.parameters == parameters(shape)


def test_a_goal_without_a_shape_has_the_familys_own():
    assert Goal(gpu="cpu").width is None
    plan = plan_of("--gpu cpu --depth 3 --tokens 1M")
    assert plan.reasons[1].startswith("depth 3 as asked")


NEARLY = {  # as published, on the Hub: https://huggingface.co/NAME
    "Qwen/Qwen3-8B": 8_190_735_360, "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512, "Qwen/Qwen3-4B-Base": 4_022_468_096,
    "google/gemma-2-9b-it": 9_241_705_984, "mistralai/Mistral-Nemo-Base-2407": 12_247_782_400,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624, "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552, "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
}  # fmt: skip


def counted(model) -> int:
    """Parameters of the nearest shape with the model's own head size and tied head."""
    shape, head = model.shape, model.head_dim or model.shape.head_dim
    more = 2 * shape.depth * shape.width * (shape.heads + shape.kv_heads) * (head - shape.head_dim)
    tied = shape.vocab_size * shape.width if model.tied and shape.family != "gpt2" else 0
    return parameters(shape) + more - tied


@pytest.mark.parametrize(("name", "published"), NEARLY.items())
def test_a_model_of_the_hub_is_known_with_its_endings(name, published):
    model = require_model(name, nearly=True)
    assert model.parameters == published


def test_sixty_models_are_known_each_within_a_thousandth_of_its_published_count():
    names = [model.name for model in named_models()]
    others = [name for name in models._document()["not_built"] if "pythia" not in name]  # they are of no family here
    found = [require_model(name, nearly=True) for name in (*names, *others)]
    assert len(found) >= 60
    assert [m.name for m in found if abs(counted(m) / m.parameters - 1) > 1e-3] == []
    assert sum(counted(m) == m.parameters for m in found) >= 30


LLAMA = {"model_type": "llama", "num_hidden_layers": 22, "hidden_size": 2048, "num_attention_heads": 32,
         "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000,
         "max_position_embeddings": 2048}  # fmt: skip


def test_a_config_a_folder_and_a_download_are_models_too(tmp_path, monkeypatch):
    """TinyLlama's own sizes: 1,100,048,384 parameters, whichever way they are named."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    cached = tmp_path / "hub" / "models--somebody--tiny-1b" / "snapshots" / "abc"
    cached.mkdir(parents=True)
    (cached / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in (str(tmp_path), str(tmp_path / "config.json"), "somebody/tiny-1b"):
        goal = goal_of(["--gpu", "h100", "--model", name, "--tokens", "1B"])
        assert (goal.depth, goal.width, goal.kv_heads, goal.seq_len, goal.model) == (22, 2048, 4, 2048, name)
        assert json.loads(advisor.predict(gpu="h100", model=name).to_json())["parameters"] == 1_100_048_384


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "qwen3"}, "it normalises queries and keys"),
        ({"tie_word_embeddings": True}, "its head is tied"),
        ({"head_dim": 128}, "its heads are 128 wide"),
    ],
)
def test_a_config_that_is_nearly_one_is_predicted_and_not_planned(tmp_path, changed, said):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | changed))
    assert any(said in words for words in advisor.predict(gpu="h100", model=str(path)).assumed)
    with pytest.raises(AdvisorError, match=f"cannot build it, {said}") as refused:
        goal_of(["--gpu", "h100", "--model", str(path), "--tokens", "1B"])
    assert "advisor predict" in refused.value.hint


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, "a mixture of experts"),
        ({"model_type": "mamba"}, "does not describe a known model (mamba)"),
        ({"hidden_size": 2047}, "not a multiple of heads"),
    ],
)
def test_a_config_that_is_none_says_what_it_is(tmp_path, changed, said):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | changed))
    with pytest.raises(AdvisorError) as refused:
        advisor.predict(gpu="h100", model=str(path))
    assert said in refused.value.message
    with pytest.raises(AdvisorError, match="there is no"):
        advisor.predict(gpu="h100", model=str(tmp_path / "other.json"))
