"""GPUs compared with each other and over time: throttled, held back by the slowest, hot, without work."""

from __future__ import annotations

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Finding, Verdict, finding, lacking
from advisor.findings.measured import CardReadings
from advisor.findings.measured import cards as measured_cards
from advisor.findings.run_facts import number
from advisor.findings.run_metrics import telemetry
from advisor.findings.savings import saved_share
from advisor.laws.device_faults import ALARMS, POWER_CAP, REASONS
from advisor.units import format_bytes, format_count, format_number, format_percent, format_seconds, format_watts

_CAPPED_CLOCK = 0.85  # of the run's own best clock; below this the cap costs speed
_THROTTLED_SHARE = 0.01  # of the readings under load
_STRAGGLER = 1.05  # of the median rank (sources §7.3)
_STRAGGLER_ROWS = 50
_LOADED = 0.5  # utilisation
_IDLE = 0.10  # mean utilisation of a GPU that does not take part
_IDLE_TO_OTHERS = 0.25  # or of the utilisation of the others
_AT_WORK = 0.20  # mean utilisation of the others that makes an idle GPU stand out
_STRETCH_SHARE = 0.05  # of the observed time, idle while other GPUs work
_FEW_READINGS = 10  # of a GPU; fewer are only a snapshot


def detect_throttling(case: Case) -> Verdict:
    """Thermal, hardware or power-brake slowdowns by the driver's reason bits, with their effect on step time."""
    reasons, clocks = telemetry(case, "throttle_reasons"), telemetry(case, "sm_clock_mhz")
    if run_metrics.on_cpu(case):
        return None
    if not len(reasons):
        return lacking("throttling", "GPU telemetry with throttle reasons")
    # our own telemetry reads power up to a hundred times a second, but reasons only twice
    read = np.isfinite(reasons)
    bits, clocks = reasons[read].astype(np.int64), clocks[read] if len(clocks) == len(read) else np.empty(0)
    best = series.finite(clocks)
    for mask in (*ALARMS, POWER_CAP):
        on = (bits & mask) != 0
        if not on.any() or on.mean() < _THROTTLED_SHARE:
            continue
        costs = len(best) > 0 and series.median(clocks[on]) < _CAPPED_CLOCK * float(np.quantile(best, 0.95))
        if mask == POWER_CAP and not costs:
            continue  # a well used GPU runs at the cap with full clocks
        factor, by = _step_time_factor(case, on, read), "step time"
        if factor is None and len(clocks) and not on.all():
            slow, fast = series.median(clocks[on]), series.median(clocks[~on])
            factor, by = fast / slow if slow > 0 and np.isfinite(fast) else None, "SM clock"
        return _throttled(case, mask, on, factor, by)
    return None


def _step_time_factor(case: Case, on: np.ndarray, read: np.ndarray) -> float | None:
    """Return the median step seconds with the bit set over those without it, or None if clocks do not match."""
    readings, times = telemetry(case, "unix_seconds"), run_metrics.step_times(case)
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


def _throttled(case: Case, mask: int, on: np.ndarray, factor: float | None, by: str) -> Finding:
    """Return the finding for a device that was throttled at the readings `on`, and by what factor it was slower."""
    words, share = REASONS[mask], float(on.mean())
    lost = share * max(0.0, 1 - 1 / factor) if factor else float("nan")
    slower = f", {format_number(factor)}x slower by {by}" if factor and factor > 1.02 else ""
    hottest = series.finite(telemetry(case, "temperature_celsius"))
    warm = f"; up to {hottest.max():.0f} °C" if len(hottest) else ""
    gpu, reasons = telemetry(case, "gpu"), telemetry(case, "throttle_reasons")
    gpu = gpu[np.isfinite(reasons)] if len(gpu) == len(reasons) else np.empty(0)
    shares = [f"GPU {n:g} in {format_percent(float(on[gpu == n].mean()))}" for n in np.unique(series.finite(gpu))]
    return finding(
        "throttling",
        severity="error" if factor and lost > 0.10 else "note" if lost < 0.01 else "warning",
        title=f"Throttled ({words}) in {format_percent(share)} of the readings{slower}",
        evidence=(
            f"NVML clocks-event reasons: {words}{warm}",
            f"by GPU: {', '.join(shares[:16])}" if len(shares) > 1 else "",
        ),
        confidence="high" if factor and by == "step time" else "medium",
        causes=("a power limit below what the load wants", "a shared or weak power supply")
        if "power" in words
        else ("blocked airflow or a hot room", "a neighbouring GPU's heat", "a failing fan or dried paste"),
        saved=saved_share(case, lost),
    )


def detect_straggler(case: Case) -> Verdict:
    """One rank that is slower at its own work than the other ranks, which wait for it in every step."""
    if run_metrics.devices(case) < 2:
        return None
    ranks, clocks = case.run.column("rank"), telemetry(case, "sm_clock_mhz")
    numbers = np.unique(series.finite(ranks))
    if by_rank := len(numbers) > 1:
        own = case.run.column("forward_seconds") + case.run.column("backward_seconds")
        name = "forward and backward" if np.isfinite(own).any() else "step"
        own = own if np.isfinite(own).any() else case.run.column("seconds")
        if min(int(np.isfinite(own[ranks == rank]).sum()) for rank in numbers) < _STRAGGLER_ROWS:
            return lacking("straggler", f"{_STRAGGLER_ROWS} steps with times of each rank")
    else:  # without ranks in the log: a GPU whose clock stays below that of the others
        ranks = telemetry(case, "gpu")
        numbers = np.unique(series.finite(ranks))
        if len(numbers) < 2 or len(clocks) != len(ranks):
            return lacking("straggler", "step times of each rank, or telemetry of each GPU")
        own = clocks
    middles = {rank: series.median(series.finite(own[ranks == rank])) for rank in numbers}
    typical = float(np.median(list(middles.values())))
    slowest = (max if by_rank else min)(middles, key=lambda rank: middles[rank])
    slow, fast = (middles[slowest], typical) if by_rank else (typical, middles[slowest])
    factor = slow / fast if fast > 0 else 0.0
    if not factor > _STRAGGLER:
        return None
    text = f"median SM clock {middles[slowest]:.0f} MHz, the median GPU {typical:.0f} MHz"
    if by_rank:
        text = f"median {name} time {format_seconds(middles[slowest])}, the median rank {format_seconds(typical)}"
    who, waited = f"{'Rank' if by_rank else 'GPU'} {slowest:g}", 1 - 1 / factor
    return finding(
        "straggler",
        title=f"{who} is {format_percent(factor - 1)} slower than the others, which wait for it in every step",
        evidence=text,
        confidence="high" if by_rank else "medium",
        saved=saved_share(case, waited, 0.0, waited),  # less if a part of the step is not the GPUs' own work
    )


def _cards(case: Case) -> tuple[CardReadings, ...]:
    """Return the GPUs that telemetry distinguishes, or none if it has no GPU numbers."""
    return measured_cards(case.run.telemetry or {}) if len(telemetry(case, "gpu")) else ()


def _names(numbers: list[int]) -> str:
    return ("GPU " if len(numbers) == 1 else "GPUs ") + ", ".join(map(str, numbers))


def detect_card_idle(case: Case) -> Verdict:
    """GPUs without work while other GPUs work: the whole time, or for stretches of it."""
    cards = [card for card in _cards(case) if "utilization" in card.quantities]
    use = {card.card: card.quantities["utilization"].mean for card in cards}
    if len(cards) < 2:
        return lacking("card_idle", "the utilisation of each GPU, with its index")
    working = series.median(np.array([mean for mean in use.values() if mean > _IDLE]))
    idle = [card for card, mean in use.items() if mean <= max(_IDLE, _IDLE_TO_OTHERS * working)]
    if not idle or len(idle) == len(cards) or not working >= _AT_WORK:
        return _idle_for_a_while(case, len(cards))
    snapshot = min(card.readings for card in cards) < _FEW_READINGS
    used, wanted = series.median(np.array([use[card] for card in idle])), number(case.run.facts, "world_size")
    unasked = wanted is not None and len(cards) - len(idle) >= wanted
    names = f"{_names(idle)} of {len(cards)}"
    # of each GPU its utilisation, power and memory held, as the mean of its readings
    shown, portraits = {"power_watts": format_watts, "memory_used_bytes": format_bytes}, []
    for card in cards[:16]:
        held = [write(card.quantities[name].mean) for name, write in shown.items() if name in card.quantities]
        in_use = f"GPU {card.card}: {format_percent(card.quantities['utilization'].mean)} utilisation"
        portraits.append(", ".join((in_use, *held)))
    return finding(
        "card_idle",
        severity="note" if snapshot or unasked else "warning",
        title=f"{names}: {format_percent(used)} utilisation, where the others have {format_percent(working)}"
        + (" (a snapshot)" if snapshot else ""),
        evidence=portraits,
        confidence="low" if snapshot else "high",
    )


def _idle_for_a_while(case: Case, count: int) -> Finding | None:
    """Return the finding for stretches of minutes in which one GPU had no work while the others worked."""
    clock, busy, gpu = (telemetry(case, name) for name in ("unix_seconds", "utilization", "gpu"))
    watched = float(np.nanmax(clock) - np.nanmin(clock)) if len(clock) == len(gpu) and len(clock) else 0.0
    if watched <= 0:
        return None
    said: dict[int, list[str]] = {}
    lost = 0.0
    for rows in run_metrics.idle_stretches(case):
        first, last = float(clock[rows[0]]), float(clock[rows[-1]])
        beside = busy[(clock >= first) & (clock <= last) & (gpu != gpu[rows[0]])]
        if not np.isfinite(beside).any() or float(np.nanmean(beside)) < _LOADED:
            continue
        lost += last - first
        begin = first - float(np.nanmin(clock))
        text = f"from {format_seconds(begin)} to {format_seconds(begin + last - first)} of the readings"
        others = f"the others at {format_percent(float(np.nanmean(beside)))}"
        said.setdefault(int(gpu[rows[0]]), []).append(f"{text}, {others}")
    if lost < _STRETCH_SHARE * watched:
        return None
    names = f"{_names(sorted(said))} of {count}"
    return finding(
        "card_idle",
        text="card_idle_at_times",
        title=f"{names} had nothing to do for {format_seconds(lost)} while the others worked",
        evidence=[f"GPU {index}: {text}" for index, texts in said.items() for text in texts[:3]],
    )


def detect_card_lost(case: Case) -> Verdict:
    """A GPU that stopped answering although it was still asked: it fell off the bus, or its driver hangs."""
    every = _cards(case)
    if not every:
        return lacking("card_lost", "readings of each GPU, with its index")
    lost = [card for card in every if card.silent_seconds is not None]
    if not lost:
        return None
    longest, shown = format_seconds(max(card.silent_seconds or 0.0 for card in lost)), []
    for card in lost[:16]:
        heat = card.quantities.get("temperature_celsius")
        at = f", the last at {heat.last:.0f} °C" if heat else ""
        shown.append(f"GPU {card.card}: {format_count(card.readings)} readings until then{at}")
    names = f"{_names([card.card for card in lost])} of {len(every)}"
    title = f"{names} gave no answer in the last {longest} of the readings"
    return finding("card_lost", title=title, evidence=shown)
