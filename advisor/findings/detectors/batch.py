"""Would a bigger micro-batch pay? Judged by the predicted curve and memory, never by free memory alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.findings import run_metrics
from advisor.findings.case import Case, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.run_metrics import BROKEN_FACTOR, memory_used_share, prediction_confidence, promised_rate
from advisor.findings.savings import saved_by_speedup
from advisor.prediction.batch import predict_batch
from advisor.prediction.micro_batch import Tries, one_micro_batch
from advisor.records import Estimate, Prediction, Workload
from advisor.units import format_estimate, format_percent, format_rate

# Predicted gain. Doublings of micro-batches of 8 and more that one owner measured on some twenty kinds of GPU gained 0
# to 5 %, two fifths of what other people's runs had predicted: 12 % are about 5 %.
BATCH_MUST_PAY = 0.12
_MOST_DOUBLINGS = 6
_LOW_MEMORY = 0.5


@dataclass(frozen=True, kw_only=True)
class BatchChoice:
    """Another micro-batch that fits, and what it is predicted to give over the present one (0.05: 5 % more)."""

    micro_batch: int
    grad_accum: int
    gain: float
    same_global_batch: bool
    tokens_per_second: Estimate  # predicted


def best_batch(case: Case) -> BatchChoice | None:
    """The smallest micro-batch within 2 % of the best of those that fit, by the predicted curve; None where unknown.

    Accumulation shrinks as the micro-batch grows, so that the optimizer sees the same batch; micro-batches beyond
    that batch change it and are weighed only where nothing is accumulated.
    """
    w, profile, now = case.workload, case.profile, promised_rate(case)
    if w is None or profile is None or now is None:
        return None
    options = [p for p in predict_batch(profile, _batches(w)) if p.fits and p.tokens_per_second is not None]
    if not options:
        return None
    best = _by_the_rule(options)
    rate = best.tokens_per_second
    assert rate is not None
    chosen = best.workload
    return BatchChoice(
        micro_batch=chosen.micro_batch,
        grad_accum=chosen.grad_accum,
        gain=rate.value / now.value - 1,
        same_global_batch=chosen.step_tokens == w.step_tokens,
        tokens_per_second=rate,
    )


def _by_the_rule(options: Sequence[Prediction]) -> Prediction:
    """The one of some micro-batches that fit which the rule of plans would take."""
    alike = np.zeros(len(options), dtype=int)
    tries = Tries(
        setting=alike,
        target=alike,
        micro_batch=np.array([p.workload.micro_batch for p in options]),
        grad_accum=np.array([p.workload.grad_accum for p in options]),
        kind=alike,
        rate=np.array([p.tokens_per_second.value if p.tokens_per_second else math.nan for p in options]),
        memory=alike,
    )
    return options[int(one_micro_batch(tries, alike == 0).argmax())]


def _batches(w: Workload) -> list[Workload]:
    """Doublings of the micro-batch: within the accumulated batch, or beyond it where nothing is accumulated."""
    batches = []
    for doubling in range(1, _MOST_DOUBLINGS + 1):
        times = 2**doubling
        accum, rest = divmod(w.grad_accum, times)
        if w.grad_accum == 1 or not rest:
            batches.append(dataclasses.replace(w, micro_batch=w.micro_batch * times, grad_accum=max(1, accum)))
    return batches


def detect_bigger_batch(case: Case) -> Verdict:
    """A bigger micro-batch, advised only where the predicted curve says that it pays and memory says that it fits."""
    w, promised = case.workload, promised_rate(case)
    if w is None or case.profile is None or promised is None:
        return Insufficient(
            code="bigger_batch", missing="the shape, micro-batch and a known GPU, to predict other micro-batches"
        )
    speed, choice = run_metrics.pace(case), best_batch(case)
    slow = speed is not None and promised.value > BROKEN_FACTOR * speed.tokens_per_second
    fast = speed is not None and speed.tokens_per_second > promised.high
    if choice is None or slow or fast:
        return None  # nothing bigger fits, or the curve is not this run's: it is slower or faster than all of it
    if choice.gain < BATCH_MUST_PAY:
        return _harmless_memory(case, choice)
    words = "the same global batch" if choice.same_global_batch else "a bigger global batch, which changes training"
    return Finding(
        code="bigger_batch",
        severity=Severity.WARNING if choice.same_global_batch and not case.unsure else Severity.NOTE,
        title=f"A micro-batch of {choice.micro_batch} instead of {w.micro_batch} would give "
        f"{format_percent(choice.gain)} more tokens per second and fits",
        evidence=(
            Evidence(
                text=f"predicted {format_estimate(promised, format_rate)} now, "
                f"{format_estimate(choice.tokens_per_second, format_rate)} then, with {words}"
            ),
        ),
        confidence=prediction_confidence(case),
        actions=(f"micro_batch: {choice.micro_batch}, grad_accum: {choice.grad_accum} ({words})",),
        threshold="advised where the predicted curve gains 12 % or more and the high end of memory fits",
        **saved_by_speedup(case, _gain_estimate(choice)),
    )


def _gain_estimate(choice: BatchChoice) -> Estimate:
    """Both predictions share their errors; what is left is taken as half of the gain either way."""
    gain = choice.gain
    basis = choice.tokens_per_second.basis
    return Estimate(value=1 + gain, low=1 + gain / 2, high=1 + 1.5 * gain, basis=basis)


def _harmless_memory(case: Case, choice: BatchChoice) -> Verdict:
    """Much free memory is only worth a word where the curve says that filling it would not pay."""
    used, total = memory_used_share(case)
    if used is None or total is None or used > _LOW_MEMORY:
        return None
    return Finding(
        code="free_memory_is_no_loss",
        severity=Severity.NOTE,
        title=f"Only {format_percent(used)} of GPU memory is used, and filling it would gain "
        f"{format_percent(max(0.0, choice.gain))}",
        evidence=(
            Evidence(text=f"micro-batch {choice.micro_batch} is predicted to fit, and hardly to be faster than now"),
        ),
        confidence=prediction_confidence(case),
        actions=("leave the batch as it is; memory is not what is paid for",),
        threshold="a bigger batch is advised where the predicted curve gains 12 % or more",
    )
