"""What the device itself says: is it used at all, and is what it is called use, use?"""

from __future__ import annotations

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.run_facts import number, parameters
from advisor.findings.savings import saved_by_speedup, saved_share
from advisor.laws.cpu_fallback import CONVICTING, IDLE_UTILIZATION, Readings, convict, cpu_signs
from advisor.records import Estimate
from advisor.units import format_bytes, format_centre, format_count, format_number, format_percent, format_watts

_BUSY_UTILIZATION = 0.90
_LOW_UTILIZATION = 0.50
_LOW_POWER = 0.50  # of the limit: launch-, data- or bandwidth-bound (sources §7.4)
_LOW_MFU = 0.15
_NO_LOAD_WATTS = 30.0
_FEW_STEPS = 5
_LOW_MEMORY = 0.5  # of the device: below, the micro-batch could be doubled at least
_FILLED = 0.8  # of the device, by an advised micro-batch, if all memory grew with it
_MOST_TIMES = 16


def detect_cpu_fallback(case: Case) -> Verdict:
    """Work that never reached the GPU: three or more signs of five, or the two of physics (sources §7.5)."""
    if run_metrics.on_cpu(case):
        return None
    signs = cpu_signs(_readings(case))
    convicting = [sign.text for sign in signs if sign.applies]
    if len(signs) < CONVICTING and not convict(signs):
        return Insufficient(
            code="cpu_fallback",
            missing=f"GPU memory, power, utilisation, shape or step times: only {len(signs)} of 5 signs can be read",
        )
    if not convict(signs):
        return None
    physical = sum(sign.applies and sign.physical for sign in signs) > 1
    factor = _slowness(case)
    slower = f", {format_centre(factor, format_number)}x slower than this GPU is at this shape" if factor else ""
    return Finding(
        code="cpu_fallback",
        severity=Severity.ERROR,
        title=f"It does not run on the GPU{slower}: {len(convicting)} of {len(signs)} signs of training on the CPU",
        evidence=tuple(Evidence(text=text) for text in convicting),
        confidence=Confidence.HIGH if len(convicting) > CONVICTING or physical else Confidence.MEDIUM,
        causes=(
            "a CPU build of the framework, or a backend that falls back to the CPU for missing operators",
            "the model or its inputs were never moved to the GPU",
            "another GPU (CUDA_VISIBLE_DEVICES) than the one that is watched",
        ),
        actions=(
            "check next(model.parameters()).device and torch.cuda.is_available() in the run itself",
            "install a build with CUDA; stop the run until it uses the GPU that is paid for",
        ),
        threshold="memory below the weights together with the FLOP/s of a CPU; or three signs of these, idle power, "
        "utilisation near zero, a first step no slower than the rest (sources §7.5)",
        **saved_by_speedup(case, factor) if factor else saved_share(case, float("nan")),
    )


def _slowness(case: Case) -> Estimate | None:
    """How many times slower than predicted the run is; None where that is not known."""
    promised, speed = run_metrics.promised_rate(case), run_metrics.pace(case)
    return promised.scaled(1 / speed.tokens_per_second) if promised and speed else None


def _readings(case: Case) -> Readings:
    """What the log and its telemetry say of one card, as far as they do."""
    share, size = run_metrics.memory_used_share(case)
    spec, watts = run_metrics.card(case), run_metrics.telemetry(case, "power_watts")
    used = run_metrics.telemetry(case, "utilization")
    times = run_metrics.step_times(case)
    if times and (times.source != run_metrics.PRINTED or times.step[0] > 1 or len(times.seconds) < _FEW_STEPS):
        times = None
    return Readings(
        parameters=parameters(case),
        memory_used_bytes=None if share is None or size is None else share * size,
        power_watts=series.median(watts) if len(watts) else None,
        power_limit_watts=run_metrics.power_limit_watts(case),
        utilization=series.median(used) if len(used) else None,
        flops_per_second=_flops_per_second(case),
        peak_flops=run_metrics.peak(case) or (spec.bf16_flops or spec.fp16_flops if spec else None),
        first_step_seconds=float(times.seconds[0]) if times else None,
        later_step_seconds=series.median(times.steady_seconds) if times else None,
    )


def _flops_per_second(case: Case) -> float | None:
    """Achieved by one device; 6N where the shape is not known: near enough for a factor of 25."""
    speed, count = run_metrics.pace(case), parameters(case)
    work = run_metrics.flops_per_token(case) or (6 * count if count else None)
    return speed.tokens_per_second * work / run_metrics.devices(case) if speed and work else None


def _power_share(case: Case, left_out: np.ndarray | None = None) -> float | None:
    """Median power of a card as a share of its limit, some readings left out; None where either is unknown."""
    watts, limit = run_metrics.telemetry(case, "power_watts"), run_metrics.power_limit_watts(case)
    if left_out is not None and len(watts):
        watts = np.delete(watts, left_out)
    return series.median(watts) / limit if limit and len(watts) else None


def detect_utilization(case: Case) -> Verdict:
    """Utilisation read as what it is, the time with any kernel at all, with power as the second witness."""
    if run_metrics.on_cpu(case):
        return None
    busy = run_metrics.telemetry(case, "utilization")
    if len(series.finite(busy)) < 10:
        return _idle_by_power(case) or Insufficient(
            code="utilization", missing="GPU telemetry: utilisation and power (nvidia-smi, trainer's telemetry)"
        )
    idle = run_metrics.idle_stretches(case)  # minutes on end in which nothing ran are another finding
    left_out = np.concatenate(idle) if idle else np.zeros(0, int)
    busy = np.delete(busy, left_out)
    if len(series.finite(busy)) < 10:
        return None
    middle, power, share = series.median(busy), _power_share(case, left_out), run_metrics.mfu(case)
    idle_power = power is not None and power <= _LOW_POWER
    if middle >= _BUSY_UTILIZATION and (idle_power or (share is not None and share < _LOW_MFU)):
        return _busy_but_slow(case, middle, power, share)
    if middle < _LOW_UTILIZATION and (idle_power or power is None) and not isinstance(detect_underused(case), Finding):
        return _waiting(case, busy, power)
    return None


def _memory_in_use(case: Case) -> tuple[np.ndarray, float] | None:
    """Shares of the device's memory in use, row by row, and its bytes; None where most of it is, or it is unknown."""
    _, size = run_metrics.memory_used_share(case)
    used = series.finite(run_metrics.telemetry(case, "memory_used_bytes"))
    columns = [series.finite(run_metrics.main_column(case.run, name)) for name in ("reserved_bytes", "memory_bytes")]
    used = next((values for values in (used, *columns) if len(values)), used)
    return (used / size, size) if size and len(used) and used.max() < _LOW_MEMORY * size else None


def detect_underused(case: Case) -> Verdict:
    """Little of the memory and little of the time of a GPU in use: a larger micro-batch or model costs nothing more."""
    busy = series.finite(run_metrics.telemetry(case, "utilization"))
    if run_metrics.on_cpu(case):
        return None
    if not len(case.run) or len(busy) < _FEW_STEPS or run_metrics.memory_used_share(case)[0] is None:
        return Insufficient(code="underused", missing="utilisation of the GPU, its memory in use and its size")
    memory = _memory_in_use(case)
    if memory is None or not IDLE_UTILIZATION <= series.median(busy) < _LOW_UTILIZATION:
        return None
    shares, size = memory
    # in powers of two, as if all memory grew with the micro-batch: weights and optimizer states do not, so that it fits
    times = min(_MOST_TIMES, 2 ** int(np.log2(_FILLED / float(shares.max())))) if shares.max() > 0 else _MOST_TIMES
    micro = case.workload.micro_batch if case.workload else number(case.run.facts, "micro_batch")
    larger = f"micro_batch: {micro * times:g} instead of {micro:g}" if micro else f"a micro-batch {times}x as large"
    power = _power_share(case)
    count = parameters(case)
    return Finding(
        code="underused",
        severity=Severity.WARNING,
        title=f"{_range(shares)} of the GPU memory and {_range(busy)} of the GPU are in use: "
        "use a larger micro-batch or a larger model",
        evidence=(
            Evidence(text=f"memory: {format_percent(float(shares.mean()))} of {format_bytes(size)} on average"),
            Evidence(text=f"a kernel runs {format_percent(float(busy.mean()))} of the time on average"),
            *((Evidence(text=f"power {format_percent(power)} of its limit"),) if power is not None else ()),
        ),
        confidence=Confidence.MEDIUM,
        causes=(
            "too little work for this GPU in each micro-batch"
            + (f": the model has {format_count(count)} parameters" if count else ""),
            "host code between small kernels, or waiting for data",
        ),
        actions=(
            f"{larger}; compare tokens per second after a hundred steps",
            "a larger model in the same memory, or a cheaper GPU for this one",
        ),
        threshold=f"memory below {format_percent(_LOW_MEMORY)} of the device in every reading and median utilisation "
        f"below {format_percent(_LOW_UTILIZATION)}",
    )


def _range(shares: np.ndarray) -> str:
    low, high = float(shares.min()), float(shares.max())
    return format_percent(low) if f"{low:.2f}" == f"{high:.2f}" else f"{low * 100:.0f}-{high * 100:.0f} %"


def _idle_by_power(case: Case) -> Finding | None:
    """Without utilisation: a power that no card draws under load."""
    watts = series.finite(run_metrics.telemetry(case, "power_watts"))
    if len(watts) < 10 or not series.median(watts) < _NO_LOAD_WATTS:
        return None
    return Finding(
        code="gpu_idle",
        severity=Severity.WARNING,
        title=f"The GPU draws {format_watts(series.median(watts))}: it computes nothing",
        evidence=(Evidence(text=f"median of {len(watts)} readings, highest {format_watts(float(watts.max()))}"),),
        confidence=Confidence.MEDIUM,
        causes=("recorded beside the run", "the work runs on the CPU or on another GPU"),
        actions=("record utilisation too (nvidia-smi --query-gpu=utilization.gpu,power.draw)",),
        threshold=f"median below {_NO_LOAD_WATTS:g} W; the smallest training GPUs draw 40-72 W under load (T4, L4)",
    )


def _busy_but_slow(case: Case, middle: float, power: float | None, share: float | None) -> Finding:
    words = [f"power {format_percent(power)} of the limit"] if power is not None else []
    words += [f"MFU {format_percent(share)}"] if share is not None else []
    return Finding(
        code="utilization_misleads",
        severity=Severity.WARNING if len(words) == 2 else Severity.NOTE,
        title=f"{format_percent(middle)} utilisation is not {format_percent(middle)} use: {', '.join(words)}",
        evidence=(Evidence(text="NVML's utilisation is the share of time with any kernel, however small"),),
        confidence=Confidence.HIGH if len(words) == 2 else Confidence.MEDIUM,
        causes=("many small kernels or slow fp32 paths keep the GPU busy without filling it",),
        actions=("judge by MFU and power; profile for small kernels; torch.compile, bf16, fused attention",),
        threshold=f"power at most {format_percent(_LOW_POWER)} of the limit or MFU below {format_percent(_LOW_MFU)} "
        "beside 90 % utilisation (sources §7.4)",
    )


def _waiting(case: Case, busy: np.ndarray, power: float | None) -> Finding:
    readings = series.finite(busy)
    second = f", power {format_percent(power)} of the limit" if power is not None else ""
    return Finding(
        code="gpu_waits",
        severity=Severity.WARNING,
        title=f"The GPU is without any kernel {format_percent(1 - float(readings.mean()))} of the time{second}",
        evidence=(
            Evidence(
                text=f"median utilisation {format_percent(series.median(readings))}, highest "
                f"{format_percent(float(readings.max()))} over {len(readings)} readings"
            ),
        ),
        confidence=Confidence.HIGH if power is not None else Confidence.MEDIUM,
        causes=("waiting for data", "host code between small kernels", "pauses: evaluation, checkpoints, start-up"),
        actions=("log data_seconds and compare; more loader workers; torch.compile; fewer synchronisations (.item())",),
        threshold=f"median utilisation below {format_percent(_LOW_UTILIZATION)} with power at most half the limit; "
        "single readings are noise (sources §7.4)",
    )
