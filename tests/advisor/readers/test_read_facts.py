"""Lines of JSON, banners, ours among them, scores among the steps, and what a megabyte is."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.findings.detectors.held_out import detect_scores_at_chance, scores_of
from advisor.findings.make_case import make_case
from advisor.readers.read import read_run
from tests.advisor.readers.reading import read, verify
from trainer.banner import banner


def json_lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def factory(step, **more):
    """A row as LLaMA-Factory writes it."""
    clock = {"elapsed_time": f"0:00:{step:02d}", "remaining_time": "0:01:00"}
    return {"current_steps": step, "total_steps": 20, **more, "percentage": 5.0 * step, **clock}


BOTH = [
    factory(step, loss=one)
    for step, both in {5: (3.50, 3.49), 10: (3.0, 2.99), 15: (2.5, 2.49)}.items()
    for one in both
]
JSON_LINES = {
    "LLaMA-Factory": (
        [*(factory(s, loss=4 - s / 10, lr=1e-4, epoch=s / 20) for s in (5, 10, 15, 20)), factory(20, eval_loss=2.5)],
        {"framework": "LLaMA-Factory", "rows": 4, "ends": (5, 20, 3.5, 2.0), "facts": {"planned_steps": 20},
            "status": "completed",
         "columns": {"elapsed_seconds": [5, 10, 15, 20], "eval_loss": {-1: 2.5}}},
    ),
    "two processes write one file": (BOTH, {"columns": {"loss": [3.50, 3.0, 2.5]}}),  # those of the first
    "a prediction": ([factory(s) for s in (5, 10, 15, 20)], {"rows": 4, "ends": (5, 20, None, None),
        "status": "completed"}),
    "a counter with its plan": ([{"loss": 4 - i, "global_step/max_steps": f"{5 * i}/80"} for i in range(3)],
        {"columns": {"step": [0, 5, 10]}}),
}  # fmt: skip


@pytest.mark.parametrize("name", JSON_LINES)
def test_lines_of_json(tmp_path, name):
    records, expected = JSON_LINES[name]
    verify(read(tmp_path, json_lines(*records), "trainer_log.jsonl"), **expected)


def test_json_without_a_loss_says_what_it_holds_and_columns_of_a_history_are_read(tmp_path):
    with pytest.raises(AdvisorError, match="none with a loss; their keys are step, question, answer"):
        read(tmp_path, json_lines(*({"step": i, "question": "?", "answer": "!"} for i in range(3))), "answers.jsonl")
    history = {"history": {"loss": [3, 2, 1.5], "val_loss": [3.1, 2.2, 1.9]}, "params": {"epochs": 3}}
    verify(
        read(tmp_path, json.dumps(history), "history.json"), columns={"loss": [3, 2, 1.5], "eval_loss": [3.1, 2.2, 1.9]}
    )


LM = [10.4 / (1 + n / 9) for n in range(30)]
BANNERS = {
    "pairs": (["vocab_size: 32000", "n_params: 48211968", "gpu: NVIDIA A100-SXM4-80GB"], LM,
              {"vocab_size": 32000, "parameters": 48211968, "gpu": "NVIDIA A100-SXM4-80GB"}),
    "words": (["Model has 48,211,968 parameters", "Vocab size: 32,000", "Device: NVIDIA GeForce RTX 4090"], LM,
              {"vocab_size": 32000, "parameters": 48211968, "gpu": "NVIDIA GeForce RTX 4090"}),
    "a dictionary": (["config: {'vocab_size': 32000, 'n_layer': 12, 'n_embd': 768, 'n_head': 12, 'block_size': 1024}"],
        LM,
                     {"vocab_size": 32000, "depth": 12, "width": 768, "heads": 12, "seq_len": 1024}),
    "a namespace": (["Namespace(vocab_size=32000, n_layers=12, d_model=768, batch_size=8, seq_len=1024, lr=0.0003)",
                     "Using device: cuda (NVIDIA H100 80GB HBM3)"], LM,
                    {"vocab_size": 32000, "depth": 12, "width": 768, "micro_batch": 8, "seq_len": 1024,
                     "learning_rate": 0.0003, "gpu": "NVIDIA H100 80GB HBM3"}),
    "a sentence": (["INFO Model: 124.4M parameters, vocab 50257", "INFO Training on 1x RTX 4090"], LM,
                   {"vocab_size": 50257, "parameters": 124_400_000, "gpu": "RTX 4090"}),
    "which card": (["gpu: 3", "devices: 0,1", "params=48.2M"], LM, {"parameters": 48_200_000}),
    "said twice": (["vocab_size: 32000", "vocab_size: 128"], LM, {}),
    # a classifier of 2 or of 20 classes over text, a sum over tokens: nothing of a model of language is told
    **{f"a first loss of {first}": (["vocab_size: 32000", "n_params: 350M", "seq_len: 512", "batch_size: 32"],
                                    [first / (1 + n / 9) for n in range(30)], {"micro_batch": 32}) for first in (0.69,
                                        3.0, 50.0)},
    "a launcher": (["[launch.py:163:main] dist_world_size=8"], LM, {"world_size": 8}),
    "a launcher's dictionary": (["'nproc_per_node': 8"], LM, {"world_size": 8}),
    "a launcher's option": (["nproc_per_node=8"], LM, {"world_size": 8}),
}  # fmt: skip


@pytest.mark.parametrize("name", BANNERS)
def test_a_banner_says_what_is_trained(tmp_path, name):
    banner, losses, told = BANNERS[name]
    lines = [
        *banner,
        *(f"step {20 * n} | loss {one:.4f} | lr 3.0e-04" for n, one in enumerate(losses)),
        "vocab_size: 7777",
    ]
    assert read(tmp_path, lines).facts == told


def test_lists_before_the_first_row_cost_no_time(tmp_path):
    began = time.process_time()
    lines = (
        ["[" + "1," * 2_000 + "1]"] * 20
        + ["vocab_size: 32000"]
        + [f"step {20 * n} | loss {one:.4f}" for n, one in enumerate(LM)]
    )
    verify(read(tmp_path, lines), facts={"vocab_size": 32000})
    assert time.process_time() - began < 20


MEMORY = 20_000 * 2**20  # MB and GB mean the same in every format, but for tools known to divide by powers of 1000


@pytest.mark.parametrize(
    ("file", "name", "value", "size"),
    [
        ("run.log", "memory", "20000MB", MEMORY),
        ("run.log", "memory", "20000MiB", MEMORY),
        ("run.log", "vram_mb", "20000", MEMORY),
        ("run.csv", "vram_mb", 20000, MEMORY),
        ("run.csv", "memory (MiB)", 20000, MEMORY),
        ("run.jsonl", "gpu_memory_mb", 20000, MEMORY),
        ("run.jsonl", "gpu_memory_gb", 20000 / 1024, MEMORY),
        ("run.jsonl", "memory/peak_allocated_mem", 44.642, 44.642e9),
        ("run.jsonl", "memory/peak_allocated_mem", 44_642_000_000, 44.642e9),  # until Composer 0.12
        ("run.jsonl", "System/Peak GPU Memory (MB)", 42133, 42133e6),
    ],
)
def test_a_megabyte_is_the_same_in_every_format(tmp_path, file, name, value, size):
    texts = {
        "run.log": "".join(f"step={i} loss={5 - i / 10:.2f} {name}={value}\n" for i in range(10)),
        "run.csv": f"step,loss,{name}\n" + "".join(f"{i},{5 - i / 10:.2f},{value}\n" for i in range(10)),
        "run.jsonl": json_lines(*({"step": i, "loss": 5 - i / 10, name: value} for i in range(10))),
    }
    verify(read(tmp_path, texts[file], file), columns={"memory_bytes": {-1: size}})


SMALL = Path(__file__).parents[2] / "recorded" / "small.jsonl"
NAMES = ("depth", "width", "heads", "vocab_size", "seq_len", "parameters", "micro_batch", "grad_accum",
         "step_tokens", "planned_steps", "gpu", "world_size")  # fmt: skip


def header() -> dict:
    return json.loads(SMALL.read_text().splitlines()[0])


def test_the_screen_is_read_back_as_the_log_is(tmp_path):
    lines = [*banner(header()), *(f"step {n}/60  loss {6.2 - n / 100:.4f}  0.020 s" for n in (1, 20, 40, 60))]
    path = tmp_path / "stdout.log"
    path.write_text("\n".join([*lines, "completed: all 60 steps done"]) + "\n")
    run, log = read_run(path), read_run(SMALL)
    assert run.format == "generic" and (run.rows, run.last_step, run.last_loss) == (4, 60, 5.6)
    assert {name: run.facts.get(name) for name in NAMES} == {name: log.facts[name] for name in NAMES}


def test_a_card_is_named_with_its_tf32_and_the_data_with_their_tokens():
    record = header()
    record["device"] |= {"type": "cuda", "name": "NVIDIA L4"}
    record["data"] = {"tokens": 1000}
    said = list(banner(record))
    assert said[0] == "device: NVIDIA L4" and "tf32: true" in said and "data: 1000 training tokens" in said
    assert "checkpoints: every 30 steps, at the end" in said and "attention_kernel: auto" in said


NANOCHAT = "step {0:05d}/00300 (1.00%) | loss: 5.{0:06d} | lrm: 1.00 | dt: 100.00ms | tok/sec: 5,000 | mfu: 10.00"
LLMC = "step {0}/300 | loss 5.{0:06d} (+nanz)| norm 1.0 (+nanz)| lr 1.00e-04 | 100.00 ms | 30.0% bf16 MFU | 5000 tok/s"
# as EleutherAI's harness prints its table
HARNESS = """|  Tasks  |Version|Filter|n-shot| Metric |   |Value |   |Stderr|
|---------|------:|------|-----:|--------|---|-----:|---|-----:|
|hellaswag|      1|none  |     0|acc     |↑  |0.2634|±  |0.0044|
|         |       |none  |     0|acc_norm|↑  |0.2701|±  |0.0044|
|piqa     |      1|none  |     0|acc     |↑  |0.6143|±  |0.0114|"""


@pytest.mark.parametrize(
    ("line", "said", "format", "scores"),
    [
        (NANOCHAT, "Evaluating: arc_easy (10-shot, type: multiple_choice)... accuracy: 0.5520 | centered: 0.4027",
         "nanochat", {"arc_easy": 0.552}),
        (NANOCHAT, "ARC-Challenge accuracy: 28.84%\nMMLU accuracy: 31.00%", "nanochat",
         {"arc_challenge": 0.2884, "mmlu": 0.31}),
        (NANOCHAT, HARNESS, "nanochat", {"hellaswag": 0.2634, "piqa": 0.6143}),
        (LLMC, "HellaSwag: 2500/10042 = 0.248954", "llmc_stdout", {"hellaswag": 0.248954}),
        ("s:{0} trl:5.{0:04d} lr:0.000100 norm:1.0", "s:3 eval:0.2437", "llmc_mainlog", {"hellaswag": 0.2437}),
        ("{0} train 5.{0:06d}", "3 hella 0.2743", "generic", {"hellaswag": 0.2743}),
    ],
)  # fmt: skip
def test_scores_are_read(tmp_path, line, said, format, scores):
    path = tmp_path / "run.log"
    steps = [line.format(step) for step in range(1, 6)]
    path.write_text("\n".join([*steps[:3], said, *steps[3:]]) + "\n")
    run = read_run(path)
    assert (run.format, run.rows) == (format, 5)
    found = scores_of(make_case(run))
    assert {name: value for name, (value, _) in found.items()} == pytest.approx(scores)
    assert {step for _, step in found.values()} == {3.0}


def test_a_log_of_scores_at_chance_is_told_so(tmp_path):
    path = tmp_path / "main.log"
    path.write_text("".join(f"s:{s} trl:{5 - s / 100:.4f} lr:0.0001\ns:{s} eval:0.2437\n" for s in range(20)))
    found = detect_scores_at_chance(make_case(read_run(path)))
    assert found.title.startswith("1 of 1 scores no better than chance: hellaswag 24.4 %") and found.severity == "note"
