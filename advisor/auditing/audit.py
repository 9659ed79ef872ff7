"""Turn a run card into verdicts and findings: the function behind the command and the pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from advisor.auditing.card import Card, Claim
from advisor.auditing.checks import OPERAND
from advisor.auditing.kinds import forms, kinds
from advisor.auditing.quantity import ClaimedQuantity, parse_quantity
from advisor.auditing.relations import RelationRow, judge_rows, row_of, table
from advisor.auditing.verdict import BAD, Believe, Judgement, Question, Ruling, does_not_follow, unknown
from advisor.findings.case import Evidence, Finding, Severity

_NEAR_ENOUGH = 1.1  # values that differ by less than this factor mislead nobody
_NEAR, _TELLING = 12, 3  # within this many lines, the same number is the same quantity if it has this many digits


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """One claim with its verdict, and a finding if the claim does not hold."""

    claim: Claim
    judgement: Judgement
    finding: Finding | None


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All claims of one card with their verdicts."""

    card: Card
    judged: tuple[JudgedClaim, ...]
    volunteered: tuple[JudgedClaim, ...] = ()  # conclusions from the card's facts that no claim states

    @property
    def counts(self) -> dict[Ruling, int]:
        """Return the number of claims by verdict, with every verdict named."""
        rulings = Counter(entry.judgement.ruling for entry in self.judged)
        return {ruling: rulings[ruling] for ruling in Ruling}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return the claims that do not hold, as findings in the order of the report."""
        return tuple(entry.finding for entry in (*self.judged, *self.volunteered) if entry.finding is not None)


def audit(card: Card, believe: Believe) -> Audit:
    """Return the verdict on every claim of a card by its numbers alone. `believe` returns a GPU's profile or None."""
    first = {claim.id: _judged(card, claim, believe) for claim in card.claims}
    judged = tuple(_carried(judged, first) for judged in first.values())
    # What the run's own facts imply together, without what a claim of the card already says. A fact that another way of
    # training explains (a fine-tune, recomputation) is stated, but it accuses nobody.
    volunteered: list[JudgedClaim] = []
    claimed = {claim.form for claim in card.claims if claim.about == "run"}
    phases = {claim.get("phase") for claim in card.claims}
    for entry in table()["volunteered"]:
        form, rows = forms()[entry["form"]], entry.get("rows")
        claim = Claim(id=f"facts-{form.name}", kind=form.kind, form=form.name, text=entry["text"])
        found = _judged(card, claim, believe, tuple(map(row_of, rows)) if rows else None)
        if form.name not in claimed and found.judgement.ruling is not Ruling.CANNOT_BE_JUDGED:
            volunteered.append(found)
    forward, backward = card.timing.get("forward"), card.timing.get("backward")
    # adapters make the backward pass as fast as the forward pass; nothing makes it faster
    impossible = forward and backward and backward.most < forward.least and "healthy_phases" not in claimed
    below = [("phase_time", name, {"phase": name, "value": seconds}) for name, seconds in card.timing.items()]
    below += [("healthy_phases", "healthy_phases", {})] if impossible else []
    for name, key, says in below:
        claim = Claim(id=f"facts-{key}", kind=forms()[name].kind, form=name, text=key.replace("_", " "), says=says)
        found = _judged(card, claim, believe)
        if key not in phases and found.judgement.ruling is Ruling.WRONG:
            volunteered.append(found)
    return Audit(card=card, judged=judged, volunteered=tuple(volunteered))


def _carried(judged: JudgedClaim, others: Mapping[str, JudgedClaim]) -> JudgedClaim:
    """Return the verdict of a claim with regard to its premises.

    A claim needs all its premises: one wrong premise, at whatever distance, is enough to excuse it. The wrong premise
    is accused once, and the claims that depend on it are listed as such. Written arithmetic is judged for itself.
    """
    claim, judgement = judged.claim, judged.judgement
    reached: dict[str, JudgedClaim] = {}
    waiting = list(claim.premises)
    while waiting:
        name = waiting.pop()
        if name in others and name != claim.id and name not in reached:
            reached[name] = others[name]
            waiting += others[name].claim.premises
    bad = {name: one for name, one in reached.items() if one.judgement.ruling in BAD}
    roots = [one for one in bad.values() if not bad.keys() & set(one.claim.premises)]
    failed = sorted(roots or bad.values(), key=lambda one: one.claim.line or 0)
    if failed and (claim.form == "rests_on" or (judgement.ruling in BAD and claim.kind != "arithmetic")):
        so = f"it rests on {_place(failed[0])}, which is wrong: {failed[0].judgement.so}"
        words = "; ".join(f"{_place(one)}: {one.claim.text}" for one in failed[:3])
        return replace(judged, judgement=does_not_follow(so, words, severity=Severity.NOTE), finding=None)
    # the claim may have the number of a wrong claim among its operands
    above = [one for one in others.values() if 0 < (claim.line or 0) - (one.claim.line or 0) <= _NEAR]
    with_unit = {text for reading in claim.get("readings") or () for text in OPERAND.findall(reading)}
    with_unit |= {one.text for name, one in claim.says.items() if isinstance(one, ClaimedQuantity) and name != "value"}
    operands, wrong = {_digits(text) for text in with_unit}, []
    for one in (one for one in (*failed, *above) if one.judgement.ruling in BAD):
        value = one.claim.get("value")
        if isinstance(value, ClaimedQuantity):
            same = value.dimension != "count" and value.text in with_unit
            digits = _digits(value.text)
            wrong += [one] if same or (len(digits) >= _TELLING and digits in operands) else []
    if wrong and judgement.ruling is Ruling.HOLDS and claim.kind == "quantity":
        so = f"it is reckoned from {_place(wrong[0])}, which is wrong: {wrong[0].judgement.so}"
        return replace(judged, judgement=does_not_follow(so, judgement.arithmetic, severity=Severity.NOTE))
    if wrong and judgement.ruling is Ruling.HOLDS:
        so = f"{judgement.so}, reckoned from {_place(wrong[0])}, which is wrong"
        return replace(judged, judgement=replace(judgement, so=so))
    return judged


def objects(judged: JudgedClaim) -> bool:
    """Return True if the reader's objection to a claim is shown in addition to the verdict.

    It does not remain against arithmetic that holds, unless the reader states another value (`correct`) for the claim.
    """
    claim, judgement = judged.claim, judged.judgement
    if claim.opinion not in BAD:
        return False
    try:
        correct = parse_quantity(claim.correct) if claim.correct else None
    except ValueError:
        correct = None
    value = claim.get("value")
    if not isinstance(value, ClaimedQuantity) or correct is None or correct.dimension != value.dimension:
        return judgement.ruling is not Ruling.HOLDS
    near = value.least <= _NEAR_ENOUGH * correct.most and correct.least <= _NEAR_ENOUGH * value.most
    return not near if judgement.ruling is Ruling.HOLDS else not value.admits(correct.least, correct.most)


def _place(judged: JudgedClaim) -> str:
    return f"line {judged.claim.line}" if judged.claim.line else judged.claim.id


def _digits(text: str) -> str:
    """Return a number as printed, without its unit and separators."""
    digits = "".join(sign for sign in text if sign.isdigit() or sign == ".")
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _judged(card: Card, claim: Claim, believe: Believe, rows: Sequence[RelationRow] | None = None) -> JudgedClaim:
    """Return one claim judged by its form, or by rows of its own."""
    question, form = Question(card=card, claim=claim, believe=believe), forms()[claim.form]
    try:
        judgement = judge_rows(question, rows, form.fields) if rows else form.judge(question)
    except ArithmeticError as error:  # a card may contain any number: zero steps, 1e300 tokens
        judgement = unknown(f"a number that it rests on is zero or beyond reckoning ({error})")
    if judgement.ruling not in BAD:
        return JudgedClaim(claim=claim, judgement=judgement, finding=None)
    # not judged if only statements make it wrong that its reader regards as compatible
    if kinds()[claim.kind].placed and claim.opinion == Ruling.HOLDS:
        because = f": {claim.because}" if claim.because else ""
        so = f"{judgement.so}; whoever read it says that it holds{because}"
        return JudgedClaim(claim=claim, judgement=unknown(so), finding=None)
    where = f"{card.source or card.id}, line {claim.line}: " if claim.line else ""
    finding = Finding(
        code=f"claim_{claim.form}",
        severity=judgement.severity,
        title=f"{claim.text}: {judgement.ruling.value}. {judgement.so}",
        evidence=tuple(Evidence(text=text) for text in (f"{where}{claim.text}", judgement.arithmetic) if text),
        confidence=judgement.confidence,
        causes=judgement.causes,
        actions=judgement.actions,
        threshold=judgement.threshold,
    )
    return JudgedClaim(claim=claim, judgement=judgement, finding=finding)
