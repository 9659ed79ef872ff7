"""How right memory is of trainings with LoRA and QLoRA that others published: nothing of the rule was fitted to them.

    python benchmarks/adapters.py

Rows of profiles/public_runs.csv whose model is one of Llama's kind with known sizes and that state a context. LitGPT's
are of 512 tokens at most, of shorter sequences padded to the longest of each batch, so that their memory is a peak over
a data set. torchtune's recipes recompute unless the card holds more, and take their loss in chunks.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.prediction.memory import load_memory_model
from advisor.records import Adapters, Software, Workload
from advisor.store.folders import profiles_folder
from trainer.schema import make_shape

GIB = 2**30
# name in the notes → layers, width, heads, key heads, FFN width, vocabulary (their config.json)
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
    """One published peak, in GiB, beside what is said of it."""

    source: str
    what: str
    peak: float
    reserved: bool
    workload: Workload


def rows() -> Iterator[Row]:
    """The rows that say enough."""
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
            whole_logits=row["source"] != "torchtune",  # its recipes' loss comes in chunks
            adapters=Adapters(rank=rank, targets=targets, quantized=quantized),
        ),
    )  # fmt: skip
    return Row(row["source"], row["notes"][:44], float(row["mem_gib_per_gpu"]), "reserved" in row["notes"], workload)


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


if __name__ == "__main__":
    main()
