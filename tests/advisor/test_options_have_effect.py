"""An option that was typed changes the answer, or is refused in a sentence: each of them, in commands of each kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor.cli.plan import command as plan_command
from advisor.cli.predict import command as predict_command
from advisor.workflows.data import prepare_data
from tests.advisor.test_replan import log

ECHOED = ("goal", "id", "created", "path")  # of a plan's answer: what was asked, not what came of it
PLAN = {
    "--gpu": "rtx-4090", "--gpus": "2", "--own": "rtx-3090:2", "--budget": "7", "--deadline": "5h",
    "--value-of-time": "5", "--sure": None, "--tokens": "100M", "--params": "60M", "--model": "gpt2", "--depth": "6",
    "--width": "512", "--heads": "8", "--kv-heads": "2", "--ffn-width": "1024", "--data": "TOKENS",
    "--synthetic": None, "--data-tokens": "30M", "--epochs": "2", "--ratio": "40", "--ratio-counts": "total",
    "--inference-tokens": "1T", "--family": "llama", "--seq-len": "512", "--vocab-size": "5000", "--price": "0.9",
    "--provider": "runpod", "--spot": "any", "--objective": "cost", "--kwh-price": "0.4", "--grid-carbon": "50",
    "--power-cap": "300", "--interruptions": "2h", "--checkpoint-every": "7min", "--micro-batch": "3",
    "--network": "100G",
    "--global-batch": "64k", "--precision": "fp32", "--compile": None, "--no-compile": None,
    "--activation-checkpointing": "full", "--sharding": "full", "--optimizer": "muon",
    "--software": "deepspeed", "--gate": "50%",
    "--layout": "any", "--finetune": "lora", "--examples": "5k", "--length": "300", "--lora-rank": "8",
    "--stage": "dpo", "--measured": "RUNS",
    "--rl": "ppo", "--prompts": "5k", "--prompts-per-step": "64", "--group": "16", "--prompt-len": "900",
    "--response-len": "700", "--response-len-end": "1900", "--response-max": "2000", "--placement": "split",
    "--staleness": "3", "--turns": "3", "--tool-seconds": "20s", "--lora": None,
    "--rollout-gpus": "2", "--rollout-tp": "4", "--rollout-memory": "0.5", "--rollout-precision": "fp8",
    "--reward-seconds": "40s", "--judge": "qwen2.5-1.5b", "--judge-len": "20", "--judge-gpus": "1", "--reference": "no",
    "--dropped-groups": "0.3",
    "--depths": "4,8", "--download-rate": "10MB", "--was": "l4:1", "--config": "NOTES", "--from": "LOG",
    "--like": "NOTES", "--spent": "2min", "--may-change": "depth", "--stop-if-over": "10%",
}  # fmt: skip
PLANS = {
    "rented": ("--gpu", "l4", "--budget", "5"),
    "own": ("--own", "h100-80gb-sxm:8", "--deadline", "14d"),
    "own with a price": ("--own", "h100-80gb-sxm:8", "--price", "h100-80gb-sxm=2.5", "--budget", "300"),
    "a model": ("--gpu", "l4", "--model", "tinyllama-1.1b", "--tokens", "1B"),
    "a fine-tune": ("--gpu", "l4", "--model", "qwen2.5-7b", "--finetune", "qlora", "--examples", "50k"),
    "layouts": ("--layout", "any", "--model", "mixtral-8x7b", "--gpu", "h100-80gb-sxm", "--gpus", "64"),
    "RL": ("--rl", "grpo", "--model", "qwen2.5-7b", "--gpu", "h100-80gb-sxm", "--gpus", "2,8",
           "--prompts", "20k", "--response-len", "1000", "--response-max", "2500"),
    "again": ("--from", "LOG", "--gpu", "a100-80gb-sxm"),
}  # fmt: skip
# where an option rightly changes nothing, and why
PLAN_ALIKE = {
    ("rented", "--compile"): "as is usual on this card",
    ("own", "--compile"): "as is usual on this card",
    ("own with a price", "--compile"): "as is usual on this card",
    ("a model", "--compile"): "as is usual on this card",
    ("a model", "--spot"): "looked at too, and slower: without a limit the shortest run of settled work is taken",
    ("a model", "--objective"): "one machine and settled work: its shortest run is its cheapest",
    ("a fine-tune", "--sure"): "there is no limit to be sure of",
    ("a fine-tune", "--provider"): "it is the cheapest of all",
    ("a fine-tune", "--objective"): "dollars are what a fine-tune makes least",
    ("layouts", "--sure"): "there is no limit to be sure of",
    ("layouts", "--objective"): "one machine: its cheapest run is its shortest",
    ("RL", "--sure"): "there is no limit to be sure of",
    ("RL", "--objective"): "one machine: its cheapest run is its shortest",
    ("RL", "--tool-seconds"): "one turn needs no tool",
    ("again", "--spot"): "looked at too, and slower",
    ("again", "--objective"): "one machine and settled work: its shortest run is its cheapest",
    ("a model", "--family"): "it is one of that family",
    ("again", "--compile"): "as the run was",
}
PREDICT = {
    "--model": "gpt2", "--params": "60M", "--head-dim": "64", "--tied": None, "--software": "torchtune",
    "--gpu": "a100-80gb-sxm", "--gpus": "2", "--family": "llama", "--depth": "6", "--micro-batch": "3",
    "--seq-len": "512", "--vocab-size": "5000", "--width": "512", "--heads": "4", "--kv-heads": "2",
    "--ffn-width": "1024", "--grad-accum": "2", "--precision": "fp32", "--compile": None, "--no-compile": None,
    "--activation-checkpointing": "full", "--sharding": "full", "--zero": "2", "--optimizer": "muon",
    "--lora-rank": "8", "--lora-targets": "attention", "--freeze-blocks": "2", "--qlora": None, "--depths": "4,8",
    "--tokens": "1B",
    "--network": "100G",
    "--download-rate": "10MB", "--rows": "ROWS", "--tp": "2", "--pp": "2", "--cp": "2", "--ep": "4", "--vpp": "2",
    "--rl": "ppo", "--prompts-per-step": "64", "--group": "16", "--prompt-len": "900", "--response-len": "700",
    "--response-max": "2000", "--placement": "colocated",
    "--staleness": "3", "--turns": "3", "--tool-seconds": "20s", "--lora": None,
    "--rollout-gpus": "2", "--rollout-tp": "4", "--rollout-memory": "0.5", "--rollout-precision": "fp8",
    "--reward-seconds": "40s", "--judge": "qwen2.5-1.5b", "--judge-len": "20", "--judge-gpus": "1", "--reference": "no",
    "--dropped-groups": "0.3",
}  # fmt: skip
SIZES = ("--depth", "12", "--micro-batch", "8", "--seq-len", "1024", "--vocab-size", "32768")
PREDICTIONS = {
    "one": ("--gpu", "l4", *SIZES),
    "eight": ("--gpu", "h100-80gb-sxm", "--gpus", "8", *SIZES),
    "adapters": ("--gpu", "rtx-4090", "--lora-rank", "16", *SIZES),
    "a layout": ("--gpu", "h100-80gb-sxm", "--gpus", "8", "--model", "mixtral-8x7b", "--pp", "4", "--micro-batch", "1"),
    "RL": ("--gpu", "h100-80gb-sxm", "--gpus", "8", "--model", "qwen2.5-7b", "--rl", "grpo", "--response-len", "1000",
           "--response-max", "4000"),
    "a table": ("--rows", "ROWS"),
}  # fmt: skip
PREDICT_ALIKE = {
    ("RL", "--tool-seconds"): "one turn needs no tool",
    ("a layout", "--zero"): "ZeRO-2 is taken as ZeRO-1, which is said",
    ("a layout", "--family"): "it is one of that family",
    ("one", "--compile"): "as is usual on this card",
    ("eight", "--compile"): "as is usual on this card",
    ("adapters", "--compile"): "as is usual on this card",
    ("adapters", "--heads"): "products and memory do not depend on their number",
}
SHOWN = {"--out", "--all", "--json", "--help", "--measure"}  # how the answer is shown, or a burst on the card itself


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("typed")
    text = folder / "notes.txt"
    text.write_text("It was the best of times, it was the worst of times. " * 400)
    prepare_data([text], folder / "tokens", vocab_size=300)
    (folder / "rows.csv").write_text("gpu,model,micro-batch\na100-80gb-sxm,gpt2,8\n")
    (folder / "runs.csv").write_text("tp,gpus,micro_batch,grad_accum,seq_len,step_seconds\n4,8,1,8,4096,6.5\n")
    named = {"TOKENS": folder / "tokens", "NOTES": text, "ROWS": folder / "rows.csv", "RUNS": folder / "runs.csv"}
    return named | {"LOG": log(folder / "log.jsonl")}


@pytest.fixture
def answer(call, files):
    def asked(verb: str, *words: str) -> tuple[int, object]:
        shown = () if "--rows" in words else ("--json",)
        code, out, err = call(verb, *(str(files.get(word, word)) for word in words), *shown)
        if not out or code not in (0, 3):
            return code, err
        document = json.loads(out)
        return 0, {name: value for name, value in document.items() if name not in ECHOED or verb != "plan"}

    return asked


def options_of(command) -> set[str]:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    names = {name for parameter in shown for name in (*parameter.opts, *parameter.secondary_opts)}
    return (
        {name for name in names if name.startswith("--")}
        - SHOWN
        - {"--layers"}
        - {name for name in names if "-parallel" in name}
    )


def test_every_option_is_in_the_tables():
    assert options_of(plan_command) == PLAN.keys()
    assert options_of(predict_command) == PREDICT.keys()


def walked(answer, verb, words, table, alike) -> None:
    code, before = answer(verb, *words)
    assert code == 0, before
    silent = []
    for option, value in table.items():
        if option in words and option != "--gpus":
            continue
        code, after = answer(verb, *words, option, *([value] if value is not None else []))
        if code:
            assert after.startswith(("error: ", "Usage: ")) and "Traceback" not in after, (option, after)
        elif after == before and option not in alike:
            silent.append(option)
    assert not silent, f"typed without effect: {', '.join(silent)}"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(k, marks=pytest.mark.long if k in ("own", "own with a price", "a model", "again") else [])
        for k in PLANS
    ],
)
def test_an_option_of_plan_has_an_effect_or_is_refused(answer, kind):
    walked(answer, "plan", PLANS[kind], PLAN, {option for name, option in PLAN_ALIKE if name == kind})


@pytest.mark.parametrize("kind", PREDICTIONS)
def test_an_option_of_predict_has_an_effect_or_is_refused(answer, kind):
    walked(answer, "predict", PREDICTIONS[kind], PREDICT, {option for name, option in PREDICT_ALIKE if name == kind})


def test_own_gpus_with_a_price_cost_that_price(answer):
    """8 GPUs at 2.50 dollars are 20 dollars an hour, whichever way the price is typed."""
    words = ("--own", "h100-80gb-sxm:8", "--budget", "5000", "--deadline", "14d")
    by_name = answer("plan", *words, "--price", "h100-80gb-sxm=2.5")[1]
    offer = by_name["chosen"]["offer"]
    assert offer["usd_per_hour"] == 20.0 and offer["source"] == "your own machine"
    cost, hours = (
        by_name["chosen"]["bill"]["cost_usd"]["value"],
        by_name["chosen"]["bill"]["wall_clock"]["total_seconds"]["value"],
    )
    assert cost == pytest.approx(20.0 * hours / 3600) and 0.9 * 5000 < cost <= 5000
    assert by_name["chosen"]["bill"]["wall_clock"]["provisioning_seconds"] is None  # it is here
    assert answer("plan", *words, "--price", "2.5")[1]["chosen"] == by_name["chosen"]
    metered = answer("plan", *words, "--price", "2.5", "--kwh-price", "0.3")[1]["chosen"]["bill"]
    energy = 0.3 * 1.15 * 1.25 * metered["energy_kwh"]["value"]
    hours = metered["wall_clock"]["total_seconds"]["value"] / 3600
    assert metered["cost_usd"]["value"] == pytest.approx(20.0 * hours + energy, rel=1e-3) and energy > 1
