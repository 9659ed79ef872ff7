"""Scores predicted fine-tunes of an owner whose runs are in no fit: `python benchmarks/finetunes.py`.

benchmarks/finetune_runs.csv has the runs of github.com/foundation-model-stack/fms-acceleration,
scripts/benchmarks/refs/a100_80gb.csv (facts only) without its own kernels: TRL on A100 80 GB, 4,096 tokens, bf16
weights, activation checkpointing, FSDP over two GPUs, adapters of rank 16 on attention.
"""

from __future__ import annotations

import csv
import statistics
from dataclasses import replace
from pathlib import Path

from advisor.calibration.profiles import load_profile
from advisor.prediction.batch import predict_batch
from advisor.records import Adapters, Workload
from advisor.store.store import default_store
from advisor.workflows.goal import find_any_model
from advisor.workflows.plan_finetune import finetune_software

GPU, LENGTH = "a100-80gb-sxm", 4096


def main() -> None:
    """Print each group's median error of peak memory and of speed, and how many runs lie inside the 80 % interval."""
    groups: dict[str, list[tuple[float, bool, float, bool]]] = {}
    with (Path(__file__).parent / "finetune_runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            model, gpus = find_any_model(row["model"]), int(row["gpus"])
            software = replace(finetune_software(row["method"], model, 16, "trl"), state="16bit", state_chance=1.0)
            if software.adapters is not None:
                adapters = Adapters(rank=16, targets="attention", quantized=software.adapters.quantized)
                software = replace(software, adapters=adapters)
            sharding = "full" if gpus > 1 else "none"
            profile = load_profile(
                GPU, default_store(), family="llama", precision="bf16", compile=False, software=software
            )
            workload = Workload(
                shape=replace(model.shape, seq_len=LENGTH), micro_batch=int(row["micro_batch"]), gpu=GPU, gpus=gpus,
                precision="bf16", activation_checkpointing="full", software=software, sharding=sharding,
            )  # fmt: skip
            said = predict_batch(profile, [workload])[0]
            peak, rate = float(row["peak_bytes"]), float(row["tokens_per_second_per_gpu"]) * gpus
            memory, speed = said.peak_allocated_bytes, said.tokens_per_second
            assert memory is not None and speed is not None
            scored = (memory.value / peak - 1, memory.contains(peak), speed.value / rate - 1, speed.contains(rate))
            kind = "mixture" if model.expert_width is not None else "dense"
            for group in (f"{kind}, {row['method']}, {gpus} GPU", f"{kind}, all"):
                groups.setdefault(group, []).append(scored)
    print("| runs | number | peak: median error, inside | tokens/s: median error, inside |\n|---|---|---|---|")
    for name, rows in sorted(groups.items()):
        errors = [statistics.median(abs(row[at]) for row in rows) for at in (0, 2)]
        inside = [sum(row[at] for row in rows) for at in (1, 3)]
        print(f"| {name} | {len(rows)} | {errors[0]:.1%}, {inside[0]} | {errors[1]:.1%}, {inside[1]} |")


if __name__ == "__main__":
    main()
