"""A model split over processes (FSDP2 on the CPU) trains as the whole one does, and goes on on any number of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from safetensors.torch import load_file

from tests.trainer.forked import start_many
from trainer.run import run
from trainer.runlog import load_run_log
from trainer.schema import (
    CheckpointConfig,
    EvalConfig,
    OptimizerConfig,
    Outcome,
    RunConfig,
    ScheduleConfig,
    TelemetryConfig,
    make_shape,
)

# 65 rows on 2 or 4 processes: some hold more rows than others, and the norms of 32 rows are split as well.
SHAPES = {
    family: make_shape(family, depth=2, width=32, heads=2, vocab_size=65, seq_len=16)
    for family in ("nanochat", "gpt2", "llama")
}

CONSTANT = ScheduleConfig(name="wsd", decay_fraction=0.0, final_fraction=1.0)  # does not depend on the number of steps


def config(family="gpt2", *, optimizer="adamw", processes=1, **changes) -> RunConfig:
    """The same global batch of 16 sequences on any number of processes."""
    defaults = {
        "model": SHAPES[family],
        "steps": 6,
        "micro_batch": 8 // processes,
        "grad_accum": 2,
        "device": "cpu",
        "precision": "fp32",
        "sharding": "full",
        "optimizer": OptimizerConfig(name=optimizer, learning_rate=3e-3, grad_clip=1.2),
        "eval": EvalConfig(every_steps=3, tokens=16 * 24),  # not the same number of batches for each process
        "checkpoint": CheckpointConfig(every_steps=3, background=True),
        "telemetry": TelemetryConfig(hz=0),
    }
    return RunConfig(**(defaults | changes))


def train(folder, settings, processes):
    """Run to the end on so many processes; gives the log, of earlier attempts in the folder too."""
    if processes == 1:
        assert run(settings, folder) is Outcome.COMPLETED
        return load_run_log(folder / "log.jsonl")
    for process in start_many(folder, settings, processes):
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    return load_run_log(folder / "log.jsonl")


def assert_alike(log, expected, *, rel=2e-5, first=0):
    for field in ("loss", "grad_norm"):
        assert [r[field] for r in log.steps[first:]] == pytest.approx(
            [r[field] for r in expected.steps[first:]], rel=rel
        )
    assert [r["clipped"] for r in log.steps] == [r["clipped"] for r in expected.steps]
    losses, known = ({r["step"]: r["loss"] for r in some.evals} for some in (log, expected))
    assert losses == pytest.approx({step: known[step] for step in losses}, rel=rel)


def test_two_processes_with_half_the_model_each_equal_one_and_go_on_as_one(tmp_path):
    """Six steps on one process; three on two that share the model, then three on one again: the same curve."""
    one = train(tmp_path / "one", config(), 1)
    clipped = [r["clipped"] for r in one.steps]
    assert any(clipped) and not all(clipped)
    two = train(tmp_path / "two", config(processes=2, steps=3, schedule=CONSTANT), 2)
    assert two.header["parameters"] == one.header["parameters"]
    newest = tmp_path / "two" / "checkpoints" / "step-00000003"
    halves = [load_file(newest / f"model-0000{part}-of-00002.safetensors") for part in (1, 2)]
    assert [len(half["embedding.weight"]) for half in halves] == [33, 32]
    assert sum(tensor.numel() for half in halves for tensor in half.values()) == one.header["parameters"]
    assert two.checkpoints[-1]["bytes"] == sum(f.stat().st_size for f in newest.iterdir())
    again = train(tmp_path / "two", config(schedule=CONSTANT), 1)
    assert again.header["resumed_from_step"] == 3
    whole = train(tmp_path / "whole", config(schedule=CONSTANT), 1)
    assert_alike(again, whole)


@pytest.mark.long
def test_a_process_that_finds_its_file_damaged_makes_all_go_back(tmp_path):
    settings = config(processes=2, steps=6, checkpoint=CheckpointConfig(every_steps=2, keep=3))
    log = train(tmp_path, settings, 2)
    file = tmp_path / "checkpoints" / "step-00000006" / "optimizer-00002-of-00002.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(bytes(raw))
    again = train(tmp_path, settings, 2)
    assert again.header["resumed_from_step"] == 4
    damaged, back = (r["text"] for r in again.messages)
    assert "optimizer-00002-of-00002.safetensors does not match its checksum" in damaged
    assert back == "goes on from step 4: 2 steps are done again"
    assert [r["loss"] for r in again.steps][-2:] == [r["loss"] for r in log.steps][-2:]


@pytest.mark.long
@pytest.mark.parametrize(
    "family, optimizer, changes, rel",
    [
        ("gpt2", "adamw", {}, 2e-5),
        ("llama", "adamw", {"activation_checkpointing": "full"}, 2e-5),
        ("nanochat", "muon", {"activation_checkpointing": "selective"}, 2e-4),  # 16-bit iterations amplify roundings
        ("nanochat", "muon", {"precision": "bf16"}, 1e-2),
        ("llama", "adamw", {"precision": "fp16"}, 1e-2),
    ],
)
def test_one_two_and_four_processes_draw_the_same_curve_split_or_whole(tmp_path, family, optimizer, changes, rel):
    one = train(tmp_path / "one", config(family, optimizer=optimizer, **changes), 1)
    for processes in (2, 4):
        for sharding in ("full", "none"):
            settings = config(family, optimizer=optimizer, processes=processes, **changes, sharding=sharding)
            assert_alike(train(tmp_path / f"{processes}-{sharding}", settings, processes), one, rel=rel)


@pytest.mark.long
def test_a_run_goes_on_on_other_numbers_of_processes_split_and_whole(tmp_path):
    """2 split, 4 split, 1, 2 whole, 4 split: three steps each, one curve."""
    stations = [(2, "full"), (4, "full"), (1, "none"), (2, "none"), (4, "full")]
    settings = config("nanochat", optimizer="muon", steps=15, schedule=CONSTANT)
    expected = train(tmp_path / "one", settings, 1)
    for number, (processes, sharding) in enumerate(stations, start=1):
        changes = {"steps": 3 * number, "micro_batch": 8 // processes, "sharding": sharding}
        log = train(tmp_path / "many", replace(settings, **changes), processes)
        assert log.header["resumed_from_step"] == 3 * (number - 1)
    assert_alike(log, expected, rel=5e-4)
