"""Finds the smallest changes of its options with which a run fits its device, each asked of the prediction itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from advisor.errors import AdvisorError
from advisor.hardware.catalog import read_gpus
from advisor.options import PredictOptions, options_of
from advisor.records import Prediction, Workload

_MOST = 3  # changes to show
_SHARED_OVER = (2, 4, 8, 16, 32, 64)  # numbers of GPUs to try
_SHORT = 2048  # tokens of a sequence that training usually has at least


def would_fit(
    options: PredictOptions, workload: Workload, predicted: Callable[[PredictOptions], Prediction]
) -> tuple[str, ...]:
    """Returns the smallest changes with which a run surely fits, as the options to add; each was predicted."""
    found = []
    for words, tried in _changes(options, workload):
        for changed in tried:
            with suppress(AdvisorError):  # such a run cannot be predicted
                if predicted(replace(options, **changed)).fits is True:
                    found.append(f"{words} ({_flags(changed)})")
                    break
        if len(found) == _MOST:
            break
    return tuple(found)


def _changes(options: PredictOptions, w: Workload) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields changes from the smallest to the largest, in words, with the options to try for each."""
    least: dict[str, Any] = {}
    if w.activation_checkpointing != "full":
        least["activation_checkpointing"] = "full"
        yield "full activation checkpointing", [dict(least)]
    if w.micro_batch > 1:
        sizes = [w.micro_batch >> halved for halved in range(1, w.micro_batch.bit_length())]
        yield "a smaller micro-batch", [{"micro_batch": size, **least} for size in sizes]
        least["micro_batch"] = 1
    # A count inside --gpu would contradict --gpus.
    named = {"gpu": options.gpu.lower().partition("x")[2].strip()} if read_gpus(options.gpu).count else {}
    counts = [*([w.gpus] if w.gpus > 1 and w.sharding != "full" else []), *(n for n in _SHARED_OVER if n > w.gpus)]
    yield "all of it sharded", [{**named, "gpus": gpus, "sharding": "full", **least} for gpus in counts]
    halves = [w.shape.seq_len >> halved for halved in range(1, w.shape.seq_len.bit_length())]
    shorter = [{"seq_len": length, **least} for length in halves if length >= _SHORT]
    adapters, four_bits = {"lora_rank": options.lora_rank or 16}, {"qlora": True}
    if options.freeze_blocks is None and not options.qlora:
        if options.lora_rank is None:
            yield "adapters on frozen weights", [{**adapters, **least}]
        else:
            adapters = {}
        yield "adapters on 4-bit weights", [{**adapters, **four_bits, **least}]
    yield "shorter sequences", shorter
    if options.freeze_blocks is None and not options.qlora:
        yield "shorter sequences with 4-bit weights", [{**adapters, **four_bits, **one} for one in shorter]


def _flags(changed: dict[str, Any]) -> str:
    options = options_of(PredictOptions)
    return " ".join(
        options[name].flag if value is True else f"{options[name].flag} {value}" for name, value in changed.items()
    )
