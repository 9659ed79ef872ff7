"""What an audit says of one claim, and the comparison that most claims come down to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypedDict, Unpack

from advisor.auditing.card import Card, Claim, Setup
from advisor.auditing.quantity import Quantity
from advisor.findings.case import Confidence, Severity
from advisor.hardware.catalog import GpuSpec
from advisor.prediction.profile import Profile
from advisor.units import Formatter, format_bytes


class Ruling(StrEnum):
    HOLDS = "holds"
    WRONG = "wrong"
    DOES_NOT_FOLLOW = "does not follow"  # the number may be right; what is concluded from it is not supported
    CANNOT_BE_JUDGED = "cannot be judged"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A check's answer; `so` says what is so, `arithmetic` how it was reckoned."""

    ruling: Ruling
    so: str
    arithmetic: str = ""
    consequence: str = ""
    severity: Severity = Severity.WARNING  # if it does not hold
    confidence: Confidence = Confidence.HIGH
    causes: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    threshold: str = ""


Believe = Callable[[GpuSpec, Setup], Profile | None]  # what is expected of a card; None: nothing is known of it


@dataclass(frozen=True, kw_only=True)
class Question:
    """One claim with all that a check may look at."""

    card: Card
    claim: Claim
    believe: Believe

    @property
    def setup(self) -> Setup:
        """The configuration that the claim is about."""
        return self.card.setup(self.claim.about)

    @property
    def steps(self) -> float | None:
        """The steps that the claim is about: its own, else those of the configuration; None where neither is stated."""
        own = self.get("steps")
        return own.low if own else self.setup.steps

    def get(self, name: str) -> Any:
        """A field of the claim, None where it is left out."""
        return self.claim.get(name)


class More(TypedDict, total=False):
    """What a judgement may say besides; as in `Judgement`."""

    consequence: str
    severity: Severity
    confidence: Confidence
    causes: tuple[str, ...]
    actions: tuple[str, ...]
    threshold: str


Check = Callable[[Question], Judgement]

SMALL = 0.10  # a number less than this far off misleads nobody badly: a note


def holds(so: str, arithmetic: str = "", **more: Unpack[More]) -> Judgement:
    """The claim is right."""
    return Judgement(ruling=Ruling.HOLDS, so=so, arithmetic=arithmetic, **more)


def wrong(so: str, arithmetic: str = "", **more: Unpack[More]) -> Judgement:
    """The claim contradicts its own numbers, physics or a datasheet."""
    return Judgement(ruling=Ruling.WRONG, so=so, arithmetic=arithmetic, **more)


def does_not_follow(so: str, arithmetic: str = "", **more: Unpack[More]) -> Judgement:
    """The conclusion is not supported, whatever its numbers."""
    return Judgement(ruling=Ruling.DOES_NOT_FOLLOW, so=so, arithmetic=arithmetic, **more)


def unknown(why: str, arithmetic: str = "") -> Judgement:
    """Not judged, and why: what the report would have to state."""
    return Judgement(ruling=Ruling.CANNOT_BE_JUDGED, so=why, arithmetic=arithmetic)


def compare(
    claimed: Quantity | None,
    low: float,
    high: float | None = None,
    *,
    show: Callable[[float], str],
    arithmetic: str,
    **more: Unpack[More],
) -> Judgement:
    """Holds where the truth (a number, or an interval of possible truths) is among what the printed text can mean."""
    if claimed is None:
        return unknown("no value is stated")
    high = low if high is None else high
    truth = show(low) if show(low) == show(high) else f"{show(low)} to {show(high)}"
    if claimed.admits(low, high):
        return holds(f"{truth}", arithmetic)
    judgement = wrong(f"{truth}, not {claimed.text}{_factor(claimed, low, high)}", arithmetic, **more)
    if _distance(claimed, low, high) < SMALL:
        return replace(judgement, severity=Severity.NOTE)
    return judgement


_DECIMAL = Formatter(
    steps=((0.0, 1.0, " B"), (1e3, 1e3, " kB"), (1e6, 1e6, " MB"), (1e9, 1e9, " GB"), (1e12, 1e12, " TB"))
)


def show_bytes(claimed: Quantity) -> Formatter:
    """The formatter of the claim's own kind of unit, so that both numbers are seen in one: GB or GiB."""
    return format_bytes if "iB" in claimed.text else _DECIMAL


def between(ends: tuple[float, float], show: Callable[[float], str]) -> str:
    """One number or a range of two, in words."""
    return " to ".join(dict.fromkeys(show(end) for end in ends))


def _distance(claimed: Quantity, low: float, high: float) -> float:
    """How far outside the truth the nearest end of the claim lies, as a share of the truth."""
    nearest, end = (high, claimed.low) if claimed.low > high else (low, claimed.high)
    return abs(end / nearest - 1) if nearest else float("inf")


def _factor(claimed: Quantity, low: float, high: float) -> str:
    nearest, end = (high, claimed.low) if claimed.low > high else (low, claimed.high)
    if not nearest or end / nearest <= 0:
        return ""
    factor = end / nearest
    if factor >= 2 or factor <= 0.5:
        times = max(factor, 1 / factor)
        return (
            f": {times:,.0f} times too {'much' if factor > 1 else 'little'}"
            if times >= 10
            else (f": {times:.1f} times too {'much' if factor > 1 else 'little'}")
        )
    return f": {abs(factor - 1):.1%} too {'much' if factor > 1 else 'little'}".replace("%", " %")
