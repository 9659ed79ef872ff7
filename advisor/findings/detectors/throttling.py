"""Slowed down by its own protection, or by the slowest of several: throttling and stragglers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.savings import saved_share
from advisor.laws.throttling import ALARMS, POWER_CAP, REASONS
from advisor.units import format_number, format_percent, format_seconds

_CAPPED_CLOCK = 0.85  # of the run's own best clock: below it the cap costs speed
_THROTTLED_SHARE = 0.01  # of the readings under load
_STRAGGLER = 1.05  # of the median rank (sources §7.3)
_STRAGGLER_ROWS = 50
_UNDER_LOAD = 0.50  # utilisation


@dataclass(frozen=True, kw_only=True)
class _Slowdown:
    """A throttled share of the readings of reasons, and how much slower the device was in them."""

    share: float
    factor: float | None  # of step time where both clocks can be laid beside each other, else of the SM clock
    by: str


def detect_throttling(case: Case) -> Verdict:
    """Thermal, hardware or power-brake slowdowns by the driver's own reason bits, with their effect on steps."""
    if run_metrics.on_cpu(case):
        return None
    reasons = run_metrics.telemetry(case, "throttle_reasons")
    if not len(reasons):
        return _clock_drop(case)
    # our own telemetry reads power up to a hundred times a second, reasons twice
    read = np.isfinite(reasons)
    bits = reasons[read].astype(np.int64)
    for mask in (*ALARMS, POWER_CAP):
        on = (bits & mask) != 0
        slowdown = _slowdown(case, on, read)
        if slowdown is None or slowdown.share < _THROTTLED_SHARE:
            continue
        if mask == POWER_CAP and not _cap_costs(_clocks(case, read), on):
            continue  # at the cap with full clocks is what a well used card does
        return _throttled(case, mask, slowdown)
    return None


def _clocks(case: Case, read: np.ndarray) -> np.ndarray:
    """The SM clock at the readings that have reasons; empty where it was not recorded."""
    clocks = run_metrics.telemetry(case, "sm_clock_mhz")
    return clocks[read] if len(clocks) == len(read) else np.empty(0)


def _cap_costs(clocks: np.ndarray, on: np.ndarray) -> bool:
    best = series.finite(clocks)
    return len(best) > 0 and series.median(clocks[on]) < _CAPPED_CLOCK * float(np.quantile(best, 0.95))


def _slowdown(case: Case, on: np.ndarray, read: np.ndarray) -> _Slowdown | None:
    """What being held back cost: `on` at the readings of all that are `read`."""
    if not on.any():
        return None
    share = float(on.mean())
    if (factor := _step_time_factor(case, on, read)) is not None:
        return _Slowdown(share=share, factor=factor, by="step time")
    clocks = _clocks(case, read)
    if len(clocks) and not on.all():
        slow, fast = series.median(clocks[on]), series.median(clocks[~on])
        if slow > 0 and np.isfinite(fast):
            return _Slowdown(share=share, factor=fast / slow, by="SM clock")
    return _Slowdown(share=share, factor=None, by="")


def _step_time_factor(case: Case, on: np.ndarray, read: np.ndarray) -> float | None:
    """Median step seconds while the bit was set over those while it was not; None where clocks do not match."""
    readings, times = run_metrics.telemetry(case, "unix_seconds"), run_metrics.step_times(case)
    if times is None or len(readings) != len(read):
        return None
    readings = readings[read]
    stamps = case.run.column("unix_seconds")[times.row][times.start :]
    inside = np.isfinite(stamps) & (stamps >= np.nanmin(readings)) & (stamps <= np.nanmax(readings))
    if inside.sum() < 20:
        return None
    order = np.argsort(readings)
    place = order[np.clip(np.searchsorted(readings[order], stamps[inside]), 0, len(order) - 1)]
    state, seconds = on[place], times.steady_seconds[inside]
    if state.sum() < 5 or (~state).sum() < 5:
        return None
    return series.median(seconds[state]) / series.median(seconds[~state])


def _by_card(case: Case, mask: int) -> tuple[Evidence, ...]:
    """In which share of each card's readings it was held back; nothing where there is one card."""
    gpu, reasons = run_metrics.telemetry(case, "gpu"), run_metrics.telemetry(case, "throttle_reasons")
    if len(gpu) != len(reasons):
        return ()
    read = np.isfinite(reasons)
    gpu, on = gpu[read], (reasons[read].astype(np.int64) & mask) != 0
    cards = np.unique(series.finite(gpu))
    if len(cards) < 2:
        return ()
    shares = [f"GPU {card:g} in {format_percent(float(on[gpu == card].mean()))}" for card in cards]
    return (Evidence(text="by GPU: " + ", ".join(shares[:16])),)


def _throttled(case: Case, mask: int, slowdown: _Slowdown) -> Finding:
    words = REASONS[mask]
    factor = slowdown.factor
    lost = slowdown.share * max(0.0, 1 - 1 / factor) if factor else float("nan")
    slower = f", {format_number(factor)}x slower by {slowdown.by}" if factor and factor > 1.02 else ""
    hottest = series.finite(run_metrics.telemetry(case, "temperature_celsius"))
    warm = f"; up to {hottest.max():.0f} °C" if len(hottest) else ""
    return Finding(
        code="throttling",
        severity=Severity.ERROR if factor and lost > 0.10 else Severity.NOTE if lost < 0.01 else Severity.WARNING,
        title=f"Throttled ({words}) in {format_percent(slowdown.share)} of the readings{slower}",
        evidence=(Evidence(text=f"NVML clocks-event reasons: {words}{warm}"), *_by_card(case, mask)),
        confidence=Confidence.HIGH if slowdown.by == "step time" else Confidence.MEDIUM,
        causes=(
            ("a power limit below what the load wants", "a shared or weak power supply")
            if "power" in words
            else ("blocked airflow or a hot room", "a neighbouring GPU's heat", "a failing fan or dried paste")
        ),
        actions=(
            "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE; raise the power limit or mend the cooling",
            "on a rented machine: ask for another one",
        ),
        threshold="bits 0x8, 0x20, 0x40, 0x80 in 1 % of the readings; 0x4 only with clocks below 85 % (sources §7.4)",
        **saved_share(case, lost),
    )


def _clock_drop(case: Case) -> Verdict:
    """Without reason bits: clocks that sink for good while the card is busy and hot."""
    clocks, busy = run_metrics.telemetry(case, "sm_clock_mhz"), run_metrics.telemetry(case, "utilization")
    if len(clocks) < 20 or len(clocks) != len(busy):
        return Insufficient(code="throttling", missing="GPU telemetry with throttle reasons, or clocks under load")
    loaded = clocks[busy >= _UNDER_LOAD]
    if len(loaded) < 20:
        return None
    early, late = series.median(loaded[: len(loaded) // 4]), series.median(loaded[-(len(loaded) // 4) :])
    if not late < _CAPPED_CLOCK * early:
        return None
    return Finding(
        code="clock_drop",
        severity=Severity.WARNING,
        title=f"The SM clock sank from {early:.0f} to {late:.0f} MHz under load",
        evidence=(Evidence(text="medians of the first and the last quarter of the busy readings"),),
        confidence=Confidence.MEDIUM,
        causes=("heat", "a power limit"),
        actions=("record throttle reasons (nvidia-smi --query-gpu=clocks_event_reasons.active)",),
        threshold="below 85 % of the clock at the beginning (sources §7.4)",
        **saved_share(case, (1 - late / early) / 2),
    )


def detect_straggler(case: Case) -> Verdict:
    """One rank that is slower at its own work than the others, which wait for it in every step."""
    if run_metrics.devices(case) < 2:
        return None
    ranks = case.run.column("rank")
    numbers = np.unique(series.finite(ranks))
    if len(numbers) < 2:
        return _slow_card(case)
    own = case.run.column("forward_seconds") + case.run.column("backward_seconds")
    name = "forward and backward" if np.isfinite(own).any() else "step"
    own = own if np.isfinite(own).any() else case.run.column("seconds")
    rows = {rank: series.finite(own[ranks == rank]) for rank in numbers}
    if min(len(values) for values in rows.values()) < _STRAGGLER_ROWS:
        return Insufficient(code="straggler", missing=f"{_STRAGGLER_ROWS} steps with times of each rank")
    middles = {rank: series.median(values) for rank, values in rows.items()}
    slowest = max(middles, key=lambda rank: middles[rank])
    typical = float(np.median(list(middles.values())))
    factor = middles[slowest] / typical
    if factor <= _STRAGGLER:
        return None
    return _straggler(
        case,
        f"Rank {slowest:g}",
        factor,
        f"median {name} time {format_seconds(middles[slowest])}, the median rank {format_seconds(typical)}",
        Confidence.HIGH,
    )


def _slow_card(case: Case) -> Verdict:
    """Without ranks in the log: a card whose clock stays below the others'."""
    gpu, clocks = run_metrics.telemetry(case, "gpu"), run_metrics.telemetry(case, "sm_clock_mhz")
    cards = np.unique(series.finite(gpu))
    if len(cards) < 2 or len(clocks) != len(gpu):
        return Insufficient(code="straggler", missing="step times of each rank, or telemetry of each GPU")
    middles = {card: series.median(clocks[gpu == card]) for card in cards}
    typical = float(np.median(list(middles.values())))
    slowest = min(middles, key=lambda card: middles[card])
    if not 0 < middles[slowest] * _STRAGGLER < typical:
        return None
    text = f"median SM clock {middles[slowest]:.0f} MHz, the median GPU {typical:.0f} MHz"
    return _straggler(case, f"GPU {slowest:g}", typical / middles[slowest], text, Confidence.MEDIUM)


def _straggler(case: Case, who: str, factor: float, text: str, confidence: Confidence) -> Finding:
    waited = 1 - 1 / factor  # less where part of a step is not the cards' own work
    return Finding(
        code="straggler",
        severity=Severity.WARNING,
        title=f"{who} is {format_percent(factor - 1)} slower than the others, which wait for it in every step",
        evidence=(Evidence(text=text),),
        confidence=confidence,
        causes=("a hotter or power-capped GPU", "a slower link or host core", "uneven sequence lengths or data"),
        actions=("compare nvidia-smi -q -d PERFORMANCE of the GPUs; exclude or replace the slow one",),
        threshold="slowest / median > 1.05 over 50 steps; up to 5 % between GPUs is normal (sources §7.3)",
        **saved_share(case, waited, 0.0, waited),
    )
