"""Out of memory: which allocation, what held the rest, and what would have fitted by the memory model."""

from __future__ import annotations

import dataclasses

from advisor.errors import AdvisorError
from advisor.findings.case import Case, Confidence, Evidence, Finding, Severity, Verdict
from advisor.findings.detectors.ending import unsaid
from advisor.findings.memory_growth import memory_growth
from advisor.findings.run_facts import number
from advisor.findings.trainer_options import Options, options_of
from advisor.prediction.batch import predict_batch
from advisor.prediction.memory import MemoryParts
from advisor.prediction.profile import FIT_MARGIN
from advisor.readers.run_table import Event, Status
from advisor.records import Prediction, Workload
from advisor.units import GIB, format_bytes, format_estimate, format_number

_GOOD_STEPS = 20  # after which memory that is enough for every batch alike does not run out
_FRAGMENTED = 0.10  # of the device reserved but unallocated
KEPT = "losses or outputs kept with their graph (loss instead of loss.item())"
KEEP_NUMBERS = "keep numbers, not tensors; torch.cuda.memory._record_memory_history() shows who allocates"
_MOST_SEQUENCES = 65_536  # of a micro-batch worth looking at


def detect_out_of_memory(case: Case) -> Verdict:
    """Out of memory: which allocation, what held the rest, and what would have fitted by the memory model."""
    events = [event for event in case.run.events if event.kind == "out_of_memory"]
    if not events and (case.run.status is not Status.OUT_OF_MEMORY or _of_the_machine(case)):
        return unsaid(case, "out_of_memory")
    fatal = case.run.status is Status.OUT_OF_MEMORY
    event = events[-1] if events else Event(kind="out_of_memory", text=case.run.status_reason)
    requested, free = event.numbers.get("requested_bytes"), event.numbers.get("free_bytes")
    title = "Out of memory" if fatal else "Out of memory, caught by the program"
    if event.step is not None:
        title += f" after step {event.step:g}"
    if requested:
        title += f": {format_bytes(requested)} asked for" + (f", {format_bytes(free)} free" if free is not None else "")
    fitting, actions = what_fits(case, event.numbers)
    grown = memory_growth(case)  # then what fits at the start runs out later
    longer = _longer_batch(case, event, bool(grown))
    growing = f"GPU memory grew from {format_bytes(grown.early)} halfway to {format_bytes(grown.late)}" if grown else ""
    return Finding(
        code="out_of_memory",
        severity=Severity.ERROR if fatal else Severity.WARNING,
        title=title,
        evidence=(
            Evidence(text=event.text or "the run's status", first_step=event.step, last_step=event.step),
            *((Evidence(text=growing),) if grown else ()),
            *_held(case, event.numbers),
            *fitting,
        ),
        confidence=Confidence.HIGH,
        causes=(
            *((f"memory that is never freed: {KEPT}",) if grown else ()),
            *((longer[0],) if longer else ()),
            *_memory_causes(case, event.numbers),
        ),
        actions=(*((KEEP_NUMBERS,) if grown else ()), *((longer[1],) if longer else ()), *actions),
        threshold="the framework's own message; what fits is judged by the high end of the predicted memory",
    )


def _of_the_machine(case: Case) -> bool:
    """Whether it was the machine's memory that ran out: `ending.detect_killed` speaks of that."""
    return any(event.kind == "host_memory" for event in case.run.events)


def _held(case: Case, numbers: dict[str, float]) -> tuple[Evidence, ...]:
    """What the memory model says was to be held, in parts, and whether that is what happened."""
    parts = _parts(case)
    if parts is None or case.profile is None:
        return ()
    named = {field.name.removesuffix("_bytes"): getattr(parts, field.name) for field in dataclasses.fields(parts)}
    words = ", ".join(f"{name} {format_bytes(size)}" for name, size in named.items() if size > 0.005 * GIB)
    evidence = [Evidence(text=f"predicted at the peak: {format_bytes(sum(named.values()))} ({words})")]
    factor = _appetite(parts, numbers)
    if factor > 1:
        evidence.append(
            Evidence(text=f"this program asks for {format_number(factor)}x the activations predicted for it")
        )
    elif case.expected is not None and case.expected.fits:
        evidence.append(Evidence(text="by the prediction this should have fitted: something else holds memory"))
    return tuple(evidence)


def _parts(case: Case, workload: Workload | None = None) -> MemoryParts | None:
    if case.workload is None or case.profile is None:
        return None
    try:
        return case.profile.memory.breakdown(workload or case.workload)
    except AdvisorError:
        return None  # this kind of workload was never traced


def _appetite(parts: MemoryParts, numbers: dict[str, float]) -> float:
    """How many times the predicted activations one allocation alone asked for; 1 where it asked for less.

    Other programs keep more than the advisor's own trainer (whole logits, unfused attention): what fits is then
    judged with activations that much larger.
    """
    comes_and_goes = parts.activations_bytes + parts.logits_bytes
    return max(1.0, numbers.get("requested_bytes", 0.0) / comes_and_goes) if comes_and_goes > 0 else 1.0


def what_fits(case: Case, numbers: dict[str, float] | None = None) -> tuple[tuple[Evidence, ...], tuple[str, ...]]:
    """The largest micro-batch that fits, plain and with activation checkpointing, as evidence and as actions.

    `numbers` are the sizes of an out-of-memory message.
    """
    own, w = options_of(case.run.format), case.workload
    recompute = f"{own.recompute}; " if own.recompute else ""
    usual = (_smaller(case), f"{recompute}PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    if w is None or case.profile is None or case.profile.device_memory_bytes is None:
        return (), usual
    plain = largest_micro_batch(case, w, numbers)
    if plain is not None:
        return (_fits_evidence(plain),), (_fits_action(own, w, plain.workload), usual[1])
    full = dataclasses.replace(w, activation_checkpointing="full")
    checkpointed = largest_micro_batch(case, full, numbers)
    if checkpointed is not None:
        action = f"{own.recompute or 'activation checkpointing'}, {_fits_action(own, w, checkpointed.workload)}"
        return (_fits_evidence(checkpointed),), (action,)
    text = "not even a micro-batch of one fits this GPU, with or without activation checkpointing"
    instead = "a GPU with more memory, a smaller model, or sharded optimizer state (ZeRO, FSDP)"
    return (Evidence(text=text),), (instead,)


def largest_micro_batch(case: Case, w: Workload, numbers: dict[str, float] | None = None) -> Prediction | None:
    """The prediction with the largest micro-batch below the present one that fits; None where none is known to.

    Micro-batches that divide the accumulated batch, so that the optimizer sees the same tokens. What `numbers` say
    of other processes and of this program's appetite counts.
    """
    if case.profile is None:
        return None
    sequences = w.micro_batch * w.grad_accum
    smaller = [b for b in range(min(w.micro_batch - 1, _MOST_SEQUENCES), 0, -1) if sequences % b == 0]
    if w.activation_checkpointing == "full":
        smaller = [w.micro_batch, *smaller]
    choices = [dataclasses.replace(w, micro_batch=b, grad_accum=sequences // b) for b in smaller]
    return next((p for p in predict_batch(case.profile, choices) if p.fits and _really(case, p, numbers or {})), None)


def _really(case: Case, p: Prediction, numbers: dict[str, float]) -> bool:
    """Whether it also fits beside other processes and with this program's appetite."""
    now, then = _parts(case), _parts(case, p.workload)
    if now is None or then is None or p.peak_reserved_bytes is None or p.device_memory_bytes is None:
        return True
    more = (_appetite(now, numbers) - 1) * (then.activations_bytes + then.logits_bytes)
    room = FIT_MARGIN * p.device_memory_bytes - numbers.get("other_bytes", 0.0)
    return p.peak_reserved_bytes.high + more <= room


def _fits_evidence(p: Prediction) -> Evidence:
    how = " with full activation checkpointing" if p.workload.activation_checkpointing == "full" else ""
    return Evidence(
        text=f"a micro-batch of {p.workload.micro_batch}{how} would reserve "
        f"{format_estimate(p.peak_reserved_bytes, format_bytes)} and fit"
    )


def _fits_action(own: Options, w: Workload, chosen: Workload) -> str:
    return _sizes(own, (w.micro_batch, w.grad_accum), (chosen.micro_batch, chosen.grad_accum))


def _sizes(own: Options, now: tuple[int, int], then: tuple[int, int]) -> str:
    """Two sizes of a batch in the names of the trainer; where it has no accumulation, this follows from the rest."""
    words = f"{own.micro_batch}: {then[0]}" + (f", {own.grad_accum}: {then[1]}" if own.grad_accum else "")
    return f"{words} (instead of {now[0]} x {now[1]})" if own.grad_accum else f"{words} (instead of {now[0]})"


def _smaller(case: Case) -> str:
    """Half the micro-batch with twice the accumulation, in the trainer's own names and, where said, its numbers."""
    own = options_of(case.run.format)
    micro, accum = (number(case.run.facts, name) for name in ("micro_batch", "grad_accum"))
    if micro and micro >= 2 and micro % 2 == 0 and (accum or not own.grad_accum):
        now = (int(micro), int(accum or 1))
        return f"{_sizes(own, now, (now[0] // 2, 2 * now[1]))} gives the same training"
    raised = f" with {own.grad_accum} raised as much" if own.grad_accum else ", the global batch as it was,"
    return f"a smaller {own.micro_batch}{raised} gives the same training"


def _longer_batch(case: Case, event: Event, growing: bool) -> tuple[str, str] | None:
    """Cause and action of a run that did many steps before: a batch longer than any before it; None where none can be.

    Trainers that pack or cut all sequences to one length have no such batch.
    """
    longest = options_of(case.run.format).longest
    if longest is None or growing or event.step is None or event.step < _GOOD_STEPS:
        return None
    return (
        f"a batch longer than any of the {event.step:g} steps before: one long example, or examples sorted by length",
        f"cap {longest}: what one long example needs grows with its length",
    )


def _memory_causes(case: Case, numbers: dict[str, float]) -> tuple[str, ...]:
    """Likeliest first, by what the message says of the device."""
    total, free = numbers.get("total_bytes"), numbers.get("free_bytes")
    own = numbers.get("process_bytes") or numbers.get("reserved_bytes")
    idle, others = numbers.get("unallocated_bytes"), numbers.get("other_bytes")
    causes = []
    if others and total and others > 0.05 * total:
        causes.append(f"other processes hold {format_bytes(others)} of the GPU")
    elif own and total and free is not None and total - free - own > 0.15 * total:
        causes.append(f"{format_bytes(total - free - own)} of the GPU is not this process's: another one runs on it")
    if idle and total and idle > _FRAGMENTED * total:
        causes.append(f"fragmentation: {format_bytes(idle)} reserved but not in use")
    requested = numbers.get("requested_bytes")
    if requested and (name := _which_allocation(case, requested)):
        causes.append(name)
    return tuple(causes) or ("weights, gradients, optimizer state and activations together exceed the GPU",)


def _which_allocation(case: Case, requested: float) -> str | None:
    """The tensors of this workload whose size is the requested one, within 2 % and rounding to 2 MiB."""
    w = case.workload
    if w is None:
        return None
    s, tokens = w.shape, w.micro_tokens
    parts = _parts(case)
    candidates = {
        "the logits of a micro-batch (tokens x vocabulary)": tokens * s.vocab_size,
        "an FFN activation (tokens x FFN width)": tokens * s.ffn_width,
        "the attention scores of a layer, which fused attention never stores": w.micro_batch * s.heads * s.seq_len**2,
        "the embedding or head matrix": s.vocab_size * s.width,
        "a residual-stream tensor (tokens x width)": tokens * s.width,
    }
    for words, elements in candidates.items():
        for size, kind in ((2, "16-bit"), (4, "fp32")):
            if abs(requested - elements * size) <= 0.02 * elements * size + 2 * 2**20:
                return f"{words}, {kind}"
    if parts is not None and 0.5 < requested / max(parts.activations_bytes, 1.0) < 2:
        return f"all activations at once ({format_bytes(parts.activations_bytes)} predicted)"
    return None
