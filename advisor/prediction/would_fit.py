"""Find changes with which a run of published software fits its device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.profile import FIT_MARGIN, Profile
from advisor.records import Adapters, Workload

_SURE = 0.9
_MOST = 3  # changes to show


def would_fit(profile: Profile, workload: Workload) -> tuple[str, ...]:
    """Return descriptions of the smallest changes with which a run surely fits, or nothing if it already fits."""
    room = profile.device_memory_bytes
    if room is None or profile.memory.published(WorkloadArrays.of([workload]), "needed") is None:
        return ()

    def fits(w: Workload) -> bool:
        held = profile.memory.published(WorkloadArrays.of([w]), "needed")
        return held is not None and bool(held.below(FIT_MARGIN * room)[0] >= _SURE)

    if fits(workload):
        return ()
    changes = ((words, next((w for w in tried if fits(w)), None)) for words, tried in _changes(workload))
    return tuple(words.format(gpus=found.gpus) for words, found in changes if found is not None)[:_MOST]


def _changes(w: Workload) -> Iterator[tuple[str, list[Workload]]]:
    """Yield changes from the smallest to the largest, in words, with the workloads to try for each."""
    assert w.software is not None
    again = replace(w, activation_checkpointing="full")
    if w.activation_checkpointing != "full":
        yield "full activation checkpointing (--activation-checkpointing full)", [again]
    if w.micro_batch > 1:
        yield "a micro-batch of one sequence with full activation checkpointing", [replace(again, micro_batch=1)]
    least = replace(again, micro_batch=1)
    if w.sharding != "full":
        counts = (w.gpus,) if w.gpus > 1 else (2, 4, 8)
        apart = [replace(least, gpus=gpus, sharding="full") for gpus in counts]
        yield "all of it sharded over {gpus} GPUs (--gpus {gpus} --sharding full)", apart
    if w.software.adapters is None:
        pure = replace(w.software, state="16bit", state_chance=1.0)
        yield "weights, gradients and moments in 16 bits", [replace(least, software=pure)]
        yield "these with moments in 8 bits", [replace(least, software=replace(pure, moment_bytes=2.0))]
        small = replace(w.software, adapters=Adapters(rank=16))
        yield "adapters beside frozen weights (--lora-rank 16)", [replace(least, software=small)]
    four_bits = replace(w.software, adapters=Adapters(rank=16, quantized=True))
    yield "adapters beside weights of 4 bits (--lora-rank 16 --qlora)", [replace(least, software=four_bits)]
