"""Puts the memory model's parts beside the measured ones, and names what would have fitted where memory ran out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from advisor.findings.traces import memory
from advisor.findings.traces.judgement import Judgement
from advisor.planning.infeasible import enough
from advisor.prediction.batch import predict_batch
from advisor.prediction.profile import FIT_MARGIN, Profile
from advisor.records import Workload
from advisor.units import format_bytes


def beside_prediction(judgement: Judgement, workload: Workload, profile: Profile) -> Judgement:
    """Return the judgement of a snapshot with the predicted parts, and with the changes that would have fitted.

    Raises AdvisorError if the memory of such a workload was never traced.
    """
    parts = profile.memory.breakdown(workload)
    predicted = {field.name.removesuffix("_bytes"): getattr(parts, field.name) for field in fields(parts)}
    rows = memory.beside(judgement.parts, predicted)
    facts = {**judgement.facts, "beside_prediction": [row._asdict() for row in rows]}
    findings = list(judgement.findings)
    for place, one in enumerate(findings):
        if one.code == "memory_ran_out":
            fits = tuple(what_would_have_fitted(workload, profile, memory.appetite(rows)))
            logits = next(row.measured_bytes - row.predicted_bytes for row in rows if row.name == "logits")
            if logits > judgement.facts["asked_bytes"]:
                fits += (f"a loss in chunks, which needs {format_bytes(logits)} less",)
            none = "no change of micro-batch, recomputation or sharding is enough: a GPU with more memory, or adapters"
            findings[place] = replace(one, actions=fits or (none,))
    verdict = f"{judgement.verdict} ({format_bytes(sum(predicted.values()))} predicted)"
    return replace(judgement, verdict=verdict, findings=tuple(findings), facts=facts)


def what_would_have_fitted(workload: Workload, profile: Profile, appetite: float) -> Iterator[str]:
    """Yield the changes with which the run surely fits by the memory model, the largest of each kind.

    `appetite`: how much larger this program's activations and logits are than predicted.
    """

    def fits(changed: Workload) -> bool:
        answer, room = predict_batch(profile, [changed])[0], profile.device_memory_bytes
        if not answer.fits or answer.device_bytes is None or room is None:
            return False
        parts = profile.memory.breakdown(changed)
        more = (appetite - 1) * (parts.activations_bytes + parts.logits_bytes)
        return answer.device_bytes.high + more <= FIT_MARGIN * room

    yield from enough(_smaller(workload), fits)


def _smaller(w: Workload) -> Iterator[tuple[str, list[tuple[str, Workload]]]]:
    """Yield changes that leave the tokens of a step, and what is learnt from them, as they are."""
    sequences = w.micro_batch * w.grad_accum

    def at_most(of: Workload, words: str) -> list[tuple[str, Workload]]:
        sizes = [size for size in range(w.micro_batch - 1, 0, -1) if sequences % size == 0]
        return [
            (f"{words}micro-batch {size} with {sequences // size} accumulated",
             replace(of, micro_batch=size, grad_accum=sequences // size))
            for size in sizes
        ]  # fmt: skip

    yield "", at_most(w, "")
    changes = [("full activation checkpointing", replace(w, activation_checkpointing="full"))]
    if w.gpus > 1:
        changes.append(("all state sharded over the GPUs (FSDP)", replace(w, sharding="full")))
    for words, changed in changes:
        if changed != w:
            yield "", [(words, changed), *at_most(changed, f"{words} and ")]
