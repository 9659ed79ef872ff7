"""A run card to verdicts and findings: the one function behind the command and the pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from advisor.auditing.card import Card, Claim
from advisor.auditing.kinds import KINDS
from advisor.auditing.verdict import Believe, Judgement, Question, Ruling, does_not_follow, unknown
from advisor.auditing.volunteer import volunteered
from advisor.findings.case import Evidence, Finding

_DIVISOR = re.compile(r"/ \[([^\]]*FLOP/s)\]")
_NEAR, _TELLING = 12, 3  # lines within which, and digits from which on, the same number is the same quantity


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One claim with its verdict; a finding where it does not hold."""

    claim: Claim
    judgement: Judgement
    finding: Finding | None


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All claims of one card, judged."""

    card: Card
    judged: tuple[Judged, ...]
    volunteered: tuple[Judged, ...] = ()  # what the card's facts say though no claim does

    @property
    def counts(self) -> dict[Ruling, int]:
        """Claims by verdict, every verdict named."""
        rulings = Counter(entry.judgement.ruling for entry in self.judged)
        return {ruling: rulings[ruling] for ruling in Ruling}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What does not hold, as findings, in the order of the report."""
        return tuple(entry.finding for entry in (*self.judged, *self.volunteered) if entry.finding is not None)


def audit(card: Card, believe: Believe) -> Audit:
    """Judge every claim of a card by its numbers alone. `believe` says what is expected of a card, None: nothing."""
    first = {claim.id: _judged(card, claim, believe) for claim in card.claims}
    judged = tuple(_carried(card, judged, first) for judged in first.values())
    return Audit(card=card, judged=judged, volunteered=tuple(_said_besides(card, believe)))


def _said_besides(card: Card, believe: Believe) -> Iterator[Judged]:
    for claim, judgement in volunteered(card, believe):
        bad = judgement.ruling in (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW)
        yield Judged(claim=claim, judgement=judgement, finding=_finding(card, claim, judgement) if bad else None)


def _carried(card: Card, judged: Judged, others: Mapping[str, Judged]) -> Judged:
    """A claim that rests on others: it does not hold where all of them fail."""
    claim = judged.claim
    premises = [others[name] for name in claim.get("premises") or () if name in others]
    if claim.kind == "expression":
        return _share_of_wrong_peak(card, judged, others) or _reckoned_from(judged, others)
    if claim.kind != "rests_on" or not premises:
        return judged
    failed = [p for p in premises if p.judgement.ruling in (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW)]
    if len(failed) == len(premises):
        words = "; ".join(f"line {p.claim.line}: {p.claim.text}" for p in failed[:3])
        judgement = does_not_follow(f"it rests on what is wrong: {failed[0].judgement.so}", words)
        return Judged(claim=claim, judgement=judgement, finding=_finding(card, claim, judgement))
    return Judged(claim=claim, judgement=unknown("not all that it rests on is wrong"), finding=None)


def _share_of_wrong_peak(card: Card, judged: Judged, others: Mapping[str, Judged]) -> Judged | None:
    """A utilisation that divides by a peak which is wrong elsewhere is none, however right the division."""
    claim = judged.claim
    if not claim.get("value").text.endswith("%") or judged.judgement.ruling is not Ruling.HOLDS:
        return None
    divisors = {_digits(text) for reading in claim.get("readings") for text in _DIVISOR.findall(reading)}
    for other in others.values():
        peak = other.claim.get("value") if other.claim.kind == "card_peak" else None
        if peak and other.judgement.ruling is Ruling.WRONG and _digits(peak.text) in divisors:
            so = f"a share of {peak.text}, which is wrong (line {other.claim.line}): {other.judgement.so}"
            carried = does_not_follow(so, judged.judgement.arithmetic)
            return Judged(claim=claim, judgement=carried, finding=_finding(card, claim, carried))
    return None


def _reckoned_from(judged: Judged, others: Mapping[str, Judged]) -> Judged:
    """Arithmetic that is right and starts from a number that is wrong some lines above says so."""
    claim = judged.claim
    operands = {_digits(text) for reading in claim.get("readings") for text in re.findall(r"\[([^\]]+)\]", reading)}
    for other in others.values():
        value, above = other.claim.get("value"), (claim.line or 0) - (other.claim.line or 0)
        bad = other.judgement.ruling is Ruling.WRONG and judged.judgement.ruling is Ruling.HOLDS
        digits = _digits(value.text) if bad and value is not None and 0 < above <= _NEAR else ""
        if len(digits) >= _TELLING and digits in operands:
            so = f"{judged.judgement.so}, reckoned from line {other.claim.line}, which is wrong"
            return replace(judged, judgement=replace(judged.judgement, so=so))
    return judged


def _digits(text: str) -> str:
    """A number as printed, without its unit and separators."""
    digits = "".join(re.findall(r"[\d.]", text))
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _judged(card: Card, claim: Claim, believe: Believe) -> Judged:
    question = Question(card=card, claim=claim, believe=believe)
    try:
        judgement = KINDS[claim.kind].check(question)
    except ArithmeticError as error:  # a card may hold any number: zero steps, 1e300 tokens
        judgement = unknown(f"a number that it rests on is zero or beyond reckoning ({error})")
    bad = judgement.ruling in (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW)
    return Judged(claim=claim, judgement=judgement, finding=_finding(card, claim, judgement) if bad else None)


def _finding(card: Card, claim: Claim, judgement: Judgement) -> Finding:
    where = f"{card.source or card.id}, line {claim.line}: " if claim.line else ""
    evidence = [Evidence(text=f"{where}{claim.text}")]
    evidence += [Evidence(text=judgement.arithmetic)] if judgement.arithmetic else []
    return Finding(
        code=f"claim_{claim.kind}",
        severity=judgement.severity,
        title=f"{claim.text}: {judgement.ruling.value}. {judgement.so}",
        evidence=tuple(evidence),
        confidence=judgement.confidence,
        causes=judgement.causes,
        actions=judgement.actions,
        threshold=judgement.threshold,
    )
