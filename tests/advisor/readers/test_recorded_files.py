"""Recorded files that are no consoles: tables, states, lines of JSON, MLPerf, reports, readings of devices."""

from __future__ import annotations

import math
from typing import Any

import pytest

from advisor.readers.read import read_run
from advisor.readers.run_table import names_of
from advisor.readers.telemetry_file import read_telemetry
from tests.advisor.readers.reading import RECORDED, verify

NAN = math.nan
MIB, GIB = 2**20, 2**30


def csv(rows: int, *ends: float | None, **more: Any) -> dict[str, Any]:
    return {"format": "csv", "rows": rows, "ends": ends, **more}


FILES = {
    # the first of two sets; evaluated as it was, not by the default in the file
    "trainer_state.json": {
        "format": "hf_trainer_state", "rows": 4, "first_step": 10, "last_step": 40, "last_loss": 3.5104,
            "status": "incomplete",
        "columns": {"step": [0, 10, 20, 30, 40], "eval_loss": {0: 5.12, 2: 4.02},
            "loss_is_nan": {1: 0, 2: 0, 3: 1, 4: 0}},
        "facts": {"total_seconds": 61.5, "planned_steps": 50, "eval_every_steps": 20, "checkpoint_every_steps": None},
    },
    # prose between, a torn end, "NaN" as text
    "metrics.jsonl": {
        "format": "jsonl", "rows": 4, "last_step": 4, "facts": {"depth": 6, "learning_rate": 6e-4},
        "columns": {"loss": {0: 10.91, 2: 9.41, 3: 8.87}, "loss_is_nan": [0, 1, 0, 0], "eval_loss": {1: 10.02},
                    "tokens_per_second": {0: 41200}, "memory_bytes": {0: 3.25 * GIB}},
    },
    # the program's own steps are counted
    "wandb-summary.json": {
        "format": "wandb", "rows": 1, "first_step": 3000, "last_loss": 2.75, "facts": {"total_seconds": 600.5},
        "columns": {"eval_loss": {0: 2.9}, "mfu": {0: 0.385}},
    },
    "wandb_config.yaml": {
        "format": "wandb", "rows": 0, "status": "no_end_recorded",
        "facts": {"depth": 12, "micro_batch": 16, "seq_len": 1024, "learning_rate": 6e-4, "planned_steps": 6000,
            "precision": "bf16"},
    },
    # Lightning: rows of one step complete each other
    "metrics.csv": csv(4, 9, 39, 4.1053, 3.2981, columns={
        "step": [9, 19, 29, 39], "loss": [4.1053, 3.7719, 3.5127, 3.2981], "eval_loss": {1: 3.6502, 3: 3.4410},
        "learning_rate": {3: 0.00024}}),
    # Keras: double carriage returns and a NaN; the log counts by epochs, and these are its counter
    "keras.csv": {"format": "csv", "rows": 3, "first_step": 0, "last_step": 2, "last_loss": NAN, "counts_steps": False,
        "columns": {
        "epoch": [0, 1, 2], "loss_is_nan": [0, 0, 1], "eval_loss": [0.6013, 0.4518, 0.4429]}},
    # Ultralytics: time is cumulative
    "results.csv": {"format": "csv", "first_loss": 1.4412, "last_loss": 1.2008, "absent": ["seconds"],
                    "columns": {"elapsed_seconds": [11.2, 21.9, 32.7]}},
    # a repeated header, a restart of which the later attempt wins, a torn seventh row
    "named.csv": {"format": "csv", "rows": 6, "columns": {
        "step": [0, 10, 20, 30], "loss": [10.8912, 9.7731, 8.9001, 8.0552], "seconds": [1.3264, 0.3159, 0.3150, 0.3152],
        "tokens_per_second": [12345, 51870, 52010, 51985], "memory_bytes": {0: 3399 * MIB},
            "mfu": [0.315, 0.412, 0.413, 0.413]}},
    "tokens.tsv": {"rows": 3, "first_step": None, "last_loss": 7.9007,
        "columns": {"tokens": [1048576, 2097152, 3145728]}},
    # the torn row of readings is none
    "nvidia_smi.csv": {"rows": 4, "telemetry": {
        "gpu": [0, 1, 0, 1], "power_watts": [298.51, NAN, 300.02, 31.0], "utilization": [0.97, 0.12, 0.99, 0.11],
        "memory_used_bytes": {0: 20137 * MIB}, "memory_total_bytes": {0: 24564 * MIB},
            "throttle_reasons": [4, 1, 0x24, 1],
        "sm_clock_mhz": {0: 1710}}},
    # the second memory figure is what is free
    "headerless_smi.csv": {"telemetry": {
        "memory_used_bytes": [2 * MIB, 18002 * MIB, 19000 * MIB], "memory_total_bytes": [20148 * MIB] * 3,
        "utilization": [0, 0.88, 0.9], "memory_utilization": {1: 0.4}, "temperature_celsius": [27, 55, 58],
        "power_watts": [11.64, 66.1, 67.0]}},
    # a column per card becomes a row per card
    "pynvml_wide.csv": {"rows": 6, "telemetry": {
        "gpu": [0, 1, 0, 1, 0, 1], "power_watts": [681.2, 673.0, 679.9, 670.5, 683.1, 671.1],
            "temperature_celsius": {1: 58}}},
    # numbers without units are told by their size: NVML's milliwatts
    "pynvml_bare.csv": {"notes": "by its size", "telemetry": {
        "memory_total_bytes": [15360 * MIB] * 3, "power_watts": [30.5, 71.25, 70.8], "utilization": [0, 0.38, 0.41]}},
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_recorded_file_is_read(name):
    run = read_run(RECORDED / name)
    verify(run, **FILES[name])
    if run.telemetry is not None:
        assert set(run.telemetry) <= set(names_of("telemetry"))


def test_what_else_the_files_say():
    state = read_run(RECORDED / "trainer_state.json")
    assert state.facts["eval_losses"]["far"] == {"step": [0, 20], "loss": [6.51, 6.9]}
    assert read_run(RECORDED / "results.csv").facts["loss_unit"] != "nats"  # no cross-entropy
    assert sum("by its size" in note for note in read_run(RECORDED / "pynvml_bare.csv").notes) == 3
    smi = read_telemetry(RECORDED / "nvidia_smi.csv")["unix_seconds"]
    assert smi[2] - smi[0] == pytest.approx(1.001)
    events = read_telemetry(RECORDED / "wandb-events.jsonl")
    assert events["utilization"].tolist() == [0.96, 0.94] and events["memory_utilization"].tolist() == [0.41, 0.4]
    assert events["memory_used_bytes"].tolist() == [20 * GIB] * 2 and events["power_watts"].tolist() == [280.5, 284.0]
