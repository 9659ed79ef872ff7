"""Device memory in use: nearly full cards, growth, and spilling into host memory."""

from __future__ import annotations

from advisor.findings import run_metrics
from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.detectors.out_of_memory import KEEP_NUMBERS, KEPT, what_fits
from advisor.findings.memory_growth import ROWS, memory_growth, memory_of
from advisor.prediction.profile import FIT_MARGIN
from advisor.readers.run_table import Status
from advisor.units import format_bytes, format_number, format_percent

_LIKELY_SPILL = 3.0  # times slower than predicted, at a full card


def detect_nearly_full(case: Case) -> Verdict:
    """A card within 3 % of its last byte: the next longer batch or evaluation runs out."""
    used, total = run_metrics.memory_used_share(case)
    if run_metrics.on_cpu(case) or case.run.status is Status.OUT_OF_MEMORY:
        return None
    if used is None or total is None:
        return Insufficient(code="memory_nearly_full", missing="GPU memory in use (telemetry or the log) and its size")
    if used < FIT_MARGIN or used > 1:
        return None
    return Finding(
        code="memory_nearly_full",
        severity=Severity.NOTE,  # a caching allocator fills a card by nature, and nothing failed here
        title=f"Device memory was {format_percent(used)} full: {format_bytes((1 - used) * total)} were left",
        evidence=(Evidence(text=f"highest reading {format_bytes(used * total)} of {format_bytes(total)}"),),
        confidence=Confidence.MEDIUM,
        causes=("a micro-batch at the limit", "a caching allocator that keeps freed blocks: then it is harmless"),
        actions=("compare reserved with allocated bytes; lower micro_batch or set expandable_segments:True",),
        threshold="97 % of the GPU's memory, where allocators begin to fail",
    )


def detect_host_spill(case: Case) -> Verdict:
    """More device memory in use than the card has, or a full card and a crawling run: pages in host memory."""
    used, total = run_metrics.memory_used_share(case)
    if run_metrics.on_cpu(case):
        return None
    if used is None or total is None:
        return Insufficient(code="host_spill", missing="GPU memory in use (telemetry or the log) and its size")
    promised, speed = run_metrics.promised_rate(case), run_metrics.pace(case)
    factor = promised.value / speed.tokens_per_second if promised and speed else None
    if used > 1.02:
        text, confidence = f"{format_bytes(used * total)} in use on a GPU of {format_bytes(total)}", Confidence.HIGH
    elif used > FIT_MARGIN and factor is not None and factor > _LIKELY_SPILL:
        text = f"the GPU is {format_percent(used)} full and {format_number(factor)}x slower than predicted"
        confidence = Confidence.LOW
    else:
        return None
    return Finding(
        code="host_spill",
        severity=Severity.ERROR if confidence is Confidence.HIGH else Severity.WARNING,
        title="Part of the model lives in host memory, behind the PCIe bus" + ("" if used > 1.02 else ", it seems"),
        evidence=(Evidence(text=text),),
        confidence=confidence,
        causes=("the driver's system-memory fallback (Windows, WSL)", "managed memory or offloading"),
        actions=(
            "switch off the system-memory fallback in the driver's settings: out of memory is the better message",
            *what_fits(case)[1],
        ),
        threshold="more bytes in use than the GPU has; or 97 % full and three times slower than predicted",
    )


def detect_memory_growth(case: Case) -> Verdict:
    """Memory that keeps growing through the run: a leak, until it runs out."""
    if memory_of(case) is None:
        return Insufficient(code="memory_growth", missing=f"GPU memory in at least {ROWS} rows")
    grown = memory_growth(case)
    if grown is None:
        return None
    return Finding(
        code="memory_growth",
        severity=Severity.WARNING,
        title=f"Device memory keeps growing: {format_bytes(grown.early)} halfway, "
        f"{format_bytes(grown.late)} at the end",
        evidence=(Evidence(text=f"{format_bytes(grown.bytes_per_step * 1000)} per 1,000 steps by Theil-Sen"),),
        confidence=Confidence.MEDIUM,
        causes=(KEPT, "growing fragmentation"),
        actions=(KEEP_NUMBERS,),
        threshold="5 % over the second half of the run with the slope's 95 % interval above zero",
    )
