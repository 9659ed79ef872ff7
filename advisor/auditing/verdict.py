"""The verdict of an audit on one claim, and the comparison on which most claims are decided."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from advisor import units
from advisor.auditing.card import Card, CardSetup, Claim
from advisor.auditing.quantity import ClaimedQuantity
from advisor.findings.case import Confidence, Severity
from advisor.hardware.catalog import GpuSpec
from advisor.prediction.profile import Profile
from advisor.units import Formatter, format_bytes, format_percent, format_tokens, format_usd_rate


class UnstatedError(Exception):
    """Raised if neither the claim nor its configuration states a quantity, or if it is unknown."""


class Ruling(StrEnum):
    HOLDS = "holds"
    WRONG = "wrong"
    DOES_NOT_FOLLOW = "does not follow"  # the number may be right, but it does not support the conclusion
    CANNOT_BE_JUDGED = "cannot be judged"


BAD = (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The answer of a check: `so` says what is true, `arithmetic` how it was calculated."""

    ruling: Ruling
    so: str
    arithmetic: str = ""
    consequence: str = ""
    severity: Severity = Severity.WARNING  # if it does not hold
    confidence: Confidence = Confidence.HIGH
    causes: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    threshold: str = ""


Known = tuple[float, float, str]  # a quantity's lowest and highest value, and its spelling
Believe = Callable[[GpuSpec, CardSetup], Profile | None]  # the profile of a GPU, or None if nothing is known of it


def exactly(number: float, words: str = "") -> Known:
    """Return a quantity with one known value."""
    return float(number), float(number), words


@dataclass(frozen=True, kw_only=True)
class Question:
    """One claim with everything that a check may use."""

    card: Card
    claim: Claim
    believe: Believe

    @property
    def setup(self) -> CardSetup:
        """The configuration that the claim is about."""
        return self.card.setup(self.claim.about)

    @property
    def steps(self) -> float | None:
        """The steps that the claim states, or else those of its configuration. None if neither states any."""
        own = self.get("steps")
        return own.middle if own else self.setup.steps

    def get(self, name: str) -> Any:
        """Return a field of the claim, or None if it is left out."""
        return self.claim.get(name)


Check = Callable[[Question], Judgement]
_SMALL = 0.10  # relative error below which a number hardly misleads: it gets a note


def _giver(ruling: Ruling) -> Callable[..., Judgement]:
    def judgement(so: str, arithmetic: str = "", **more: Any) -> Judgement:
        return Judgement(ruling=ruling, so=so, arithmetic=arithmetic, **more)

    return judgement


# wrong: the claim contradicts its own numbers, physics or a datasheet; the others: see `Ruling`
holds, wrong, does_not_follow, unknown = map(_giver, Ruling)


def compare(claimed: ClaimedQuantity, low: float, high: float, arithmetic: str, **more: Any) -> Judgement:
    """Return that the claim holds if the truth, an interval, is among what the printed text can mean."""
    truth = between((low, high), show_as(claimed.dimension, claimed))
    if claimed.admits(low, high):
        return holds(truth, arithmetic)
    nearest, end = (high, claimed.low) if claimed.low > high else (low, claimed.high)
    factor = end / nearest if nearest else math.inf
    side, times = "much" if factor > 1 else "little", max(factor, 1 / factor) if factor > 0 else math.inf
    off = f": {times:,.{0 if times >= 10 else 1}f} times too {side}" if times >= 2 else ""
    off = off or f": {format_percent(abs(factor - 1))} too {side}"
    judgement = wrong(f"{truth}, not {claimed.text}{off if math.isfinite(times) else ''}", arithmetic, **more)
    return replace(judgement, severity=Severity.NOTE) if abs(factor - 1) < _SMALL else judgement


_DECIMAL = Formatter(
    steps=((0.0, 1.0, " B"), (1e3, 1e3, " kB"), (1e6, 1e6, " MB"), (1e9, 1e9, " GB"), (1e12, 1e12, " TB"))
)
_WRITTEN = (1e4, 1e7)  # numbers that people write out, such as 16,384
_SHOW: dict[str, Callable[[float], str]] = {
    "seconds": units.format_seconds,
    "fraction": format_percent,
    "usd": units.format_usd,
    "usd_per_hour": lambda rate: f"{format_usd_rate(rate)}/h",
    "rate": units.format_rate,
    "flops": units.format_flops,
    "bandwidth": units.format_bandwidth,
    "watts": units.format_watts,
    "hertz": lambda rate: f"{_number(rate)} Hz",
    "times": units.format_number,
    "gpu_hours": lambda hours: f"{_number(hours)} GPU-hours",
    "energy": lambda joules: f"{_number(joules / 3.6e6)} kWh",
    "work": lambda work: f"{work:.3g} FLOP",
}


def show_as(dimension: str, claimed: ClaimedQuantity | None = None) -> Callable[[float], str]:
    """Return the formatter of a dimension; bytes are shown in the claim's own unit, GB or GiB."""
    if dimension == "bytes":
        return format_bytes if claimed is not None and "iB" in claimed.text else _DECIMAL
    return _SHOW.get(dimension, _number)


def _number(value: float) -> str:
    if _WRITTEN[0] <= abs(value) < _WRITTEN[1]:
        return f"{value:,.0f}"
    return format_tokens(value) if _WRITTEN[1] <= abs(value) < 1e15 else f"{value:,.4g}"


def between(ends: Sequence[float], show: Callable[[float], str]) -> str:
    """Return one number, or a range of two numbers, in words."""
    return " to ".join(dict.fromkeys(show(end) for end in ends))
