"""One configuration has one number, whoever is asked: the command, a table, the API, an assistant's tool, or a plan."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pytest

from advisor import api
from advisor.calibration.profiles import load_profile
from advisor.hardware.catalog import require_gpu
from advisor.mcp_server import predict_run
from advisor.options import Goal
from advisor.planning.cards import card_rows
from advisor.prediction.batch import predict_batch
from advisor.prediction.layouts import LayoutRun
from advisor.records import Prediction
from advisor.store.store import default_store
from advisor.workflows.plan import profile_for
from tests.terminal import advisor, document

# Runs that split the batch alone, of this project's trainer and of other software; a plan can be asked for all of them.
WHOLE = """
gpu=h100 model=gpt2 micro_batch=16
gpu=l4 model=gpt2 micro_batch=8 activation_checkpointing=full
gpu=rtx-4090 gpus=2 depth=16 micro_batch=2 family=llama optimizer=muon sharding=none
gpu=a100-80gb-sxm gpus=4 depth=24 micro_batch=8 sharding=full
gpu=a100-40gb-pcie gpus=8 model=tinyllama-1.1b micro_batch=4 sharding=none
gpu=b200 gpus=8 depth=20 micro_batch=8 sharding=none compile=no
gpu=h100 gpus=8 model=llama-3.1-8b micro_batch=1 seq_len=4096 sharding=full
gpu=h100 gpus=16 depth=20 micro_batch=8 sharding=full network=200Gbps
gpu=a6000 gpus=2 model=tinyllama-1.1b micro_batch=4 sharding=none activation_checkpointing=selective
gpu=h200-141gb-sxm gpus=8 params=1.5B family=llama micro_batch=8 sharding=none grad_accum=4
gpu=l4 model=gpt2 micro_batch=8 software=nanogpt
gpu=h100 gpus=8 depth=20 micro_batch=8 software=nanochat sharding=optimizer optimizer=muon
gpu=h100 gpus=8 model=llama-3.1-8b micro_batch=1 software=torchtitan sharding=full activation_checkpointing=full
gpu=h100 gpus=8 model=llama-3.1-8b micro_batch=1 software=nemo sharding=full seq_len=4096
gpu=h100 gpus=16 model=tinyllama-1.1b micro_batch=4 software=megatron sharding=optimizer network=400Gbps
gpu=b200 gpus=8 model=llama-3.1-8b micro_batch=2 software=llm-foundry sharding=full activation_checkpointing=full
gpu=a100-80gb-sxm gpus=8 model=tinyllama-1.1b micro_batch=2 software=deepspeed sharding=optimizer seq_len=4096
gpu=l40s gpus=4 model=tinyllama-1.1b micro_batch=1 software=hf-trainer sharding=none
""".strip().splitlines()
# What only predictions can be asked for: ZeRO stages, 8 bits, models that the trainer does not build, splits, adapters.
OTHERS = """
gpu=h100 gpus=8 model=gpt2-xl micro_batch=8 zero=1
gpu=h100 gpus=8 model=gpt2-xl micro_batch=8 zero=2
gpu=h100 gpus=8 model=gpt2-xl micro_batch=8 zero=3
gpu=a100-80gb-pcie gpus=16 model=llama-2-7b micro_batch=1 zero=3 software=deepspeed seq_len=4096
gpu=a100-80gb-sxm gpus=8 model=pythia-12b micro_batch=1 sharding=full seq_len=1024
gpu=h200-141gb-sxm gpus=8 model=qwen3-4b micro_batch=4 software=trl sharding=full seq_len=2048
gpu=h100 gpus=8 model=llama-3.1-8b micro_batch=1 precision=fp8 software=torchtitan
gpu=h100 depth=12 width=768 heads=12 head_dim=128 ffn_width=2048 family=llama tied=yes micro_batch=4
gpu=v100-32gb-sxm2 model=gpt2-xl micro_batch=1 activation_checkpointing=full
gpu=tpu-v4 gpus=8 depth=12 micro_batch=4
gpu=rtx-4090 model=llama-3.1-8b micro_batch=1
gpu=h100 model=gpt2-large micro_batch=8 grad_accum=8 software=llmc
gpu=h100 gpus=8 model=qwen3-4b micro_batch=1 zero=1 software=nemo seq_len=8192
gpu=a100-80gb-sxm model=llama-3.1-8b freeze_blocks=16 micro_batch=1 software=trl
gpu=h100 gpus=64 model=llama-3-70b tp=8 pp=4 vpp=2 grad_accum=16 micro_batch=1 software=megatron
gpu=h100 gpus=16 model=llama-3.1-8b cp=2 micro_batch=1 seq_len=16384 software=nemo sharding=optimizer
gpu=h100 gpus=16 model=llama-3-70b tp=8 micro_batch=1 sharding=full network=100Gbps
gpu=b200 gpus=8 model=gpt-oss-20b micro_batch=1 sharding=optimizer
gpu=h200-141gb-sxm gpus=32 model=mixtral-8x7b ep=8 micro_batch=1 sharding=optimizer
gpu=h100 gpus=16 model=qwen3-30b-a3b ep=8 precision=fp8 micro_batch=1
gpu=h100 gpus=512 model=deepseek-v3 pp=16 ep=32 micro_batch=1 grad_accum=64
gpu=rtx-4090 model=llama-3.1-8b lora_rank=16 qlora=yes micro_batch=2 software=trl
gpu=a100-80gb-sxm gpus=8 model=llama-3.1-70b lora_rank=16 micro_batch=1 software=axolotl sharding=full
gpu=l40s gpus=4 model=mistral-7b lora_rank=8 lora_targets=attention micro_batch=2 software=torchtune
gpu=h100 model=qwen3-30b-a3b lora_rank=16 micro_batch=1 software=trl activation_checkpointing=full
gpu=t4 model=tinyllama-1.1b lora_rank=8 micro_batch=1 precision=fp16 software=trl
gpu=rtx-4090 model=gemma-2-9b lora_rank=16 qlora=yes micro_batch=4 software=unsloth
""".strip().splitlines()
LAYOUTS = """
model=llama-3-70b gpu=h100 gpus=64 software=nemo tokens=1B
model=qwen3-30b-a3b gpu=h100 gpus=16 software=megatron tokens=1B
model=llama-2-7b gpu=a100-80gb-pcie gpus=16 software=nemo tokens=1B network=100Gbps
model=llama-3.1-8b gpu=h100 gpus=8 software=torchtitan tokens=1B
model=qwen3-4b gpu=h100 gpus=8 software=nemo tokens=1B seq_len=8192
model=pythia-12b gpu=h200-141gb-sxm gpus=8 software=gpt-neox tokens=1B seq_len=1024
""".strip().splitlines()
FINE_TUNES = """
model=llama-3.1-8b gpu=h100,rtx-4090,tpu-v4,b300-288gb gpus=1,2,8 finetune=qlora
model=qwen3-4b gpu=a100-80gb-sxm,l40s gpus=1,8 finetune=full software=trl
model=qwen3-30b-a3b gpu=h100 gpus=1,8 finetune=lora
model=gemma-2-9b gpu=rtx-4090 gpus=1,2 finetune=qlora software=unsloth
model=pythia-12b gpu=h200-141gb-sxm gpus=8 finetune=full optimizer=adamw
model=llama-3.1-70b gpu=h100 gpus=8,16 finetune=qlora software=llama-factory network=100Gbps
model=gpt2 gpu=t4,v100-16gb-sxm2 finetune=full
""".strip().splitlines()
RECOMPUTED = {"none": "none", "operators": "selective", "full": "full"}
QUANTITIES = ("step_seconds", "tokens_per_second", "mfu", "peak_allocated_bytes", "peak_reserved_bytes")
OF_A_RUN = "gpu gpus micro_batch grad_accum precision compile activation_checkpointing optimizer"
CHOSEN = {("grad_accum", "4"), ("sharding", "optimizer")}  # what a plan chooses itself, here as stated


def options_of(line: str) -> dict[str, Any]:
    given = dict(word.split("=", 1) for word in line.split())
    return {name: {"yes": True, "no": False}.get(value, value) for name, value in given.items()}


def numbers(found: Any, of: Sequence[str] = QUANTITIES) -> dict[str, Any]:
    """Returns all numbers of a prediction, which is a record or a document, by name and side."""
    stated: Mapping[str, Any] = found if isinstance(found, Mapping) else vars(found)
    flat = {name: stated[name] for name in ("parameters", "flops_per_token", "fits", "fit_probability")}
    for name in of:
        sides = stated[name] if stated[name] is None or isinstance(stated[name], Mapping) else vars(stated[name])
        flat |= {f"{name} {side}": None if sides is None else sides[side] for side in ("value", "low", "high")}
    return flat


def apart(found: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numbers that differ by more than rounding."""
    return {
        name: (value, other[name])
        for name, value in found.items()
        if value != other[name] and (None in (value, other[name]) or not math.isclose(value, other[name], rel_tol=1e-9))
    }


def asked(run: Prediction, line: str) -> dict[str, Any]:
    """Returns the options of a prediction of a plan's run, whose question is the line."""
    work = run.workload
    options = {name: getattr(work, name) for name in OF_A_RUN.split()}
    stated = ("model", "software", *(["network"] if work.gpus > 8 else []))
    named = {name: value for name, value in options_of(line).items() if name in stated}
    options |= {"software": work.software.name} if work.software is not None else {}
    options |= {"sharding": work.sharding} if work.gpus > 1 else {}
    if work.software is not None and (adapters := work.software.adapters) is not None:
        options |= {"lora_rank": adapters.rank, "lora_targets": adapters.targets, "qlora": adapters.quantized}
    return options | {"seq_len": work.shape.seq_len} | named


def of_layout(run: LayoutRun, line: str) -> dict[str, Any]:
    cut, stated = run.layout, options_of(line)
    options = {name: stated[name] for name in ("model", "software", "network") if name in stated}
    options |= {"gpu": run.gpu.key, "gpus": cut.gpus, "micro_batch": run.micro_batch, "grad_accum": run.micro_batches,
                "activation_checkpointing": RECOMPUTED[run.recompute], "precision": run.precision,
                "seq_len": run.seq_len, "sharding": cut.sharding, "tp": cut.tensor, "pp": cut.pipeline,
                "vpp": cut.virtual, "cp": cut.context}  # fmt: skip
    return options | ({"ep": cut.expert} if run.model.experts else {})


@pytest.fixture(scope="module")
def predicted() -> dict[str, Any]:
    return {line: numbers(api.predict(**options_of(line)).record) for line in WHOLE + OTHERS}


def test_a_table_and_the_command_say_what_the_api_says(predicted, tmp_path):
    rows = [dict(word.split("=", 1) for word in line.split()) for line in predicted]
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    printed = advisor("predict", "--rows", tmp_path / "rows.csv", expect=0).stdout.splitlines()
    for row, (line, found) in zip(printed, predicted.items(), strict=True):
        assert apart(numbers(json.loads(row)), found) == {}, line
    for line, found in list(predicted.items())[::4]:
        words = [f"--{word.replace('_', '-')}" for word in line.replace("=yes", "").split()]
        assert apart(numbers(document("predict", *words, expect=3 if found["fits"] is False else 0)), found) == {}, line


def test_an_assistant_is_told_the_same(predicted):
    able, told = inspect.signature(predict_run).parameters, 0
    for line, found in predicted.items():
        options = options_of(line)
        if options.keys() <= able.keys():
            rows = {row.pop("quantity"): row for row in predict_run(**options)["rows"]}
            told += 1
            for name in (name for name in QUANTITIES if found[f"{name} value"] is not None):
                assert rows[name]["value"] == float(f"{found[f'{name} value']:.4g}"), (line, name)
                sides = [float(f"{found[f'{name} {side}']:.3g}") for side in ("low", "high")]
                assert rows[name]["interval_80"] == sides, (line, name)
    assert told >= 30


@pytest.mark.parametrize("line", WHOLE)
def test_a_plan_shows_the_mean_of_the_time_whose_median_is_predicted(line):
    """A choice between uncertain times compares means, which a plan also shows. All else is what `predict` says."""
    pinned = {name: value for name, value in options_of(line).items() if (name, value) not in CHOSEN}
    plan = api.plan(tokens="1B", **pinned).record
    run, work = plan.chosen.prediction, plan.workload
    options = asked(run, line)
    if "model" not in options:
        sizes = ("family", "depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size")
        options |= {name: getattr(work.shape, name) for name in sizes}
    found = api.predict(**options).record
    assert work == found.workload and apart(numbers(run, QUANTITIES[3:]), numbers(found, QUANTITIES[3:])) == {}
    profile = profile_for(plan.goal, work.gpu, default_store())
    mean, median = (predict_batch(profile, [work], expected=expected)[0] for expected in (True, False))
    assert apart(numbers(run), numbers(mean)) == {} == apart(numbers(found), numbers(median))
    assert found.step_seconds.value < run.step_seconds.value < found.step_seconds.high


@pytest.mark.parametrize("line", LAYOUTS)
def test_each_layout_that_a_plan_lists_is_predicted_as_planned(line):
    search = api.plan(layout="any", **options_of(line)).record.chosen.search
    listed = [choice for choice in (search.best, *search.others) if choice.run.recompute in RECOMPUTED]
    assert listed
    for choice in listed:
        found = api.predict(**of_layout(choice.run, line)).record
        assert apart(numbers(found), numbers(choice.prediction)) == {}, choice.run.layout


@pytest.mark.parametrize("line", FINE_TUNES)
def test_each_run_of_a_fine_tune_is_predicted_as_planned(line):
    for run in api.plan(examples="50k", **options_of(line)).record.runs:
        found = api.predict(**{"software": "trl"} | asked(run.prediction, line)).record
        assert apart(numbers(found), numbers(run.prediction)) == {}, run.offer


def test_what_fits_is_predicted_as_shown():
    """A model trained from scratch on each GPU; tests/ui/test_same_numbers.py runs the commands of the page."""
    goal = Goal(gpu="any", depth=20, seq_len=2048, vocab_size=32768, gpus=8)
    specs = [require_gpu(key) for key in ("h100-80gb-sxm", "l4", "rtx-4090", "b200", "v100-16gb-sxm2", "a6000")]
    rows = card_rows(goal, specs, lambda key: load_profile(key, default_store()))
    fitting = [row for row in rows if row.prediction is not None]
    assert len(fitting) >= 5
    for row in fitting:
        options = asked(row.prediction, "") | {"depth": 20, "vocab_size": 32768}
        assert apart(numbers(api.predict(**options).record), numbers(row.prediction)) == {}, row.spec.key
