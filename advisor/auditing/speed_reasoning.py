"""Conclusions about speed: what would help, what limits, what a healthy step looks like."""

from __future__ import annotations

from advisor.auditing import signs
from advisor.auditing.counts import with_batch
from advisor.auditing.verdict import Judgement, Question, between, does_not_follow, holds, unknown, wrong
from advisor.findings.case import Confidence, Severity
from advisor.units import format_centre, format_flops, format_percent, format_rate

PAYS = 0.05  # a larger batch is worth its memory from 5 % more throughput on
_KERNEL_TIME = (
    "utilisation is the share of time in which any kernel ran, not how much of the card it used (NVML documentation)"
)


def bigger_batch_pays(q: Question) -> Judgement:
    """Judge "Fill the memory with a larger batch": only if the throughput curve rises, and the run is on that curve."""
    s, to = q.setup, q.get("to")
    if s.micro_batch is None:
        return unknown("the batch is not stated")
    slow = signs.slowdown(s, q.believe)
    if slow is not None and slow > signs.FAR_UNDER:
        return not_the_cause(q, slow, "a larger batch")
    target = int(to.middle if to and to.high < float("inf") else to.low if to else 2 * s.micro_batch)
    here, there = (signs.expected(x, q.believe) for x in (s, with_batch(s, target)))
    if not (here and there and here.tokens_per_second and there.tokens_per_second):
        return unknown("free memory says nothing of speed; without card and shape no curve of throughput can be drawn")
    gain = there.tokens_per_second.value / here.tokens_per_second.value - 1
    words = f"expected at batch {s.micro_batch}: {format_centre(here.tokens_per_second, format_rate)}"
    words += f", at {target}: {format_centre(there.tokens_per_second, format_rate)}"
    if there.fits is False:
        return wrong(f"batch {target} does not fit", words)
    if not there.plannable:
        return unknown(f"batch {target} fits with a probability of {there.fit_probability:.0%} only: {words}")
    if gain < PAYS:
        return does_not_follow(f"the throughput rises by {format_percent(max(gain, 0))} only", words, threshold=_PAYS)
    return holds(
        f"{format_percent(gain)} more throughput is expected, at the same loss per token or a worse one", words
    )


_PAYS = "5 % more throughput by the model's own curve; memory in use is no measure of speed"


def faster_gpu_pays(q: Question) -> Judgement:
    """Judge "A faster card would help": not where the card at hand is not being used."""
    slow = signs.slowdown(q.setup, q.believe)
    if slow is None:
        return unknown("card, shape or throughput are not stated")
    if slow > signs.FAR_UNDER:
        return not_the_cause(q, slow, "a faster card")
    return holds(
        "the card at hand is used as well as can be expected", f"at most {slow:.1f} times under the expected speed"
    )


def not_the_cause(q: Question, slow: float, remedy: str) -> Judgement:
    """The answer to every remedy while the run is far under what its card gives: the software comes first."""
    s, use, prediction = q.setup, signs.utilisation(q.setup), signs.expected(q.setup, q.believe)
    assert prediction is not None and prediction.tokens_per_second is not None  # `slow` was reckoned from it
    rate = prediction.tokens_per_second
    so = f"{slow:,.0f} times slow at least"
    words = f"expected {between((rate.low, rate.high), format_rate)} ({rate.basis})"
    if use and prediction.mfu:
        normal = between((prediction.mfu.low, prediction.mfu.high), format_percent)
        so = f"MFU {format_percent(use.high)} where {normal} is normal: {so}"
        words = f"{use.arithmetic}; {words}"
    return does_not_follow(
        f"{so}. The software is the limit; {remedy} will not mend it",
        words,
        severity=Severity.ERROR,
        causes=(
            f"backend: {s.backend}" if s.backend else "kernels that do not use the matrix units",
            "waiting for the host between kernels",
        ),
        actions=("train the same shape with PyTorch on this card first: that alone is the larger factor",),
        consequence=f"{format_percent(1 - 1 / slow)} of the time paid for is lost",
        threshold=f"more than {signs.FAR_UNDER:g} times under the low end of the expected speed",
    )


def compute_bound(q: Question) -> Judgement:
    """Judge "Compute-bound since utilisation is high": judged by the share of the step that the products need."""
    s, rate, spec = q.setup, q.setup.rate, signs.spec_of(q.setup)
    use = signs.utilisation(s)
    if use is None or rate is None or spec is None:
        return does_not_follow(_KERNEL_TIME, "no FLOPs can be set against it: shape, card or throughput are not stated")
    best = spec.mamf_bf16_flops if (s.precision or "bf16") == "bf16" else None
    peak = best or signs.peak(s)
    assert peak is not None  # utilisation is known
    share = use.achieved_flops / s.gpus / peak
    split = signs.shares(s, q.believe)
    words = f"{format_flops(use.achieved_flops / s.gpus)} of {format_flops(peak)} that products reach at best"
    words += f" = {format_percent(share)}"
    if split:
        words += "; expected split of the step: " + ", ".join(
            f"{name} {format_percent(part)}" for name, part in split.items()
        )
    if share > 0.8:
        return holds(f"products alone need {format_percent(share)} of the step", words)
    so = (
        f"{_KERNEL_TIME}; products at their best rate need {format_percent(share)} of the step, the rest goes elsewhere"
    )
    return does_not_follow(so, words, threshold="F ÷ best matmul rate as a share of the step")


def memory_bound(q: Question) -> Judgement:
    """Judge "Limited by memory bandwidth": judged by the model's own split of the step."""
    split = signs.shares(q.setup, q.believe)
    if split is None:
        return unknown("card, shape or batch are not stated")
    words = ", ".join(f"{name} {format_percent(part)}" for name, part in split.items())
    if split["memory"] > 0.5:
        return holds(
            f"memory traffic is {format_percent(split['memory'])} of the expected step",
            words,
            confidence=Confidence.LOW,
        )
    return does_not_follow(
        "no bandwidth was measured; of the expected step memory traffic is "
        f"{format_percent(split['memory'])}, products {format_percent(split['products'])}",
        words,
        confidence=Confidence.MEDIUM,
        actions=("profile DRAM and tensor activity (DCGM) before optimising for either",),
    )


def used_better(q: Question) -> Judgement:
    """Judge "Better utilisation since more memory is used": filled memory does no work."""
    return does_not_follow(
        "memory in use is no measure of work done: MFU is",
        "",
        severity=Severity.NOTE,
        threshold="tokens per second at equal model, not bytes",
    )


def healthy_phases(q: Question) -> Judgement:
    """Judge "Forward dominates, healthy": backward does twice the FLOPs of forward."""
    times = q.card.timing
    if "forward" not in times or "backward" not in times:
        return unknown("forward and backward times are not given")
    forward, backward = times["forward"].middle, times["backward"].middle
    words = f"backward ÷ forward = {backward / forward:.2f}; by FLOPs it is 2, with flash attention up to 2.5"
    if backward > 1.4 * forward:
        return holds("backward takes its share", words)
    so = "the opposite: backward has twice the FLOPs of forward and is reported " + (
        "shorter" if backward < forward else "hardly longer"
    )
    return wrong(
        so,
        words,
        causes=(
            "timers that do not wait for the device book work on the phase that waits",
            "forward limited by something other than FLOPs",
        ),
        actions=("synchronise before each reading",),
        threshold="backward = 2 × forward in FLOPs",
    )


def startup_overhead(q: Question) -> Judgement:
    """Judge "The first step is set-up": then it must be the slowest, not the fastest."""
    first = signs.first_step(q.card)
    if first is None:
        return unknown("the time of the first step is not given")
    words = f"first {first[0]:.3g} s, later {first[1]:.3g} s"
    if first[0] > first[1]:
        return holds("the first step is the slowest", words)
    return wrong(
        "the first step is the fastest: set-up or compilation would have made it the slowest",
        words,
        causes=(
            "work that grows with the steps, such as a graph that is never freed",
            "timers that do not wait for the device",
        ),
        threshold="compilation, allocation and caches make a first step slow",
    )
