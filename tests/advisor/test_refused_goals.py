"""A goal that nothing surely meets: the only GPU gets a plan with a warning, else the nearest is named with numbers."""

import re

import pytest

from tests.terminal import advisor, document

LIKELY = (
    "--model llama-3.1-8b --finetune lora --examples 5k --own rtx-4090 --length 2048",
    "--params 1.35B --gpu rtx-4090 --seq-len 2048 --synthetic --tokens 1B",
    "--model llama-2-70b --layout any --gpu a100 --gpus 16 --tokens 1B",
    "--model qwen2.5-3b --rl grpo --prompts 5k --own rtx-4090 --lora --response-max 8192",
)


@pytest.mark.parametrize("words", LIKELY)
def test_the_only_gpu_gets_the_likeliest_plan_and_is_told_what_surely_fits(words):
    run = ["plan", *words.split()]
    plan = document(*run)
    found, warning = plan["chosen"]["prediction"], plan["warnings"][0]
    assert 0.5 <= found["fit_probability"] < 0.9 and found["fits"] is None
    odds = f"may not fit ({int(100 * found['fit_probability'])} % chance that it fits): needs about "
    assert warning.startswith(odds) and " 90 % or more with " in warning
    assert f"! {odds}" in " ".join(advisor(*run, expect=0).stdout.split("\n\n")[0].split())  # above the tables
    change = re.findall(r"\(([^)]*)\)", warning)[-1]
    assert document(*run, *change.split())["chosen"]["prediction"]["fits"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (LIKELY[0].replace("lora", "qlora").replace("2048", "8192"), "45 % chance that it fits"),
        ("--model qwen2.5-7b --rl grpo --prompts 5k --own rtx-4090", r"needs about 1\d\d GiB, and the GPU has 24 GiB"),
        (
            "--model qwen2.5-7b --rl grpo --prompts 5k --gpu rtx-3090 --gpus 1",
            r"needs about 1\d\d GiB, and the GPU has 24 GiB",
        ),
    ],
)
def test_what_hardly_fits_is_refused_with_its_memory_and_the_nearest_changes(words, said):
    refused = " ".join(advisor("plan", *words.split(), expect=3).stderr.split())
    changes = re.findall(r"\(([^)]*)\)", refused.partition("hint: ")[2])
    assert re.search(said, refused) and changes and ("--own" not in words or not re.search(r"--gpus (?!1\b)", refused))
    assert ("--lora" in refused and "--model qwen2.5-" in refused) == ("grpo" in words)
    for change in changes:
        advisor("plan", *words.split(), *change.split(), expect=0)


def test_a_step_is_predicted_where_it_cannot_fit_and_says_what_it_needs():
    step = document("predict", "--rl", "grpo", "--model", "qwen2.5-7b", "--gpu", "rtx-4090", expect=3)
    assert step["fits"] is False and step["peak_allocated_bytes"]["value"] > 100e9
    refused = advisor("predict", "--rl", "grpo", "--model", "qwen3-32b", "--gpu", "l4", expect=3).stderr
    assert re.search(r"an update needs about \d+ GiB per GPU, which has 2\d", " ".join(refused.split()))


@pytest.mark.parametrize(
    "words",
    [
        "--model llama-3.1-8b --finetune lora --examples 50k --gpu any --budget 10 --deadline 3h",
        "--model qwen2.5-7b --rl grpo --prompts 20k --gpu any --budget 20",
        "--model llama-3.1-8b --layout any --gpu h100 --gpus 8,16,32 --tokens 100B --budget 500 --deadline 10d",
    ],
)
def test_the_nearest_run_breaks_one_limit_and_exceeds_it_least(words):
    plan = document("plan", *words.split(), expect=3)
    runs = [plan["chosen"], *plan["search"]["machines"]]
    dear = [run["bill"]["cost_usd"]["value"] for run in runs if run["standing"]["against"] == ["money"]]
    assert plan["chosen"]["standing"]["against"] == ["money"] and len(dear) > 1
    assert plan["chosen"]["bill"]["cost_usd"]["value"] == min(dear)


def test_the_cheapest_run_of_a_refused_goal_keeps_its_deadline():
    words = "plan --depth 24 --gpu any --deadline 4h --tokens 4B --budget 20 --synthetic"
    refused = " ".join(advisor(*words.split(), expect=3).stderr.split())
    usd = float(re.search(r"needs \$([\d.]+) within 4 h", refused)[1])
    assert usd < float(re.search(r"--budget (\d+)", refused)[1]) < 1.1 * usd
