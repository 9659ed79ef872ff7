"""Scores predictions of memory and speed for published training runs with LoRA and QLoRA.

    python benchmarks/adapters.py

Memory: `fit_memory.py` fits its factors to these rows and others. Speed: the bytes that adapters move in eager code
are fitted, so each owner is predicted with the level that fits the other owners best (`LEVELS`, in units of the shipped
level).

The rows are those of profiles/public_runs.csv with a model like Llama of known sizes and a stated context. LitGPT's
sequences have at most 512 tokens and are padded to the longest of each batch, so their memory is a peak over a data
set. torchtune's recipes recompute activations unless the GPU has more memory, and compute their loss in chunks.
"""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.prediction import adapters
from advisor.prediction.memory import load_memory_model
from advisor.records import Adapters, Software, Workload
from advisor.store.folders import profiles_folder
from benchmarks.rows.answers import predict_workloads
from benchmarks.rows.gpu_names import load_published_gpus
from benchmarks.rows.reader import RowError, RowReader
from trainer.schema import make_shape

GIB = 2**30
# name in the notes → layers, width, heads, key heads, FFN width, vocabulary (from the config.json)
MODELS = {
    r"llama.?3\.1 8b|llama-3(?:\.1)?-8b": (32, 4096, 32, 8, 14336, 128256),
    r"llama.?2.?7b": (32, 4096, 32, 32, 11008, 32000),
    r"llama 3\.2 3b|llama-3\.2-3b": (28, 3072, 24, 8, 8192, 128256),
    r"llama-3\.2-1b": (16, 2048, 32, 8, 8192, 128256),
    r"llama 3\.1 70b": (80, 8192, 64, 8, 28672, 128256),
    r"mistral-7b": (32, 4096, 32, 8, 14336, 32000),
    r"tiny-llama": (22, 2048, 32, 4, 5632, 32000),
}
TIED = r"llama.?3\.2"
CARDS = {"RTX 4090": "rtx-4090", "RTX A6000": "a6000", "A100": "a100-80gb-sxm", "A10G 24GB": "a10g"}


@dataclass(frozen=True)
class Row:
    """One published peak in GiB, and what its row states."""

    source: str
    what: str
    peak: float
    reserved: bool
    workload: Workload


def rows() -> Iterator[Row]:
    """Yield the rows that state enough."""
    with (profiles_folder() / "public_runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            how = re.search(r"\b(Q?)LoRA", row["parallelism"])
            sizes = next((v for k, v in MODELS.items() if re.search(k, row["notes"], re.IGNORECASE)), None)
            stated = row["mem_gib_per_gpu"] and row["seq_len"] and "offload" not in row["act_ckpt"]
            if how is None or sizes is None or not stated:
                continue
            yield _row(row, bool(how[1]) or "nf4" in row["precision"], sizes)


def _row(row: dict[str, str], quantized: bool, sizes: tuple[int, ...]) -> Row:
    depth, width, heads, kv_heads, ffn, vocab = sizes
    rank = int(match[1]) if (match := re.search(r"rank (\d+)", row["notes"])) else 8
    targets = "attention" if "q,v" in row["notes"] or row["source"].startswith("litgpt") else "all"
    tied = -vocab * width if re.search(TIED, row["notes"], re.IGNORECASE) else 0
    shape = make_shape("llama", depth=depth, width=width, heads=heads, kv_heads=kv_heads, ffn_width=ffn,
                       vocab_size=vocab, seq_len=int(row["seq_len"]))  # fmt: skip
    recomputed = row["source"] == "torchtune" and row["gpu"] in ("RTX 4090", "A100")
    workload = Workload(
        shape=shape, micro_batch=int(row["micro_batch"]), gpu=CARDS.get(row["gpu"], "a100-80gb-sxm"),
        gpus=int(row["n_gpus"] or 1), precision="bf16", compile=row["compile"] == "yes",
        activation_checkpointing="full" if recomputed else "none",
        sharding="full" if "FSDP" in row["parallelism"] else "none",
        software=Software(
            state="16bit", extra_parameters=tied,
            whole_logits=row["source"] != "torchtune",  # the loss of its recipes is computed in chunks
            adapters=Adapters(rank=rank, targets=targets, quantized=quantized),
        ),
    )  # fmt: skip
    return Row(row["source"], row["notes"][:44], float(row["mem_gib_per_gpu"]), "reserved" in row["notes"], workload)


LEVELS = (0.0, 0.33, 0.67, 1.0, 1.33, 1.67, 2.0)


def times() -> None:
    """Print each owner's error of tokens per second, at the level that fits the other owners best."""
    import prior_model  # beside this file, outside the tests' path

    shipped = adapters._BYTES_IN, adapters._BYTES_OUT
    errors: dict[float, dict[str, list[tuple[float, bool]]]] = {}
    for level in LEVELS:
        adapters._BYTES_IN, adapters._BYTES_OUT = (level * part for part in shipped)
        errors[level] = {}
        for line, workload, rate in timed_rows():
            owner = prior_model.owner_of(line)
            [answer] = predict_workloads([workload])
            if isinstance(answer, str) or answer.tokens_per_second is None:
                continue
            found = answer.tokens_per_second
            off = math.log(found.value / rate), found.contains(rate)
            errors[level].setdefault(owner, []).append(off)
    adapters._BYTES_IN, adapters._BYTES_OUT = shipped

    def middle(level: float, owner: str) -> float:
        return statistics.median(abs(off) for off, _ in errors[level][owner])

    owners, left_out, held = sorted(errors[1.0]), [], []
    for owner in owners:
        others = [other for other in owners if other != owner]
        level = min(LEVELS, key=lambda one: statistics.mean(middle(one, other) for other in others))
        left_out.append(math.expm1(middle(level, owner)))
        held.append(statistics.mean(inside for _, inside in errors[level][owner]))
        print(f"{owner:24} {len(errors[level][owner])} rows, level of the others {level:g}: "
              f"{math.expm1(middle(0.0, owner)):.0%} without it, {left_out[-1]:.0%} with it")  # fmt: skip
    best = min(LEVELS, key=lambda one: statistics.mean(middle(one, owner) for owner in owners))
    print(f"the level that suits all best: {best:g}")
    print(f"tokens per second of {len(owners)} owners, each left out: median {statistics.median(left_out):.0%}, "
          f"inside {statistics.mean(held):.0%}")  # fmt: skip


def timed_rows() -> Iterator[tuple[dict[str, str], Workload, float]]:
    """Yield row, likeliest workload and tokens per second of each published run with adapters that can be predicted."""
    with (profiles_folder() / "public_runs.csv").open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        reader = RowReader(load_published_gpus(), list(lines.fieldnames or ()))
        for line in lines:
            if "SUSPECT" in line["notes"] or not line["tok_per_s_per_gpu"]:
                continue
            reading = reader.read(list(line.values()))
            if isinstance(reading, RowError):
                continue
            workload = max(zip(reading.weights, reading.workloads, strict=True), key=lambda pair: pair[0])[1]
            if workload.software is not None and workload.software.adapters is not None:
                yield line, workload, float(line["tok_per_s_per_gpu"]) * workload.gpus


def main() -> None:
    """Print each row and the errors."""
    model, errors, inside = load_memory_model(), {}, []
    for row in rows():
        many = model.reserved_bytes if row.reserved else model.allocated_bytes
        said = many(row.workload)
        off = said.value / GIB / row.peak - 1
        held = said.contains(row.peak * GIB)
        errors.setdefault(row.source, []).append(abs(off))
        inside.append(held)
        print(f"{row.source:18} {row.what:46} b {row.workload.micro_batch} x {row.workload.shape.seq_len:5} "
              f"{said.value / GIB:6.1f} ({said.low / GIB:.1f}-{said.high / GIB:.1f}) for {row.peak:5.1f} GiB "
              f"{off:+.0%} {'' if held else 'OUTSIDE'}")  # fmt: skip
    every = [error for source in errors.values() for error in source]
    print(f"{len(every)} rows of {len(errors)} sources: median {statistics.median(every):.0%}, "
          f"inside {sum(inside)} of {len(inside)}; by source "
          + ", ".join(f"{name} {statistics.median(values):.0%}" for name, values in errors.items()))  # fmt: skip
    times()


if __name__ == "__main__":
    main()
