"""Statistics of what a run measured: throughput, gradients, and each of its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from advisor.findings import run_metrics
from advisor.findings.case import Case
from advisor.findings.curves import Curve, curve
from advisor.findings.run_facts import number, step_tokens
from advisor.laws.device_faults import reasons_in

# of a GPU, in the order in which people ask for them
QUANTITIES = (
    *("utilization", "memory_used_bytes", "power_watts", "temperature_celsius", "sm_clock_mhz", "memory_utilization"),
)
_LONGEST_SAMPLE_SECONDS = 5.0  # of power; a longer time between readings is a gap,
_LONGEST_SAMPLE_TIMES = 3.0  # unless readings are that rare: a gap is this many times the usual time between them
# a GPU that gives no power is asked at most twice a second (trainer/telemetry.SLOW_HZ)
_SILENT_QUESTIONS, _SILENT_SECONDS = 3, 2.0


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The recorded values in numbers: the median says what a step takes, and the mean what all of them cost."""

    median: float | None = None  # None while a GPU is still watched
    mean: float
    low: float
    high: float
    last: float
    count: int
    high_step: float | None = None  # at which the highest value was printed


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Norms of the gradient and how often it was clipped; None if the log does not state it."""

    norm: Spread | None
    clipped: Spread | None  # share of the steps, or of the values, as the log prints it
    above_clip: float | None  # share of the printed norms above the declared threshold
    clip: float | None


@dataclass(frozen=True, kw_only=True)
class CardReadings:
    """The telemetry of one GPU."""

    card: int
    readings: int  # moments at which the GPU answered
    seconds: float | None  # from the first answer to the last; None if there was no clock
    silent_seconds: float | None = None  # at the end, in which the GPU did not answer; None: it answered to the end
    quantities: Mapping[str, Spread]  # of QUANTITIES, without those that were never read
    memory_bytes: float | None  # of the GPU
    power_limit_watts: float | None = None  # as it was read
    joules: float | None
    throttled: float | None  # share of the readings with a reason to slow down; None if reasons were not read
    reasons: tuple[str, ...]  # in words


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The statistics of a report."""

    loss: Spread | None
    tokens_per_second: Spread | None
    step_seconds: Spread | None
    memory_bytes: Spread | None  # of the device, as the log prints it
    device_bytes: float | None  # memory of the device
    gradients: Gradients
    cards: tuple[CardReadings, ...]


def measured(case: Case) -> Measured:
    """Return all statistics that the log and its telemetry allow."""
    times = run_metrics.step_times(case)
    seconds = None if times is None else spread_of(Curve(step=times.step, value=times.seconds))
    norms, clip = curve(case.run, "grad_norm"), number(case.run.facts, "grad_clip")
    before = case.run.facts.get("grad_norm_kind") != "post_clip"
    above = float((norms.value > clip).mean()) if clip and before and len(norms) else None
    return Measured(
        loss=spread_of(curve(case.run, "loss")),
        tokens_per_second=spread_of(rates(case)),
        step_seconds=seconds,
        memory_bytes=spread_of(curve(case.run, "memory_bytes")),
        device_bytes=run_metrics.memory_used_share(case)[1],
        gradients=Gradients(
            norm=spread_of(norms), clipped=spread_of(curve(case.run, "clipped")), above_clip=above, clip=clip
        ),
        cards=cards(case.run.telemetry or {}),
    )


def silence(questions: int, seconds: float) -> float | None:
    """Return the seconds for which a GPU did not answer at the end, or None if the silence was only brief."""
    return seconds if questions >= _SILENT_QUESTIONS and seconds > _SILENT_SECONDS else None


def silent_seconds(answered: np.ndarray, asked: np.ndarray) -> float | None:
    """Return how long a GPU was silent at the end; `answered` says for each moment in `asked` whether it answered."""
    last = int(np.flatnonzero(answered)[-1]) if answered.any() else -1
    return silence(len(answered) - 1 - last, float(asked[-1] - asked[max(0, last)]))


def rates(case: Case) -> Curve:
    """Return tokens per second at each step: printed, or tokens per step over seconds; empty if both are unknown."""
    printed = curve(case.run, "tokens_per_second")
    times, tokens = run_metrics.step_times(case), step_tokens(case)
    if len(printed) or times is None or tokens is None:
        return printed
    return Curve(step=times.step, value=tokens / times.seconds)


def cards(telemetry: Mapping[str, np.ndarray]) -> tuple[CardReadings, ...]:
    """Return the statistics of each GPU in a telemetry table, or nothing if it has none."""
    clock = telemetry.get("unix_seconds", np.empty(0))
    number_of = np.nan_to_num(telemetry.get("gpu", np.zeros(len(clock))))
    return tuple(_card(telemetry, clock, number_of == card, int(card)) for card in np.unique(number_of))


def _card(telemetry: Mapping[str, np.ndarray], clock: np.ndarray, mine: np.ndarray, card: int) -> CardReadings:
    def column(name: str) -> np.ndarray:
        return telemetry.get(name, np.full(len(clock), np.nan))[mine]

    found = {}
    for name in QUANTITIES:
        known = column(name)[np.isfinite(column(name))]
        found[name] = spread_of(Curve(step=np.arange(float(len(known))), value=known, counted=False))
    masks = column("throttle_reasons")
    masks = masks[np.isfinite(masks)].astype(int)
    held = [mask for mask in masks.tolist() if reasons_in((mask,))]
    total, limit, asked = column("memory_total_bytes"), column("power_limit_watts"), clock[mine]
    answered = np.zeros(len(asked), bool)
    for name in telemetry.keys() - {"unix_seconds", "gpu"}:
        answered |= np.isfinite(column(name))
    times = asked[answered & np.isfinite(asked)]
    return CardReadings(
        card=card,
        readings=int(answered.sum()),
        seconds=float(np.ptp(times)) if len(times) > 1 else None,
        silent_seconds=silent_seconds(answered, asked),
        quantities={name: spread for name, spread in found.items() if spread is not None},
        memory_bytes=float(np.nanmax(total)) if np.isfinite(total).any() else None,
        power_limit_watts=float(np.nanmax(limit)) if np.isfinite(limit).any() else None,
        joules=joules(clock[mine], column("energy_joules"), column("power_watts")),
        throttled=len(held) / len(masks) if len(masks) else None,
        reasons=reasons_in(held),
    )


def joules(clock: np.ndarray, counter: np.ndarray, power: np.ndarray) -> float | None:
    """Return the energy of one device, or None if neither its counter nor its power was read twice.

    With a counter, it is the sum of the counter's rises, because the counter restarts with the driver. Otherwise it is
    power times time, without gaps.
    """
    counted = counter[np.isfinite(counter)]
    if len(counted) > 1:
        return float(np.diff(counted).clip(min=0).sum())
    read = np.isfinite(power) & np.isfinite(clock)
    if read.sum() < 2:
        return None
    gaps = np.diff(clock[read])
    longest = max(_LONGEST_SAMPLE_SECONDS, _LONGEST_SAMPLE_TIMES * float(np.median(gaps)))
    return float((gaps.clip(max=longest) * (power[read][1:] + power[read][:-1]) / 2).sum())


def spread_of(values: Curve) -> Spread | None:
    """Return the statistics of a curve, or None if it is empty."""
    if not len(values):
        return None
    top = int(values.value.argmax())
    return Spread(
        median=float(np.median(values.value)),
        mean=float(values.value.mean()),
        low=float(values.value.min()),
        high=float(values.value.max()),
        last=float(values.value[-1]),
        count=len(values),
        high_step=float(values.step[top]) if values.counted else None,
    )
