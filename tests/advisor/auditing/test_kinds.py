"""Every kind of claim with a true and a false one about a made-up run; the decisive number stands beside each."""

from __future__ import annotations

import pytest

from advisor.auditing.kinds import KINDS
from advisor.auditing.reasoning import CONCLUSIONS
from advisor.auditing.verdict import Ruling
from tests.advisor.auditing.compute_cases import COMPUTE_CASES
from tests.advisor.auditing.made_up import ask

H, W, D, C = Ruling.HOLDS, Ruling.WRONG, Ruling.DOES_NOT_FOLLOW, Ruling.CANNOT_BE_JUDGED
NO_SHAPE = {"depth": None, "width": None, "family": None}
IDLE = {"power": "30 W", "memory_used": "100 MB", "step_time": "600 s", "precision": "bf16"}
SLOW = {"step_time": "12 s"}  # 5,461 tok/s: 0.9 % of the peak

CASES = [
    ("product", {"value": "4,096", "factors": ["64", "64"]}, H),
    ("product", {"value": "4,800", "factors": ["64", "64"]}, W),  # 4,096
    ("sum", {"value": "~20 GB", "parts": ["5 GB", "15 GB"]}, H),
    ("sum", {"value": "25 GB", "parts": ["5 GB", "15 GB"]}, W),
    ("sum", {"value": "10-12 GB", "parts": ["5 GB", "3-5 GB"]}, W),  # 8-10 GB
    ("difference", {"value": "35 GB", "whole": "80 GB", "part": "45 GB"}, H),
    ("difference", {"value": "30 GB", "whole": "80 GB", "part": "45 GB"}, W),
    ("quotient", {"value": "2.5 x", "over": "50 h", "by": "20 h"}, H),
    ("quotient", {"value": "3.5 x", "over": "50 h", "by": "20 h"}, W),
    ("share", {"value": "25 %", "part": "5", "whole": "20"}, H),
    ("share", {"value": "30 %", "part": "5", "whole": "20"}, W),
    ("change", {"value": "50 %", "from": "8.0", "to": "4.0", "way": "less"}, H),
    ("change", {"value": "40 %", "from": "8.0", "to": "4.0", "way": "less"}, W),
    ("change", {"value": "100 %", "from": "1 s", "to": "2 s", "way": "slower"}, H),  # twice the time
    ("change", {"value": "50 %", "from": "1 s", "to": "2 s", "way": "slower"}, H),  # half the throughput
    ("change", {"value": "30 %", "from": "1 s", "to": "2 s", "way": "slower"}, W),
    ("change", {"value": "50 %", "from": "2 s", "to": "1 s", "way": "faster"}, H),
    ("change", {"value": "20 %", "from": "2 s", "to": "1 s", "way": "faster"}, W),
    ("mean", {"value": "0.30", "column": "seconds", "first_step": 1000}, H),
    ("mean", {"value": "0.40", "column": "seconds", "first_step": 1000}, W),  # 0.298
    ("range", {"value": "0.4-2.0", "column": "grad_norm"}, H),
    ("range", {"value": "0.4-1.5", "column": "grad_norm"}, W),  # 2.0 at step 1
    ("agreement", {"values": ["~3.5", "3.55"]}, H),
    ("agreement", {"values": ["3.2", "3.55"]}, W),
    ("agreement", {"words": ["compute", "memory"]}, W),
    ("dates", {"dates": ["2026-03-04", "run_20260304_1200"]}, H),
    ("dates", {"dates": ["2026-03-04", "run_20250304_1200"]}, W),
    ("multiples", {"every": "1,000", "last": "2,500", "listed": ["1,000", "2,000", "2,500"]}, H),
    ("multiples", {"every": "1,000", "last": "2,500", "listed": ["1,000", "2,500"]}, W),
    ("parameters", {"value": "~70.4 M"}, H),
    ("parameters", {"value": "124 M"}, W),
    ("size_ratio", {"about": "wide", "than": "run", "value": "3.4 x"}, H),  # 239,057,920 / 70,371,840 = 3.397
    ("size_ratio", {"about": "wide", "than": "run", "value": "4 x"}, W),
    ("tokens_per_step", {"value": "65,536"}, H),
    ("tokens_per_step", {"value": "131,072"}, W),
    ("total_tokens", {"value": "1.31 billion"}, H),  # 20,000 · 65,536
    ("total_tokens", {"value": "2.6 billion"}, W),
    ("ratio_tokens", {"value": "1.41 billion", "ratio": 20}, H),  # 20 · 70.37 M
    ("ratio_tokens", {"value": "2.5 billion", "ratio": 20}, W),
    ("ratio_steps", {"value": "21,476", "ratio": 20}, H),
    ("ratio_steps", {"value": "40,000", "ratio": 20}, W),
    ("ratio_multiple", {"value": "0.93 x", "ratio": 20}, H),  # 1.311 B / 1.407 B
    ("ratio_multiple", {"value": "3 x", "ratio": 20}, W),
    ("data_need", {"value": "13", "tokens": "1.31 billion", "part_tokens": "100 M"}, H),
    ("data_need", {"value": "25", "tokens": "2.5 billion", "ratio": 20}, D),  # 1.41 B tokens
    ("epochs", {}, H),  # 6 GB at 4.4 B a token: 1.4 B tokens, less than one pass
    ("epochs", {"run": {"dataset": "30 MB"}}, D),
    ("duration", {"value": "1.67 h"}, H),  # 20,000 · 0.30 s
    ("duration", {"value": "3 h"}, W),
    ("duration", {"value": "50 min", "remaining": True}, H),
    ("duration", {"value": "1.67 h", "remaining": True}, W),
    ("cost", {"value": "$3.33", "time": "1.667 h"}, H),
    ("cost", {"value": "$6.70", "time": "1.667 h"}, W),
    ("price", {"value": "$2.00/h"}, H),
    ("price", {"value": "$0.10/h"}, W),
    ("throughput", {"value": "218 k tok/s"}, H),
    ("throughput", {"value": "83 k tok/s"}, W),
    ("average_throughput", {"value": "218 k tok/s"}, H),  # 10,000 · 65,536 / 3,000 s
    ("average_throughput", {"value": "300 k tok/s"}, W),
    ("step_time", {"value": "0.30 s", "rate": "218,453 tok/s"}, H),
    ("step_time", {"value": "0.50 s", "rate": "218,453 tok/s"}, W),
    ("mfu", {"value": "34.8 %"}, H),
    ("mfu", {"value": "17 %"}, W),  # against the sparse peak
    ("mfu", {"value": "95 %"}, W),
    ("slower_by_flops", {"about": "wide", "than": "run", "value": "3.2 x"}, H),  # 1,582,694,400 / 496,435,200 = 3.19
    ("slower_by_flops", {"about": "wide", "than": "run", "value": "2 x"}, W),
    ("expected_speed", {"value": "200 k tok/s"}, H),
    ("expected_speed", {"value": "3,000 tok/s"}, W),
    ("expected_speed", {"value": "3,000 tok/s", "seen": True}, D),
    ("expected_speed", {"value": "9,000,000 tok/s"}, W),
    ("phase_time", {"phase": "optimizer", "value": "2 ms"}, H),  # 28 · 70.4 M / 2,039 GB/s = 0.97 ms
    ("phase_time", {"phase": "optimizer", "value": "0.3 ms"}, W),
    ("phase_time", {"phase": "backward", "value": "20 ms"}, W),  # 2/3 of 3.25e13 FLOP at 312 TFLOP/s: 69.5 ms
    ("run_identity", {"steps": "1,000", "elapsed": "300 s"}, H),
    ("run_identity", {"steps": "1,000", "elapsed": "900 s"}, W),  # that is the wide one
    ("run_identity", {"steps": "1,000", "elapsed": "5,000 s"}, D),
    ("memory_part", {"part": "weights", "value": "281 MB", "bytes_each": 4}, H),
    ("memory_part", {"part": "weights", "value": "281 MB", "bytes_each": 2}, W),
    ("activations", {"value": "8 GB"}, H),  # 24-56 B · 16,384 · 10 · 640 + 6-12 B · 16,384 · 32,000: 5.7-12.2 GB
    ("activations", {"value": "900 GB"}, W),
    ("memory_total", {"value": "12 GB"}, H),
    ("memory_total", {"value": "900 GB"}, W),
    ("memory_fits", {"value": "12 GB"}, H),
    ("memory_fits", {"value": "100 GB"}, W),
    ("memory_fits", {"about": "huge", "value": "60 GB"}, W),
    ("matches", {"estimate": "10 GB", "measured": ["10.5 GB"]}, H),
    ("matches", {"estimate": "10 GB", "measured": ["10.5 GB", "16 GB"]}, D),
    ("checkpoint_size", {"value": "845 MB", "resumable": True}, H),  # 12 · 70.4 M
    ("checkpoint_size", {"value": "281 MB", "resumable": True}, W),  # the weights alone
    ("checkpoint_size", {"value": "281 MB"}, H),
    ("checkpoint_total", {"value": "8.4 GB", "count": 10}, H),
    ("checkpoint_total", {"value": "2.8 GB", "count": 10}, W),
    ("unsaved_work", {"saved_step": 9000}, H),  # 1,000 · 0.30 s = 0.083 h
    ("unsaved_work", {"run": {"step_time": None}}, C),
    ("perplexity", {"value": "33", "loss": "3.50"}, H),  # e^3.5 = 33.1
    ("perplexity", {"value": "50", "loss": "3.50"}, W),
    ("perplexity", {"value": "1e90", "loss": "450.0"}, W),  # 10^195.4
    ("initial_loss", {"value": "10.41"}, H),  # ln 32,000 = 10.373
    ("initial_loss", {"value": "14.0"}, W),
    ("initial_loss", {"value": "6.0"}, W),
    ("initial_loss", {"value": "8.3", "run": {"vocab_size": None}}, C),
    ("converging", {}, H),
    ("converging", {"card": {"rows": {"columns": ["step", "loss"], "values": [[0, 90.0], [9, 40.0]]}}}, W),
    ("expected_loss", {"value": "3.6"}, H),  # 1.82 + 482/70.4e6^.3478 + 2085/1.31e9^.3658 = 3.69
    ("expected_loss", {"value": "1.2"}, W),
    ("expected_loss", {"value": "2.4"}, W),
    ("expected_loss", {"value": "3.6", "steps": "1,000"}, C),  # 65.5 M tokens: outside the law
    ("printed_loss", {"value": "~4.9", "step": "1,000"}, H),
    ("printed_loss", {"value": "5.5-6.0", "step": "1,000"}, W),
    ("bits_per_byte", {"value": "1.05", "loss": "3.2"}, H),  # 4.40 bytes a token
    ("bits_per_byte", {"value": "0.30", "loss": "3.2"}, W),  # 15.4
    ("evaluation", {"task": "hellaswag", "value": "31 %"}, H),
    ("evaluation", {"task": "hellaswag", "value": "25.5 %"}, D),  # 1.2 standard errors
    ("evaluation", {"task": "a test of our own", "value": "31 %"}, C),
    ("better", {"value": "3.20", "other": "3.50"}, H),
    ("better", {"value": "3.45", "other": "3.50"}, D),
    ("better", {"value": "3.20", "other": "3.50", "phase": "10 %", "other_phase": "100 %"}, D),
    ("better", {"value": "3.60", "other": "3.50"}, W),
    ("learning_rate", {"value": "6e-4"}, H),
    ("learning_rate", {"value": "1e-5"}, D),
    ("learning_rate_at", {"value": "1.2e-4", "step": 100}, H),  # 100/500 of 6e-4
    ("learning_rate_at", {"value": "6e-4", "step": 100}, W),
    ("learning_rate_at", {"value": "3.4e-4", "step": "10,000"}, H),  # cosine at 48.7 %: 3.41e-4
    ("clip_share", {"value": "25 %"}, H),  # 2 of 8 printed norms above 1.0
    ("clip_share", {"value": "60 %"}, C),
    ("gpu_fact", {"fact": "memory", "value": "80 GB"}, H),
    ("gpu_fact", {"fact": "memory", "value": "40 GB"}, W),
    ("gpu_fact", {"fact": "peak", "value": "312 TFLOP/s"}, H),
    ("gpu_fact", {"fact": "peak", "value": "624 TFLOP/s"}, W),  # sparse
    ("gpu_fact", {"fact": "bandwidth", "value": "2.04 TB/s"}, H),
    ("gpu_fact", {"fact": "power", "value": "700 W"}, W),  # 400 W
    ("gpu_fact", {"fact": "architecture", "words": "Ampere"}, H),
    ("gpu_fact", {"fact": "architecture", "words": "Hopper"}, W),
    ("gpu_fact", {"fact": "bf16", "gpu": "t4"}, W),
    ("gpu_fact", {"fact": "vcpus", "value": "3", "run": {"gpu": "tpu-v6e", "machine": "tpu-v6e-1"}}, C),  # no list says
    ("gpu_fact", {"fact": "vcpus", "value": "3", "run": {"gpu": "l4", "machine": "g2-standard-4"}}, W),
    ("precision_speedup", {"value": "5 x", "fast": "tf32", "slow": "fp32"}, H),  # 156 / 19.5 = 8
    ("precision_speedup", {"value": "12 x", "fast": "tf32", "slow": "fp32"}, W),
    ("gpu_speedup", {"than": "v100", "value": "2 x"}, H),  # 312 / 112 = 2.8, 2,039 / 900 = 2.3
    ("gpu_speedup", {"than": "h100-80gb-sxm", "value": "1.5 x"}, W),
    ("value_for_money", {"than": "t4"}, H),
    ("value_for_money", {"than": "a100-80gb-sxm", "run": {"gpu": "a10"}}, D),
    ("number_format", {"format": "bf16", "fact": "range", "as": "fp32"}, H),
    ("number_format", {"format": "bf16", "fact": "precision", "as": "fp16"}, W),  # 7 against 10 bits
    ("number_format", {"format": "tf32", "fact": "bits", "value": 19}, H),
    ("number_format", {"format": "tf32", "fact": "bits", "value": 32}, W),
    # IEEE 754 half precision: (2 - 2^-10)·2^15 = 65,504; 2^-14 = 6.1e-5 is the smallest normal, 2^-24 = 6e-8 the least
    ("number_format", {"format": "fp16", "fact": "max", "value": 65504}, H),
    ("number_format", {"format": "fp16", "fact": "max", "value": 32768}, W),
    ("number_format", {"format": "bf16", "fact": "max", "value": 3.4e38}, H),
    ("number_format", {"format": "fp16", "fact": "min", "value": 6e-8}, H),
    ("number_format", {"format": "fp16", "fact": "min", "value": 6e-5}, W),
    ("number_format", {"format": "fp16", "fact": "zero", "value": 6e-8}, H),
    ("number_format", {"format": "fp16", "fact": "zero", "value": 1e-5}, W),
    ("technique", {"name": "smaller_batch", "effect": "device_memory"}, H),
    ("technique", {"name": "cudnn_benchmark", "effect": "speed"}, D),
    ("technique", {"name": "data_workers", "effect": "device_memory"}, D),
    ("technique", {"name": "data_workers", "effect": "speed", "size": "2 x"}, C),
    ("adapter_saving", {"value": "33 %"}, H),  # 2 of 6 FLOPs a parameter and token
    ("adapter_saving", {"value": "95 %"}, W),
    ("recompute_cost", {"value": "25-33 %"}, H),
    ("recompute_cost", {"value": "60-80 %"}, W),
    ("full_precision", {"run": {"tf32": False}}, H),
    ("full_precision", {}, W),
    ("autocast", {"products": "bf16", "rest": "fp32"}, H),
    ("autocast", {"products": "fp32", "rest": "bf16"}, W),
    ("tool_interval", {"tool": "nvidia-smi", "value": "1 ms"}, H),
    ("tool_interval", {"tool": "nvidia-smi", "value": "1 s"}, W),
    ("power_sampling", {"rate": "1 Hz"}, H),
    ("power_sampling", {"rate": "100 Hz", "run": {"gpu": "l4"}}, D),
    ("not_judged", {"why": "nothing is stated"}, C),
]

CONCLUDED = [
    ("bigger_batch_pays", {"run": {"micro_batch": 1, "grad_accum": 64}, "to": 8}, H),  # from 1 to 8: launches shared
    ("bigger_batch_pays", {"to": 18}, D),  # from 16 to 18: under 5 % more
    ("bigger_batch_pays", {"run": SLOW, "to": 64}, D),  # 0.9 % of the peak: not the batch
    ("bigger_batch_pays", {"run": {**NO_SHAPE, "step_time": None}, "to": 64}, C),
    ("faster_gpu_pays", {}, H),
    ("faster_gpu_pays", {"run": SLOW}, D),
    ("faster_gpu_pays", {"run": {**SLOW, "width": None, "heads": None, "family": None}}, C),  # a depth is no shape
    ("compute_bound", {"run": {"step_time": "0.13 s"}}, H),  # 3.25e13 FLOP in 0.13 s: 92 % of the best matmul rate
    ("compute_bound", {}, D),  # 108 of 271 TFLOP/s: 40 %
    ("memory_bound", {"run": {"depth": 8, "width": 384, "heads": 8, "gpu": "l4", "compile": False}}, H),
    ("memory_bound", {"about": "huge"}, D),
    ("used_better", {}, D),
    ("healthy_phases", {}, H),  # 185 / 90 = 2.06
    ("healthy_phases", {"card": {"timing": {"forward": "200 ms", "backward": "180 ms"}}}, W),
    ("clipping_works", {"run": {"grad_clip": 2.0}}, D),  # every printed norm at or below the threshold
    ("clipping_works", {}, W),  # norms of 2.0 and 1.2 are printed above 1.0
    ("clipping_works", {"run": {"grad_clip": None}}, C),
    ("startup_overhead", {}, H),  # 9 s, then 0.3 s
    (
        "startup_overhead",
        {"card": {"rows": {"columns": ["step", "seconds"], "values": [[0, 1.0], [1, 4.0], [2, 4.0]]}}},
        W,
    ),
    ("not_on_gpu", {"run": IDLE}, H),
    ("not_on_gpu", {}, C),
    ("on_gpu", {}, H),
    ("on_gpu", {"run": IDLE}, W),
    ("works", {}, H),
    ("works", {"run": IDLE}, W),
    ("works", {"card": {"rows": {"columns": ["step", "loss"], "values": [[0, 90.0], [9, 40.0]]}}}, W),
    ("normal_progress", {}, H),
    ("normal_progress", {"run": SLOW}, D),
    ("optimal", {"run": {"step_time": "0.17 s"}}, H),
    ("optimal", {"run": NO_SHAPE}, D),
    ("optimal", {"run": SLOW}, D),
    ("batch_suits_memory", {}, D),
    ("smaller_is_stabler", {}, D),
    ("never_waits", {}, H),  # 2 of 300 ms
    ("never_waits", {"card": {"timing": {"data": "90 ms", "total": "300 ms"}}}, W),
    ("never_waits", {"card": {"timing": {}}}, D),
    ("data_file_good", {"size": "2.2 MB", "full_size": "2.2 MB", "opening": '{"messages": []}'}, H),
    ("data_file_good", {"size": "278 B", "full_size": "2.2 MB"}, W),
    ("data_file_good", {"size": "2.2 MB", "opening": "<!DOCTYPE html>"}, W),
    ("accumulation_slows", {}, D),
    ("gradients_all_reduced", {}, W),
    ("more_tokens_help", {}, H),
    ("more_tokens_help", {"run": {"dataset": "30 MB"}}, D),  # 160 passes
]
RISING = {
    "columns": ["step", "grad_norm"],
    "values": [[i * 100, n] for i, n in enumerate((9.0, 1.0, 0.7, 0.8, 1.1, 1.3, 1.6, 2.2))],
}


@pytest.mark.parametrize(("kind", "fields", "expected"), CASES + COMPUTE_CASES)
def test_a_claim_is_judged_by_its_numbers(kind: str, fields: dict, expected: Ruling) -> None:
    judged = ask(kind, **fields)
    assert judged.judgement.ruling is expected, judged.judgement
    assert (judged.finding is not None) == (expected in (W, D))


@pytest.mark.parametrize(("that", "fields", "expected"), CONCLUDED)
def test_a_conclusion_is_held_against_what_the_numbers_support(that: str, fields: dict, expected: Ruling) -> None:
    judged = ask("conclusion", that=that, **fields)
    assert judged.judgement.ruling is expected, judged.judgement


def test_clipping_is_no_stability_while_norms_rise() -> None:
    judged = ask("conclusion", that="clipping_stabilised", card={"rows": RISING})
    assert judged.judgement.ruling is D
    assert ask("conclusion", that="clipping_stabilised").judgement.ruling is C


def test_every_kind_has_a_true_and_a_false_claim() -> None:
    rulings: dict[str, set[Ruling]] = {}
    for kind, _, ruling in CASES + COMPUTE_CASES:
        rulings.setdefault(kind, set()).add(ruling)
    one_sided = {
        "unsaved_work",
        "not_judged",
        "clip_share",
        "one_cause",
        "no_loss",
        "stacked_gains",
        "generality",
    }  # statements of a loss; never judged; sayings that are false
    assert set(rulings) | {"conclusion", "rests_on"} == set(KINDS)
    for kind in set(rulings) - one_sided:
        assert H in rulings[kind], kind
        assert rulings[kind] & {W, D}, kind


def test_every_conclusion_is_tried() -> None:
    assert {that for that, _, _ in CONCLUDED} | {"clipping_stabilised"} == set(CONCLUSIONS)


def test_the_decisive_number_is_said() -> None:
    assert "70.4 M" in ask("parameters", value="124 M").judgement.so
    assert "the run wide" in ask("run_identity", steps="1,000", elapsed="900 s").judgement.so
    assert "2:4 sparsity" in ask("gpu_fact", fact="peak", value="624 TFLOP/s").judgement.so
    # 28 · 70,371,840 / 2.039e12 = 0.966 ms
    assert "0.966 ms" in ask("phase_time", phase="optimizer", value="0.3 ms").judgement.arithmetic.replace(
        "966 µs", "0.966 ms"
    )
