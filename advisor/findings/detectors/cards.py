"""Several cards beside each other, by their telemetry: one idle while others work, one hotter, one held back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.measured import cards as measured_cards
from advisor.findings.run_facts import number
from advisor.laws.throttling import ALARMS
from advisor.units import format_bytes, format_count, format_percent, format_seconds, format_watts

_IDLE = 0.10  # mean utilisation of a card that takes no part
_IDLE_TO_OTHERS = 0.25  # or of what the others have
_AT_WORK = 0.20  # mean utilisation of the others for an idle one to stand out
_STRETCH_SHARE = 0.05  # of the time watched, idle beside working cards
_FEW_READINGS = 10  # of a card: fewer are a snapshot
_HOTTER = 12.0  # °C over the others' median
_SLOWER = 0.95  # of the others' clock
_LOADED = 0.5  # utilisation
_CAP_WITHIN, _CAP_SHARE, _CAP_BELOW = 0.02, 0.4, 0.9  # of the ceiling; of loaded readings; of the others' ceiling


@dataclass(frozen=True, kw_only=True)
class _Card:
    """The readings of one card; NaN where a quantity was not recorded."""

    index: int
    rows: np.ndarray
    utilization: np.ndarray

    @property
    def use(self) -> float:
        known = series.finite(self.utilization)
        return float(known.mean()) if len(known) else float("nan")


def _cards(case: Case) -> list[_Card]:
    gpu, busy = run_metrics.telemetry(case, "gpu"), run_metrics.telemetry(case, "utilization")
    if not len(gpu):
        return []
    busy = busy if len(busy) == len(gpu) else np.full(len(gpu), np.nan)
    every = [np.flatnonzero(gpu == card) for card in np.unique(series.finite(gpu))]
    return [_Card(index=int(gpu[rows[0]]), rows=rows, utilization=busy[rows]) for rows in every]


def _names(cards: list[_Card]) -> str:
    return ("GPU " if len(cards) == 1 else "GPUs ") + ", ".join(str(card.index) for card in cards)


def detect_card_idle(case: Case) -> Verdict:
    """Cards without work while others have it: for the whole time, or for stretches of it."""
    cards = [card for card in _cards(case) if np.isfinite(card.use)]
    if len(cards) < 2:
        return Insufficient(code="card_idle", missing="utilisation of each of several GPUs, with their numbers")
    working = series.median(np.array([card.use for card in cards if card.use > _IDLE]))
    idle = [card for card in cards if card.use <= max(_IDLE, _IDLE_TO_OTHERS * working)]
    if idle and len(idle) < len(cards) and working >= _AT_WORK:
        return _idle_all_along(case, cards, idle, working)
    return _idle_for_a_while(case, cards)


def _idle_all_along(case: Case, cards: list[_Card], idle: list[_Card], working: float) -> Finding:
    readings = min(len(card.rows) for card in cards)
    snapshot = readings < _FEW_READINGS
    used = series.median(np.array([card.use for card in idle]))
    wanted = number(case.run.facts, "world_size")
    unasked = wanted is not None and len(cards) - len(idle) >= wanted
    return Finding(
        code="card_idle",
        severity=Severity.NOTE if snapshot or unasked else Severity.WARNING,
        title=f"{_names(idle)} of {len(cards)}: {format_percent(used)} utilisation, where the others have "
        f"{format_percent(working)}" + (" (a snapshot)" if snapshot else ""),
        evidence=tuple(Evidence(text=_portrait(case, card)) for card in cards[:16]),
        confidence=Confidence.LOW if snapshot else Confidence.HIGH,
        causes=(
            "fewer processes than GPUs (CUDA_VISIBLE_DEVICES, --nproc-per-node)",
            "a pipeline stage or expert without work",
            "another job's GPU, waiting",
        ),
        actions=("start one process a GPU, or rent and reserve fewer GPUs",),
        threshold=f"mean utilisation below {format_percent(_IDLE)}, or a quarter of the others'",
    )


def _portrait(case: Case, card: _Card) -> str:
    """A card in a line: utilisation, power, memory held."""
    words = [f"GPU {card.index}: {format_percent(card.use)} utilisation"]
    for name, write in (("power_watts", format_watts), ("memory_used_bytes", format_bytes)):
        values = run_metrics.telemetry(case, name)
        if len(values) and np.isfinite(values[card.rows]).any():
            words.append(write(series.median(values[card.rows])))
    return ", ".join(words)


def _idle_for_a_while(case: Case, cards: list[_Card]) -> Finding | None:
    """Stretches of minutes in which one card had nothing while the others worked."""
    clock, busy = run_metrics.telemetry(case, "unix_seconds"), run_metrics.telemetry(case, "utilization")
    gpu = run_metrics.telemetry(case, "gpu")
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
        said.setdefault(int(gpu[rows[0]]), []).append(
            f"{text}, the others at {format_percent(float(np.nanmean(beside)))}"
        )
    if lost < _STRETCH_SHARE * watched:
        return None
    idle = [card for card in cards if card.index in said]
    return Finding(
        code="card_idle",
        severity=Severity.WARNING,
        title=f"{_names(idle)} of {len(cards)} had nothing to do for {format_seconds(lost)} while the others worked",
        evidence=tuple(Evidence(text=f"GPU {index}: {text}") for index, texts in said.items() for text in texts[:3]),
        confidence=Confidence.HIGH,
        causes=("uneven work: a rank that finished early or waits", "evaluation or saving on one rank alone"),
        actions=("share evaluation and data evenly between the ranks; look at the idle rank's log there",),
        threshold=f"stretches of {format_seconds(run_metrics.IDLE_SECONDS)} beside GPUs at half load or more",
    )


def detect_card_lost(case: Case) -> Verdict:
    """A card that was asked on and gave no answer any more: it fell off the bus, or its driver hangs."""
    if not _cards(case):
        return Insufficient(code="card_lost", missing="readings of each GPU, with its number")
    every = measured_cards(case.run.telemetry or {})
    lost = [card for card in every if card.silent_seconds is not None]
    if not lost:
        return None
    names = ("GPU " if len(lost) == 1 else "GPUs ") + ", ".join(str(card.card) for card in lost)
    longest = format_seconds(max(card.silent_seconds or 0.0 for card in lost))
    heat = {card.card: card.quantities.get("temperature_celsius") for card in lost}
    at = {card: f", the last at {spread.last:.0f} °C" if spread else "" for card, spread in heat.items()}
    return Finding(
        code="card_lost",
        severity=Severity.ERROR,
        title=f"{names} of {len(every)} gave no answer in the last {longest} of the readings",
        evidence=tuple(
            Evidence(text=f"GPU {card.card}: {format_count(card.readings)} readings until then{at[card.card]}")
            for card in lost[:16]
        ),
        confidence=Confidence.HIGH,
        causes=(
            "the GPU fell off the bus (Xid 79 in the kernel's log): heat, power or its slot",
            "the driver was reset or hangs",
        ),
        actions=(
            "sudo dmesg | grep -i xid; then reset the GPU or restart the machine: nvidia-smi --gpu-reset",
            "on a rented machine: ask for another one, and resume from the newest checkpoint",
        ),
        threshold="no quantity answered any more, for more than 2 s and three questions",
    )


def detect_card_hot(case: Case) -> Verdict:
    """One card of several that is hotter than the others, and slower for it or not."""
    cards, heat = _cards(case), run_metrics.telemetry(case, "temperature_celsius")
    if len(cards) < 2 or not len(heat):
        return Insufficient(code="card_hot", missing="temperatures of each of several GPUs, with their numbers")
    warm = {card.index: float(np.nanquantile(heat[card.rows], 0.95)) for card in cards
            if np.isfinite(heat[card.rows]).any()}  # fmt: skip
    hottest = max(warm, key=lambda index: warm[index])
    others = series.median(np.array([value for index, value in warm.items() if index != hottest]))
    if not warm[hottest] - others > _HOTTER:
        return None
    card = next(card for card in cards if card.index == hottest)
    pace, alarms = _clock_share(case, cards, card), _alarmed(case, card)
    slow = f", its clock {format_percent(1 - pace)} lower" if pace is not None and pace < _SLOWER else ""
    return Finding(
        code="card_hot",
        severity=Severity.WARNING if slow or alarms else Severity.NOTE,
        title=f"GPU {hottest} runs at {warm[hottest]:.0f} °C, the others at {others:.0f} °C{slow}",
        evidence=(
            Evidence(text="95th percentile of each GPU's readings"),
            *((Evidence(text=f"throttled in {format_percent(alarms)} of its readings"),) if alarms else ()),
        ),
        confidence=Confidence.HIGH if slow or alarms else Confidence.MEDIUM,
        causes=("its place: the last in the stream of air, or beside a hot neighbour", "a failing fan or dried paste"),
        actions=("mend its cooling or leave it out: in a synchronous step all others wait for it",)
        if slow or alarms
        else ("watch its clock: it will throttle first",),
        threshold=f"{_HOTTER:g} °C over the others' median; clocks more than 5 % lower",
    )


def _clock_share(case: Case, cards: list[_Card], card: _Card) -> float | None:
    """A card's median clock under load over the others'; None where clocks were not recorded."""
    clocks = run_metrics.telemetry(case, "sm_clock_mhz")
    if not len(clocks):
        return None
    middles = {one.index: _loaded_median(clocks[one.rows], one.utilization) for one in cards}
    others = series.median(np.array([value for index, value in middles.items() if index != card.index]))
    share = middles[card.index] / others if others > 0 else float("nan")
    return share if np.isfinite(share) else None


def _loaded_median(values: np.ndarray, utilization: np.ndarray) -> float:
    loaded = values[utilization >= _LOADED]
    return series.median(loaded if len(loaded) else values)


def _alarmed(case: Case, card: _Card) -> float:
    """Share of a card's readings with a thermal or hardware slowdown."""
    reasons = run_metrics.telemetry(case, "throttle_reasons")
    if not len(reasons):
        return 0.0
    bits = series.finite(reasons[card.rows]).astype(np.int64)
    return float(np.mean((bits & sum(ALARMS)) != 0)) if len(bits) else 0.0


def detect_power_cap(case: Case) -> Verdict:
    """A card that runs into a power ceiling lower than the other cards' or than its datasheet's."""
    cards, watts = _cards(case), run_metrics.telemetry(case, "power_watts")
    if not cards or not len(watts):
        return Insufficient(code="power_cap", missing="power and utilisation of each GPU, with its number")
    ceilings = {card.index: top for card in cards if (top := _ceiling(watts[card.rows], card.utilization)) is not None}
    spec = run_metrics.card(case)
    tops = [float(np.nanquantile(watts[card.rows], 0.99)) for card in cards if np.isfinite(watts[card.rows]).any()]
    limit = spec.tdp_watts if spec and spec.tdp_watts else (max(tops) if len(tops) > 1 else None)
    low = {index: top for index, top in ceilings.items() if limit and top < _CAP_BELOW * limit}
    if not low or limit is None:
        return None
    held = [card for card in cards if card.index in low]
    of = "the datasheet's" if spec and spec.tdp_watts else "the highest GPU's"
    return Finding(
        code="power_cap",
        severity=Severity.WARNING if len(held) < len(cards) else Severity.NOTE,
        title=f"{_names(held)} of {len(cards)} at a power ceiling of {format_watts(max(low.values()))}: "
        f"{format_percent(max(low.values()) / limit)} of {of} {format_watts(limit)}",
        evidence=tuple(Evidence(text=f"GPU {index}: ceiling {format_watts(top)}") for index, top in low.items()),
        confidence=Confidence.MEDIUM,
        causes=("a power limit set with nvidia-smi -pl", "a shared or weak power supply"),
        actions=("nvidia-smi -q -d POWER shows the enforced limit; raise it where the machine allows",),
        threshold=f"{format_percent(_CAP_SHARE)} of loaded readings within {format_percent(_CAP_WITHIN)} of the top",
    )


def _ceiling(watts: np.ndarray, utilization: np.ndarray) -> float | None:
    """The power that a card under load sits at; None where its power moves freely or it had no load."""
    loaded = series.finite(watts[utilization >= _LOADED])
    if len(loaded) < 2 * _FEW_READINGS:
        return None
    top = float(np.quantile(loaded, 0.99))
    return top if float(np.mean(loaded >= (1 - _CAP_WITHIN) * top)) >= _CAP_SHARE else None


def detect_unknown_load(case: Case) -> Verdict:
    """More cards at work than the run says it uses: the rest is somebody else's."""
    cards = [card for card in _cards(case) if np.isfinite(card.use)]
    wanted = number(case.run.facts, "world_size")
    if len(cards) < 2 or wanted is None:
        return Insufficient(code="unknown_load", missing="the run's number of GPUs beside telemetry of each GPU")
    at_work = [card for card in cards if card.use > _AT_WORK and len(card.rows) >= _FEW_READINGS]
    if len(at_work) <= wanted:
        return None
    return Finding(
        code="unknown_load",
        severity=Severity.NOTE,
        title=f"{len(at_work)} GPUs are at work where the run has {wanted:g}: the rest is another job's",
        evidence=tuple(Evidence(text=_portrait(case, card)) for card in at_work[:16]),
        confidence=Confidence.MEDIUM,
        causes=("another job on the same machine: it shares host, memory bus and power",),
        actions=("nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory shows whose they are",),
        threshold=f"mean utilisation over {format_percent(_AT_WORK)} on more GPUs than the run declares",
    )
