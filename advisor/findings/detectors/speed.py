"""Whether the logged speed can be true, is what this GPU gives at this shape, and could be higher by a larger batch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Verdict, finding, lacking, texts
from advisor.findings.detectors.machine import slowdown
from advisor.findings.run_facts import parameters
from advisor.findings.run_metrics import BROKEN_FACTOR, prediction_confidence, promised_rate
from advisor.findings.savings import saved_by_speedup
from advisor.findings.workload_of import ONE_DEVICE
from advisor.laws.flops import IMPOSSIBLE_MFU, IMPOSSIBLE_ON_CPU
from advisor.prediction.batch import predict_batch
from advisor.prediction.micro_batch import choose_prediction
from advisor.prediction.throughput import OPTIMIZER_BYTES
from advisor.records import Estimate
from advisor.units import (
    format_bandwidth,
    format_bytes,
    format_centre,
    format_estimate,
    format_flops,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
)

_LOGGED_MFU_TOLERANCE = 0.10
_NEXT_TO_NOTHING = 0.02  # even small models on large GPUs reach 5 %
# Peaks behind wrong denominators: what logs divide by instead of the GPU's dense peak.
_WRONG_PEAKS = (
    (312e12, "an A100's 312 TFLOP/s"),
    (989e12, "an H100's 989 TFLOP/s"),
    (1979e12, "an H100's 1,979 TFLOP/s with sparsity"),
)
_SLOW_FACTOR = 1.5  # times slower than predicted, and outside the 80 % interval
FEWEST_STEPS = 20  # on a shared machine, fewer steps are often slow by chance
_BESIDE = 1.05  # a smaller slowdown by other programs is not worth a number of its own
_CERTAIN_FACTOR = 10.0  # no assumption about the workload is off by this much
# Predicted gain. One owner measured doublings of micro-batches of 8 and more on some twenty kinds of GPU. They gained 0
# to 5 %, two fifths of the prediction from other people's runs, so 12 % are about 5 %.
BATCH_MUST_PAY = 0.12
_MOST_DOUBLINGS = 6
_SURE_BELOW = 0.5  # of the floor: 8-bit or 16-bit optimizer states move at least half of fp32's bytes


def detect_impossible_mfu(case: Case) -> Verdict:
    """An MFU above 80 % of the dense peak, recomputed from exact FLOPs: some number in the log cannot be true."""
    share = run_metrics.share_of_peak(case)
    if share is None:
        return lacking("impossible_mfu", "the model's shape, the GPU and step times (or a rate) to compute the MFU")
    if share <= (IMPOSSIBLE_MFU if run_metrics.card(case) else IMPOSSIBLE_ON_CPU):
        return None
    speed, best = run_metrics.pace(case), run_metrics.peak(case)
    assert speed is not None and best is not None
    one = ONE_DEVICE in case.unsure
    why = "one GPU's dense peak: there were more, and the log does not say how many"
    return finding(
        "impossible_mfu",
        text="impossible_on_one" if one else "impossible_mfu",
        severity="warning" if case.unsure else "error",
        title=f"The log's speed would be {format_percent(share)} of "
        + (why if one else "the GPU's dense peak, which no run reaches"),
        evidence=(
            f"{format_rate(speed.tokens_per_second)} ({speed.source}) x "
            f"{run_metrics.flops_per_token(case):.4g} FLOPs per token over "
            f"{run_metrics.devices(case)} x {format_flops(best)}"
        ),
        confidence="high" if share > 1 and not case.unsure else "medium",
    )


def detect_logged_mfu(case: Case) -> Verdict:
    """An MFU printed by the log that differs from the MFU by its own times."""
    logged = series.finite(run_metrics.main_column(case.run, "mfu"))
    logged = logged[logged > 0]
    if not len(logged):
        return lacking("logged_mfu", "an MFU that the log prints, to be checked")
    share = run_metrics.mfu(case)
    printed = series.median(logged[series.steady_start(1 / logged) :])
    if share is None and printed < _NEXT_TO_NOTHING:  # the GPU, or the formula, differs from what the log assumes
        return finding(
            "logged_mfu",
            text="mfu_tiny",
            title=f"The log prints an MFU of {format_percent(printed)}: hardly any of the peak that it assumes",
            evidence="the GPU is not named, so that it cannot be recomputed",
        )
    if share is None:
        return lacking("logged_mfu", "the model's shape and the GPU to check the logged MFU")
    ratio = printed / share
    if abs(ratio - 1) <= _LOGGED_MFU_TOLERANCE:
        return None
    return finding(
        "logged_mfu",
        severity="note" if case.unsure else "error" if printed > IMPOSSIBLE_MFU else "warning",
        title=f"The log prints an MFU of {format_percent(printed)}; the step times give {format_percent(share)}",
        evidence=f"median of {len(logged)} printed values; printed / recomputed = {ratio:.3g}",
        confidence="medium" if case.unsure else "high",
        causes=_mfu_causes(case, ratio),
    )


def _mfu_causes(case: Case, ratio: float) -> tuple[str, ...]:
    """Return wrong denominators and numerators that give this ratio within 10 %, or else the usual ones."""
    best, work = run_metrics.peak(case), run_metrics.flops_per_token(case)
    assert best is not None and work is not None and case.workload is not None
    shape = case.workload.shape
    attention = 12 * shape.depth * shape.width * shape.seq_len / work
    candidates = [(best / wrong, f"the log divides by {name}") for wrong, name in _WRONG_PEAKS]
    candidates += [
        (0.5, "the log divides by the peak with 2:4 sparsity"),
        (1 / case.workload.grad_accum, "the log counts one micro-batch per step"),
        (1 / case.workload.gpus, "the log counts one GPU's tokens over all GPUs"),
        (float(case.workload.gpus), "the log divides all GPUs' work by one GPU's peak"),
        (1 - attention / 2, "the log counts the causal half of attention only"),
        (1 - attention, "the log counts 6N and leaves attention out"),
        ((parameters(case) or 0) * 6 / work, "the log counts 6 x all parameters, lookup tables included"),
    ]
    causes = [words for value, words in candidates if abs(value - 1) > 0.05 and abs(ratio / value - 1) < 0.05]
    return tuple(dict.fromkeys(causes)) or ("another peak, FLOPs formula or number of GPUs in the log's own formula",)


def detect_software_bound(case: Case) -> Verdict:
    """A run far slower than this GPU is at this shape because of its software path, not the GPU or the batch."""
    promised, speed = promised_rate(case), run_metrics.pace(case)
    if promised is None or speed is None:
        return lacking(
            "software_bound",
            "the shape, a known GPU and step times, to compare with the speed that this GPU should reach",
        )
    times = run_metrics.step_times(case)
    if times is not None and len(times.steady_seconds) * times.stride < FEWEST_STEPS:
        return lacking("software_bound", f"{FEWEST_STEPS} steady steps: the first ones say little about the speed")
    beside = slowdown(case)  # the machine's own state is another finding
    factor = promised.scaled(1 / speed.tokens_per_second / beside)
    if factor.low < 1 or factor.value < _SLOW_FACTOR:
        return None
    broken = factor.value >= (_CERTAIN_FACTOR if case.unsure else BROKEN_FACTOR)
    share, normal = run_metrics.mfu(case), case.expected.mfu if case.expected else None
    of_peak = ""
    if share and normal:
        of_peak = f" ({format_percent(share)} of peak where {format_centre(normal, format_percent)} is normal)"
    # a prior with an assumed workload accuses nobody: the GPU must be calibrated, or the workload fully known
    known = not case.unsure or (case.profile is not None and case.profile.calibrated)
    choice, best = best_batch(case), ""
    if choice is not None:
        best = (
            f"the best micro-batch that fits ({choice.micro_batch}) is predicted to give {format_percent(choice.gain)} "
            f"more tokens per second: no cure for a factor of {format_number(factor.value)}"
        )
    words, device = ("software_bound_on_cpu", "CPU") if run_metrics.without_card(case) else ("software_bound", "GPU")
    seen = format_centre(factor.scaled(beside), format_number)
    slower = f"{seen}x slower than this {device} is at this shape{of_peak}"
    if beside > _BESIDE:
        slower += f"; {format_centre(factor, format_number)}x slower without the time of other programs"
    return finding(
        "software_bound",
        text=words,
        severity="error" if broken else "warning" if known else "note",
        title=slower,
        evidence=(
            f"measured {format_rate(speed.tokens_per_second)} ({speed.source}); expected "
            f"{format_estimate(promised, format_rate)}, {promised.basis.value}",
            best,
        ),
        confidence=prediction_confidence(case, sure=broken),
        actions=(*texts()[words]["actions"], "neither a bigger batch nor a faster GPU will mend it" if broken else ""),
        saved=saved_by_speedup(case, factor),
    )


@dataclass(frozen=True, kw_only=True)
class BatchChoice:
    """Another micro-batch that fits, and its predicted gain over the present one (0.05: 5 % more)."""

    micro_batch: int
    grad_accum: int
    gain: float
    same_global_batch: bool
    tokens_per_second: Estimate  # predicted


def best_batch(case: Case) -> BatchChoice | None:
    """Return the smallest micro-batch within 2 % of the best that fits, by the predicted curve; None if unknown.

    Accumulation shrinks as the micro-batch grows, so that the optimizer sees the same batch. Micro-batches beyond that
    batch change it and are only considered without accumulation.
    """
    w, profile, now = case.workload, case.profile, promised_rate(case)
    if w is None or profile is None or now is None:
        return None
    doubled = []
    for times in (2**doubling for doubling in range(1, _MOST_DOUBLINGS + 1)):
        accum, rest = divmod(w.grad_accum, times)
        if w.grad_accum == 1 or not rest:
            doubled.append(dataclasses.replace(w, micro_batch=w.micro_batch * times, grad_accum=max(1, accum)))
    answers = [p for p in predict_batch(profile, doubled) if p.tokens_per_second is not None]
    if (best := choose_prediction(answers)) is None:
        return None
    chosen, rate = best.workload, best.tokens_per_second
    assert rate is not None
    return BatchChoice(
        micro_batch=chosen.micro_batch,
        grad_accum=chosen.grad_accum,
        gain=rate.value / now.value - 1,
        same_global_batch=chosen.step_tokens == w.step_tokens,
        tokens_per_second=rate,
    )


def detect_bigger_batch(case: Case) -> Verdict:
    """A larger micro-batch, advised only if the predicted curve says that it pays and memory says that it fits."""
    w, promised = case.workload, promised_rate(case)
    if w is None or case.profile is None or promised is None:
        return lacking("bigger_batch", "the shape, micro-batch and a known GPU, to predict other micro-batches")
    speed, choice = run_metrics.pace(case), best_batch(case)
    slow = speed is not None and promised.value > BROKEN_FACTOR * speed.tokens_per_second
    fast = speed is not None and speed.tokens_per_second > promised.high
    if choice is None or slow or fast or choice.gain < BATCH_MUST_PAY:
        return None  # nothing larger fits or pays, or the run is slower or faster than the whole curve
    # both predictions share their errors; the remaining error is taken as half of the gain on either side
    gain, basis = choice.gain, choice.tokens_per_second.basis
    faster = Estimate(value=1 + gain, low=1 + gain / 2, high=1 + 1.5 * gain, basis=basis)
    words = "the same global batch" if choice.same_global_batch else "a bigger global batch, which changes training"
    return finding(
        "bigger_batch",
        severity="warning" if choice.same_global_batch and not case.unsure else "note",
        title=f"A micro-batch of {choice.micro_batch} instead of {w.micro_batch} would give "
        f"{format_percent(choice.gain)} more tokens per second and fits",
        evidence=(
            f"predicted {format_estimate(promised, format_rate)} now, "
            f"{format_estimate(choice.tokens_per_second, format_rate)} then, with {words}"
        ),
        confidence=prediction_confidence(case),
        actions=f"micro_batch: {choice.micro_batch}, grad_accum: {choice.grad_accum} ({words})",
        saved=saved_by_speedup(case, faster),
    )


def detect_optimizer_floor(case: Case) -> Verdict:
    """An optimizer step that would move its 28 bytes per parameter faster than memory can (sources §3.2)."""
    spec, count = run_metrics.card(case), parameters(case)
    seconds = series.finite(run_metrics.main_column(case.run, "optimizer_seconds"))
    if not (seconds > 0).any():
        return lacking("optimizer_floor", "the time of the optimizer step")
    if spec is None or count is None:
        return lacking("optimizer_floor", "the GPU's bandwidth and the number of parameters")
    # logs of other programs seldom say whether several devices share this work
    shards = 1 if case.run.framework == "training-advisor" else run_metrics.devices(case)
    moved = OPTIMIZER_BYTES * count / shards
    floor, timed = moved / spec.memory_bytes_per_second, series.median(seconds[seconds > 0])
    # an optimizer with less state than AdamW has another floor
    name = str(case.run.facts.get("optimizer", "adamw")).lower()
    if timed >= floor or not any(word in name for word in ("adam", "lamb")):
        return None
    sure = timed < _SURE_BELOW * floor and not case.unsure
    return finding(
        "optimizer_floor",
        severity="error" if sure else "warning",
        title=f"The optimizer step is timed at {format_seconds(timed)}, where physics needs {format_seconds(floor)} or "
        "more",
        evidence=f"floor: {format_bytes(moved)} at {format_bandwidth(spec.memory_bytes_per_second)}",
        confidence="high" if sure else "medium",
    )
