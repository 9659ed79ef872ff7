"""Judges where the time of a step goes, in shares of the step and dollars an hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from advisor.findings.case import Case, Finding, Insufficient, Severity, finding, lacking, texts
from advisor.findings.run_metrics import prediction_confidence
from advisor.findings.traces.judgement import ComparedPart, Judgement, PartOfWhole, Rate
from advisor.findings.traces.predicted import Comparison, compare
from advisor.findings.traces.ranks import Arrival, arrival
from advisor.findings.traces.step_parts import ATTENTION, BACKWARD, LOSS, OPTIMIZER_STEP, PRODUCTS, StepParts
from advisor.readers.traces import intervals
from advisor.readers.traces.kinds import RECORD_TRACE
from advisor.readers.traces.timeline import Timeline
from advisor.units import format_bytes, format_count, format_estimate, format_percent, format_seconds, format_usd_rate

_BYTES_OF_DTYPE = {"double": 8, "long": 8, "int64": 8, "float": 4, "int": 4, "int32": 4, "float32": 4, "half": 2,
                   "bfloat16": 2, "float16": 2, "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1}  # fmt: skip
_SMALL_BYTES, _SHORT_SECONDS = 1e6, 10e-6
_FULL_PRECISION = r"(?i)sgemm|s1688gemm|tf32|simt_s|Cijk_\w*_S_?B_|gemm_f32f32|f32f32_f32f32|scudnn"
_NOTHING_FASTER = "no other micro-batch, compilation, precision or sharding is predicted to be faster"
_OF_MANY_TENSORS = r"(?i)multi_tensor|fused"

Cost = tuple[float, Finding]  # the share of the window that it costs


def judge(timelines: Sequence[Timeline], rate: Rate, case: Case | None = None) -> Judgement:
    """Judge the traces of one or more ranks of one run. The parts are means over the ranks.

    `case` is what is known of the run beyond its traces, whose prediction is put beside what they measure.
    """
    ranks = [StepParts(one) for one in timelines]
    known = [parts for parts in ranks if parts.span_seconds > 0]
    gaps = tuple(_lacking(ranks))
    if not known:
        return Judgement(verdict="The trace has no work of a GPU.", lacking=gaps)
    late = arrival(known)
    comparison = compare(known, case) if case is not None and is_training(known[0]) else Comparison()
    found = sorted(_findings(known, late, _Says(known, rate, comparison)), key=lambda one: -one[0])
    parts = _parts(known)
    return Judgement(
        verdict=_verdict(known[0], parts, [one for share, one in found if share], rate),
        parts=parts,
        findings=tuple(one for _, one in found),
        lacking=(*gaps, *comparison.lacking),
        compared=comparison.rows,
        remarks=comparison.remarks,
        facts=_facts(known, late, parts),
    )


def is_training(parts: StepParts) -> bool:
    """Return whether the trace has a backward pass or an optimizer. Without operators it is taken for a training."""
    timeline = parts.timeline
    marks = ((BACKWARD, timeline.ops), (OPTIMIZER_STEP, timeline.ranges))
    return not len(timeline.ops) or any(timeline.matches(pattern, events).any() for pattern, events in marks)


def _parts(ranks: Sequence[StepParts]) -> tuple[PartOfWhole, ...]:
    """Return the mean seconds per step, or per window if the trace marks no steps. They add up to the whole."""

    def mean(seconds: list[float]) -> float:
        return float(np.mean([one / max(len(parts.steps), 1) for one, parts in zip(seconds, ranks, strict=True)]))

    idle = [parts.idle for parts in ranks]
    seconds = {
        "computation": mean([parts.compute_seconds for parts in ranks]),
        "communication that nothing hides": mean([intervals.length(parts.exposed_communication) for parts in ranks]),
        "copies that nothing hides": mean([parts.exposed_copy_seconds for parts in ranks]),
        "idle: data loading": mean([one.data_loading for one in idle]),
        "idle: the host waited for the GPU": mean([one.synchronizing for one in idle]),
        "idle: memory was allocated": mean([one.allocating for one in idle]),
        "idle: the host launched too late": mean([one.host for one in idle]),
        "idle: other causes": mean([one.device for one in idle]),
    }
    whole = sum(seconds.values()) or 1.0
    return tuple(
        PartOfWhole(name=name, value=value, share=value / whole)
        for name, value in seconds.items()
        if value > 1e-4 * whole or name == "computation"
    )


def _verdict(first: StepParts, parts: Sequence[PartOfWhole], costly: Sequence[Finding], rate: Rate) -> str:
    of = "inference" if not is_training(first) else "each step" if first.steps else "the window"
    if costly:
        return costly[0].title[:1].upper() + costly[0].title[1:] + "."
    largest = max(parts, key=lambda part: part.share)
    if largest.name.startswith("idle"):
        return f"The GPU is idle for {format_percent(largest.share)} of {of} ({largest.name.partition(': ')[2]})."
    return f"{format_percent(largest.share)} of {of} is {largest.name}; nothing that costs much stands out."


def _facts(ranks: Sequence[StepParts], late: Arrival | None, parts: Sequence[PartOfWhole]) -> dict[str, Any]:
    first, work = ranks[0], sum(float(sum(one.terms.values())) for one in ranks)
    terms = {name: sum(one.terms[name] for one in ranks) / work for name in first.terms} if work else {}
    exposed = [intervals.length(one.exposed_communication) for one in ranks]
    communication = [one.communication_seconds for one in ranks]
    return {
        "ranks": len(ranks),
        "gpu": first.timeline.gpu,
        "training": is_training(first),
        "step_seconds": list(first.steps),
        "seconds": sum(part.value for part in parts),
        "window_seconds": first.span_seconds,
        "idle_share": float(np.mean([one.idle_seconds / one.span_seconds for one in ranks])),
        "communication_seconds": communication,
        "exposed_communication_seconds": exposed,
        "overlap": 1 - sum(exposed) / sum(communication) if sum(communication) else None,
        "device_events": len(first.device),
        "term_shares": terms,  # of the device's work, where simultaneous work counts twice
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


def _findings(ranks: Sequence[StepParts], late: Arrival | None, say: _Says) -> Iterator[Cost]:
    found = list(_of_the_trace(ranks, late, say))
    yield from found
    yield from _beside_prediction(say, {one.code for _, one in found})


def _of_the_trace(ranks: Sequence[StepParts], late: Arrival | None, say: _Says) -> Iterator[Cost]:
    first = ranks[0]
    yield from _communication(ranks, late, say)
    if late is not None and late.share >= 0.05 and 2 * late.last_in > late.collectives:
        title = f"rank {late.late} is late: the others wait {{share}} of the window for it{{cost}}"
        text = f"it comes last to {late.last_in} of {late.collectives} collectives, and waits least itself"
        yield say("late_rank", late.share, title, text)
    yield from _idle(ranks, say)
    yield from _computation(first, say)


class _Says:
    """Writes findings with the share of the window that they cost, and what that is in dollars an hour."""

    def __init__(self, ranks: Sequence[StepParts], rate: Rate, comparison: Comparison):
        self.comparison = comparison
        self.whole = "each step" if ranks[0].steps else "the window"
        self.rate, self.priced = rate, is_training(ranks[0])
        self.steps = max(len(ranks[0].steps), 1)

    def __call__(self, code: str, share: float, title: str, *evidence: str, costs: bool = True,
                 part: ComparedPart | None = None, **known: Any) -> Cost:  # fmt: skip
        """Return a finding; `part` is the part of the step that it is about, if its code does not tell."""
        usd = self.rate.usd_per_hour
        cost = f": {format_usd_rate(share * usd)} an hour" if usd and costs and self.priced else ""
        cost += f" of {format_usd_rate(usd)} for {self.rate.gpus} x {self.rate.gpu}" if cost and self.rate.gpu else ""
        if (part := part or self.comparison.about(code)) is not None:
            cost = f"; {self.comparison.share(part)} was predicted{cost}"
            actions = (*self.comparison.changes_of(part), *texts().get(code, {}).get("actions", ()))
            known |= {"saved": self.comparison.saved(part), "actions": actions}
        severity = Severity.NOTE if not costs else Severity.ERROR if share >= 0.3 else Severity.WARNING
        words = title.format(share=format_percent(share), whole=self.whole, cost=cost)
        return (share if costs else 0.0), finding(code, severity=severity, title=words, evidence=evidence, **known)


def _communication(ranks: Sequence[StepParts], late: Arrival | None, say: _Says) -> Iterator[Cost]:
    lengths = [intervals.length(one.exposed_communication) for one in ranks]
    share = float(np.mean([length / one.span_seconds for length, one in zip(lengths, ranks, strict=True)]))
    first = ranks[int(np.argmax(lengths))]  # what it sends is shown
    kinds, count = _collectives(first), int(first.communication.sum()) / say.steps
    exposed, step = max(lengths) / say.steps, first.span_seconds / say.steps
    if share >= 0.10:
        hidden = round(1 - max(lengths) / first.communication_seconds, 6)
        waiting = ""
        if late is not None:
            waited = float(np.mean([*late.waits_seconds.values()]))
            share_waited = waited / ((waited + late.transfer_seconds) or 1.0)
            waiting = f"{format_percent(share_waited)} of its time is waiting for other ranks"
        yield say(
            "exposed_communication", share, "{share} of {whole} is communication that nothing hides{cost}",
            f"{format_seconds(exposed)} of {format_seconds(step)}; {format_percent(hidden)} of communication is hidden",
            "; ".join(kinds), waiting or "one rank's trace does not tell transfer from waiting for other ranks",
        )  # fmt: skip
    sizes = _message_bytes(first)
    if count >= 100 and (not len(sizes) or float(np.median(sizes)) < _SMALL_BYTES):
        median = f"of {format_bytes(float(np.median(sizes)))} in the middle" if len(sizes) else "of unknown size"
        yield say("collectives_not_bucketed", share, f"{format_count(round(count))} collectives {median} in {{whole}}")


def _beside_prediction(say: _Says, codes: set[str]) -> Iterator[Cost]:
    """Say which parts take longer than predicted, unless findings of these codes do, or how the step compares."""
    comparison, step = say.comparison, say.comparison.step
    if step is None or step.predicted is None or comparison.case is None:
        return
    confidence = prediction_confidence(comparison.case, sure=step.measured > 2 * step.predicted.high)
    pairs = [f"{part.name} {format_seconds(part.measured)} ({format_estimate(part.predicted, format_seconds)})"
             for part in comparison.rows if part.predicted is not None]  # fmt: skip
    evidence = f"measured (predicted): {', '.join(pairs)}"
    for part in comparison.unexplained(codes):
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
    alike: dict[str, list[float]] = {}
    for row in np.flatnonzero(parts.communication).tolist():
        alike.setdefault(_collective(parts, row), []).append(float(parts.device.seconds[row]))
    steps, sizes = max(len(parts.steps), 1), _message_bytes(parts)
    total = [f"{format_bytes(float(sizes.sum()) / steps)} in all"] if len(sizes) else []
    longest = sorted(alike.items(), key=lambda item: -sum(item[1]))[:3]
    return [f"{format_count(round(len(seconds) / steps, 1))} {name} ({format_seconds(sum(seconds) / steps)})"
            for name, seconds in longest] + total  # fmt: skip


def _collective(parts: StepParts, row: int) -> str:
    timeline = parts.timeline
    if timeline.message[row] >= 0:
        message = timeline.messages[timeline.message[row]]
        return f"{message.collective} of {message.group}" if message.group else message.collective
    name = timeline.names[timeline.device.name[row]].lower().replace("_", "")
    known = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "sendrecv")
    return next((one for one in known if one in name), "other communication")


def _message_bytes(parts: StepParts) -> Any:
    """Return the bytes of each collective that states its size: of an all-gather those that come out."""
    messages, sizes = parts.timeline.messages, []
    for number in parts.timeline.message[parts.communication]:
        if number >= 0 and (width := _BYTES_OF_DTYPE.get(messages[number].dtype.lower())):
            message = messages[number]
            gathers = "gather" in message.collective.lower()
            elements = message.elements_out if gathers else message.elements_in
            sizes.append((elements or 0) * width)
    return np.array(sizes, float)


def _idle(ranks: Sequence[StepParts], say: _Says) -> Iterator[Cost]:
    first = ranks[0]

    def share(seconds: list[float]) -> float:
        return float(np.mean([one / parts.span_seconds for one, parts in zip(seconds, ranks, strict=True)]))

    idle = [parts.idle for parts in ranks]
    host = share([one.host for one in idle])
    kernels = first.device.seconds[first.kernels]
    if len(kernels) and host >= 0.15:
        slowed = "recorded with Python stacks, which slow the host: without them less is idle"
        yield say(
            "launch_bound", host, "the GPU is idle for {share} of {whole}, because the host launches too late{cost}",
            f"{format_count(round(len(kernels) / say.steps))} kernels in {say.whole}, "
            f"{format_seconds(float(kernels.mean()))} each; {format_percent(float((kernels < _SHORT_SECONDS).mean()))} "
            f"take less than {format_seconds(_SHORT_SECONDS)}",
            slowed if first.timeline.stacks else "",
        )  # fmt: skip
    step = format_seconds(first.span_seconds / say.steps)
    for code, least, seconds, title in (
        ("data_loading", 0.05, [one.data_loading for one in idle], "the GPU waits for the data loader"),
        ("host_synchronisation", 0.03, [one.synchronizing for one in idle],
         "the GPU is idle after the host waited for it"),
        ("allocator_retries", 0.01, [one.allocating for one in idle],
         "the GPU is idle while the host allocates memory"),
        ("idle_unexplained", 0.15, [one.device for one in idle],
         "the GPU is idle, although its work was launched in time,"),
    ):  # fmt: skip
        # Outside of steps, memory is allocated once, when the program begins.
        counts = len(first.steps) > 1 if code == "allocator_retries" else first.timeline.linked
        if share(seconds) >= least and counts:
            yield say(code, share(seconds), title + " for {share} of {whole}{cost}",
                      f"{format_seconds(seconds[0] / say.steps)} of {step}")  # fmt: skip


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
    yield from _attention(parts, say)


def _attention(parts: StepParts, say: _Says) -> Iterator[Cost]:
    """Find attention without a fused kernel: a softmax over a square, and products with this square."""
    timeline, ops = parts.timeline, parts.timeline.ops
    softmax = ops[timeline.matches(r"^aten::_?softmax$", ops)]
    squares = {dims[0] for shape in np.unique(softmax.extra[softmax.extra >= 0]) for dims in [timeline.shapes[shape]]
               if dims and len(dims[0]) >= 3 and dims[0][-1] == dims[0][-2]}  # fmt: skip
    fused = parts.of_term(ATTENTION).any()
    if not squares or fused:
        return
    areas = {square[-1] for square in squares}
    wide = np.array([any(isinstance(side, tuple) and len(side) >= 3 and side[-1] == side[-2] and side[-1] in areas
                         for side in dims) for dims in timeline.shapes] or [False])  # fmt: skip
    shape = np.where(parts.operator >= 0, ops.extra[parts.operator], -1)
    mine = (shape >= 0) & wide[np.maximum(shape, 0)]
    share = float(parts.device.seconds[mine].sum()) / parts.span_seconds
    if share >= 0.03:
        size = " x ".join(map(str, max(squares)))
        yield say("attention_written_out", share, "attention that is not fused takes {share} of {whole}{cost}",
                  f"softmax over {size}, and products with it; a fused kernel keeps it on the chip")  # fmt: skip
