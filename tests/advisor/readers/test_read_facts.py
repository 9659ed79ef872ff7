"""Lines of JSON, what a banner tells of the model, and what a megabyte is."""

from __future__ import annotations

import json
import time

import pytest

from advisor.errors import AdvisorError
from tests.advisor.readers.reading import read, verify


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
        {"format": "llama_factory", "rows": 4, "ends": (5, 20, 3.5, 2.0), "facts": {"planned_steps": 20},
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
