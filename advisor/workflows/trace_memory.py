"""Puts the memory model's parts beside the measured ones, and names what would have fitted where memory ran out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from advisor.findings.make_case import predict_as_logged
from advisor.findings.traces import memory
from advisor.findings.traces.judgement import Judgement
from advisor.planning.infeasible import enough
from advisor.prediction.profile import Profile
from advisor.records import Workload
from advisor.units import format_bytes

# The measured parts that answer to the memory model's (`prediction/memory.py:MemoryParts`). What was there before
# recording are weights and optimizer state, which nothing tells apart.
_ANSWERED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("weights", "optimizer"): (memory.WEIGHTS, memory.OPTIMIZER, memory.BEFORE, "parameters"),
    ("gradients",): (memory.GRADIENTS,),
    ("activations",): (memory.ACTIVATIONS, memory.IN_BACKWARD, "temporaries", "autograd detail"),
    ("logits",): (memory.LOGITS,),
    ("gathered",): (memory.SHARDING,),
    ("overhead",): (memory.OTHER, memory.IN_OPTIMIZER, "inputs", "unknown"),
}


def against_prediction(judgement: Judgement, workload: Workload, profile: Profile) -> Judgement:
    """Return a snapshot's judgement with the predicted parts. Raises AdvisorError if the workload was never traced."""
    parts, held = profile.memory.breakdown(workload), {part.name: part.value for part in judgement.parts}
    measured = {names: sum(held.get(one, 0) for one in answers) for names, answers in _ANSWERED.items()}
    predicted = {names: sum(getattr(parts, f"{one}_bytes") for one in names) for names in _ANSWERED}
    rows = [{"name": " and ".join(names), "measured_bytes": measured[names], "predicted_bytes": predicted[names]}
            for names in _ANSWERED]  # fmt: skip
    findings = list(judgement.findings)
    for place, one in enumerate(findings):
        if one.code == "memory_ran_out":
            needs, known = (sum(sizes[name,] for name in ("activations", "logits")) for sizes in (measured, predicted))
            fits = tuple(what_would_have_fitted(workload, profile, max(1.0, needs / known if known > 0 else 1.0)))
            if (logits := measured["logits",] - predicted["logits",]) > judgement.facts["asked_bytes"]:
                fits += (f"a loss in chunks, which needs {format_bytes(logits)} less",)
            none = "no change of micro-batch, recomputation or sharding is enough: a GPU with more memory, or adapters"
            findings[place] = replace(one, actions=fits or (none,))
    verdict = f"{judgement.verdict} ({format_bytes(sum(predicted.values()))} predicted)"
    facts = {**judgement.facts, "predicted_memory": rows}
    return replace(judgement, verdict=verdict, findings=tuple(findings), facts=facts)


def what_would_have_fitted(workload: Workload, profile: Profile, appetite: float) -> Iterator[str]:
    """Yield the largest changes that surely fit if the run needs `appetite` times the predicted activations."""

    def fits(changed: Workload) -> bool:
        return predict_as_logged(profile, [changed], appetite)[0].fits is True

    yield from enough(_smaller(workload), fits)


def _smaller(w: Workload) -> Iterator[tuple[str, list[tuple[str, Workload]]]]:
    """Yield changes that leave the tokens of a step, and what is learnt from them, as they are."""
    sequences = w.micro_batch * w.grad_accum

    def at_most(of: Workload, words: str) -> list[tuple[str, Workload]]:
        return [(f"{words}micro-batch {size} with {sequences // size} accumulated",
                 replace(of, micro_batch=size, grad_accum=sequences // size))
                for size in range(w.micro_batch - 1, 0, -1) if sequences % size == 0]  # fmt: skip

    yield "", at_most(w, "")
    changes = [("full activation checkpointing", replace(w, activation_checkpointing="full"))]
    if w.gpus > 1:
        changes.append(("all state sharded over the GPUs (FSDP)", replace(w, sharding="full")))
    for words, changed in changes:
        if changed != w:
            yield "", [(words, changed), *at_most(changed, f"{words} and ")]
