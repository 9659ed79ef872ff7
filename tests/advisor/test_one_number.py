"""One configuration has one number, whoever is asked: the command, a table, the API, an assistant's tool, or a plan."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import pytest

from advisor import api
from advisor.calibration.profiles import load_profile
from advisor.hardware.catalog import require_gpu
from advisor.mcp_server import predict_run
from advisor.options import Goal
from advisor.planning.what_fits import card_rows
from advisor.records import Prediction, Software
from advisor.report.render import to_plain
from advisor.store.store import default_store
from tests.terminal import advisor

# A GPU, a model and options. First runs that split the batch alone, of which a plan can be asked; then what only a
# prediction is asked: stages of ZeRO, 8 bits, models that the trainer does not build, splits, adapters; then questions
# of plans over layouts and of fine-tunes.
ROWS = """
8xb200 llama-3.1-8b micro_batch=2 software=llm-foundry sharding=full activation_checkpointing=full
8xa100-80gb-sxm tinyllama-1.1b micro_batch=2 software=deepspeed sharding=optimizer seq_len=4096
16xh100 tinyllama-1.1b micro_batch=4 software=megatron sharding=optimizer network=400Gbps | h100 gpt2 micro_batch=16
2xa6000 tinyllama-1.1b micro_batch=4 sharding=none activation_checkpointing=selective
8xh100 llama-3.1-8b software=torchtitan sharding=full activation_checkpointing=full
8xh200-141gb-sxm params=1.5B family=llama micro_batch=8 sharding=none grad_accum=4
8xh100 depth=20 micro_batch=8 software=nanochat sharding=optimizer optimizer=muon
2xrtx-4090 depth=16 micro_batch=2 family=llama optimizer=muon sharding=none | l4 gpt2 micro_batch=8 software=nanogpt
8xh100 llama-3.1-8b software=nemo sharding=full seq_len=4096 | 4xl40s tinyllama-1.1b software=hf-trainer sharding=none
16xh100 depth=20 micro_batch=8 sharding=full network=200Gbps | 8xb200 depth=20 micro_batch=8 sharding=none compile=no
8xa100-40gb-pcie tinyllama-1.1b micro_batch=4 sharding=none | 4xa100-80gb-sxm depth=24 micro_batch=8 sharding=full
l4 gpt2 micro_batch=8 activation_checkpointing=full | 8xh100 llama-3.1-8b seq_len=4096 sharding=full
--
h100 depth=12 width=768 heads=12 head_dim=128 ffn_width=2048 family=llama tied=yes micro_batch=4
4xl40s mistral-7b lora_rank=8 lora_targets=attention micro_batch=2 software=torchtune | 8xtpu-v4 depth=12 micro_batch=4
8xh200-141gb-sxm qwen3-4b micro_batch=4 software=trl sharding=full seq_len=2048 | 8xb200 gpt-oss-20b sharding=optimizer
h100 qwen3-30b-a3b lora_rank=16 software=trl activation_checkpointing=full | 16xh100 qwen3-30b-a3b ep=8 precision=fp8
8xa100-80gb-sxm llama-3.1-70b lora_rank=16 software=axolotl sharding=full | 8xh100 gpt2-xl micro_batch=8 zero=1
rtx-4090 gemma-2-9b lora_rank=16 qlora=yes micro_batch=4 software=unsloth | 8xh100 gpt2-xl micro_batch=8 zero=2
16xh100 llama-3.1-8b cp=2 seq_len=16384 software=nemo sharding=optimizer | 8xh100 gpt2-xl micro_batch=8 zero=3
rtx-4090 llama-3.1-8b lora_rank=16 qlora=yes micro_batch=2 software=trl | rtx-4090 llama-3.1-8b
64xh100 llama-3-70b tp=8 pp=4 vpp=2 grad_accum=16 software=megatron | 8xh100 qwen3-4b zero=1 software=nemo seq_len=8192
16xa100-80gb-pcie llama-2-7b zero=3 software=deepspeed seq_len=4096 | 512xh100 deepseek-v3 pp=16 ep=32 grad_accum=64
t4 tinyllama-1.1b lora_rank=8 precision=fp16 software=trl | a100-80gb-sxm llama-3.1-8b freeze_blocks=16 software=trl
l40s gpt-oss-20b lora_rank=16 qlora=yes software=axolotl
h100 gpt2-large micro_batch=8 grad_accum=8 software=llmc | 32xh200-141gb-sxm mixtral-8x7b ep=8 sharding=optimizer
16xh100 llama-3-70b tp=8 sharding=full network=100Gbps | 8xh100 llama-3.1-8b precision=fp8 software=torchtitan
8xa100-80gb-sxm pythia-12b sharding=full seq_len=1024 | v100-32gb-sxm2 gpt2-xl activation_checkpointing=full
--
h200-141gb-sxm pythia-12b gpus=8 software=gpt-neox seq_len=1024
a100-80gb-pcie llama-2-7b gpus=16 software=nemo network=100Gbps
h100 qwen3-4b gpus=8 software=nemo seq_len=8192 | h100 llama-3.1-8b gpus=8 software=torchtitan
h100 qwen3-30b-a3b gpus=16 software=megatron | h100 llama-3-70b gpus=64 software=nemo | h100 deepseek-v3 gpus=512
h200-141gb-sxm mixtral-8x7b gpus=32 software=nemo | b200 gpt-oss-20b gpus=8 software=nemo
--
h100 llama-3.1-70b gpus=8,16 finetune=qlora software=llama-factory network=100Gbps
h100,rtx-4090,tpu-v4,b300-288gb llama-3.1-8b gpus=1,2,8 finetune=qlora | h100 qwen3-30b-a3b gpus=1,8 finetune=lora
a100-80gb-sxm,l40s qwen3-4b gpus=1,8 finetune=full software=trl | t4,v100-16gb-sxm2 gpt2 finetune=full
h200-141gb-sxm pythia-12b gpus=8 finetune=full optimizer=adamw
rtx-4090 gemma-2-9b gpus=1,2 finetune=qlora software=unsloth | l40s gpt-oss-20b gpus=1,8 finetune=qlora
""".replace(" | ", "\n").strip()
WHOLE, OTHERS, LAYOUTS, FINE_TUNES = (part.splitlines() for part in ROWS.split("\n--\n"))
QUANTITIES = ("step_seconds", "tokens_per_second", "mfu", "peak_allocated_bytes", "peak_reserved_bytes")
CHOSEN = {("grad_accum", "4"), ("sharding", "optimizer")}  # a plan chooses these itself
OF_A_RUN = "gpu gpus micro_batch grad_accum precision compile activation_checkpointing optimizer"


def options_of(line: str, **usual: Any) -> dict[str, Any]:
    """Returns the options of a line: a GPU, a model if no depth or number of weights is stated, and options."""
    named = [word for word in line.split() if "=" not in word]
    given = dict(word.split("=", 1) for word in line.split() if "=" in word)
    given = {name: {"yes": True, "no": False}.get(value, value) for name, value in given.items()}
    return usual | dict(zip(("gpu", "model"), named, strict=False)) | given


def stated(line: str, gpus: int) -> dict[str, Any]:
    names = ("model", "params", "depth", "family", "vocab_size", "software", *(["network"] if gpus > 8 else []))
    return {name: value for name, value in options_of(line).items() if name in names}


def numbers(found: Any, of: Sequence[str] = QUANTITIES) -> dict[str, Any]:
    """Returns the numbers of a prediction, which is a record or a document, by name, with their intervals."""
    stated = to_plain(found if isinstance(found, Mapping) else vars(found))
    names = ("parameters", "flops_per_token", "fits", "fit_probability", *of)
    flat = pd.json_normalize({name: stated[name] for name in names}).iloc[0]
    return {name: math.nan if value is None else value for name, value in flat.items() if not isinstance(value, str)}


same = partial(pytest.approx, rel=1e-9, nan_ok=True)


def predicted(options: Mapping[str, Any]) -> dict[str, Any]:
    return numbers(api.predict(**options).record)


def of_run(run: Prediction, line: str) -> dict[str, Any]:
    """Returns the options of a run that a plan found when it was asked with the line."""
    work, how = run.workload, run.workload.software or Software()
    options = {name: getattr(work, name) for name in OF_A_RUN.split()} | {"seq_len": work.shape.seq_len}
    options |= {"software": how.name} | ({"sharding": work.sharding} if work.gpus > 1 else {}) | stated(line, work.gpus)
    if (added := how.adapters) is not None:
        options |= {"lora_rank": added.rank, "lora_targets": added.targets, "qlora": added.quantized}
    if (cut := work.layout) is not None:
        options |= {"tp": cut.tensor, "pp": cut.pipeline, "vpp": cut.virtual, "cp": cut.context}
        options |= ({"ep": cut.expert} if work.model.experts else {}) | {"sharding": cut.sharding}
        options |= {"precision": "fp8" if how.fp8 else work.precision}
        del options["compile"], options["optimizer"]
    return options


@pytest.fixture(scope="module")
def asked() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    rows = [options_of(line, micro_batch="1") for line in WHOLE + OTHERS]
    return [(options, predicted(options)) for options in rows]


def test_a_table_and_the_command_say_what_the_api_says(asked, tmp_path):
    pd.DataFrame([options for options, _ in asked]).to_csv(tmp_path / "rows.csv", index=False)
    printed = advisor("predict", "--rows", tmp_path / "rows.csv", expect=0).stdout.splitlines()
    for row, (options, found) in zip(printed, asked, strict=True):
        assert numbers(json.loads(row)) == same(found), options
    for options, found in [row for row in asked if not {True, False} & {*row[0].values()}][::4]:
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
        assert numbers(json.loads(advisor("predict", *words, "--json").stdout)) == same(found), words


def test_an_assistant_is_told_the_same(asked):
    named = inspect.signature(predict_run).parameters.keys()
    for options, found in asked:
        given = {name: value for name, value in options.items() if name in named}
        told = predict_run(**given, more={name: value for name, value in options.items() if name not in named})
        rows = {row["quantity"]: row for row in told["rows"]}
        for name in (name for name in QUANTITIES if "value" in rows[name]):
            value, *sides = (found[f"{name}.{side}"] for side in ("value", "low", "high"))
            assert rows[name]["value"] == float(f"{value:.4g}"), (options, name)
            assert rows[name]["interval_80"] == [float(f"{side:.3g}") for side in sides], (options, name)


@pytest.mark.parametrize("line", WHOLE)
def test_a_plan_shows_what_is_predicted(line):
    """Its hours are sums, which have the mean of a step where one step has the median."""
    pinned = options_of(line, tokens="1B", micro_batch="1")
    plan = api.plan(**{name: value for name, value in pinned.items() if (name, value) not in CHOSEN}).record
    run, clock = plan.chosen, plan.bill.wall_clock
    assert numbers(run.prediction) == same(predicted(of_run(run.prediction, line)))
    assert run.step_seconds.value < clock.steps_seconds.value / run.steps < run.step_seconds.high
    shown = [point for point in plan.search.scaling if point.gpus == run.workload.gpus]
    assert [point.tokens_per_second for point in shown] == same([run.tokens_per_second.value] * len(shown))


@pytest.mark.parametrize("line", LAYOUTS)
def test_each_layout_that_a_plan_lists_is_predicted_as_planned(line):
    plan = api.plan(layout="any", tokens="1B", **options_of(line)).record
    for run in (plan.chosen, *plan.considered):
        found = api.predict(**of_run(run.prediction, line)).record
        assert numbers(found) == same(numbers(run.prediction)), run.workload.layout
        assert (found.network is not None) == (run.workload.gpus > 8)


@pytest.mark.parametrize("line", FINE_TUNES)
def test_each_run_of_a_fine_tune_is_predicted_as_planned(line):
    plan = api.plan(examples="50k", **options_of(line)).record
    for run in (plan.chosen, *plan.search.machines):
        assert predicted(of_run(run.prediction, line)) == same(numbers(run.prediction)), run.offer


@pytest.mark.parametrize(
    "line", ["8xh100 llama-3.1-8b tp=2", "32xh100 qwen3-30b-a3b seq_len=4096", "8xb200 gpt-oss-20b"]
)
def test_what_is_left_open_is_chosen_by_the_rule_of_plans(line):
    """Of all shardings and micro-batches that fit one within 2 % and 0.5 % of the fastest, found by asking for each."""
    found = api.predict(**options_of(line)).record
    every = [api.predict(**options_of(line, sharding=sharding, micro_batch=size)).record
             for sharding in ("optimizer", "full") for size in ("1", "2", "4", "8", "16")]  # fmt: skip
    best = max(one.tokens_per_second.value for one in every if one.fits)
    assert found.fits and found.tokens_per_second.value >= 0.98 * 0.995 * best


def test_what_fits_is_predicted_as_shown():
    """A model trained from scratch on each GPU; tests/ui/test_same_numbers.py runs the commands of the page."""
    specs = [require_gpu(key) for key in ("h100-80gb-sxm", "l4", "rtx-4090", "b200", "v100-16gb-sxm2", "a6000")]
    goal = Goal(gpu="any", depth=20, seq_len=2048, vocab_size=32768, gpus=8)
    rows = [row.prediction for row in card_rows(goal, specs, lambda key: load_profile(key, default_store()))]
    assert sum(row is not None for row in rows) >= 5
    for row in filter(None, rows):
        assert predicted(of_run(row, "depth=20 vocab_size=32768")) == same(numbers(row)), row.workload.gpu
