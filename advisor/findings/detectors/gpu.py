"""The GPU's own readings: whether it is used at all, and whether its utilisation is real use."""

from __future__ import annotations

from typing import Any

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Finding, Verdict, finding, lacking
from advisor.findings.detectors.out_of_memory import ROWS, memory_growth, memory_of, options_of
from advisor.findings.run_facts import number, parameters
from advisor.findings.run_metrics import telemetry
from advisor.findings.savings import saved_by_speedup
from advisor.laws.device_faults import CONVICTING, IDLE_UTILIZATION, FallbackReadings, convict, cpu_signs
from advisor.prediction.profile import FIT_MARGIN
from advisor.readers.run_table import Status
from advisor.units import format_bytes, format_centre, format_count, format_number, format_percent, format_watts

_BUSY_UTILIZATION = 0.90
_LOW_UTILIZATION = 0.50
_LOW_POWER = 0.50  # of the limit: launch-, data- or bandwidth-bound (sources §7.4)

_LOW_MFU = 0.15
_NO_LOAD_WATTS = 30.0
_FEW_STEPS = 5
_LOW_MEMORY = 0.5  # of the device; below this, the micro-batch could at least be doubled
_FILLED = 0.8  # of the device, filled by an advised micro-batch if all memory grew with it
_MOST_TIMES = 16


def detect_cpu_fallback(case: Case) -> Verdict:
    """Work that never reached the GPU: three or more of five signs, or the two physical ones (sources §7.5)."""
    if (said := _said_to_be_on_cpu(case)) is not None:
        return said
    if run_metrics.on_cpu(case):
        return None
    signs = cpu_signs(_readings(case))
    convicting, guilty = [sign.text for sign in signs if sign.applies], convict(signs)
    if len(signs) < CONVICTING and not guilty:
        wanted = "GPU memory, power, utilisation, shape or step times"
        return lacking("cpu_fallback", f"{wanted}: only {len(signs)} of 5 signs are in the log")
    if not guilty:
        return None
    physical = sum(sign.applies and sign.physical for sign in signs) > 1
    promised, speed = run_metrics.promised_rate(case), run_metrics.pace(case)
    factor = promised.scaled(1 / speed.tokens_per_second) if promised and speed else None
    slower = f", {format_centre(factor, format_number)}x slower than this GPU is at this shape" if factor else ""
    return finding(
        "cpu_fallback",
        title=f"It does not run on the GPU{slower}: {len(convicting)} of {len(signs)} signs of training on the CPU",
        evidence=convicting,
        confidence="high" if len(convicting) > CONVICTING or physical else "medium",
        saved=saved_by_speedup(case, factor) if factor else (None, None),
    )


def _said_to_be_on_cpu(case: Case) -> Finding | None:
    """Return the finding of a log whose own words say that no GPU does the work, or None if there are no such words."""
    said: dict[str, str] = {}
    for event in case.run.events:
        said.setdefault(event.kind, event.text)
    if "gpu_used" in said:
        return None  # something else ran on the CPU
    if "gpu_unused" in said:
        return finding("cpu_fallback", text="gpu_unused", evidence=said["gpu_unused"])
    if case.run.facts.get("gpu") not in (None, "cpu") or len(telemetry(case, "utilization")):
        return None
    if "cpu_instead" in said:
        return finding("cpu_fallback", text="cpu_instead", evidence=said["cpu_instead"])
    if {"gpu_asked", "cpu_used"} <= said.keys():
        title = "A GPU was asked for, and it trains on the CPU"
        return finding("cpu_fallback", text="cpu_instead", title=title, evidence=(said["gpu_asked"], said["cpu_used"]))
    # nobody asked for one: it may be a machine without a GPU
    if "no_gpu" in said:
        return finding("cpu_fallback", text="cpu_instead", severity="note", evidence=said["no_gpu"])
    return None


def _readings(case: Case) -> FallbackReadings:
    """Return what the log and its telemetry say about one GPU."""
    share, size = run_metrics.memory_used_share(case)
    spec, watts = run_metrics.card(case), telemetry(case, "power_watts")
    used = telemetry(case, "utilization")
    times = run_metrics.step_times(case)
    if times and (times.source != run_metrics.PRINTED or times.step[0] > 1 or len(times.seconds) < _FEW_STEPS):
        times = None
    # achieved by one device; 6N if the shape is unknown, which is close enough for a factor of 25
    speed, count = run_metrics.pace(case), parameters(case)
    work = run_metrics.flops_per_token(case) or (6 * count if count else None)
    return FallbackReadings(
        parameters=count,
        memory_used_bytes=None if share is None or size is None else share * size,
        power_watts=series.median(watts) if len(watts) else None,
        power_limit_watts=run_metrics.power_limit_watts(case),
        utilization=series.median(used) if len(used) else None,
        flops_per_second=speed.tokens_per_second * work / run_metrics.devices(case) if speed and work else None,
        peak_flops=run_metrics.peak(case) or (spec.bf16_flops or spec.fp16_flops if spec else None),
        first_step_seconds=float(times.seconds[0]) if times else None,
        later_step_seconds=series.median(times.steady_seconds) if times else None,
    )


def _power_share(case: Case, left_out: np.ndarray | None = None) -> float | None:
    """Return the median power of a GPU as a share of its limit, without some readings; None if either is unknown."""
    watts, limit = telemetry(case, "power_watts"), run_metrics.power_limit_watts(case)
    if left_out is not None and len(watts):
        watts = np.delete(watts, left_out)
    return series.median(watts) / limit if limit and len(watts) else None


def detect_utilization(case: Case) -> Verdict:
    """A utilisation that is low, or that power and MFU contradict: it is the share of time with any kernel at all."""
    if run_metrics.on_cpu(case):
        return None
    busy, watts = telemetry(case, "utilization"), series.finite(telemetry(case, "power_watts"))
    if len(series.finite(busy)) < 10:
        missing = "GPU telemetry: utilisation and power (nvidia-smi, trainer's telemetry)"
        if len(watts) < 10 or not series.median(watts) < _NO_LOAD_WATTS:
            return lacking("utilization", missing)
        return finding(  # no GPU draws so little power under load
            "gpu_idle",
            title=f"The GPU draws {format_watts(series.median(watts))}: it computes nothing",
            evidence=f"power is the median of {len(watts)} readings, highest {format_watts(float(watts.max()))}",
        )
    idle = run_metrics.idle_stretches(case)  # stretches of minutes in which nothing ran are another finding
    left_out = np.concatenate(idle) if idle else np.zeros(0, int)
    busy = np.delete(busy, left_out)
    readings = series.finite(busy)
    if len(readings) < 10:
        return None
    middle, power, share = series.median(busy), _power_share(case, left_out), run_metrics.mfu(case)
    idle_power = power is not None and power <= _LOW_POWER
    of_limit = f"power {format_percent(power)} of the limit" if power is not None else ""
    if middle >= _BUSY_UTILIZATION and (idle_power or (share is not None and share < _LOW_MFU)):
        words = [*filter(None, [of_limit]), *([f"MFU {format_percent(share)}"] if share is not None else [])]
        return finding(
            "utilization_misleads",
            severity="warning" if len(words) == 2 else "note",
            title=f"{format_percent(middle)} utilisation is not {format_percent(middle)} use: {', '.join(words)}",
            evidence="NVML's utilisation is the share of time with any kernel, however small",
            confidence="high" if len(words) == 2 else "medium",
        )
    waits = middle < _LOW_UTILIZATION and (idle_power or power is None)
    if not waits or isinstance(detect_underused(case), Finding):
        return None
    without = f"The GPU is without any kernel {format_percent(1 - float(readings.mean()))} of the time"
    return finding(
        "gpu_waits",
        title=f"{without}, {of_limit}" if of_limit else without,
        evidence=f"median utilisation {format_percent(series.median(readings))}, highest "
        f"{format_percent(float(readings.max()))} over {len(readings)} readings",
        confidence="high" if power is not None else "medium",
    )


def detect_underused(case: Case) -> Verdict:
    """A GPU that uses little of its memory and time, so that a larger micro-batch or model would cost no more."""
    busy = series.finite(telemetry(case, "utilization"))
    if run_metrics.on_cpu(case):
        return None
    if not len(case.run) or len(busy) < _FEW_STEPS or run_metrics.memory_used_share(case)[0] is None:
        return lacking("underused", "utilisation of the GPU, its memory in use and its size")
    _, size = run_metrics.memory_used_share(case)
    columns = [series.finite(telemetry(case, "memory_used_bytes"))]
    columns += [series.finite(run_metrics.main_column(case.run, name)) for name in ("reserved_bytes", "memory_bytes")]
    used = next((values for values in columns if len(values)), np.empty(0))
    little = size is not None and size > 0 and len(used) > 0 and used.max() < _LOW_MEMORY * size
    if not little or size is None or not IDLE_UTILIZATION <= series.median(busy) < _LOW_UTILIZATION:
        return None
    shares = used / size
    # in powers of two, as if all memory grew with the micro-batch. Weights and optimizer state do not, so that it fits.
    times = min(_MOST_TIMES, 2 ** int(np.log2(_FILLED / float(shares.max())))) if shares.max() > 0 else _MOST_TIMES
    micro = case.workload.micro_batch if case.workload else number(case.run.facts, "micro_batch")
    larger = f"micro_batch: {micro * times:g} instead of {micro:g}" if micro else f"a micro-batch {times}x as large"
    power = _power_share(case)
    count = parameters(case)
    return finding(
        "underused",
        title=f"{_range(shares)} of the GPU memory and {_range(busy)} of the GPU are in use: "
        "use a larger micro-batch or a larger model",
        evidence=(
            f"memory: {format_percent(float(shares.mean()))} of {format_bytes(size)} on average",
            f"a kernel runs {format_percent(float(busy.mean()))} of the time on average",
            (f"power {format_percent(power)} of its limit" if power is not None else ""),
        ),
        causes=(
            "too little work for this GPU in each micro-batch"
            + (f": the model has {format_count(count)} parameters" if count else ""),
            "host code between small kernels, or waiting for data",
        ),
        actions=(
            f"{larger}; compare tokens per second after a hundred steps",
            "a larger model in the same memory, or a cheaper GPU for this one",
        ),
    )


def _range(shares: np.ndarray) -> str:
    low, high = float(shares.min()), float(shares.max())
    return format_percent(low) if f"{low:.2f}" == f"{high:.2f}" else f"{low * 100:.0f}-{high * 100:.0f} %"


def detect_nearly_full(case: Case) -> Verdict:
    """A GPU within 3 % of its last byte: the next longer batch or evaluation runs out of memory."""
    used, total = run_metrics.memory_used_share(case)
    if run_metrics.on_cpu(case) or case.run.status is Status.OUT_OF_MEMORY:
        return None
    if used is None or total is None:
        return lacking("memory_nearly_full", "GPU memory in use (telemetry or the log) and its size")
    if used < FIT_MARGIN or used > 1:
        return None
    own, plain = options_of(case.run.format), dict[str, Any]()
    if not own.allocator:  # the usual advice is about PyTorch's memory
        plain["actions"] = f"lower {own.micro_batch}"
    return finding(
        "memory_nearly_full",
        title=f"Device memory was {format_percent(used)} full: {format_bytes((1 - used) * total)} were left",
        evidence=f"highest reading {format_bytes(used * total)} of {format_bytes(total)}",
        **plain,
    )


def detect_memory_growth(case: Case) -> Verdict:
    """Memory that keeps growing through the run: a leak that ends when memory runs out."""
    if memory_of(case) is None:
        return lacking("memory_growth", f"GPU memory in at least {ROWS} rows")
    grown = memory_growth(case)
    if grown is None:
        return None
    return finding(
        "memory_growth",
        title=f"Device memory keeps growing: {format_bytes(grown.early)} halfway, "
        f"{format_bytes(grown.late)} at the end",
        evidence=f"{format_bytes(grown.bytes_per_step * 1000)} per 1,000 steps by Theil-Sen",
    )
