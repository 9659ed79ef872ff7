"""What a run measured of itself in plain statistics: throughput, gradients, and each of its GPUs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from advisor.findings import run_metrics
from advisor.findings.case import Case
from advisor.findings.curves import Curve, curve
from advisor.findings.run_facts import number, step_tokens
from advisor.laws.throttling import reasons_in

# of a GPU, in the order people ask for them
QUANTITIES = (
    *("utilization", "memory_used_bytes", "power_watts", "temperature_celsius", "sm_clock_mhz", "memory_utilization"),
)
_LONGEST_SAMPLE_SECONDS = 5.0  # of power: a longer gap in the readings is a gap, not a reading,
_LONGEST_SAMPLE_TIMES = 3.0  # unless readings are that rare: gaps are so many times the usual one
# a GPU that gives no power answers twice a second at most (trainer/telemetry.SLOW_HZ)
_SILENT_QUESTIONS, _SILENT_SECONDS = 3, 2.0


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean, least and most of what was recorded, and how many values that was."""

    mean: float
    low: float
    high: float
    last: float
    count: int
    high_step: float | None = None  # at which the most was printed


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Norms of the gradient and how often it was clipped. None: the log does not tell."""

    norm: Spread | None
    clipped: Spread | None  # share of the steps, or of the values, as the log prints it
    above_clip: float | None  # share of the printed norms above the declared threshold
    clip: float | None


@dataclass(frozen=True, kw_only=True)
class CardReadings:
    """What telemetry says of one GPU."""

    card: int
    readings: int  # moments at which it answered
    seconds: float | None  # from the first answer to the last; None: no clock
    silent_seconds: float | None = None  # for which it was asked after its last answer; None: it answered to the end
    quantities: Mapping[str, Spread]  # of QUANTITIES; what was never read is left out
    memory_bytes: float | None  # the GPU's own
    power_limit_watts: float | None = None  # as it was read
    joules: float | None
    throttled: float | None  # share of the readings with a reason to slow down; None: reasons were not read
    reasons: tuple[str, ...]  # in words


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The statistics of a report."""

    loss: Spread | None
    tokens_per_second: Spread | None
    step_seconds: Spread | None
    memory_bytes: Spread | None  # of the device, as the log prints it
    device_bytes: float | None  # what the device has
    gradients: Gradients
    cards: tuple[CardReadings, ...]


def measured(case: Case) -> Measured:
    """All statistics that the log and its telemetry allow."""
    times = run_metrics.step_times(case)
    seconds = None if times is None else _spread(Curve(step=times.step, value=times.seconds))
    norms, clip = curve(case.run, "grad_norm"), number(case.run.facts, "grad_clip")
    before = case.run.facts.get("grad_norm_kind") != "post_clip"
    above = float((norms.value > clip).mean()) if clip and before and len(norms) else None
    return Measured(
        loss=_spread(curve(case.run, "loss")),
        tokens_per_second=_spread(rates(case)),
        step_seconds=seconds,
        memory_bytes=_spread(curve(case.run, "memory_bytes")),
        device_bytes=run_metrics.memory_used_share(case)[1],
        gradients=Gradients(
            norm=_spread(norms), clipped=_spread(curve(case.run, "clipped")), above_clip=above, clip=clip
        ),
        cards=cards(case.run.telemetry or {}),
    )


def silence(questions: int, seconds: float) -> float | None:
    """How long a GPU was silent that left the last so many questions open; None if that is no more than a hiccup."""
    return seconds if questions >= _SILENT_QUESTIONS and seconds > _SILENT_SECONDS else None


def silent_seconds(answered: np.ndarray, asked: np.ndarray) -> float | None:
    """How long a GPU was silent at the end: at which of the moments that it was `asked` it answered."""
    last = int(np.flatnonzero(answered)[-1]) if answered.any() else -1
    return silence(len(answered) - 1 - last, float(asked[-1] - asked[max(0, last)]))


def rates(case: Case) -> Curve:
    """Tokens per second at each step: as printed, else tokens per step over the step's seconds; empty without both."""
    printed = curve(case.run, "tokens_per_second")
    times, tokens = run_metrics.step_times(case), step_tokens(case)
    if len(printed) or times is None or tokens is None:
        return printed
    return Curve(step=times.step, value=tokens / times.seconds)


def cards(telemetry: Mapping[str, np.ndarray]) -> tuple[CardReadings, ...]:
    """The statistics of each GPU of a telemetry table; empty if that holds none."""
    clock = telemetry.get("unix_seconds", np.empty(0))
    number_of = np.nan_to_num(telemetry.get("gpu", np.zeros(len(clock))))
    return tuple(_card(telemetry, clock, number_of == card, int(card)) for card in np.unique(number_of))


def _card(telemetry: Mapping[str, np.ndarray], clock: np.ndarray, mine: np.ndarray, card: int) -> CardReadings:
    def column(name: str) -> np.ndarray:
        return telemetry.get(name, np.full(len(clock), np.nan))[mine]

    found = {}
    for name in QUANTITIES:
        known = column(name)[np.isfinite(column(name))]
        found[name] = _spread(Curve(step=np.arange(float(len(known))), value=known, counted=False))
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
    """Energy of one device; None if neither its counter nor its power was read twice.

    The counter's rises where it has one (it restarts with the driver), else power times time, gaps left out.
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


def _spread(values: Curve) -> Spread | None:
    if not len(values):
        return None
    top = int(values.value.argmax())
    return Spread(
        mean=float(values.value.mean()),
        low=float(values.value.min()),
        high=float(values.value.max()),
        last=float(values.value[-1]),
        count=len(values),
        high_step=float(values.step[top]) if values.counted else None,
    )
