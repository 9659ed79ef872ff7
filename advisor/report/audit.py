"""Writes an audit: builds its sections once and lays them out for console, Markdown and JSON. No arithmetic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from advisor.auditing.audit import Audit, JudgedClaim, objects
from advisor.auditing.verdict import BAD, Ruling
from advisor.findings.case import Severity
from advisor.report.table import capital, markdown_table

_ORDER = (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW, Ruling.CANNOT_BE_JUDGED, Ruling.HOLDS)
_SEVERITIES = list(Severity)
_CLAUSE = re.compile(r"(?:; |\. )")
IS_SO, ARITHMETIC = "in fact", "arithmetic"
OTHER_FACTS = "What else follows from the declared facts"
OBJECTIONS = "Objections of the reader that this program does not confirm"
ASSUMED = "Assumed, because the report does not say"
UNPLACED = "Numbers that were not checked"
_MOST_UNPLACED = 12  # on the console; the page and Markdown show all


@dataclass(frozen=True, kw_only=True)
class ClaimGroup:
    """Claims that fail for one reason, and the non-empty texts about them as (label, text)."""

    claims: tuple[JudgedClaim, ...]
    details: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class AuditSection:
    """The claims of one verdict."""

    title: str
    ruling: Ruling
    groups: tuple[ClaimGroup, ...]

    @property
    def claims(self) -> tuple[JudgedClaim, ...]:
        """Returns all claims of the section, in its order."""
        return tuple(claim for group in self.groups for claim in group.claims)


def verdict_line(audit: Audit) -> str:
    """Returns the first line of every audit: how many claims hold, are wrong, do not follow or cannot be judged."""
    n, count, passed_over = audit.counts, len(audit.judged), len(audit.card.unplaced)
    if not count:
        return "No claim could be checked"
    bad = f"{n[Ruling.WRONG]} wrong, {n[Ruling.DOES_NOT_FOLLOW]} do not follow"
    claims = f"{count} claim{'s' if count != 1 else ''}: {n[Ruling.HOLDS]} hold"
    unchecked = f"; {passed_over} more not checked" if passed_over else ""
    return f"{claims}, {bad}, {n[Ruling.CANNOT_BE_JUDGED]} cannot be judged{unchecked}"


def facts_line(audit: Audit) -> str:
    """Returns the second line: how many statements the facts add, and how many are problems; "" if there are none."""
    problems = [j for j in audit.volunteered if j.finding is not None and j.judgement.severity is not Severity.NOTE]
    if not audit.volunteered:
        return ""
    added = len(audit.volunteered)
    figures = f"{added} more figure{'s' if added > 1 else ''}"
    return f"From its declared facts alone: {figures}, {len(problems) or 'none'} with a problem"


def sections(audit: Audit) -> Iterator[AuditSection]:
    """Yields claims by verdict, the worst first, then in the report's order. Claims that fail alike are grouped."""
    for ruling in _ORDER:
        members = [judged for judged in audit.judged if judged.judgement.ruling is ruling]
        if ruling in (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW):
            members.sort(key=lambda judged: _SEVERITIES.index(judged.judgement.severity))
        if members:
            # Claims that fail for the same reason stand at the place of the first; one calculation and remedy fits all.
            together: dict[object, list[JudgedClaim]] = {}
            for judged in members:
                own = id(judged) if ruling is Ruling.HOLDS else judged.claim.id
                is_shared = judged.judgement.arithmetic and ruling is not Ruling.HOLDS
                together.setdefault(replace(judged.judgement, so="") if is_shared else own, []).append(judged)
            groups = tuple(ClaimGroup(claims=tuple(g), details=_details(g)) for g in together.values())
            yield AuditSection(title=f"{capital(ruling.value)} ({len(members)})", ruling=ruling, groups=groups)


def where(judged: JudgedClaim) -> str:
    """Returns the claim's place and id. For a refuted claim it also says if the reader considers the claim right."""
    lines = judged.claim.lines or ((judged.claim.line,) if judged.claim.line else ())
    line = f"line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}, " if lines else ""
    reason = f", because {judged.claim.because}" if judged.claim.because else ""
    favours = judged.judgement.ruling in BAD and judged.claim.opinion == Ruling.HOLDS
    return f"{line}{judged.claim.id}{f'; the reader of the report says that it holds{reason}' if favours else ''}"


def objections(audit: Audit) -> Iterator[str]:
    """Yields claims that the reader calls wrong but that nothing computed here confirms or refutes, with the reason."""
    for judged in audit.judged:
        claim = judged.claim
        if judged.judgement.ruling not in BAD and objects(judged):
            instead = f"{claim.correct} instead" if claim.correct else ""
            reasons = "; ".join(filter(None, (claim.because, instead))) or claim.opinion
            yield f"{claim.text} ({where(judged)}): {reasons}"


def text_lines(audit: Audit) -> Iterator[str]:
    """Yields lines for the console: the verdict, then every claim under its own verdict."""
    yield f"{audit.card.title}"
    yield verdict_line(audit)
    yield from filter(None, [facts_line(audit)])
    for section in sections(audit):
        yield from ("", section.title)
        if section.ruling is Ruling.HOLDS:
            yield from (f"  {j.claim.text} ({where(j)}): {j.judgement.so}" for j in section.claims)
            continue
        for group in section.groups:
            yield from (f"  {j.claim.text} ({where(j)}) [{j.judgement.severity.value}]" for j in group.claims)
            yield from (f"      {label}: {text}" for label, text in group.details)
    for title, lines in notes(audit):
        most = _MOST_UNPLACED if title == UNPLACED else len(lines)
        yield from ("", f"{title}:", *(f"  {line}" for line in lines[:most]))
        if more := len(lines[most:]):
            yield f"  and {more} more: --md has all"


def kind_lines(kinds: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields two lines for every form of a claim: how a report states it, and how a card states it."""
    for entry in kinds:
        yield f"{entry['that']}: {entry['says']}"
        fields = {"kind": entry["kind"], "that": entry["that"], **entry["fields"]}.items()
        yield f"    {{{', '.join(f'{name}: {value!r}' for name, value in fields)}}}"


def markdown(audits: Sequence[Audit]) -> str:
    """Returns the audits as one Markdown document."""
    return "\n".join(line for audit in audits for line in _markdown_lines(audit)) + "\n"


def document(audit: Audit) -> dict[str, object]:
    """Returns the audit for JSON: counts of verdicts, every claim with its judgement, and the findings."""
    return {
        "card": audit.card.id,
        "title": audit.card.title,
        "verdict": verdict_line(audit),
        "counts": audit.counts,
        "claims": [_claim(judged) for judged in audit.judged],
        "volunteered": [_claim(judged) for judged in audit.volunteered],
        "findings": audit.findings,
        "assumed": audit.card.assumed,
        "unplaced": audit.card.unplaced,
    }


def _claim(judged: JudgedClaim) -> dict[str, object]:
    claim, judgement = judged.claim, judged.judgement
    return {
        "id": claim.id,
        "kind": claim.kind,
        "that": claim.form,
        "line": claim.line,
        "text": claim.text,
        "quote": claim.quote or None,
        "opinion": claim.opinion or None,
        "because": claim.because or None,
        "correct": claim.correct or None,
        "objection": objects(judged),
        "verdict": judgement.ruling,
        "so": judgement.so,
        "arithmetic": judgement.arithmetic,
        "consequence": judgement.consequence,
    }


def _markdown_lines(audit: Audit) -> Iterator[str]:
    yield from (f"# Audit: {_plain(audit.card.title)}", "", f"**{verdict_line(audit)}.**", "")
    yield from ((f"{facts_line(audit)}.", "") if audit.volunteered else ())
    if audit.card.source:
        yield from (f"Source: {_plain(audit.card.source)}", "")
    for section in sections(audit):
        yield from (f"## {section.title}", "")
        if section.ruling is Ruling.HOLDS:
            rows = (
                (str(j.claim.line or ""), j.claim.text, j.judgement.so, j.judgement.arithmetic) for j in section.claims
            )
            yield from (markdown_table(("line", "claim", IS_SO, ARITHMETIC), (map(_plain, row) for row in rows)), "")
            continue
        for group in section.groups:
            yield "* " + "; ".join(f"**{_plain(j.claim.text)}** ({where(j)})" for j in group.claims)
            yield from (f"  * {label}: {_plain(text)}" for label, text in group.details)
        yield ""
    for title, lines in notes(audit):
        yield from (f"## {title}", "", *(f"* {_plain(line)}" for line in lines), "")


def notes(audit: Audit) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields titles and lines of what is shown below the claims."""
    sections = (
        (OBJECTIONS, list(objections(audit))),
        (OTHER_FACTS, list(_volunteered(audit))),
        (ASSUMED, audit.card.assumed),
        (UNPLACED, audit.card.unplaced),
    )
    yield from ((title, lines) for title, lines in sections if lines)


def _volunteered(audit: Audit) -> Iterator[str]:
    """Yields what the facts say, bad news first, each with its arithmetic."""
    for judged in sorted(audit.volunteered, key=lambda entry: _ORDER.index(entry.judgement.ruling)):
        judgement = judged.judgement
        mark = "" if judgement.ruling is Ruling.HOLDS else f" [{judgement.severity.value}]"
        reckoned = f" ({judgement.arithmetic})" if judgement.arithmetic not in ("", judgement.so) else ""
        yield f"{judged.claim.text}: {judgement.so}{reckoned}{mark}"


def _plain(text: str) -> str:
    """Returns text from a card on one line, unable to start markup of its own."""
    return " ".join(text.split()).replace("<", "&lt;").replace("*", "\\*")


def _details(group: Sequence[JudgedClaim]) -> tuple[tuple[str, str], ...]:
    judgement = group[0].judgement
    # Join sentences and state shared clauses once: "a is slow; b" and "a is slow; c" give "a is slow; b; c".
    texts = (j.judgement.so for j in group)
    first, *others = dict.fromkeys(texts)
    stated = set(_CLAUSE.split(first))
    for text in others:
        new = [clause for clause in _CLAUSE.split(text) if clause not in stated]
        stated.update(new)
        first += "".join(f"; {clause}" for clause in new)
    pairs = {
        IS_SO if judgement.ruling is not Ruling.CANNOT_BE_JUDGED else "why": first,
        ARITHMETIC: judgement.arithmetic,
        "consequence": judgement.consequence,
        "likely causes": "; ".join(judgement.causes),
        "to do": "; ".join(judgement.actions),
        "limit used": judgement.threshold,
    }
    return tuple((label, text) for label, text in pairs.items() if text)
