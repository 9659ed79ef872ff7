"""RL post-training: the golden values of published steps, and plans through the command."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
from pathlib import Path

import pytest

from advisor import api
from advisor.hardware.catalog import require_gpu
from advisor.planning.models import require_architecture
from advisor.prediction.generation import Answers, Engines, generate, kv_token_bytes, rl_constants, weights_read
from advisor.store.store import Store
from benchmarks.rows.rl import predicted_row
from tests.terminal import advisor, document

TABLE = Path(__file__).parents[2] / "benchmarks/rl_runs.csv"
QWEN = ("plan", "--rl", "grpo", "--model", "Qwen/Qwen3-8B", "--prompts", "20k", "--prompt-len", "300")
LENGTHS = ("--response-len", "1200", "--response-max", "4096")
ONE = (*QWEN, *LENGTHS, "--gpu", "8xh100")


def took(model: str, gpu: str, answers: tuple[int, int, float, float, int], copies: int, tensor: int, **more) -> float:
    prompts, group, prompt, mean, longest = answers
    found = generate(
        require_architecture(model).model,
        Answers(prompts=prompts, group=group, prompt_len=prompt, response_len=mean, response_max=longest),
        Engines(gpu=require_gpu(gpu), copies=copies, tensor=tensor, memory_share=more.pop("share", 0.6), **more),
    )
    assert found is not None
    return found.seconds


# What published logs say that generation took (NVIDIA-NeMo/RL #959, verl on 8 H100 and on 8 H20), and by hand from the
# formula: 66 s, 22 s, 43 s and 177 s.
@pytest.mark.parametrize(
    ("model", "gpu", "answers", "copies", "tensor", "by_hand", "measured"),
    [
        ("llama-3.1-8b", "h100", (64, 32, 127, 795, 3969), 8, 1, 66, 58),
        ("qwen2.5-7b", "h100", (1024, 5, 93, 232, 1024), 4, 2, 22, 26.7),
        ("qwen2.5-7b", "h20", (1024, 5, 93, 190, 1024), 8, 1, 43, 42.5),
        ("qwen3-32b", "h100", (64, 32, 104, 3251, 4096), 8, 4, 177, None),
    ],
)
def test_generation_takes_what_the_formula_gives_by_hand_and_about_what_was_measured(
    model, gpu, answers, copies, tensor, by_hand, measured
):
    seconds = took(model, gpu, answers, copies, tensor)
    assert seconds == pytest.approx(by_hand, rel=0.15)
    assert measured is None or seconds == pytest.approx(measured, rel=0.2)


def test_more_engines_shorten_the_crowd_but_not_the_tail():
    work = (128, 16, 300, 1500, 28_000)
    few, many = (took("qwen2.5-7b", "h100", work, copies, 1) for copies in (8, 16))
    # One answer of 28,000 tokens: each takes the fixed 4 ms, 40 µs, and one reading of 15.2 GB at 0.6 of 3.35 TB/s.
    alone = 28_000 * (0.004 + 40e-6 + require_architecture("qwen2.5-7b").model.parameters * 2 / (0.6 * 3.35e12))
    assert alone < many < few < 1.7 * many


def test_engines_without_graphs_wait_for_each_launch():
    work = (16, 8, 100, 500, 2000)
    slow, fast = (took("qwen2.5-1.5b", "h100", work, 8, 1, eager=eager) for eager in (True, False))
    # The longest of 128 answers has 2,000 tokens; for each the GPU waits for the launches of 28 layers.
    assert slow == pytest.approx(2000 * 28 * rl_constants().eager_layer_seconds, rel=0.02)
    assert slow > 2 * fast
    large = [took("qwen2.5-32b", "h20", work, 1, 1, share=0.9, eager=eager) for eager in (True, False)]
    assert large[0] < 1.5 * large[1]  # 65 GB take longer to read than to launch


def test_an_engine_over_two_trays_of_a_rack_is_slower_than_one_in_a_machine():
    def seconds(gpu: str, tensor: int) -> float:
        one = ("--model", "qwen3-32b", "--gpu", f"16x{gpu}", "--rollout-gpus", "8", "--rollout-tp", f"{tensor}")
        found = document("predict", "--rl", "grpo", *one, "--prompts-per-step", "4", "--group", "4", *LENGTHS)
        return found["step_seconds"]["value"]

    assert seconds("b200", 8) < seconds("b200", 4)  # machines of eight GPUs
    assert seconds("gb200", 8) > 1.2 * seconds("gb200", 4)  # trays of four


def test_a_mixture_reads_nearly_all_experts_at_any_useful_batch():
    model = require_architecture("qwen3-30b-a3b").model
    routed = 48 * 128 * 3 * 2048 * 768
    one, many = weights_read(model, 1.0), weights_read(model, 64.0)
    assert one == pytest.approx(model.parameters - routed * (1 - 8 / 128), rel=1e-6)
    assert many == pytest.approx(model.parameters - routed * (1 - 8 / 128) ** 64, rel=1e-6)
    assert many > 0.98 * model.parameters
    assert kv_token_bytes(model) == 2 * 48 * 4 * 128 * 2
    assert kv_token_bytes(model, 8) == 2 * kv_token_bytes(model)  # eight GPUs, four heads: each is stored twice


def test_a_plan_says_who_generates_how_long_a_step_takes_and_what_would_change_it():
    found = document(*QWEN, *LENGTHS, "--gpu", "h100", "--gpus", "8,16", "--budget", "300")
    run = found["run"] or found["chosen"]
    rollouts = run["prediction"]["workload"]["rollouts"]
    assert run["steps"] == math.ceil(20_000 / 128) and rollouts["group"] == 8
    parts, step = run["prediction"]["step_parts"], run["prediction"]["step_seconds"]
    assert step["low"] < step["value"] < step["high"]
    if rollouts["colocated"]:
        assert sum(parts.values()) == pytest.approx(step["value"])
    else:  # engines and trainer work at the same time
        both = max(parts["generation"] + parts["reward"], parts["log_probs"] + parts["update"])
        assert both + parts["sync"] + parts["rest"] == pytest.approx(step["value"])
    assert run["bill"]["cost_usd"]["value"] <= 300
    shown = advisor(*QWEN, *LENGTHS, "--gpu", "h100", "--gpus", "8,16", expect=0, COLUMNS=300).stdout
    assert "Post-train qwen3-8b by GRPO with verl on" in shown and "157 steps of 128 prompts with 8" in shown
    assert "GPUs instead of" in shown and "--response-max 2048 instead of 4096: a step" in shown
    assert "train + generate" in shown and "colocated" in shown


def test_the_limit_of_the_answers_sets_the_step_and_not_the_gpus():
    words = ("--gpu", "8xh100", "--placement", "colocated", "--group", "16", "--response-len", "300")
    shown = advisor(*QWEN, *words, "--response-max", "16384", expect=0, COLUMNS=300).stdout
    assert "the longest answers set the step, not the number of GPUs" in shown
    gains = re.findall(r"(\d+) GPUs instead of \d+: a step (?:(\S+) times|no faster)", shown)
    assert [count for count, _ in gains] == ["16"] and float(gains[0][1] or 1) < 1.3  # though no plan of 16 was asked


def hours(*more: str) -> float:
    found = document(*QWEN, "--gpu", "h100", "--gpus", "8", *more)
    return (found["run"] or found["chosen"])["bill"]["wall_clock"]["total_seconds"]["value"] / 3600


def test_longer_answers_turns_and_tools_take_longer():
    usual = hours(*LENGTHS)
    assert hours(*LENGTHS, "--response-len-end", "2400") > 1.2 * usual
    assert hours("--response-len", "1200", "--response-max", "16384") > 1.5 * usual  # the tail
    with_tools = hours(*LENGTHS, "--turns", "4", "--tool-seconds", "60s", "--placement", "colocated")
    without = hours(*LENGTHS, "--turns", "4", "--placement", "colocated")
    assert with_tools - without >= 157 * 3 * 60 / 3600  # three times a minute in each of 157 steps


def test_steps_that_were_timed_beat_what_published_runs_say(tmp_path):
    (tmp_path / "steps.csv").write_text("step_seconds\n400\n200\n201\n199\n")  # the first one warms up
    one = (*QWEN, *LENGTHS, "--gpu", "8xh100")
    alone, timed = document(*one), document(*one, "--measured", tmp_path / "steps.csv")
    before, after = ((found["run"] or found["chosen"])["prediction"]["step_seconds"] for found in (alone, timed))
    assert (
        after["value"] == pytest.approx(200.5) and after["high"] / after["low"] < 1.3 < before["high"] / before["low"]
    )
    shown = advisor(*one, "--measured", tmp_path / "steps.csv", expect=0, COLUMNS=300).stdout
    assert "your 4 timed steps take" in shown
    (tmp_path / "four.csv").write_text("gpus,step_seconds\n4,300\n")
    other = document(*one, "--measured", tmp_path / "four.csv")
    step = (other["run"] or other["chosen"])["prediction"]["step_seconds"]
    assert step["high"] / step["low"] > 1.5  # on twice as many GPUs
    (tmp_path / "odd.csv").write_text("step_seconds\nsoon\n")
    assert "line 2" in advisor(*one, "--measured", tmp_path / "odd.csv", expect=2).stderr
    words = advisor(*QWEN, "--gpu", "any", "--measured", tmp_path / "steps.csv", expect=2).stderr
    assert "one type of GPU" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rl", "grpo", "--prompts", "1k", "--gpu", "h100"), "--rl needs a model"),
        (("--group", "8", "--gpu", "h100"), "--group is of RL post-training"),
        (("--rl", "grpo", "--model", "qwen3-8b", "--gpu", "h100"), "500 steps of 128 are --prompts 64k"),
        ((*QWEN[1:], "--gpu", "h100", "--software", "megatron"), "no program for RL post-training"),
        (
            (*QWEN[1:], "--gpu", "h100", "--response-len", "5000", "--response-max", "4000"),
            "longer than --response-max",
        ),
        ((*QWEN[1:], "--gpu", "h100", "--finetune", "lora"), "--rl and --finetune are two plans"),
        ((*ONE[1:], "--placement", "colocated", "--rollout-gpus", "2"), "--rollout-gpus is of split GPUs"),
        ((*ONE[1:], "--placement", "colocated", "--staleness", "2"), "--staleness is of split GPUs"),
        ((*ONE[1:], "--software", "trl", "--staleness", "1"), "trl does not generate while it trains"),
        ((*QWEN[1:], "--gpu", "h100", "--num-generations", "8"), "here it is --group"),
        ((*QWEN[1:], "--gpu", "h100", "--vllm-gpu-memory-utilization", "0.5"), "here it is --rollout-memory"),
    ],
)
def test_what_makes_no_plan_is_refused_in_a_sentence(options, words):
    assert words in " ".join(advisor("plan", *options, expect=2).stderr.split())


def test_a_model_that_fits_nowhere_says_so():
    done = advisor("plan", "--rl", "grpo", "--model", "qwen3-32b", "--prompts", "1k", "--gpu", "1xl4", expect=3)
    words = " ".join(done.stderr.split())
    assert re.search(r"does not fit 1 x l4: needs about \d+ GiB, and the GPU has 2\d", words)
    count = words.partition("--gpu l4 --gpus ")[2].partition(")")[0]
    advisor("plan", "--rl", "grpo", "--model", "qwen3-32b", "--prompts", "1k", "--gpu", "l4", "--gpus", count, expect=0)


def test_one_configuration_is_predicted_as_the_plan_predicts_it():
    one = ("--rl", "grpo", "--model", "qwen3-8b", "--gpu", "8xh100", *LENGTHS)
    plan = document("plan", *one, "--prompts", "20k")
    planned = (plan["run"] or plan["chosen"])["prediction"]
    alone = document("predict", *one)
    for name in ("step_seconds", "tokens_per_second", "fit_probability"):
        assert alone[name] == planned[name]
    split = document("predict", *one, "--rollout-gpus", "2", "--rollout-tp", "2")["workload"]
    assert split["gpus"] == 6 and split["rollouts"]["engine_tensor"] == 2 and not split["rollouts"]["colocated"]
    shown = advisor("predict", *one, expect=0, COLUMNS=300).stdout
    assert "one step of GRPO of qwen3-8b with verl on 8 x h100-80gb-sxm: 1,024 answers of 1,200 tokens" in shown
    assert "a step of" in shown and "new weights to the engines" in shown
    assert "--group is of RL" in advisor("predict", "--gpu", "l4", "--model", "gpt2", "--group", "4", expect=2).stderr
    assert "GPU memory by phase: generate" in shown
    large = ("--rl", "grpo", "--model", "qwen3-32b", "--gpu", "8xh100", *LENGTHS)
    found = document("predict", *large)
    assert found["fits"] is not True and found["would_fit"][0] == "--lora"
    assert document("predict", *large, "--lora")["fits"]
    assert "--tp changes nothing" in advisor("predict", *one, "--tp", "2", expect=2).stderr


def test_a_step_of_rl_is_explained_by_its_own_parts():
    plan = api.plan(rl="grpo", model="qwen3-8b", gpu="8xh100", prompts="20k", response_len=1200, response_max=4096)
    step = api.explain(plan, "step_seconds").record
    assert step.formula.startswith("generation + rewards") and step.inputs["step_parts"]["generation"] > 0
    rate = api.explain(plan, "tokens_per_second").record
    assert rate.value.value == pytest.approx(rate.inputs["step_tokens"] / rate.inputs["step_seconds"].value)


def test_rows_of_runs_are_predicted_with_what_was_assumed(tmp_path):
    columns = ("rl", "name", "model", "software", "gpu", "gpus", "prompts-per-step", "group", "prompt-len",
               "response-len", "response-max")  # fmt: skip
    rows = [
        ("grpo", "a", "Qwen2.5-7B", "verl", "h100", "8", "1024", "5", "93", "232", "1024"),
        ("grpo", "b", "Qwen2.5-7B", "verl", "h100", "8", "", "", "", "", "1024"),
        ("grpo", "c", "Qwen2.5-7B", "verl", "h100", "many", "1024", "5", "93", "232", "1024"),
    ]
    with (tmp_path / "rl.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    done = advisor("predict", "--rows", tmp_path / "rl.csv", expect=0)
    first, second, odd = (json.loads(line) for line in done.stdout.splitlines())
    assert first["step_seconds"]["low"] < 80.3 < first["step_seconds"]["high"]  # of a published run of 105 steps
    assert any(one.startswith("--response-len") for one in second["assumed"])
    assert second["step_seconds"]["high"] / second["step_seconds"]["low"] > 4  # the lengths are a guess
    assert odd["error"] == "--gpus: 'many' is not a whole number"
    with (tmp_path / "rl.csv").open("w", newline="") as file:  # the columns of benchmarks/rl_runs.csv
        csv.writer(file).writerows([["rl", "group_size", "mode"], ["grpo", "5", "colocated"]])
    done = advisor("predict", "--rows", tmp_path / "rl.csv", expect=2)
    assert "group_size is now group; mode is now placement" in done.stderr


# Mixtures on GB200, whose launches and engines over trays take long; engines that finish before each update (NeMo RL);
# engines without graphs (verl of 2025); models of 8 to 235 billion parameters: 20 of 45 rows.
@pytest.mark.parametrize(
    ("wanted", "low", "high"),
    [
        (("nemo-01", "nemo-08", "nemo-10", "nemo-24", "nemo-27", "nemo-28", "hyg-1", "hyg-2", "ehl-fsdp2"), 0.75, 1.3),
        (("nemo-18", "nemo-19", "nemo-20", "nemo-21", "nemo-38", "nemo-40", "nemo-41"), 0.7, 1.25),
        (("nemo-02", "nemo-09", "nemo-11", "nemo-29"), 0.8, 1.25),
    ],
)
def test_published_steps_take_about_what_was_measured(tmp_path, wanted, low, high):
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file) if row["id"] in wanted}
    for one in wanted:
        found = predicted_row({name: cell for name, cell in rows[one].items() if cell}, Store(tmp_path)).way.step
        assert low < found.step_seconds.value / float(rows[one]["step_seconds"]) < high, one


# What verl's page says to run, with everything possible in the host's memory.
@pytest.mark.parametrize(
    ("model", "gpus", "more"),
    [
        ("qwen2.5-7b", "2xh800", ()),
        ("qwen2.5-32b", "8xh20", ()),
        ("qwen2.5-7b", "1xh100", ("--lora",)),
        ("qwen2.5-32b", "4xh100", ("--lora",)),
    ],
)
def test_documented_minima_are_said_to_fit_likely(model, gpus, more):
    one = ("--rl", "grpo", "--model", model, "--gpu", gpus, "--response-len", "250", "--response-max", "1024")
    found = document("predict", *one, *more)
    assert found["fit_probability"] > 0.5
    # the chance and the 80 % interval are of one distribution
    usable = 0.97 * {"h800": 79.6, "h100": 79.6, "h20": 95.6}[gpus[2:]] * 2**30
    assert (found["fit_probability"] >= 0.9) == (found["peak_allocated_bytes"]["high"] <= usable)


def test_models_that_think_are_assumed_to_answer_at_length():
    def assumed(model: str) -> float:
        found = document("predict", "--rl", "grpo", "--model", model, "--gpu", "8xh100", "--response-max", "8192")
        return found["workload"]["rollouts"]["response_len"]

    assert assumed("qwen3-8b") > 2.5 * assumed("qwen2.5-7b")


def test_a_run_takes_little_more_than_its_steps():
    plan = api.plan(rl="grpo", model="qwen3-8b", gpu="8xh100", prompts="20k", response_len=1200, response_max=4096)
    chosen = plan.run or plan.chosen
    steps = chosen.steps * plan.prediction.step_seconds.value
    assert plan.bill.wall_clock.steps_seconds.value == pytest.approx(1.04 * steps)
    assert plan.bill.wall_clock.total_seconds.value < 1.1 * steps
    assert api.explain(plan, "total_seconds").record.inputs["beyond_steps"] == pytest.approx(1.04)


def test_the_start_of_verl_and_trl_has_what_the_plan_says(tmp_path):
    one = (*QWEN[1:], *LENGTHS, "--gpu", "8xh100", "--placement", "colocated")
    plan = document("plan", *one)
    rollouts = (plan["run"] or plan["chosen"])["prediction"]["workload"]["rollouts"]
    said = " ".join(advisor("plan", *one, "--out", tmp_path / "run.sh", expect=0).stdout.split())
    assert "1. install verl (`git clone https://github.com/verl-project/verl && cd verl && uv sync " in said
    verl = dict(
        word.split("=", 1) for word in shlex.split((tmp_path / "run.sh").read_text().replace("\\\n", " "), True)[3:]
    )
    assert verl["algorithm.adv_estimator"] == "grpo" and verl["trainer.total_training_steps"] == "157"
    assert verl["data.train_batch_size"] == "128" and verl["actor_rollout_ref.rollout.n"] == "8"
    assert verl["data.max_response_length"] == "4096" and verl["actor_rollout_ref.model.path"] == "Qwen/Qwen3-8B"
    assert int(verl["actor_rollout_ref.rollout.tensor_model_parallel_size"]) == rollouts["engine_tensor"]
    assert float(verl["actor_rollout_ref.rollout.gpu_memory_utilization"]) == rollouts["memory_share"]
    advisor("plan", *one, "--software", "trl", "--lora", "--out", tmp_path / "trl.sh", expect=0)
    words = shlex.split((tmp_path / "trl.sh").read_text().replace("\\\n", " "), True)
    assert words[:2] == ["trl", "grpo"] and words[words.index("--num_generations") + 1] == "8"
    assert words[words.index("--lora_r") + 1] == "16"
    assert (
        "no file is written for skyrl"
        in advisor("plan", *one, "--software", "skyrl", "--out", tmp_path / "sky.sh", expect=2).stderr
    )


# What the start file of a program cannot say, and the nearest plan, of which a file is written.
@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ("--software trl --placement split --staleness 1", "--staleness 0"),
        ("--software trl --judge qwen3-4b --judge-len 20", "--judge-len 0"),
        ("--software trl --gpu h100 --gpus 16", "--gpus 8"),
        ("--software trl --dropped-groups 0.3", "--dropped-groups 0"),
        ("--software trl --rollout-precision fp8", "--rollout-precision bf16"),
        ("--software verl --precision fp8", "--precision bf16"),
        ("--placement split --staleness 3 --judge qwen3-4b", "--judge-gpus 1"),
    ],
)
def test_what_no_start_file_says_is_refused_with_the_nearest_that_can_be_written(tmp_path, words, nearest):
    one = (*ONE, *words.split(), "--out", tmp_path / "run.sh")
    done = advisor(*one, expect=2)
    assert f"nearest: {nearest}" in done.stderr and not (tmp_path / "run.sh").exists()
    given, value = nearest.split()
    changed = [*one, given, value] if given not in one else [*one[: one.index(given) + 1], value,
                                                              *one[one.index(given) + 2 :]]  # fmt: skip
    advisor(*changed, expect=0)
    assert (tmp_path / "run.sh").exists()


def chosen(*words: str) -> dict:
    found = document(*words)
    return (found["run"] or found["chosen"])["prediction"]


def test_a_judge_is_a_part_of_the_step_by_its_own_arithmetic():
    judge = require_architecture("qwen3-32b").model
    rules = chosen(*ONE, "--placement", "colocated")["step_parts"]["reward"]
    # It reads 1,024 answers of 1,500 tokens at 40 % of 8 x 989 TFLOP/s; its weights come over 10 GB/s to each GPU.
    reads = 2 * judge.parameters * 1024 * 1500 / (0.4 * 8 * 989e12) + 2 * judge.parameters / 8 / 10e9
    words = ("--placement", "colocated", "--judge", "Qwen/Qwen3-32B", "--judge-len")
    only_reads = chosen(*ONE, *words, "0")["step_parts"]["reward"]
    assert only_reads - rules == pytest.approx(reads, rel=0.02)
    # Of 200 tokens in 1,024 judgements, each step takes at least the reading of the weights: 65 GB of 8 x 2 TB/s.
    writes = chosen(*ONE, *words, "200")["step_parts"]["reward"] - only_reads
    assert writes > 200 * 2 * judge.parameters / (0.6 * 8 * 3.35e12)


def test_a_judge_with_gpus_of_its_own_judges_while_others_generate():
    one = (*ONE, "--judge", "qwen3-8b", "--judge-len", "0")
    found, alone = chosen(*one, "--judge-gpus", "2"), chosen(*one)
    work = found["workload"]
    rollouts = work["rollouts"]
    assert rollouts["judge_gpus"] == 2 and rollouts["judge"] == "qwen3-8b"
    assert work["gpus"] + 2 + (0 if rollouts["colocated"] else rollouts["engine_gpus"]) == 8
    weights = 2 * require_architecture("qwen3-8b").model.parameters / rollouts["judge_tensor"]
    assert found["peak_parts"]["the judge's weights"] == pytest.approx(weights)
    assert found["step_parts"]["reward"] < alone["step_parts"]["reward"]  # only the last answer is waited for
    shown = " ".join(advisor(*one, "--judge-gpus", "2", expect=0, COLUMNS=300).stdout.split())
    assert "the judge's weights" in shown and "2 judge (qwen3-8b)" in shown and "rewards by qwen3-8b" in shown
    slow = advisor(*ONE, "--judge", "qwen3-32b", "--judge-gpus", "2", expect=0, COLUMNS=300).stdout
    assert "--judge-gpus 4 instead of 2: a step" in slow and "the judge sets the step" in slow
    too_large = advisor(*ONE, "--judge", "llama-3.1-70b", "--judge-gpus", "1", expect=3).stderr
    assert "llama-3.1-70b" in too_large and "--judge-gpus" in too_large
    assert "--judge nothing" in advisor(*ONE, "--judge", "nothing", expect=2).stderr
    assert "--judge-len is of a judge" in advisor(*ONE, "--judge-len", "3", expect=2).stderr


# The option, a part of the step, and how many times as long it becomes: without a reference model one pass of two is
# left; where 60 % of the groups are dropped, 2.5 times as many answers are generated.
@pytest.mark.parametrize(
    ("more", "part", "low", "high"),
    [
        (("--reference", "no"), "log_probs", 0.49, 0.51),
        (("--dropped-groups", "0.6"), "generation", 1.3, 2.5),
        (("--rollout-precision", "fp8"), "generation", 0.5, 0.95),
        (("--rollout-precision", "fp8"), "update", 0.99, 1.01),
        (("--precision", "fp8"), "update", 0.4, 0.95),
        (("--rollout-memory", "0.35"), "generation", 1.0, 3.0),
    ],
)
def test_what_can_be_said_of_a_step_changes_its_part(more, part, low, high):
    one = (*ONE, "--placement", "colocated", "--rollout-tp", "1")
    before, after = (chosen(*words)["step_parts"][part] for words in (one, (*one, *more)))
    assert low <= after / before <= high


def test_adapters_fit_where_people_train_them():
    for gpu, model, software in (("1xrtx-4090", "qwen2.5-3b", "trl"), ("8xh100", "qwen2.5-3b", "trl"),
                                 ("1xh100", "qwen2.5-7b", "verl"), ("4xh100", "qwen2.5-32b", "verl")):  # fmt: skip
        words = ("--gpu", gpu, "--model", model, "--software", software, "--response-max", "1024")
        found = document("predict", "--rl", "grpo", "--lora", "--placement", "colocated", *words)
        assert found["fits"], (gpu, model, found["fit_probability"])


# Tuned models have the sizes of their base (their config.json on the Hub), but a start file loads their own weights.
@pytest.mark.parametrize(
    ("named", "sizes"),
    [
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-Math-7B", "qwen2.5-7b"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"),
    ],
)
def test_a_tuned_model_is_planned_by_its_base_and_started_from_its_own_weights(tmp_path, named, sizes):
    one = ("--rl", "grpo", "--model", named, "--prompts", "1k", "--gpu", "8xh100")
    done = advisor("plan", *one, "--out", tmp_path / "run.sh", expect=0, COLUMNS=300)
    assert f"Post-train {sizes} by GRPO" in done.stdout
    assert f"actor_rollout_ref.model.path={named}" in (tmp_path / "run.sh").read_text()
