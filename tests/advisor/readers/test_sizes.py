"""MB and GB mean the same in every format, but for tools known to divide by powers of 1000."""

from __future__ import annotations

import json

import pytest

from advisor.readers.read import read_run

MEMORY = 20_000 * 2**20


def as_lines(name: str, value: str) -> str:
    return "".join(f"step={i} loss={5 - i / 10:.2f} {name}={value}\n" for i in range(10))


def as_csv(name: str, value: float) -> str:
    return f"step,loss,{name}\n" + "".join(f"{i},{5 - i / 10:.2f},{value}\n" for i in range(10))


def as_json(name: str, value: float) -> str:
    return "".join(json.dumps({"step": i, "loss": 5 - i / 10, name: value}) + "\n" for i in range(10))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("run.log", as_lines("memory", "20000MB")),
        ("run.log", as_lines("memory", "20000MiB")),
        ("run.log", as_lines("vram_mb", "20000")),
        ("run.csv", as_csv("vram_mb", 20000)),
        ("run.csv", as_csv("memory (MiB)", 20000)),
        ("run.jsonl", as_json("gpu_memory_mb", 20000)),
        ("run.jsonl", as_json("gpu_memory_gb", 20000 / 1024)),
    ],
)
def test_a_megabyte_is_the_same_in_every_format(tmp_path, file, text):
    path = tmp_path / file
    path.write_text(text)
    assert read_run(path).column("memory_bytes")[-1] == pytest.approx(MEMORY)


def test_tools_that_divide_by_a_thousand(tmp_path):
    path = tmp_path / "run.jsonl"
    for name, value, size in (
        ("memory/peak_allocated_mem", 44.642, 44.642e9),
        ("memory/peak_allocated_mem", 44_642_000_000, 44.642e9),  # until Composer 0.12
        ("System/Peak GPU Memory (MB)", 42133, 42133e6),
    ):
        path.write_text(as_json(name, value))
        run = read_run(path)
        assert run.column("memory_bytes")[-1] == pytest.approx(size), name
