"""Conclusions about the state of a run, and the table of all conclusions that a card can name."""

from __future__ import annotations

from collections.abc import Callable

from advisor.auditing import signs, speed_reasoning
from advisor.auditing.budget import unique_tokens
from advisor.auditing.learning import converging
from advisor.auditing.speed_reasoning import PAYS, not_the_cause
from advisor.auditing.verdict import Judgement, Question, Ruling, does_not_follow, holds, unknown, wrong
from advisor.findings.case import Confidence, Severity
from advisor.laws.cpu_fallback import CONVICTING
from advisor.laws.repetition import WASTEFUL_EPOCHS
from advisor.units import format_bytes, format_percent


def conclusion(q: Question) -> Judgement:
    """Dispatch on what is concluded; the premise is part of the claim's words."""
    return CONCLUSIONS[q.get("that")](q)


def clipping_works(q: Question) -> Judgement:
    """Judge "The norm stays under the threshold, so clipping works": after clipping it does so by construction."""
    clip, norms = q.setup.grad_clip, [n for n in q.card.column("grad_norm") if n is not None]
    if clip is None:
        return unknown("the threshold is not stated")
    words = f"threshold {clip:g}; largest printed norm {max(norms):g}" if norms else f"threshold {clip:g}"
    if norms and max(norms) > clip * 1.001:
        return wrong("norms above the threshold are printed: they are from before clipping", words)
    return does_not_follow(
        "a norm after clipping is at most the threshold whatever the gradients do: it shows neither health nor harm",
        words,
        actions=("log the norm before clipping and the share of clipped steps",),
    )


def clipping_stabilised(q: Question) -> Judgement:
    """Judge "Clipping kept it stable": needs norms before clipping over time, and their trend."""
    clip, pairs = (
        q.setup.grad_clip,
        [(s, n) for s, n in zip(q.card.column("step"), q.card.column("grad_norm"), strict=False) if n is not None],
    )
    if clip is None or len(pairs) < 6:
        return unknown("threshold or norms are not given")
    norms = [n for _, n in pairs[len(pairs) // 4 :]]
    half = len(norms) // 2
    before, after = (sum(part) / len(part) for part in (norms[:half], norms[half:]))
    above = sum(n > clip for _, n in pairs) / len(pairs)
    words = (
        f"mean printed norm {before:.2f}, later {after:.2f}; {format_percent(above)} of printed steps above {clip:g}"
    )
    if after > 1.2 * before:
        return does_not_follow(
            f"the norms keep rising, {format_percent(above)} are clipped: one survived spike shows little",
            words,
            actions=("log every norm; look at the batches around the spike",),
            confidence=Confidence.MEDIUM,
        )
    return unknown("the norms do not rise; what would have happened without clipping is not known", words)


def not_on_gpu(q: Question) -> Judgement:
    """Judge "It probably runs on the CPU": three signs convict."""
    against = signs.cpu_signs(q.card, q.setup)
    if len(against) >= CONVICTING:
        return holds(f"{len(against)} independent signs say so", "; ".join(against))
    return unknown(f"{len(against)} of {CONVICTING} signs are there", "; ".join(against))


def on_gpu(q: Question) -> Judgement:
    """Judge "Training works on the GPU": not with three signs against it, nor with fewer bytes than the weights."""
    against = signs.cpu_signs(q.card, q.setup)
    weights = signs.weight_bytes(q.setup)
    if len(against) >= CONVICTING:
        need = f" The run needs {format_bytes(4 * weights[1])} for weights, gradients and AdamW" if weights else ""
        return wrong(
            f"it does not train on the GPU.{need}",
            "; ".join(against),
            severity=Severity.ERROR,
            consequence="no time, memory or speed of this run says anything about the card",
            actions=("print the device of every tensor in the step; fail where it is not the GPU",),
            threshold="three signs of a CPU fallback",
        )
    if against:
        return unknown(f"one sign speaks against it: {against[0]}", "; ".join(against))
    use = signs.utilisation(q.setup)
    return (
        holds("no sign against it", use.arithmetic)
        if use
        else unknown("shape, card, memory or throughput are not stated")
    )


def works(q: Question) -> Judgement:
    """Judge "Functionally correct, training works": on the device it names, and better than guessing."""
    on, learns = on_gpu(q), converging(q)
    bad = [j for j in (learns, on) if j.ruling is Ruling.WRONG]
    if bad:
        so = "; ".join(j.so for j in bad)
        return wrong(
            so,
            "; ".join(j.arithmetic for j in bad),
            severity=Severity.ERROR,
            threshold=bad[0].threshold,
            consequence="that steps run without an exception is all that was shown",
            actions=bad[0].actions,
        )
    against = signs.cpu_signs(q.card, q.setup)
    if learns.ruling is not Ruling.HOLDS:
        return learns
    if against:
        return unknown(f"it learns, but one sign speaks against the device: {against[0]}", learns.arithmetic)
    return holds("it learns, with no sign against the device", learns.arithmetic)


def normal_progress(q: Question) -> Judgement:
    """Judge "Progressing normally": the loss may fall while the card stands idle."""
    learns, slow = converging(q), signs.slowdown(q.setup, q.believe)
    if learns.ruling is Ruling.WRONG:
        return learns
    if slow is not None and slow > signs.FAR_UNDER:
        return not_the_cause(q, slow, "patience")
    return learns


def optimal(q: Question) -> Judgement:
    """Judge "Optimised, the best settings": needs a measured throughput at this shape, against what the card gives."""
    slow = signs.slowdown(q.setup, q.believe)
    if slow is None:
        return does_not_follow(
            "nothing was measured: neither shape nor throughput is stated, so nothing is known to be optimal",
            "",
            severity=Severity.NOTE,
            actions=("measure tokens per second at three batch sizes and compare",),
        )
    words = f"{slow:.2f} times under the low end of the expected speed"
    if slow > signs.FAR_UNDER:
        return not_the_cause(q, slow, "these settings")
    return holds("as fast as the card is expected to be", words) if slow < 1 else unknown("slower than expected", words)


def batch_suits_memory(q: Question) -> Judgement:
    """Judge "The effective batch suits the memory": accumulation does not occupy any."""
    s = q.setup
    words = f"{s.micro_batch} sequences are in memory at once; accumulation adds none" if s.micro_batch else ""
    return does_not_follow(
        "device memory depends on the micro-batch; the effective batch is a matter of the loss",
        words,
        severity=Severity.NOTE,
    )


def smaller_is_stabler(q: Question) -> Judgement:
    """Judge "Less memory pressure, so more stable": memory has no part in the dynamics of training."""
    return does_not_follow(
        "free device memory does not change a single gradient: stability is a matter of rate, batch, scale and data",
        "",
        severity=Severity.NOTE,
    )


def never_waits(q: Question) -> Judgement:
    """Judge "With so many workers the GPU never waits": known only from the time spent waiting for data."""
    waited, total = q.card.timing.get("data"), q.card.timing.get("total")
    if waited is None or total is None:
        return does_not_follow(
            "no waiting time was measured; as many workers as processors leave none for the training process",
            "",
            severity=Severity.NOTE,
            actions=("log the time between a step's end and its next batch",),
        )
    part = waited.middle / total.middle
    words = f"{waited.text} of {total.text}"
    return (
        holds(f"{format_percent(part)} of the step", words)
        if part < PAYS
        else wrong(f"{format_percent(part)} of the step", words)
    )


def data_file_good(q: Question) -> Judgement:
    """Judge "The file is there": with the size it should have, and not an error page."""
    size, full, opening = q.get("size"), q.get("full_size"), (q.get("opening") or "").lstrip().lower()
    if size is None:
        return unknown("the size of the file is not stated")
    words = (
        f"{size.text}" + (f" of {full.text}" if full else "") + (f", begins with {opening[:20]!r}" if opening else "")
    )
    page = opening.startswith(("<?xml", "<!doctype", "<html", "<error"))
    if page or (full and size.most < 0.5 * full.least):
        so = "the file is an error page" if page else "the file is a fragment"
        return wrong(
            so,
            words,
            severity=Severity.ERROR,
            consequence="the step that reads it fails, after the time before it is paid",
            actions=("check size and first bytes after each download: curl --fail",),
        )
    return holds("its size is right", words)


def more_tokens_help(q: Question) -> Judgement:
    """Judge "More tokens, better model": true of new tokens; of repeated ones only for a few passes."""
    unique, s = unique_tokens(q.setup), q.setup
    words = "the loss law falls with tokens: B ÷ D^0.37 (Besiroglu et al. 2024)"
    if unique is not None and s.steps and s.tokens_of_a_step:
        passes = s.steps * s.tokens_of_a_step / unique[1]
        if passes > WASTEFUL_EPOCHS:
            return does_not_follow(f"the data are read {passes:,.0f} times: repeated tokens are worth little", words)
    return holds("new tokens lower the loss", words)


def accumulation_slows(q: Question) -> Judgement:
    """Judge "Gradient accumulation is what makes training slow": it makes steps longer and as much fewer."""
    return does_not_follow(
        "accumulation changes the tokens of an update, not the tokens per second: longer steps, fewer of them",
        "",
        actions=("compare tokens per second",),
        threshold="time for so many tokens",
    )


def gradients_all_reduced(q: Question) -> Judgement:
    """Judge "FSDP all-reduces the gradients": fully sharded gradients are reduce-scattered."""
    return wrong(
        "fully sharded gradients are reduce-scattered: after an all-reduce each card would hold all of them",
        "PyTorch documentation of FullyShardedDataParallel; Rajbhandari et al. 2020, ZeRO",
    )


CONCLUSIONS: dict[str, Callable[[Question], Judgement]] = {
    "bigger_batch_pays": speed_reasoning.bigger_batch_pays,
    "faster_gpu_pays": speed_reasoning.faster_gpu_pays,
    "compute_bound": speed_reasoning.compute_bound,
    "memory_bound": speed_reasoning.memory_bound,
    "used_better": speed_reasoning.used_better,
    "healthy_phases": speed_reasoning.healthy_phases,
    "clipping_works": clipping_works,
    "clipping_stabilised": clipping_stabilised,
    "startup_overhead": speed_reasoning.startup_overhead,
    "not_on_gpu": not_on_gpu,
    "on_gpu": on_gpu,
    "works": works,
    "normal_progress": normal_progress,
    "optimal": optimal,
    "batch_suits_memory": batch_suits_memory,
    "smaller_is_stabler": smaller_is_stabler,
    "never_waits": never_waits,
    "data_file_good": data_file_good,
    "more_tokens_help": more_tokens_help,
    "accumulation_slows": accumulation_slows,
    "gradients_all_reduced": gradients_all_reduced,
}
