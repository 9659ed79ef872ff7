"""An audit in words: the same lines for the terminal and for Markdown. No arithmetic here."""

from __future__ import annotations

from collections.abc import Iterator

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


def details(one: Judged) -> Iterator[tuple[str, str]]:
    """What is to be said of one claim: (label, text), the empty ones left out."""
    j = one.judgement
    pairs = {
        "is so" if j.ruling is not Ruling.CANNOT_BE_JUDGED else "why": j.so,
        "arithmetic": j.arithmetic,
        "consequence": j.consequence,
        "likely causes": "; ".join(j.causes),
        "to do": "; ".join(j.actions),
        "measured by": j.threshold,
    }
    yield from ((label, text) for label, text in pairs.items() if text)


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
        for one in members:
            if one.judgement.ruling is Ruling.HOLDS:
                yield f"  {one.claim.text} ({where(one)}): {one.judgement.so}"
                continue
            yield f"  {one.claim.text} ({where(one)}) [{one.judgement.severity.value}]"
            yield from (f"      {label}: {text}" for label, text in details(one))
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
        for one in members:
            yield f"* **{_plain(one.claim.text)}** ({where(one)})"
            yield from (f"  * {label}: {_plain(text)}" for label, text in details(one))
        yield ""
    if audit.card.assumed:
        yield from ("## Assumed", "", *(f"* {_plain(text)}" for text in audit.card.assumed), "")


def _plain(text: str) -> str:
    """Text from a card on one line, without starting markup of its own."""
    return " ".join(text.split()).replace("<", "&lt;").replace("*", "\\*")


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")
