"""`advisor plan --layout any`: models by their names, the search, whole runs as published, words typed wrong."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

import advisor as api
from advisor.architecture import Layout
from advisor.hardware.catalog import load_gpus
from advisor.planning.layouts import search
from advisor.planning.models import architecture_of_config, mixture_rows, require_architecture
from advisor.prediction.layout_runs import whole_run
from advisor.prediction.layout_time import load_law
from advisor.prediction.layouts import LayoutRun
from advisor.records import Basis, Estimate
from advisor.report.elsewhere import best_runs, named_runs
from advisor.store.store import Store
from advisor.workflows.goal import goal_from
from advisor.workflows.plan import recommend
from tests.terminal import advisor as command

CARDS = load_gpus()


@pytest.mark.parametrize("name", mixture_rows())
def test_parameters_of_named_mixtures_are_the_published_ones(name: str):
    found = require_architecture(name)
    assert found.model.parameters == pytest.approx(found.parameters, rel=0.001)


@pytest.mark.parametrize(
    ("name", "billions"),
    # as their papers say: Mixtral 12.9, DeepSeek-V2 21 and V3 37, Qwen3 3.3 and 22, OLMoE 1.3, Llama 4 17
    [("mixtral-8x7b", 12.9), ("deepseek-v2", 21), ("deepseek-v3", 37), ("qwen3-30b-a3b", 3.3),
     ("qwen3-235b-a22b", 22), ("olmoe-1b-7b", 1.3), ("llama-4-scout", 17)],
)  # fmt: skip
def test_active_parameters_are_the_published_ones(name: str, billions: float):
    assert require_architecture(name).model.active / 1e9 == pytest.approx(billions, rel=0.03)


def test_a_config_json_gives_the_sizes_that_the_table_has():
    """As Hugging Face's library writes one of DeepSeek-V3, and one without the experts' number for each token."""
    config = {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 129280,
        "max_position_embeddings": 163840, "tie_word_embeddings": False, "n_group": 8, "topk_group": 4,
    }  # fmt: skip
    found = architecture_of_config(json.dumps(config), "config.json")
    known = require_architecture("deepseek-ai/DeepSeek-V3").model
    assert found is not None and found.model == replace(known, published=None, name="config.json")
    del config["num_experts_per_tok"]
    with pytest.raises(api.AdvisorError, match="without num_experts_per_tok"):
        architecture_of_config(json.dumps(config), "config.json")


def run(name: str, gpu: str) -> LayoutRun:
    model = require_architecture(name).model
    return LayoutRun(
        model=model, layout=Layout(), gpu=CARDS[gpu], seq_len=8192, micro_batch=1, micro_batches=1, software="nemo"
    )


def test_llama_3_405b_is_cut_as_meta_cut_it():
    """TP8, PP16, DP128 on 16,384 H100 with 2,048 sequences a step (Grattafiori et al. 2024, table 4)."""
    best = search(run("llama-3.1-405b", "h100-80gb-sxm"), 16384, 2048).best
    assert best is not None
    cut = best.workload.layout
    assert (cut.tensor, cut.pipeline, cut.data) == (8, 16, 128)
    assert best.mfu.low < 0.41 < 1.1 * best.mfu.high


def test_whole_runs_take_what_their_owners_say(call):
    """GPU hours by Meta's model cards: each within half, and two of three inside the 80 % interval."""
    runs = (
        ("llama-3-70b", "h100-80gb-sxm", 1024, 15e12, 8192, 6.4e6),
        ("llama-3.1-405b", "h100-80gb-sxm", 16384, 15.6e12, 8192, 30.84e6),
        ("llama-2-70b", "a100-80gb-sxm", 1024, 2e12, 4096, 1.72e6),
    )
    inside = 0
    for name, gpu, gpus, tokens, seq_len, hours in runs:
        words = f"--model {name} --gpu {gpu} --gpus {gpus} --tokens {tokens:.0f} --seq-len {seq_len}"
        _, out, _ = call("plan", "--layout", "any", *words.split(), "--json")
        bill = json.loads(out)["chosen"]["bill"]
        whole, usd = bill["wall_clock"]["total_seconds"], bill["cost_usd"]
        assert whole["value"] * gpus / 3600 == pytest.approx(hours, rel=0.5)
        assert usd["low"] < usd["value"] < usd["high"]
        inside += whole["low"] < 3600 * hours / gpus < whole["high"]
    assert inside >= 2


def test_a_whole_run_takes_longer_than_its_steps_by_what_published_ones_did():
    """By hand: steps, times the shipped factor, times what failures and waiting for checkpoints add."""
    step = Estimate(value=10.0, low=8.0, high=12.0, basis=Basis.PRIOR)
    law = replace(load_law(), deviation=0.2, whole=0.25, whole_deviation=0.3)
    clock, failures = whole_run(step, 1e5, 1024, 70_000_000_000, law)
    lost, saving = clock.interruptions_seconds.value, clock.checkpoints_seconds.value
    assert clock.steps_seconds.value == pytest.approx(1e6 * math.exp(0.25))
    assert clock.total_seconds.value == pytest.approx(clock.steps_seconds.value + lost + saving)
    assert 0 < saving < lost < 0.02 * clock.steps_seconds.value and failures > 1
    assert clock.total_seconds.high / clock.total_seconds.low > 1.5 * math.exp(
        2 * 1.2816 * 0.1
    )  # wider than the step's by 0.1


def test_of_layouts_that_are_as_fast_the_one_that_is_easiest_to_set_up_is_taken():
    """Llama 3 8B on 64 A100: FSDP alone, where tensor and data parallelism together are as fast."""
    best = search(run("llama-3-8b", "a100-80gb-sxm"), 64, 512).best
    assert best is not None and best.workload.layout.sharding == "full"
    assert (best.workload.layout.tensor, best.workload.layout.pipeline) == (1, 1)


def test_long_sequences_are_cut_and_half_of_the_products_may_be_recomputed():
    found = search(run("llama-3.1-405b", "h100-80gb-sxm"), 16384, 2048).best
    assert (
        found is not None
        and found.workload.activation_checkpointing == "selective"
        and found.workload.layout.context == 1
    )
    long = search(replace(run("llama-3.1-405b", "h100-80gb-sxm"), seq_len=131_072), 16384, 128).best
    assert long is not None and long.workload.layout.context > 1  # 16 pieces in Grattafiori et al. 2024, table 4


def test_the_answer_says_how_the_gpus_share_the_model_and_why_others_lose(call):
    words = "--layout any --model mixtral-8x7b --gpu h100-80gb-sxm --gpus 16,64 --tokens 100B --budget 100k"
    code, out, _ = call("plan", *words.split())
    assert code == 0
    said = " ".join(out.split())
    assert "Train mixtral-8x7b (46.7 B parameters, 12.9 B active) on" in said and "EP8" in said
    assert "slower, most of it in" in said and "the fullest GPU holds" in said
    assert "uneven routing takes up to" in said and "assumed, because not given" in said


@pytest.mark.parametrize("objective", ["cost", "time"])
def test_only_the_fastest_and_the_cheapest_of_all_machines_are_called_so(objective):
    gpus = "a100-80gb-sxm,h100-80gb-sxm,h200-141gb-sxm,b200,l40s"
    goal = goal_from({"gpu": gpus, "layout": "any", "model": "mixtral-8x7b", "objective": objective})
    plan = recommend(goal, Store("/nonexistent"))
    runs, named = best_runs(plan), named_runs(plan, 3)
    assert len(named) == 3 and len({label for _, label in named}) == 3
    for run, label in named:
        if "fastest" in label:
            assert run.total_seconds.value == min(one.total_seconds.value for one in runs)
        if "cheapest" in label:
            assert run.cost_usd.value == min(one.cost_usd.value for one in runs if one.cost_usd)
        if label in ("faster", "cheaper"):
            amount = (lambda r: r.total_seconds.value) if label == "faster" else (lambda r: r.cost_usd.value)
            assert amount(run) < amount(plan.chosen)
    assert {"cost": "cheapest", "time": "fastest"}[objective] in named[0][1]


def test_from_python_a_row_for_each_number_of_gpus():
    answer = api.plan(layout="any", model="llama-3-8b", gpu="h100-80gb-sxm", gpus="8,64", tokens="1T")
    frame = answer.to_frame()
    assert set(frame["gpus"]) == {8, 64} and all("DP" in layout for layout in frame["layout"])
    assert json.loads(answer.to_json())["sentence"].startswith("Train llama-3-8b")


def test_products_in_8_bits_are_planned_where_the_gpu_has_units_for_them(call):
    """Published runs of whole steps gain 10 to 50 %, never the factor of two of the data sheet."""
    words = "plan --layout any --model llama-3-70b --gpus 64 --tokens 100B --json --precision"
    hours = {}
    for precision in ("bf16", "fp8"):
        code, out, error = call(*words.split(), precision, "--gpu", "a100-80gb-sxm,h100-80gb-sxm")
        answer = json.loads(out)
        assert code == 0, error
        assert "h100" in answer["chosen"]["offer"]["gpu"]
        hours[precision] = answer["chosen"]["bill"]["wall_clock"]["total_seconds"]["value"]
    assert 1.1 < hours["bf16"] / hours["fp8"] < 1.6
    assert answer["search"]["does_not_fit"] == ["a100-80gb-sxm (it has no fp8)"]


def test_a_plan_for_other_software_is_not_launched_and_its_numbers_are_explained(call, tmp_path: Path):
    asked = "plan --layout any --model mixtral-8x7b --gpu h100 --gpus 16 --tokens 1B --json"
    (file := tmp_path / "plan.json").write_text(call(*asked.split())[1])
    for words in (("launch", str(file)), ("export", str(file), "--to", "script")):
        code, _, error = call(*words)
        assert code == 2 and "other software trains this plan" in error, error
    plan = api.plan(layout="any", model="mixtral-8x7b", gpu="h100", gpus=16, tokens="1B")
    run, row = plan.chosen, plan.rows[0]
    assert row["device_bytes"] == run.prediction.device_bytes
    assert run.standing.ratio == pytest.approx(1 / 12.9, rel=0.01)
    assert run.prediction.device_bytes.value > run.prediction.peak_allocated_bytes.value  # the driver's come on top
    memory = api.explain(plan, "memory")
    assert memory.record.value == run.prediction.device_bytes and "activations" in memory.record.inputs["peak_parts"]
    hours = api.explain(plan, "hours").record
    took = hours.inputs["beyond_steps"] * run.steps * run.step_seconds.value
    assert run.bill.wall_clock.steps_seconds.value == pytest.approx(took, rel=0.01)
    assert any("layouts.yaml" in one for one in hours.rests_on) and any("--seq-len" in one for one in hours.rests_on)
    with pytest.raises(api.AdvisorError, match="no number 'loss'"):
        api.explain(plan, "loss")


def test_an_answer_explains_only_the_stages_that_it_has(call):
    words = "plan --layout any --model {} --gpu h100 --gpus {} --tokens 100B"
    _, split, _ = call(*words.format("llama-3.1-405b", 1024).split())
    _, whole, _ = call(*words.format("llama-3-8b", 8).split())
    named = split.split(" parameters")[1].split(" PP")[1].split()[0]  # such as 16x4
    stages, _, pieces = named.partition("x")
    assert f"{stages} pipeline stages" + (f" of {pieces} pieces each" if pieces else ",") in " ".join(split.split())
    assert "pipeline stages" not in whole


@pytest.mark.parametrize(("counts", "factor"), [("768", 3), ("7", 7), ("24,40", 15), ("64,256", 1)])
def test_an_assumed_batch_divides_by_every_number_of_gpus(call, counts: str, factor: int):
    words = f"plan --layout any --model gpt2 --gpu h100 --gpus {counts} --tokens 10B --json"
    code, out, error = call(*words.split())
    answer = json.loads(out)
    assert code == 0, error
    [batch] = [said for said in answer["assumed"] if said.startswith("--global-batch ")]
    sequences = int(batch.split()[1]) // 1024  # gpt2's context
    assert sequences % factor == 0 and math.log2(sequences / factor).is_integer()
    runs = [answer["chosen"], *answer["search"]["machines"]]
    assert {run["offer"]["gpus"] for run in runs} == set(map(int, counts.split(",")))


def test_a_layout_that_would_be_faster_and_does_not_fit_has_no_larger_micro_batch(call):
    seen = 0
    for model, gpus in (("llama-3-70b", 64), ("llama-3.1-405b", 1024), ("mixtral-8x22b", 64)):
        words = f"plan --layout any --model {model} --gpu h100-80gb-sxm --gpus {gpus} --tokens 1T --json"
        plan = json.loads(call(*words.split())[1])
        best = plan["chosen"]["prediction"]
        for other in (run for run in plan["considered"] if run["standing"]["why"] == "does not fit"):
            seen, too_large = seen + 1, other["prediction"]
            assert too_large["workload"]["micro_batch"] <= best["workload"]["micro_batch"]
            assert too_large["step_seconds"]["value"] < best["step_seconds"]["value"]
    assert seen


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--layout any --model gpt2 --gpu h100 --precision fp32", "planned with 16-bit or 8-bit products"),
        ("--layout any --model gpt2 --gpu a100-80gb-sxm --precision fp8", "it has no fp8"),
        ("--layout any --gpu h100", "--layout any needs a model"),
        ("--layout any --model gpt2 --gpu h100 --depth 4", "--depth changes nothing of a plan over layouts"),
        ("--layout any --model no-such-model --gpu h100", "--model no-such-model: unknown"),
        ("--model Qwen3-8 --gpu h100", "did you mean qwen3-8b or "),
        (
            "--layout any --model llama-3.1-405b --gpu h100-80gb-sxm --gpus 8 --tokens 1B",
            "does not fit 8 x h100-80gb-sxm: needs about ",
        ),
        ("--model mixtral-8x7b --gpu h100", "--layout any --model mixtral-8x7b"),
    ],
)
def test_what_cannot_be_meant_is_refused(call, tmp_path: Path, words: str, said: str):
    code, _, error = call("plan", *words.replace("plan.yaml", str(tmp_path / "plan.yaml")).split())
    assert code in (2, 3) and said in " ".join(error.split())


@pytest.mark.parametrize(
    ("words", "hints"),
    [
        ("--model llama-3-8b --gpu 4090 --gpus 4", 2),
        ("--model llama-3-8b --gpu h100 --gpus 7 --global-batch 262144", 2),  # 32 sequences do not divide by 7, 35 do
        ("--model mixtral-8x7b --gpu h100 --gpus 8", 2),
        ("--model llama-3-8b --gpu a100-80gb-sxm --gpus 64 --precision fp8", 2),
    ],
)
def test_each_hint_where_no_layout_fits_is_one_that_fits(words, hints):
    run = ["plan", "--layout", "any", "--tokens", "10B", *words.split()]
    refused = command(*run, expect=3)
    hint = " ".join(refused.stderr.partition("feasible with ")[2].split())
    changes = re.findall(r"\(([^)]*)\)", hint)
    assert len(changes) == hints and ("--global-batch 286720" in hint) == ("--gpus 7" in words)
    for change in changes:
        command(*run, *change.split(), expect=0)
