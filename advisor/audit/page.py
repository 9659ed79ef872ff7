"""An audit in words: the same lines for the terminal and for Markdown. No arithmetic here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from advisor.audit.audit import Audit, Judged
from advisor.audit.verdict import Ruling
from advisor.findings.case import Severity

_ORDER = (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW, Ruling.CANNOT_BE_JUDGED, Ruling.HOLDS)
_TITLES = {
    Ruling.WRONG: "Wrong",
    Ruling.DOES_NOT_FOLLOW: "Does not follow",
    Ruling.CANNOT_BE_JUDGED: "Cannot be judged",
    Ruling.HOLDS: "Holds",
}
_SEVERITIES = list(Severity)
_CLAUSE = re.compile(r"(?:; |\. )")


def verdict_line(audit: Audit) -> str:
    """The first line of every audit: how many claims hold, are wrong, do not follow, cannot be judged."""
    n = audit.counts
    return (
        f"{len(audit.judged)} claims: {n[Ruling.HOLDS]} hold, {n[Ruling.WRONG]} wrong, "
        f"{n[Ruling.DOES_NOT_FOLLOW]} do not follow, {n[Ruling.CANNOT_BE_JUDGED]} cannot be judged"
    )


def by_verdict(audit: Audit) -> Iterator[tuple[str, list[Judged]]]:
    """Claims under the title of their verdict, the worst first, else in the order of the report."""
    for ruling in _ORDER:
        chosen = [one for one in audit.judged if one.judgement.ruling is ruling]
        if ruling in (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW):
            chosen.sort(key=lambda one: _SEVERITIES.index(one.judgement.severity))
        if chosen:
            yield _TITLES[ruling], chosen


def of_one_reason(members: Sequence[Judged]) -> list[list[Judged]]:
    """Claims that fail for the same reason together, where the first of them stands: same reckoning, same cure."""
    groups: dict[object, list[Judged]] = {}
    for one in members:
        reason = replace(one.judgement, so="") if one.judgement.arithmetic else one.claim.id
        groups.setdefault(reason, []).append(one)
    return list(groups.values())


def details(group: Sequence[Judged]) -> Iterator[tuple[str, str]]:
    """What is to be said of claims that fail for one reason: (label, text), the empty ones left out."""
    j = group[0].judgement
    pairs = {
        "is so" if j.ruling is not Ruling.CANNOT_BE_JUDGED else "why": _together([one.judgement.so for one in group]),
        "arithmetic": j.arithmetic,
        "consequence": j.consequence,
        "likely causes": "; ".join(j.causes),
        "to do": "; ".join(j.actions),
        "measured by": j.threshold,
    }
    yield from ((label, text) for label, text in pairs.items() if text)


def _together(texts: Sequence[str]) -> str:
    """Several sentences as one, what they share said once: "a is slow; b" and "a is slow; c" give "a is slow; b; c"."""
    first, *others = dict.fromkeys(texts)
    said = set(_CLAUSE.split(first))
    for text in others:
        new = [clause for clause in _CLAUSE.split(text) if clause not in said]
        said.update(new)
        first += "".join(f"; {clause}" for clause in new)
    return first


def where(one: Judged) -> str:
    """The claim's place in the report and its id."""
    line = f"line {one.claim.line}, " if one.claim.line else ""
    return f"{line}{one.claim.id}"


def text_lines(audit: Audit) -> Iterator[str]:
    """For the terminal: verdict line, then every claim under its verdict."""
    yield f"{audit.card.title}"
    yield verdict_line(audit)
    for title, members in by_verdict(audit):
        yield ""
        yield f"{title} ({len(members)})"
        if members[0].judgement.ruling is Ruling.HOLDS:
            yield from (f"  {one.claim.text} ({where(one)}): {one.judgement.so}" for one in members)
            continue
        for group in of_one_reason(members):
            yield from (f"  {one.claim.text} ({where(one)}) [{one.judgement.severity.value}]" for one in group)
            yield from (f"      {label}: {text}" for label, text in details(group))
    if audit.card.assumed:
        yield ""
        yield "Assumed where the report says nothing:"
        yield from (f"  {text}" for text in audit.card.assumed)


def markdown(audits: list[Audit]) -> str:
    """The same as one Markdown document."""
    return "\n".join(line for audit in audits for line in _markdown_lines(audit)) + "\n"


def _markdown_lines(audit: Audit) -> Iterator[str]:
    yield from (f"# Audit: {_plain(audit.card.title)}", "", f"**{verdict_line(audit)}.**", "")
    if audit.card.source:
        yield from (f"Source: {_plain(audit.card.source)}", "")
    for title, members in by_verdict(audit):
        yield from (f"## {title}", "")
        if members[0].judgement.ruling is Ruling.HOLDS:
            yield from ("| line | claim | is so | arithmetic |", "|---|---|---|---|")
            for one in members:
                cells = (str(one.claim.line or ""), one.claim.text, one.judgement.so, one.judgement.arithmetic)
                yield f"| {' | '.join(_cell(cell) for cell in cells)} |"
            yield ""
            continue
        for group in of_one_reason(members):
            yield "* " + "; ".join(f"**{_plain(one.claim.text)}** ({where(one)})" for one in group)
            yield from (f"  * {label}: {_plain(text)}" for label, text in details(group))
        yield ""
    if audit.card.assumed:
        yield from ("## Assumed", "", *(f"* {_plain(text)}" for text in audit.card.assumed), "")


def _plain(text: str) -> str:
    """Text from a card on one line, without starting markup of its own."""
    return " ".join(text.split()).replace("<", "&lt;").replace("*", "\\*")


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")
