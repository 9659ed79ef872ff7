"""Is the speed what this card gives at this shape, and what is it bound by?"""

from __future__ import annotations

from dataclasses import dataclass

from advisor.findings import run_metrics
from advisor.findings.case import Case, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.detectors.batch import BATCH_MUST_PAY, best_batch
from advisor.findings.detectors.machine import slowdown
from advisor.findings.run_facts import parameters
from advisor.findings.run_metrics import BROKEN_FACTOR, prediction_confidence, promised_rate
from advisor.findings.savings import saved_by_speedup
from advisor.prediction.profile import Profile
from advisor.prediction.throughput import TERMS, predict_log, sizes
from advisor.records import Workload
from advisor.units import (
    format_centre,
    format_count,
    format_estimate,
    format_number,
    format_percent,
    format_rate,
    format_tokens,
)

_SLOW_FACTOR = 1.5  # times slower than predicted, and outside the 80 % interval
_CERTAIN_FACTOR = 10.0  # no guess about the workload is off by this much
_OVERHEAD_SHARE = 0.30
_MEMORY_SHARE = 0.50
_CARD_CAUSES = (
    "operations that run on the CPU or in a slow backend (no tensor cores, fp32, no fused attention)",
    "the GPU waits for data, the host or synchronisation between small kernels",
    "another process on the same GPU",
)
_CARD_ACTIONS = (
    "profile ten steps (torch.profiler) and look for CPU operators, copies and gaps",
    "use a CUDA build with bf16, fused attention (SDPA) and torch.compile",
)
_CPU_CAUSES = (
    "other processes on the same cores, or fewer cores and threads than when it was calibrated",
    "the cores clocked down, or shared with other guests of the host",
    "another software stack than the calibrated one",
)
_CPU_ACTIONS = (
    "compare torch.get_num_threads() with the cores that are free (nproc, top), and run it alone",
    "advisor calibrate on this machine as it is now, then predict again",
)


def detect_software_bound(case: Case) -> Verdict:
    """Far slower than this card is at this shape: the software path, not the card or the batch."""
    promised, speed = promised_rate(case), run_metrics.pace(case)
    if promised is None or speed is None:
        return Insufficient(
            code="software_bound", missing="the shape, a known GPU and step times, to compare with what it should give"
        )
    factor = promised.scaled(1 / speed.tokens_per_second / slowdown(case))  # the machine's own state is another finding
    if factor.low < 1 or factor.value < _SLOW_FACTOR:
        return None
    broken = factor.value >= (_CERTAIN_FACTOR if case.unsure else BROKEN_FACTOR)
    share, normal = run_metrics.mfu(case), case.expected.mfu if case.expected else None
    of_peak = (
        f" ({format_percent(share)} of peak where {format_centre(normal, format_percent)} is normal)"
        if share and normal
        else ""
    )
    return Finding(
        code="software_bound",
        severity=Severity.ERROR if broken else Severity.WARNING if _is_known(case) else Severity.NOTE,
        title=f"{format_centre(factor, format_number)}x slower than this GPU is at this shape{of_peak}",
        evidence=(
            Evidence(
                text=f"measured {format_rate(speed.tokens_per_second)} ({speed.source}); expected "
                f"{format_estimate(promised, format_rate)}, {promised.basis.value}"
            ),
            *_bigger_batch_evidence(case, factor.value),
        ),
        confidence=prediction_confidence(case, sure=broken),
        causes=_CPU_CAUSES if run_metrics.without_card(case) else _CARD_CAUSES,
        actions=(
            *(_CPU_ACTIONS if run_metrics.without_card(case) else _CARD_ACTIONS),
            *(("neither a bigger batch nor a faster GPU will mend it",) if broken else ()),
        ),
        threshold=f"slower than the predicted 80 % interval and by {_SLOW_FACTOR:g}x ({BROKEN_FACTOR:g}x: error)",
        **saved_by_speedup(case, factor),
    )


def _is_known(case: Case) -> bool:
    """Whether the card was calibrated or the workload is known in full: the prior about a guess accuses nobody."""
    return not case.unsure or (case.profile is not None and case.profile.calibrated)


def _bigger_batch_evidence(case: Case, factor: float) -> tuple[Evidence, ...]:
    choice = best_batch(case)
    if choice is None:
        return ()
    text = (
        f"the best micro-batch that fits ({choice.micro_batch}) is predicted to give {format_percent(choice.gain)} "
        f"more tokens per second: no cure for a factor of {format_number(factor)}"
    )
    return (Evidence(text=text),)


@dataclass(frozen=True, kw_only=True)
class TimeSplit:
    """Where the model says a step's time goes, as shares of it."""

    compute: float  # matrix products and attention
    memory: float  # activations, logits, weights and optimizer state through memory
    overhead: float  # launches and other fixed costs

    @property
    def bound(self) -> str:
        """The largest part in words: compute, memory or launches."""
        parts = {"compute": self.compute, "memory": self.memory, "launches": self.overhead}
        return max(parts, key=lambda name: parts[name])


_COMPUTE_TERMS = ("matmul", "attention")
_OVERHEAD_TERMS = ("layer_overhead", "micro_overhead", "step_overhead")


def time_split(profile: Profile, workload: Workload) -> TimeSplit:
    """The predicted step of a workload split by the model's own terms (docs/how-it-predicts.md), links left out."""
    z = sizes([workload])
    parts = predict_log(profile.posterior, z).parts[0]
    total = float(parts.sum())
    compute = sum(float(parts[TERMS.index(name)]) for name in _COMPUTE_TERMS) / total
    overhead = sum(float(parts[TERMS.index(name)]) for name in _OVERHEAD_TERMS) / total
    return TimeSplit(compute=compute, memory=1 - compute - overhead, overhead=overhead)


def detect_bound(case: Case) -> Verdict:
    """A shape whose time goes to memory or launches rather than products, by the model's own terms."""
    if case.workload is None or case.profile is None:
        return Insufficient(code="time_split", missing="the shape and a known GPU, to split the step's time")
    split = time_split(case.profile, case.workload)
    text = (
        f"predicted: {format_percent(split.compute)} products, {format_percent(split.memory)} memory traffic, "
        f"{format_percent(split.overhead)} launches"
    )
    if split.overhead > _OVERHEAD_SHARE:
        title = f"{format_percent(split.overhead)} of a step is launching kernels"
        actions = ("compile: true", *_batch_action(case))
        code = "launch_bound"
    elif split.memory > _MEMORY_SHARE:
        title = f"{format_percent(split.memory)} of a step is memory traffic, which no tensor core speeds up"
        actions = ("compile: true fuses passes over activations",) if not case.workload.compile else ()
        actions += ("a wider model of the same cost uses the products better", *_batch_action(case))
        code = "memory_bound"
    else:
        return None
    return Finding(
        code=code,
        severity=Severity.NOTE,
        title=title,
        evidence=(Evidence(text=text),),
        confidence=prediction_confidence(case),
        causes=(
            f"{format_count(parameters(case))} parameters at width {case.workload.shape.width} and "
            f"{format_tokens(case.workload.micro_tokens)} tokens per micro-batch",
        ),
        actions=actions,
        threshold=f"more than {format_percent(_OVERHEAD_SHARE)} launches or {format_percent(_MEMORY_SHARE)} traffic",
    )


def _batch_action(case: Case) -> tuple[str, ...]:
    choice = best_batch(case)
    if choice is None or choice.gain < BATCH_MUST_PAY:
        return ()
    return (f"micro_batch: {choice.micro_batch}, grad_accum: {choice.grad_accum} (+{format_percent(choice.gain)})",)
