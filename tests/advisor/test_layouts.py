"""Runs on layouts: published memory and times, rows of tables, and what must grow or shrink with what."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.architecture import Experts, Layout, Model
from advisor.hardware.catalog import load_gpus
from advisor.prediction.layout_batch import predict_layouts
from advisor.prediction.layout_memory import counted
from advisor.prediction.layout_time import COSTS, load_law
from advisor.prediction.layouts import LayoutRun, columns_of
from advisor.prediction.memory_published import likeliest
from advisor.prediction.software import software_of
from benchmarks.rows.answers import answer_rows

GIB = float(1 << 30)
CARDS = load_gpus()
ROWS = Path(__file__).parents[2] / "benchmarks" / "parallel_runs.csv"
# Korthikanti et al. 2022 (arXiv 2205.05198), tables 3 and 5 and figure 7: layers, width, heads, tensor, pipeline,
# virtual, micro-batch, global batch; seconds of an iteration with full recomputation, with selective; GiB of
# activations with none, with selective and sequence parallelism; GiB of state.
PUBLISHED = {
    "22B": (48, 6144, 64, 8, 1, 1, 4, 4, 1.42, 1.10, 59.25, 9.56, 45.56),
    "175B": (96, 12288, 96, 8, 8, 3, 1, 64, 18.13, 13.75, 66.84, 12.35, 45.56),
    "530B": (105, 20480, 128, 8, 35, 3, 1, 280, 49.05, 37.83, 114.0, 23.08, 31.64),
    "1T": (128, 25600, 160, 8, 64, 1, 1, 512, 94.42, 71.49, 131.25, 26.56, 32.96),
}


def gpt(name: str, recompute: str, *, sequence: bool) -> LayoutRun:
    layers, width, heads, tensor, pipeline, virtual, micro, batch, *_ = PUBLISHED[name]
    model = Model(
        layers=layers, width=width, heads=heads, kv_heads=heads, head_dim=width // heads, ffn_width=4 * width,
        gated=False, vocab_size=51200, tied=True,
    )  # fmt: skip
    layout = Layout(tensor=tensor, sequence=sequence, pipeline=pipeline, virtual=virtual, sharding="none")
    return LayoutRun(
        model=model, layout=layout, gpu=CARDS["a100-80gb-sxm"], seq_len=2048, micro_batch=micro,
        micro_batches=batch // micro, recompute=recompute, fused_attention=False, software="megatron",
    )  # fmt: skip


def stage_bytes(runs: list[LayoutRun], stage: str, *, afab: bool = False) -> dict[str, np.ndarray]:
    """The bytes of runs with Megatron before any factor."""
    software = software_of("megatron")
    held = counted(columns_of(runs), software, likeliest(software), stage, afab=afab)
    state = held.weights + held.optimizer + held.held
    return {"state": state, "activations": held.activations, "logits": held.logits}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_times_and_memory_that_no_fit_has_seen(name: str):
    *_, full, selective, kept, kept_selective, state = PUBLISHED[name]
    runs = [gpt(name, "full", sequence=False), gpt(name, "attention", sequence=True), gpt(name, "none", sequence=False)]
    slow, fast, _ = predict_layouts(runs)
    assert slow.step_seconds.value == pytest.approx(full, rel=0.12)
    assert fast.step_seconds.value == pytest.approx(selective, rel=0.14)
    held = stage_bytes(runs, "first")
    assert held["activations"][1:] / GIB == pytest.approx([kept_selective, kept], rel=0.01)
    assert held["state"][1] / GIB == pytest.approx(state, rel=0.10)


LLAMA_70B = Model(
    layers=80, width=8192, heads=64, kv_heads=8, head_dim=128, ffn_width=28672, gated=True, vocab_size=128256,
    tied=False,
)  # fmt: skip
RUN = LayoutRun(
    model=LLAMA_70B, layout=Layout(tensor=8, sequence=True, pipeline=4, data=2), gpu=CARDS["h100-80gb-sxm"],
    seq_len=8192, micro_batch=1, micro_batches=16, software="nemo",
)  # fmt: skip


def parts(**layout: int) -> tuple[dict[str, float], dict[str, float]]:
    found = predict_layouts([replace(RUN, layout=replace(RUN.layout, **layout))])[0]
    return dict(found.step_parts), dict(found.peak_parts)


def test_products_hide_tensor_collectives_under_sequence_parallelism():
    """19 micro-batches (16, and 3 of the bubble) through 20 layers make 4 collectives each, of 10 µs at coefficient 1.

    Inside a machine products hide all of the bytes' seconds but the tenth that nothing hides; across two they do not.
    """
    calls = 19 * 20 * 4 * 10e-6 * math.exp(load_law().log_costs[COSTS.index("tensor_calls")])
    hidden, shown = (parts(sequence=on)[0]["tensor"] for on in (True, False))
    assert hidden - calls == pytest.approx(0.1 * (shown - calls))
    far, far_shown = (parts(tensor=16, sequence=on)[0]["tensor"] for on in (True, False))
    assert 0.5 * far_shown < far < 0.9 * far_shown


def test_each_cut_costs_what_it_exchanges():
    base, held = parts()
    assert sum(base.values()) == pytest.approx(predict_layouts([RUN])[0].step_seconds.value)
    assert parts(tensor=1)[0]["tensor"] == 0 and base["tensor"] > 0
    assert parts(tensor=16)[0]["tensor"] > 1.5 * base["tensor"]  # out of the node
    assert parts(pipeline=1)[0]["pipeline"] == 0 and base["pipeline"] > 0
    assert parts(virtual=5)[0]["products"] < base["products"]  # a smaller bubble
    assert parts(virtual=5)[1]["activations"] > held["activations"]  # for more that is in flight
    assert parts(data=1)[0]["data"] == 0 and base["data"] > 0
    assert parts(data=8)[1]["state"] < held["state"]


@settings(max_examples=30, deadline=None)
@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2, 4, 8]),
    micro_batches=st.integers(1, 64),
    recompute=st.sampled_from(["none", "attention", "full"]),
)
def test_time_and_memory_are_positive_and_grow_with_the_batch(
    tensor: int, pipeline: int, micro_batches: int, recompute: str
):
    layout = Layout(tensor=tensor, sequence=True, pipeline=pipeline, data=2)
    run = replace(RUN, layout=layout, micro_batches=micro_batches, recompute=recompute)
    longer, wide = replace(run, micro_batches=micro_batches + 1), replace(run, micro_batch=2)
    one, more, wider = predict_layouts([run, longer, wide])
    assert 0 < one.step_seconds.low < one.step_seconds.value < more.step_seconds.value
    assert one.peak_allocated_bytes.value < wider.peak_allocated_bytes.value
    assert wider.fit_probability <= one.fit_probability


def test_a_mixture_may_take_longer_than_balanced_routing_does():
    experts = Experts(count=64, per_token=4, width=2048, layers=80)
    mixture = replace(RUN, model=replace(LLAMA_70B, experts=experts), layout=replace(RUN.layout, expert=8, data=8))
    dense, sparse = predict_layouts([RUN, mixture])
    assert sparse.step_parts["experts"] > 0 and dense.step_parts["experts"] == 0
    up, down = (lambda e: e.high / e.value)(sparse.step_seconds), (lambda e: e.value / e.low)(sparse.step_seconds)
    even = dense.step_seconds.high / dense.step_seconds.value / (dense.step_seconds.value / dense.step_seconds.low)
    assert up > 1.1 * even * down and even < 1.1


def test_tokens_that_meet_few_machines_or_travel_behind_arithmetic_cost_less():
    few = Experts(count=256, per_token=8, width=2048, layers=80)
    layout = Layout(pipeline=4, data=64, expert=64)
    runs = [replace(RUN, model=replace(LLAMA_70B, experts=few), layout=layout)]
    runs += [
        replace(runs[0], model=replace(LLAMA_70B, experts=replace(few, groups=groups))) for groups in ((8, 4), (8, 8))
    ]
    runs += [replace(runs[0], hidden_experts=True)]
    one, grouped, every, hidden = (p.step_parts["experts"] for p in predict_layouts(runs))
    assert hidden < grouped < one == pytest.approx(every)


def test_a_pipeline_that_keeps_every_micro_batch_until_the_last_forward_pass():
    """Of the first stage 16 micro-batches in place of the four of 1F1B; the last keeps all their logits too."""
    for stage, kept in (("first", 4), ("last", 1)):
        usual, all_forward = (stage_bytes([RUN], stage, afab=afab) for afab in (False, True))
        assert all_forward["activations"] == pytest.approx(16 / kept * usual["activations"])
        assert all_forward["state"] == usual["state"]
        assert all_forward["logits"] == pytest.approx(16 * usual["logits"])


def rows_of(tmp_path: Path, *rows: dict[str, str]) -> list[dict]:
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return [json.loads(line) for line in answer_rows(path)]


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, str]]:
    with ROWS.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def test_rows_with_a_column_for_each_degree(tmp_path: Path, measured: dict[str, dict[str, str]]):
    """A run of 1.34 B parameters, one of experts on 256 GPUs, one that failed, one whose activations are offloaded."""
    ids = ("us-1.34-0001", "mb-002", "us-1.34-c0171", "gv-241")
    dense, experts, failed, offloaded = rows_of(tmp_path, *(measured[i] for i in ids))
    assert dense["parameters"] == 1_342_177_280 + 2048 * (2 * 16 + 1)  # with the norms
    for row, found in ((measured["us-1.34-0001"], dense), (measured["mb-002"], experts)):
        assert found["step_seconds"]["low"] < float(row["step_seconds"]) < found["step_seconds"]["high"]
    assert experts["parameters"] == pytest.approx(float(measured["mb-002"]["params_total"]), rel=0.001)
    assert 0 < failed["fit_probability"] < 0.2  # more stages than blocks, which leaves one without any
    assert "host's memory" in offloaded["error"]


def test_one_law_holds_for_models_that_are_whole_or_cut(tmp_path: Path, measured: dict[str, dict[str, str]]):
    """Peaks of Megatron-LM's own tests that split only the batch, and a whole model held against the law of its parts.

    64 M weights and 32 rows of 1,024 tokens on 8 GPUs: 2 + 4 bytes per weight and 12 / 8; logits of 16 bits with one
    fp32 copy. To recompute attention's core changes nothing if it is fused, but only the law of parts knows the word.
    """
    ids = ["gv-012", "gv-013", "gv-014", "gv-015", "gv-017", "gv-019", "gv-145", "gv-146", "gv-148", "us-1.34-0020"]
    for name, found in zip(ids, rows_of(tmp_path, *(measured[i] for i in ids)), strict=True):
        said = float(measured[name]["memory_gib_per_gpu"])
        assert found["peak_allocated_bytes"]["value"] / GIB == pytest.approx(said, rel=0.15)
        assert found["peak_allocated_bytes"]["low"] / GIB < said < found["peak_allocated_bytes"]["high"] / GIB
    plain = LayoutRun(
        model=replace(LLAMA_70B, layers=16, width=2048, heads=16, kv_heads=16, ffn_width=8192, vocab_size=65536),
        layout=Layout(data=8), gpu=CARDS["h100-80gb-sxm"], seq_len=4096, micro_batch=2, micro_batches=4,
    )  # fmt: skip
    for software in ("megatron", "nanotron", "deepspeed", "torchtitan", "hf-trainer"):
        for sharding in ("none", "optimizer", "full"):
            run = replace(plain, software=software, layout=replace(plain.layout, sharding=sharding))
            whole, cut = predict_layouts([run, replace(run, recompute="attention")])
            assert cut.peak_allocated_bytes.value == pytest.approx(whole.peak_allocated_bytes.value, rel=0.02)
            assert cut.fit_probability == pytest.approx(whole.fit_probability, abs=0.05)
            for part, held in whole.peak_parts.items():
                assert cut.peak_parts[part] == pytest.approx(held, rel=0.03, abs=0.02 * GIB)


def test_a_row_that_does_not_state_its_schedule_may_have_either(tmp_path: Path, measured: dict[str, dict[str, str]]):
    row = measured["us-1.34-0001"] | {"grad_accum": "128", "micro_batch": "2", "global_batch_sequences": "1024"}
    said = [row | {"notes": f"rank 0 only; {words}"} for words in ("1F1B", "", "all forward, all backward")]
    usual, unstated, all_forward = (found["fit_probability"] for found in rows_of(tmp_path, *said))
    assert usual > 0.9 > unstated > 0.7 > 0.1 > all_forward
    assert unstated == pytest.approx(0.8 * usual + 0.2 * all_forward)


def test_layers_that_predict_further_tokens_load_the_last_stage():
    """One such layer: its time, and the head's once more."""
    runs = [RUN, replace(RUN, model=replace(LLAMA_70B, ahead=1))]
    plain, ahead = predict_layouts(runs)
    assert ahead.step_seconds.value > 1.03 * plain.step_seconds.value
    held = [stage_bytes([run], "last") for run in runs]
    assert held[1]["logits"] == pytest.approx(2 * held[0]["logits"])
    assert held[1]["state"] > held[0]["state"] and held[1]["activations"] > held[0]["activations"]
