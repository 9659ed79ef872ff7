"""Out of memory: which allocation failed, what held the rest, and what would have fitted by the memory model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import yaml

from advisor.findings import series
from advisor.findings.case import Case, Verdict, finding, seen, texts
from advisor.findings.curves import main_rows
from advisor.findings.detectors.ending import unsaid
from advisor.findings.make_case import appetite, memory_parts, predict_as_logged
from advisor.findings.run_facts import number
from advisor.prediction.profile import FIT_MARGIN
from advisor.readers.generic import NAME as GENERIC
from advisor.readers.run_table import Event, Status
from advisor.records import Prediction, Workload
from advisor.units import GIB, format_bytes, format_estimate, format_number

_GOOD_STEPS = 20  # after this, memory that is enough for equal batches does not run out
_MUCH = 0.05  # of the device, held by other processes
_FRAGMENTED = 0.10  # of the device reserved but unallocated
_MOST_SEQUENCES = 65_536  # of a micro-batch worth trying
GROWTH = 0.05  # of memory over the second half of the run
_EACH = 0.01  # from each eighth of the run to the next
ROWS = 50


def detect_out_of_memory(case: Case) -> Verdict:
    """Out of memory: which allocation failed, what held the rest, and what would have fitted by the memory model."""
    events = [event for event in case.run.events if event.kind == "out_of_memory"]
    # if the machine's memory ran out, `ending.detect_killed` reports it
    of_host = any(event.kind == "host_memory" for event in case.run.events)
    if not events and (case.run.status is not Status.OUT_OF_MEMORY or of_host):
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
    grown = memory_growth(case)  # in this case, what fits at the start runs out later
    growing = f"GPU memory grew from {format_bytes(grown.early)} halfway to {format_bytes(grown.late)}" if grown else ""
    held, leak, longer, cap = texts()["memory_growth"], "", "", ""
    fitted = event.step if event.step is not None and event.step >= _GOOD_STEPS else None
    longest = options_of(case.run.format).longest  # trainers that pack or cut all sequences to one length have none
    if grown:
        leak = f"memory that is never freed: {held['causes'][0]}"
    elif fitted is not None and (longest is not None or case.run.format == GENERIC):
        longer = f"a batch longer than any of the {fitted:g} steps before: one long example, or examples sorted by"
        longer += " length"
        limit = longest or "the length of an example"
        cap = f"cap {limit}: what one long example needs grows with its length; or group examples of like length"
    return finding(
        "out_of_memory",
        severity="error" if fatal else "warning",
        title=title,
        evidence=(
            seen(event.text or "the run's status", event.step, event.step),
            growing,
            *_held(case, event.numbers),
            fitting,
        ),
        causes=(leak, longer, *_memory_causes(case, event.numbers, fitted)),
        actions=(_end_others(event.numbers), *(held["actions"] if grown else ()), actions[0], cap, *actions[1:]),
    )


def _held(case: Case, numbers: dict[str, float]) -> list[str]:
    """Return the predicted parts of the memory, with the activations that the log asks for if those are larger."""
    parts, expected = memory_parts(case.profile, case.workload), case.expected
    if parts is None or expected is None or expected.peak_reserved_bytes is None:
        return []
    times, whole = appetite(case, numbers), expected.peak_reserved_bytes.value
    named = {field.name.removesuffix("_bytes"): getattr(parts, field.name) for field in dataclasses.fields(parts)}
    named |= {name: times * named[name] for name in ("activations", "logits")}
    named["overhead"] = max(0.0, whole - sum(named.values()) + named["overhead"])
    words = ", ".join(f"{name} {format_bytes(size)}" for name, size in named.items() if size > 0.005 * GIB)
    besides = "by the prediction this should have fitted: something else holds memory" if expected.fits else ""
    if times > 1:
        besides = f"this program asks for {format_number(times)}x the predicted activations: all sizes are by that"
    return [f"predicted at the peak: {format_bytes(whole)} ({words})", besides]


def what_fits(case: Case, numbers: dict[str, float] | None = None) -> tuple[str, tuple[str, ...]]:
    """Return the largest micro-batch that fits, plain and with activation checkpointing, as evidence and as actions.

    `numbers` are the sizes of an out-of-memory message.
    """
    own, w = options_of(case.run.format), case.workload
    expandable = "; ".join(filter(None, (own.recompute, own.allocator)))
    if w is None or case.profile is None or case.profile.device_memory_bytes is None:
        return "", (_smaller(case), expandable)
    full = dataclasses.replace(w, activation_checkpointing="full")
    for tried, how in ((w, ""), (full, " with full activation checkpointing")):
        if (fits := largest_micro_batch(case, tried, numbers)) is not None:
            held = format_estimate(fits.peak_reserved_bytes, format_bytes)
            then = (fits.workload.micro_batch, fits.workload.grad_accum)
            sizes = _sizes(own, (w.micro_batch, w.grad_accum), then)
            now = predict_as_logged(case.profile, [w], appetite(case, numbers))[0].peak_reserved_bytes
            saved = now.value - fits.peak_reserved_bytes.value if now and fits.peak_reserved_bytes else 0.0
            known = 0 < saved < case.profile.device_memory_bytes
            less = f"about {format_bytes(saved)} less" if known else "less memory"
            recompute = (own.recompute or "activation checkpointing") if how else ""
            first = f"{', '.join(filter(None, (recompute, sizes)))}: same training, {less}"
            actions = (first,) if how else (first, expandable)
            return f"a micro-batch of {then[0]}{how} would reserve {held} and fit", actions
    text = "not even a micro-batch of one fits this GPU, with or without activation checkpointing"
    return text, ("a GPU with more memory, a smaller model, or sharded optimizer state (ZeRO, FSDP)",)


def largest_micro_batch(case: Case, w: Workload, numbers: dict[str, float] | None = None) -> Prediction | None:
    """Return the prediction with the largest micro-batch below the present one that fits, or None if none is known.

    Micro-batches must divide the accumulated batch, so that the optimizer sees the same tokens. The memory of other
    processes and this program's need for memory, as in `numbers`, count.
    """
    if case.profile is None:
        return None
    sequences = w.micro_batch * w.grad_accum
    smaller = [b for b in range(min(w.micro_batch - 1, _MOST_SEQUENCES), 0, -1) if sequences % b == 0]
    if w.activation_checkpointing == "full":
        smaller = [w.micro_batch, *smaller]
    choices = [dataclasses.replace(w, micro_batch=b, grad_accum=sequences // b) for b in smaller]
    numbers = numbers or {}
    others = max(numbers.get("other_bytes", 0.0), _bytes_of_unnamed_processes(numbers))
    for p in predict_as_logged(case.profile, choices, appetite(case, numbers)):
        taken, room = p.peak_reserved_bytes, p.device_memory_bytes
        # whether it also fits beside other processes
        if p.fits and (not taken or not room or taken.high <= FIT_MARGIN * room - others):
            return p
    return None


def _sizes(own: Options, now: tuple[int, int], then: tuple[int, int]) -> str:
    """Return a smaller micro-batch in the names of the trainer, with accumulation if it has that; "" if none is."""
    if now == then:
        return ""
    lower, more = ("halve", "double") if now[0] == 2 * then[0] else ("lower", "raise")
    micro = f"{lower} {own.micro_batch} from {now[0]} to {then[0]}"
    return f"{micro} and {more} {own.grad_accum} from {now[1]} to {then[1]}" if own.grad_accum else micro


def _smaller(case: Case) -> str:
    """Return half the micro-batch with twice the accumulation, in the trainer's names and with any stated numbers."""
    own = options_of(case.run.format)
    micro, accum = (number(case.run.facts, name) for name in ("micro_batch", "grad_accum"))
    if micro and micro >= 2 and micro % 2 == 0 and (accum or not own.grad_accum):
        now = (int(micro), int(accum or 1))
        return f"{_sizes(own, now, (now[0] // 2, 2 * now[1]))}: same training, less memory"
    if own.grad_accum:
        return f"halve {own.micro_batch} and double {own.grad_accum}: same training, less memory"
    return f"a smaller {own.micro_batch} at the same global batch: same training, less memory"


def _end_others(numbers: dict[str, float]) -> str:
    """Return how to end the other processes whose memory the message shows; "" if they hold little."""
    if unnamed := _bytes_of_unnamed_processes(numbers):
        return (
            f"nvidia-smi: end what else runs on this GPU if it is yours and not needed (frees {format_bytes(unnamed)})"
        )
    held, total = numbers.get("other_bytes", 0.0), numbers.get("total_bytes")
    pids = [f"{pid:.0f}" for name, pid in numbers.items() if name.startswith("other_pid_")]
    if not pids or not total or held <= _MUCH * total:
        return ""
    frees = f"kill {' '.join(pids)} (frees {format_bytes(held)})"
    return f"end the other processes if they are yours and not needed: {frees}"


def _bytes_of_unnamed_processes(numbers: dict[str, float]) -> float:
    """Return the bytes of the GPU that neither are free nor this process's, if no other process is named; 0 if few."""
    total, free = numbers.get("total_bytes"), numbers.get("free_bytes")
    own = numbers.get("process_bytes") or numbers.get("reserved_bytes")
    if not own or not total or free is None or numbers.get("other_bytes", 0.0) > _MUCH * total:
        return 0.0
    return others if (others := total - free - own) > 0.15 * total else 0.0


def _memory_causes(case: Case, numbers: dict[str, float], fitted: float | None) -> tuple[str, ...]:
    """Return the causes, likeliest first, from what the message says about the device.

    `fitted`: good steps before it, after which the model is known to fit.
    """
    total, idle, others = (numbers.get(f"{name}_bytes") for name in ("total", "unallocated", "other"))
    causes, requested, allowed = [], numbers.get("requested_bytes"), numbers.get("allowed_bytes")
    if allowed and requested and requested < numbers.get("free_bytes", 0.0):
        causes.append(
            f"the program's own limit of {format_bytes(allowed)} (set_per_process_memory_fraction): the GPU has "
            f"{format_bytes(numbers['free_bytes'])} free"
        )
    if others and total and others > _MUCH * total:
        causes.append(f"other processes hold {format_bytes(others)} of the GPU")
    elif unnamed := _bytes_of_unnamed_processes(numbers):
        causes.append(f"{format_bytes(unnamed)} of the GPU is not this process's: another one runs on it")
    if idle and total and idle > _FRAGMENTED * total:
        causes.append(f"fragmentation: {format_bytes(idle)} reserved but not in use")
    if requested and (name := _which_allocation(case, requested)):
        causes.append(name)
    if fitted is not None and not causes:
        return (f"{fitted:g} steps fitted: a longer batch, an evaluation or a checkpoint needed more than they did",)
    return tuple(causes) or ("weights, gradients, optimizer state and activations together exceed the GPU",)


def _which_allocation(case: Case, requested: float) -> str:
    """Return the tensors of this workload with the requested size, within 2 % and rounding to 2 MiB; "" for none."""
    w, parts = case.workload, memory_parts(case.profile, case.workload)
    if w is None:
        return ""
    s, tokens = w.shape, w.micro_tokens
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
    return ""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Bytes halfway through the run and at its end, and the growth in each step."""

    early: float
    late: float
    bytes_per_step: float


def memory_of(case: Case) -> tuple[np.ndarray, np.ndarray] | None:
    """Return steps and device memory of the main phase's rows, or None if too few rows print it."""
    rows = main_rows(case.run)
    for name in ("memory_bytes", "reserved_bytes"):
        values = case.run.column(name)[rows]
        if np.isfinite(values).sum() >= ROWS:
            return case.run.column("step")[rows], values
    return None


def memory_growth(case: Case) -> Growth | None:
    """Return the growth in the second half of the run, or None; the first half may still fill caches."""
    recorded = memory_of(case)
    if recorded is None:
        return None
    half = len(recorded[1]) // 2
    step, used = (values[half:] for values in recorded)
    trend = series.theil_sen(step, used)
    quarters = [series.median(part) for part in np.array_split(used, 4)]
    early, late = quarters[0], quarters[-1]
    steady = all(later > (1 + _EACH) * sooner for sooner, later in pairwise(quarters))
    if trend is None or trend.low <= 0 or not late > (1 + GROWTH) * early or not steady:
        return None  # a peak that rises once, for a longer batch, is no leak
    return Growth(early=early, late=late, bytes_per_step=trend.slope)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Names as the trainer's users write them. None means that the trainer has no such option."""

    micro_batch: str = "micro_batch"
    grad_accum: str | None = "grad_accum"  # None: it follows from the global batch
    recompute: str | None = "activation_checkpointing: full"
    allocator: str | None = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    longest: str | None = None  # sequence, for trainers whose batches have unequal lengths


@cache
def options_of(format: str) -> Options:
    """Return the names of the trainer whose log has this format, or the advisor's own names if it is unknown."""
    rows = yaml.safe_load(Path(__file__).parents[1].joinpath("trainer_options.yaml").read_text(encoding="utf-8"))
    return next((Options(**row) for row in rows if format in row.pop("formats")), Options())
