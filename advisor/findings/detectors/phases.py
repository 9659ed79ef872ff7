"""Timers of the parts of a step that cannot be true: below physical floors, out of proportion, not adding up."""

from __future__ import annotations

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import PARTS
from advisor.findings.run_facts import parameters
from advisor.prediction.throughput import OPTIMIZER_BYTES
from advisor.units import format_bandwidth, format_bytes, format_flops, format_percent, format_seconds

_SURE_BELOW = 0.5  # of the floor: 8-bit or 16-bit optimizer states move half of fp32's bytes at the least
_FEW_STEPS = 5
_LAUNCHING = 0.02  # seconds of a forward pass in which launching from Python can take longer than the work
_FIRST_FASTER = 0.7  # of the steady step: the first one compiles, allocates and warms caches
_SUM_ABOVE = 1.02
_SUM_BELOW = 0.90
_SYNCHRONISE = (
    "time with CUDA events, or call torch.cuda.synchronize() before reading the clock",
    "until then judge by whole steps only",
)


def detect_optimizer_floor(case: Case) -> Verdict:
    """An optimizer step that would move its 28 bytes per parameter faster than memory can (sources §3.2)."""
    spec, count, timed = run_metrics.card(case), parameters(case), _typical(case, "optimizer_seconds")
    if timed is None:
        return Insufficient(code="optimizer_floor", missing="seconds of the optimizer's step")
    if spec is None or count is None:
        return Insufficient(code="optimizer_floor", missing="the GPU's bandwidth and the number of parameters")
    # logs of other programs seldom say whether several devices share this work
    shards = 1 if case.run.framework == "training-advisor" else run_metrics.devices(case)
    moved = OPTIMIZER_BYTES * count / shards
    floor = moved / spec.memory_bytes_per_second
    if timed >= floor or _other_optimizer(case):
        return None
    return _too_fast(
        case,
        code="optimizer_floor",
        what="The optimizer step",
        timed=timed,
        floor=floor,
        because=f"{format_bytes(moved)} at {format_bandwidth(spec.memory_bytes_per_second)}",
        source="28 bytes per parameter: read p, g, m, v and write p, m, v in fp32 (sources §3.2)",
    )


def _other_optimizer(case: Case) -> bool:
    """Whether the optimizer is known to keep less state than AdamW, so that this floor is not its own."""
    name = str(case.run.facts.get("optimizer", "adamw")).lower()
    return not any(word in name for word in ("adam", "lamb"))


def detect_pass_floor(case: Case) -> Verdict:
    """Forward or backward passes that would beat the card's dense peak."""
    best, work = run_metrics.peak(case), run_metrics.flops_per_token(case)
    times = {name: _typical(case, f"{name}_seconds") for name in ("forward", "backward")}
    if all(value is None for value in times.values()):
        return Insufficient(code="pass_floor", missing="seconds of forward and backward")
    if run_metrics.on_cpu(case):
        return None  # a CPU runs nothing behind the clock's back, and its "peak" is but its best measured product
    if best is None or work is None or case.workload is None:
        return Insufficient(code="pass_floor", missing="the shape and the GPU, for the floor of forward and backward")
    tokens = case.workload.step_tokens / case.workload.gpus
    head = 6 * case.workload.shape.vocab_size * case.workload.shape.width  # fused losses do all of it going forward
    for name, least in (("forward", work / 3), ("backward", (work - head) * 2 / 3)):  # backward: twice (sources §1.2)
        floor = least * tokens / best
        if (timed := times[name]) is not None and timed < floor:
            return _too_fast(
                case,
                code="pass_floor",
                what=f"The {name} pass",
                timed=timed,
                floor=floor,
                because=f"its FLOPs at the dense peak of {format_flops(best)}",
                source="forward: a third of 6·N_mm + 12·L·d·T FLOPs per token; backward: two thirds, the head left out",
            )
    return None


def _too_fast(case: Case, *, code: str, what: str, timed: float, floor: float, because: str, source: str) -> Finding:
    sure = timed < _SURE_BELOW * floor and not case.unsure
    return Finding(
        code=code,
        severity=Severity.ERROR if sure else Severity.WARNING,
        title=f"{what} is timed at {format_seconds(timed)}, where physics needs {format_seconds(floor)} or more",
        evidence=(Evidence(text=f"floor: {because}"),),
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        causes=("a timer that is not synchronised: it measures the launch, not the work", "another GPU or size"),
        actions=_SYNCHRONISE,
        threshold=source,
    )


def detect_short_backward(case: Case) -> Verdict:
    """A backward pass shorter than the forward pass, which has half of its FLOPs."""
    forward, backward = _typical(case, "forward_seconds"), _typical(case, "backward_seconds")
    if forward is None or backward is None:
        return Insufficient(code="short_backward", missing="seconds of forward and backward")
    if backward >= forward or run_metrics.on_cpu(case):
        return None  # a CPU runs nothing behind the clock's back, and Python makes its small forward passes slow
    accumulated = case.workload.grad_accum if case.workload else run_metrics.positive(case, "grad_accum") or 1
    launches = forward / accumulated < _LAUNCHING
    return Finding(
        code="short_backward",
        severity=Severity.NOTE,  # frozen parts and unsynchronised timers of sound runs give it as well
        title=f"Backward ({format_seconds(backward)}) is shorter than forward ({format_seconds(forward)})",
        evidence=(Evidence(text=f"backward / forward = {backward / forward:.2f}; 2 to 2.5 is normal"),),
        confidence=Confidence.LOW if launches else Confidence.MEDIUM,
        causes=(
            *(("a forward pass so short that Python's launches decide it: then compile it",) if launches else ()),
            "timers without synchronisation: forward waits for the step before, or its work is booked elsewhere",
            "the forward pass falls back to slow kernels",
            "most parameters are frozen",
        ),
        actions=_SYNCHRONISE,
        threshold="backward has twice the FLOPs of forward; forward ≥ backward is an anomaly (sources §1.2)",
    )


def detect_fast_first_step(case: Case) -> Verdict:
    """A first step faster than the rest: real ones compile, allocate and fill caches."""
    times = run_metrics.step_times(case)
    if times is None or times.source != run_metrics.PRINTED or len(times.seconds) < _FEW_STEPS or times.step[0] > 1:
        return Insufficient(code="fast_first_step", missing="step times from the first step on")
    # against the steps right after it, where a schedule makes later ones longer
    first, steady = (
        float(times.seconds[0]),
        min(series.median(times.seconds[1:11]), series.median(times.steady_seconds[1:])),
    )
    if first >= _FIRST_FASTER * steady:
        return None
    return Finding(
        code="fast_first_step",
        severity=Severity.NOTE,
        title=f"The first step takes {format_seconds(first)}, later ones {format_seconds(steady)}",
        evidence=(Evidence(text="the first step compiles and allocates", first_step=float(times.step[0])),),
        confidence=Confidence.MEDIUM,
        causes=(
            "times taken without synchronisation: the first step's work is waited for in the second",
            "something slows the run down right after the start",
        ),
        actions=_SYNCHRONISE,
        threshold=f"below {format_percent(_FIRST_FASTER)} of a steady step (sources §7.3)",
    )


def detect_phase_sum(case: Case) -> Verdict:
    """Parts of a step that add up to more than the step, or leave much of it unexplained."""
    columns = [case.run.column(name) for name in PARTS]
    whole = case.run.column("seconds")
    present = [values for values in columns if np.isfinite(values).any()]
    sampled = np.all([np.isfinite(values) for values in [*present, whole]], axis=0) if present else np.zeros(0, bool)
    if len(present) < 2 or not sampled.any():
        return Insufficient(code="phase_sum", missing="seconds of the parts of a step beside the whole")
    total = np.sum([values[sampled] for values in present], axis=0)
    ratio = series.median(total / whole[sampled])
    if ratio > _SUM_ABOVE and _data_beside(case, total / whole[sampled], sampled):
        return None
    has_both = all(np.isfinite(case.run.column(f"{name}_seconds")).any() for name in ("forward", "backward"))
    if ratio > _SUM_ABOVE:
        return _sum_finding(ratio, int(sampled.sum()), Severity.ERROR)
    return _sum_finding(ratio, int(sampled.sum()), Severity.NOTE) if ratio < _SUM_BELOW and has_both else None


def _data_beside(case: Case, ratios: np.ndarray, sampled: np.ndarray) -> bool:
    """Whether the parts without waiting for data are the step: it was timed from when the data had come."""
    waited = case.run.column("data_seconds")[sampled] / case.run.column("seconds")[sampled]
    rest = series.median(ratios - waited)
    return bool(np.isfinite(waited).any()) and _SUM_BELOW <= rest <= _SUM_ABOVE


def _sum_finding(ratio: float, rows: int, severity: Severity) -> Finding:
    more = ratio > 1
    return Finding(
        code="phase_sum",
        severity=severity,
        title=f"The parts of a step add up to {format_percent(ratio)} of it"
        + ("" if more else f": {format_percent(1 - ratio)} is not accounted for"),
        evidence=(Evidence(text=f"median over {rows} steps that time their parts"),),
        confidence=Confidence.HIGH if more else Confidence.MEDIUM,
        causes=("parts that overlap or are counted twice", "parts and whole of different steps")
        if more
        else (
            "logging, copies to the host, loss.item()",
            "waiting for other GPUs (pipeline stages, communication) outside all timers",
        ),
        actions=("time every part between the same two synchronisation points",),
        threshold="between 90 and 102 % of the step",
    )


def _typical(case: Case, name: str) -> float | None:
    """Median of a timed part over the run, zeros left out; None where it was never timed."""
    values = series.finite(run_metrics.main_column(case.run, name))
    values = values[values > 0]
    return series.median(values) if len(values) else None
