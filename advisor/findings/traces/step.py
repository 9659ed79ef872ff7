"""Judges where the time of a step goes, in shares of the step and dollars an hour."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from advisor.findings.case import Case, Finding, Insufficient, Severity, finding, lacking
from advisor.findings.run_metrics import prediction_confidence
from advisor.findings.traces.judgement import ComparedPart, Judgement, PartOfWhole, Rate
from advisor.findings.traces.predicted import CAUSE_OF, Comparison, compare
from advisor.findings.traces.ranks import Arrival, arrival
from advisor.findings.traces.step_parts import ATTENTION, BACKWARD, LOSS, OPTIMIZER_STEP, PRODUCTS, StepParts, means
from advisor.readers.traces import intervals
from advisor.readers.traces.kinds import RECORD_TRACE
from advisor.readers.traces.timeline import Timeline
from advisor.units import format_bytes, format_count, format_estimate, format_percent, format_seconds, format_usd_rate

_BYTES_OF_DTYPE = {"double": 8, "long": 8, "int64": 8, "float": 4, "int": 4, "int32": 4, "float32": 4, "half": 2,
                   "bfloat16": 2, "float16": 2, "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1}  # fmt: skip
_KNOWN_COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "sendrecv")
_SMALL_BYTES, _SHORT_SECONDS = 1e6, 10e-6
_FULL_PRECISION = r"(?i)sgemm|s1688gemm|tf32|simt_s|Cijk_\w*_S_?B_|gemm_f32f32|f32f32_f32f32|scudnn"
_NOTHING_FASTER = "no other micro-batch, compilation, precision or sharding is predicted to be faster"
_IDLE = (  # the finding, from which share, the cause in `Idle`, and the title's beginning
    ("data_loading", 0.05, "data_loading", "the GPU waits for the data loader"),
    ("host_synchronisation", 0.03, "synchronizing", "the GPU is idle after the host waited for it"),
    ("allocator_retries", 0.01, "allocating", "the GPU is idle while the host allocates memory"),
    ("idle_unexplained", 0.15, "device", "the GPU is idle, although its work was launched in time,"),
)
_OF_MANY_TENSORS = r"(?i)multi_tensor|fused"

Cost = tuple[float, Finding]  # the share of the window that it costs


def judge(timelines: Sequence[Timeline], rate: Rate, case: Case | None = None) -> Judgement:
    """Judge the traces of the ranks of one run, whose parts are means over them, beside the prediction for `case`."""
    ranks = [StepParts(one) for one in timelines]
    known = [parts for parts in ranks if parts.span_seconds > 0]
    gaps = tuple(_lacking(ranks))
    if not known:
        return Judgement(verdict="The trace has no work of a GPU.", lacking=gaps)
    late = arrival(known)
    comparison = compare(known, case) if case is not None and is_training(known[0]) else Comparison()
    say = _Says(known, rate, comparison)
    found = [*_communication(known, late, say), *_idle(known, say), *_computation(known[0], say)]
    found += _attention(known[0], say)
    if late is not None and late.share >= 0.05 and 2 * late.last_in > late.collectives:
        title = f"rank {late.late} is late: the others wait {{share}} of the window for it{{cost}}"
        text = f"it comes last to {late.last_in} of {late.collectives} collectives, and waits least itself"
        found.append(say("late_rank", late.share, title, text))
    found += _against_prediction(say, {one.code for _, one in found})
    found.sort(key=lambda one: -one[0])
    seconds = means(known, lambda one: one.parts)
    whole = sum(seconds.values()) or 1.0
    parts = tuple(PartOfWhole(name=name, value=value, share=value / whole) for name, value in seconds.items()
                  if value > 1e-4 * whole or name == "computation")  # fmt: skip
    return Judgement(
        verdict=_verdict(known[0], parts, [one for share, one in found if share]),
        parts=parts,
        findings=tuple(one for _, one in found),
        lacking=(*gaps, *comparison.lacking),
        compared=comparison.rows,
        remarks=comparison.remarks,
        facts=_facts(known, late, parts),
    )


def is_training(parts: StepParts) -> bool:
    """Return whether the trace has a backward pass or an optimizer. Without operators it is taken for a training."""
    marks = ((BACKWARD, parts.timeline.ops), (OPTIMIZER_STEP, parts.timeline.ranges))
    return not len(parts.timeline.ops) or any(parts.timeline.matches(*mark).any() for mark in marks)


def _share(ranks: Sequence[StepParts], seconds: str) -> float:
    """Return the mean share that some seconds, named as a property of `StepParts`, have in the ranks' windows."""
    return float(np.mean([attrgetter(seconds)(one) / one.span_seconds for one in ranks]))


def _verdict(first: StepParts, parts: Sequence[PartOfWhole], costly: Sequence[Finding]) -> str:
    if costly:
        return costly[0].title[:1].upper() + costly[0].title[1:] + "."
    of = "inference" if not is_training(first) else "each step" if first.steps else "the window"
    largest = max(parts, key=lambda part: part.share)
    if largest.name.startswith("idle"):
        return f"The GPU is idle for {format_percent(largest.share)} of {of} ({largest.name.partition(': ')[2]})."
    return f"{format_percent(largest.share)} of {of} is {largest.name}; nothing that costs much stands out."


def _facts(ranks: Sequence[StepParts], late: Arrival | None, parts: Sequence[PartOfWhole]) -> dict[str, Any]:
    first, work = ranks[0], sum(sum(one.terms.values()) for one in ranks)
    exposed, communication = [one.exposed_seconds for one in ranks], [one.communication_seconds for one in ranks]
    return {
        "ranks": len(ranks),
        "gpu": first.timeline.gpu,
        "training": is_training(first),
        "step_seconds": list(first.steps),
        "seconds": sum(part.value for part in parts),
        "window_seconds": first.span_seconds,
        "idle_share": _share(ranks, "idle_seconds"),
        "communication_seconds": communication,
        "exposed_communication_seconds": exposed,
        "overlap": 1 - sum(exposed) / sum(communication) if sum(communication) else None,
        "device_events": len(first.device),
        # Of the device's work, where simultaneous work counts twice.
        "term_shares": {name: sum(one.terms[name] for one in ranks) / work for name in first.terms} if work else {},
        "waits_seconds": late.waits_seconds if late else {},
        "profiled_with_stacks": any(one.timeline.stacks for one in ranks),
    }


def _lacking(ranks: Sequence[StepParts]) -> Iterator[Insufficient]:
    for parts in ranks:
        timeline, name = parts.timeline, parts.timeline.source
        if not len(parts.device):
            yield lacking("device_events", f"{name} has no work of a GPU: record {RECORD_TRACE}, with CUDA activities")
        elif len(parts.steps) == 1:
            yield lacking("several_steps", f"{name} has one step, which may not be typical: record {RECORD_TRACE}")
        elif not parts.steps:
            yield lacking("steps", f"{name} marks no steps, so the whole window is judged: call prof.step() after each")
        if timeline.cut:
            yield lacking("whole_file", f"{name} ends in the middle: what it holds is judged")
        if not timeline.linked and len(parts.device):
            yield lacking("launches", f"{name} has the launches of under half of its kernels: all of them count")


class _Says:
    """Writes findings with the share of the window that they cost, and what that is in dollars an hour."""

    def __init__(self, ranks: Sequence[StepParts], rate: Rate, comparison: Comparison):
        self.comparison = comparison
        self.whole = "each step" if ranks[0].steps else "the window"
        self.rate, self.priced = rate, is_training(ranks[0])
        self.steps = ranks[0].step_count

    def __call__(self, code: str, share: float, title: str, *evidence: str, costs: bool = True,
                 part: ComparedPart | None = None, **known: Any) -> Cost:  # fmt: skip
        """Return a finding; `part` is the part of the step that it is about, if its code does not tell."""
        usd = self.rate.usd_per_hour
        cost = f": {format_usd_rate(share * usd)} an hour" if usd and costs and self.priced else ""
        cost += f" of {format_usd_rate(usd)} for {self.rate.gpus} x {self.rate.gpu}" if cost and self.rate.gpu else ""
        predicted, beside = self.comparison.about(code, part)
        cost, known = predicted + cost, known | beside
        severity = Severity.NOTE if not costs else Severity.ERROR if share >= 0.3 else Severity.WARNING
        words = title.format(share=format_percent(share), whole=self.whole, cost=cost)
        return (share if costs else 0.0), finding(code, severity=severity, title=words, evidence=evidence, **known)


def _communication(ranks: Sequence[StepParts], late: Arrival | None, say: _Says) -> Iterator[Cost]:
    first = max(ranks, key=lambda one: one.exposed_seconds)  # what it sends is shown
    if (share := _share(ranks, "exposed_seconds")) >= 0.10:
        exposed, step = (format_seconds(one / say.steps) for one in (first.exposed_seconds, first.span_seconds))
        hidden = round(1 - first.exposed_seconds / first.communication_seconds, 6)
        waiting = "one rank's trace does not tell transfer from waiting for other ranks"
        if late is not None:
            waited = float(np.mean([*late.waits_seconds.values()]))
            share_waited = waited / ((waited + late.transfer_seconds) or 1.0)
            waiting = f"{format_percent(share_waited)} of its time is waiting for other ranks"
        yield say("exposed_communication", share, "{share} of {whole} is communication that nothing hides{cost}",
                  f"{exposed} of {step}; {format_percent(hidden)} of communication is hidden",
                  "; ".join(_collectives(first)), waiting)  # fmt: skip
    sizes, count = _message_bytes(first), int(first.communication.sum()) / say.steps
    if count >= 100 and (not len(sizes) or float(np.median(sizes)) < _SMALL_BYTES):
        median = f"of {format_bytes(float(np.median(sizes)))} in the middle" if len(sizes) else "of unknown size"
        yield say("collectives_not_bucketed", share, f"{format_count(round(count))} collectives {median} in {{whole}}")


def _against_prediction(say: _Says, codes: set[str]) -> Iterator[Cost]:
    """Say which parts take longer than predicted, unless findings of these codes do, or how the step compares."""
    comparison, step = say.comparison, say.comparison.step
    if step is None or step.predicted is None or comparison.case is None:
        return
    confidence = prediction_confidence(comparison.case, sure=step.measured > 2 * step.predicted.high)
    pairs = [f"{part.name} {format_seconds(part.measured)} ({format_estimate(part.predicted, format_seconds)})"
             for part in comparison.rows if part.predicted is not None]  # fmt: skip
    evidence = f"measured (predicted): {', '.join(pairs)}"
    explained = {CAUSE_OF.get(code) for code in codes}
    for part in (part for part in comparison.slower if part.name not in explained):
        share = format_percent(part.measured / step.measured)
        title = f"{part.name} takes {share} of {{whole}}{{cost}}"
        yield say("part_slower_than_predicted", part.lost / step.measured, title, evidence, part=part,
                  confidence=confidence)  # fmt: skip
    if not comparison.slower:
        far = "slower than" if step.measured > step.predicted.high else "faster than"
        how = "as" if step.predicted.contains(step.measured) else far
        title = f"the step is {how} predicted: {format_seconds(step.measured)}, where "
        title += f"{format_estimate(step.predicted, format_seconds)} was predicted{{cost}}"
        best = tuple(one.sentence for one in comparison.changes[:3]) or (_NOTHING_FASTER,)
        lost = step.lost / step.measured if how == "slower than" else 0.0
        yield say("step_against_prediction", lost, title, evidence, costs=lost > 0, confidence=confidence,
                  actions=best)  # fmt: skip


def _collectives(parts: StepParts) -> list[str]:
    """Return a line for each kind of collective: how many there are in a step, their time and bytes."""
    alike, timeline = defaultdict[str, list[float]](list), parts.timeline
    for row in np.flatnonzero(parts.communication).tolist():
        if timeline.message[row] >= 0:
            message = timeline.messages[timeline.message[row]]
            name = f"{message.collective} of {message.group}" if message.group else message.collective
        else:
            kernel = timeline.names[timeline.device.name[row]].lower().replace("_", "")
            name = next((one for one in _KNOWN_COLLECTIVES if one in kernel), "other communication")
        alike[name].append(float(parts.device.seconds[row]))
    steps, sizes = parts.step_count, _message_bytes(parts)
    total = [f"{format_bytes(float(sizes.sum()) / steps)} in all"] if len(sizes) else []
    longest = sorted(alike.items(), key=lambda item: -sum(item[1]))[:3]
    return [f"{format_count(round(len(seconds) / steps, 1))} {name} ({format_seconds(sum(seconds) / steps)})"
            for name, seconds in longest] + total  # fmt: skip


def _message_bytes(parts: StepParts) -> Any:
    """Return the bytes of each collective that states its size: of an all-gather those that come out."""
    messages = [parts.timeline.messages[one] for one in parts.timeline.message[parts.communication] if one >= 0]
    elements = [one.elements_out if "gather" in one.collective.lower() else one.elements_in for one in messages]
    widths = [_BYTES_OF_DTYPE.get(one.dtype.lower()) for one in messages]
    return np.array([(count or 0) * width for count, width in zip(elements, widths, strict=True) if width], float)


def _idle(ranks: Sequence[StepParts], say: _Says) -> Iterator[Cost]:
    first = ranks[0]
    kernels = first.device.seconds[first.kernels]
    share = _share(ranks, "idle.host")
    if len(first.steps) < 2 and len(first.late_gaps):
        # Where no steps are marked, the longest gap is likely the program's start.
        share -= float(np.diff(first.late_gaps).max()) / first.span_seconds
    if len(kernels) and share >= 0.15:
        count, each = format_count(round(len(kernels) / say.steps)), format_seconds(float(kernels.mean()))
        short = format_percent(float((kernels < _SHORT_SECONDS).mean()))
        slowed = "recorded with Python stacks, which slow the host: without them less is idle"
        yield say("launch_bound", share,
                  "the GPU is idle for {share} of {whole}, because the host launches too late{cost}",
                  f"{count} kernels in {say.whole}, {each} each; {short} take under {format_seconds(_SHORT_SECONDS)}",
                  slowed if first.timeline.stacks else "")  # fmt: skip
    for code, least, cause, title in _IDLE:
        # Outside of steps, memory is allocated once, when the program begins.
        counts = len(first.steps) > 1 if code == "allocator_retries" else first.timeline.linked
        if counts and (share := _share(ranks, f"idle.{cause}")) >= least:
            times = (format_seconds(one / say.steps) for one in (getattr(first.idle, cause), first.span_seconds))
            yield say(code, share, title + " for {share} of {whole}{cost}", " of ".join(times))


def _computation(parts: StepParts, say: _Says) -> Iterator[Cost]:
    timeline, seconds, window = parts.timeline, parts.device.seconds, parts.span_seconds
    products = parts.of_term(PRODUCTS) | parts.of_term(LOSS)
    full = products & timeline.matches(_FULL_PRECISION, parts.device)
    of_products, of_full = float(seconds[products].sum()), float(seconds[full].sum())
    if of_full >= 0.5 * of_products and of_full >= 0.1 * window:
        name = timeline.names[int(Counter(parts.device.name[full].tolist()).most_common(1)[0][0])]
        yield say("full_precision_products", of_full / window,
                  "{share} of {whole} is matrix products in fp32 or tf32{cost}",
                  f"most often {name[:60]}; bf16 or fp16 saves at most this share")  # fmt: skip
    again = float(seconds[parts.recomputed].sum())
    if again > 0.05 * parts.compute_seconds:
        yield say("recomputation", again / parts.compute_seconds,
                  "{share} of the computation is done again in the backward pass",
                  f"{format_seconds(again / say.steps)} in {say.whole}", costs=False)  # fmt: skip
    optimizer = parts.in_optimizer & parts.kernels
    single = optimizer & ~timeline.matches(_OF_MANY_TENSORS, parts.device)
    if single.sum() >= max(100 * say.steps, optimizer.sum() / 2) and seconds[optimizer].sum() >= 0.03 * window:
        yield say("optimizer_not_fused", float(seconds[optimizer].sum()) / window,
                  "the optimizer takes {share} of {whole}, in kernels for one tensor each{cost}",
                  f"{format_count(round(int(optimizer.sum()) / say.steps))} kernels in {say.whole}")  # fmt: skip
    pageable = parts.copies & timeline.matches(r"Memcpy HtoD \(Pageable", parts.device)
    bare = intervals.length(intervals.minus(parts.covered(pageable), parts.covered(~parts.copies)))
    if bare >= 0.01 * window:
        yield say("copies_from_pageable_memory", bare / window,
                  "{share} of {whole} is copies from memory that is not pinned{cost}",
                  f"{format_count(round(int(pageable.sum()) / say.steps, 1))} copies in {say.whole}")  # fmt: skip


def _attention(parts: StepParts, say: _Says) -> Iterator[Cost]:
    """Find attention without a fused kernel: a softmax over a square, and products with this square."""
    timeline, ops = parts.timeline, parts.timeline.ops
    softmax = ops[timeline.matches(r"^aten::_?softmax$", ops)]
    squares = {dims[0] for shape in np.unique(softmax.extra[softmax.extra >= 0]) for dims in [timeline.shapes[shape]]
               if dims and len(dims[0]) >= 3 and dims[0][-1] == dims[0][-2]}  # fmt: skip
    if not squares or parts.of_term(ATTENTION).any():
        return
    areas = {square[-1] for square in squares}
    mine = parts.by_sizes(lambda side: len(side) >= 3 and side[-1] == side[-2] and side[-1] in areas)
    share = float(parts.device.seconds[mine].sum()) / parts.span_seconds
    if share >= 0.03:
        size = " x ".join(map(str, max(squares)))
        yield say("attention_written_out", share, "attention that is not fused takes {share} of {whole}{cost}",
                  f"softmax over {size}, and products with it; a fused kernel keeps it on the chip")  # fmt: skip
