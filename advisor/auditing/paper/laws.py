"""Quantities of one subject that follow from each other: each one stated against what the others give.

What a record does not state itself is taken from others of the same subject, then of its section, then of the whole
report where that states it once. Every combination and every charitable reading (per card, of all cards) is tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from advisor.auditing.expression import gives
from advisor.auditing.paper import reckoned
from advisor.auditing.paper.document import Document
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.equations import equations
from advisor.auditing.paper.known_laws import HOURLY, LASTS, LAWS, PACE, Law
from advisor.auditing.paper.records import Record, records
from advisor.auditing.paper.scopes import MOST_VALUES, Found, Scope, distinct, stated_of, whole
from advisor.auditing.paper.stated import Stated
from advisor.auditing.paper.subjects import NOBODY, same
from advisor.auditing.paper.words import phrase

_MOST_READINGS = 24
_FAR_OFF = 2.0  # times from 6 N D: attention and recomputation give less
_FASTEST_CARD = 1e16  # operations a second, in four bits
_SAID_OFTEN = 2  # times
_SAID_AGAIN = 0.03  # by which roundings of one number differ in two units
_LONGEST_LABEL = 7  # words
_LAST = phrase(
    r"\b(?:steps?|run|iterations?|training)\b[^.;()]{0,60}(?:\b(?:is|takes?|took|lasts?|needs?|in)\b|≈|=)[^.;()]{0,30}\d"
)
_OF_A_RUN = (
    *("steps", "step_tokens", "tokens", "step_time", "rate", "gpus", "usd_per_hour", "gpu_hours", "parameters"),
    *("duration", "usd", "mfu", "work", "sustained", "batch", "micro_batch", "accumulation", "sequence"),
)
_EACH = re.compile(r"\b(?:each|apiece|per (?:gpu|card|device))\b|/gpu", re.IGNORECASE)
# what is not said of the training, nor of its machine
_ELSEWHERE = re.compile(
    r"\binferenc|\bserv(?:e|es|ing)\b|\bgenerat|\bdecod|\bprefill|\bCPU\b|\blaptop\b|\brequests?\b", re.IGNORECASE
)
_IN_ALL = re.compile(
    r"\b(?:whole|entire|complete|full) (?:run|training)\b|\bin (?:total|all)\b|\btotal (?:time|cost|training)\b"
    r"|\b(?:training|run) (?:took|takes|lasted|cost|costs)\b",
    re.IGNORECASE,
)
_WRITTEN_OUT = re.compile(r"\d\)?\s*[×x*/÷]\s*\(?~?\$?\d[^=≈]*[=≈]\s*~?\$?\d")
_CONCLUDES = re.compile(
    r"\b(?:so|that is|that's|therefore|thus|hence|takes?|took|needs?|costs?|bill|lasts?|would"
    r"|comes? to|finish\w*|amounts?|means?)\b|[=≈→]",
    re.IGNORECASE,
)
# of something else than what the section was about
_ELSE = re.compile(
    r"\b(?:another|additional\w*|extra|remaining|further|saves?|instead|unlike|whereas|without|overhead|each|only"
    r"|first|last|half|rest|previous\w*|original\w*|paper|they|their|inference|evaluat\w+|fine-?tun\w+|if)\b",
    re.IGNORECASE,
)
_BY_CLOCK = re.compile(r"\brun-?time\b|\belapsed\b|\bwall\b", re.IGNORECASE)
_BARE_TOTAL = re.compile(r"(?:grand |sub)?total", re.IGNORECASE)
_AND_MORE = re.compile(r"\bplus\b|\bstorage\b|\begress\b|\bsalar", re.IGNORECASE)  # paid besides the cards
_REDUCED = re.compile(r"(\d+(?:\.\d+)?)\s?%\s(?:off|discount|cheaper|less)\b", re.IGNORECASE)
_PRICE_OF_ONE = re.compile(r"\$\s?[\d.]+\s?(?:/|per )\s?(?:GPU|card)\s?[- /]?(?:per )?h", re.IGNORECASE)
_WHOLE_HOURS = re.compile(
    r"\bround(?:s|ed)?(?: up)?\b|\bbilled (?:by|per) (?:the )?(?:full )?hour|\bminimum\b", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class _Reckoned:
    """A stated quantity with what others give for it."""

    claim: Drafted
    target: Stated
    far: Stated | None = None  # a price that is stated elsewhere

    @property
    def holds(self) -> bool:
        """Whether one of the readings comes out."""
        return gives(self.claim.says["value"], self.claim.says["readings"])


def drafts(document: Document) -> Iterator[Drafted]:
    """Every stated quantity that others of its subject give too."""
    known = [r for r in records(document) if r.kind == "section" or "?" not in r.subject + r.words]  # asked, not stated
    own = {(e.line, e.says["value"].lstrip("~")) for p in document.passages for e in equations(p.text, p.line)}
    of_run = whole_run(known)
    of_sentences = reckoned.refuted(document, known)
    first = [*_all(known, known, of_sentences), *_all(of_run, known, of_sentences)]
    # what is refuted by numbers that nothing refutes is at fault, not what rests on it
    refuted = of_sentences | {
        id(one.target): one.claim.says["readings"][: reckoned.MOST_CORRECTED] for one in first if not one.holds
    }
    drafted = [*_all(known, known, refuted)]
    judged = {id(one.target) for one in drafted}  # by what stands nearer
    drafted += [one for one in _all(of_run, known, refuted) if id(one.target) not in judged]
    blamed = _blamed(drafted, known)
    for one in _speed_or_time(drafted, document.text):
        if (one.target.line, one.target.quantity.text.lstrip("~")) in own:
            continue  # the arithmetic beside it is judged
        if one.far is None or id(one.far) not in blamed:
            yield one.claim
    yield from (claim for far in blamed.values() if (claim := _of_price(far, known)).says["readings"])


def _speed_or_time(drafted: Sequence[_Reckoned], text: str) -> list[_Reckoned]:
    """Of a speed and a step's time that contradict each other, the one that the report states less often."""
    times = [one for one in drafted if one.target.role == "step_time" and not one.holds]
    dropped: set[int] = set()
    for time in times:
        rate = next((one for one in drafted if _rests_on(one, time) and not one.holds), None)
        if rate is not None and _said(rate.target, text) > max(_SAID_OFTEN, _said(time.target, text)):
            dropped.add(id(rate))
        else:
            dropped.add(id(time))
    slow = [one for one in drafted if one.target.role == "rate" and not one.holds]
    for one in drafted:
        clock = one.target.role == "duration" and _BY_CLOCK.search(one.target.label)  # it is believed
        if clock and any(f"/ [{one.target.quantity.text}]" in r for rate in slow for r in rate.claim.says["readings"]):
            dropped.add(id(one))
    return [one for one in drafted if id(one) not in dropped]


def _rests_on(one: _Reckoned, time: _Reckoned) -> bool:
    """Whether a speed was reckoned from a step's time."""
    own = one.target.role in ("rate", "gpu_rate")
    return own and any(f"[{time.target.quantity.text}]" in reading for reading in one.claim.says["readings"])


def _said(stated: Stated, text: str) -> int:
    """How often a report prints a number."""
    number = re.search(r"\d[\d,]*(?:\.\d+)?", stated.quantity.text)
    return len(re.findall(rf"(?<![\d.,]){re.escape(number[0])}(?![\d]|[.,]\d)", text)) if number else 0


def whole_run(known: Sequence[Record]) -> list[Record]:
    """The one run that a report tells of: each quantity as its lists declare it, else as a sentence states it once."""
    if len({s.quantity.text.lstrip("~") for r in known for s in r.facts.get("parameters", [])}) > 1:
        return []  # of several models
    known = [
        r
        for r in known
        if r.kind != "sentence"
        or (same(r.about, NOBODY) and not (_ELSEWHERE.search(r.words) or _WRITTEN_OUT.search(r.words)))
    ]
    facts: dict[str, list[Stated]] = {}
    for role in _OF_A_RUN:
        for kinds in (("section",), *((("sentence",),) if role == "step_time" else ()), ("sentence", "row")):
            found = distinct([s for r in known if r.kind in kinds for s in r.facts.get(role, [])])
            if found:
                facts |= {role: [*found]} if len(found) == 1 else {}
                break
    for role in ("duration", "usd"):
        sums = [s for r in known for s in r.facts.get(role, []) if r.kind == "sentence" and _IN_ALL.search(r.words)]
        if len(found := distinct(sums)) == 1:
            facts[role] = [*found]
    return [Record(subject="", section=-1, headings=(), kind="run", facts=facts)]


def _blamed(drafted: Sequence[_Reckoned], known: Sequence[Record]) -> dict[int, Stated]:
    """Prices stated elsewhere with which most of the costs that rest on them do not come out: they are at fault."""
    by_price: dict[int, list[_Reckoned]] = {}
    prices: dict[int, Stated] = {}
    for one in drafted:
        if one.far is not None:
            prices[id(one.far)] = one.far
            by_price.setdefault(id(one.far), []).append(one)
    blamed = {}
    for key, claims in by_price.items():
        failing = [one for one in claims if not one.holds]
        confirmed = 3 * len(failing) <= 2 * len(claims) and not _of_price(prices[key], known).says["readings"]
        if len(failing) >= 2 and 2 * len(failing) > len(claims) and not confirmed:
            blamed[key] = prices[key]
    return blamed


def _of_price(price: Stated, known: Sequence[Record]) -> Drafted:
    """The price as a claim: what the costs of the report come to an hour."""
    readings = [
        reading
        for r in known
        if r.kind == "row" and len(r.facts.get("usd", ())) == 1 and r.facts.get("duration")
        for usd, time in [(r.facts["usd"][0].quantity.text, r.facts["duration"][0].quantity.text)]
        for reading in (f"[{usd}] / ([{time}] / 3600)", f"[{usd}] / ([{time}] / 3600) / 8")
    ]
    says = {"value": f"~{price.quantity.text.lstrip('~')}", "readings": readings, "in_units": True}
    return Drafted(
        kind="expression", line=price.line, text=shortened(f"{price.label}: {price.quantity.text}"), says=says
    )


def _all(
    judged: Sequence[Record], known: Sequence[Record], refuted: Mapping[int, Sequence[str]]
) -> Iterator[_Reckoned]:
    for record in judged:
        for law in LAWS:
            if law.told and record.kind != "sentence":
                continue
            targets: Sequence[Stated] = record.facts.get(law.target, [])
            targets = whole(targets)
            values = len({t.quantity.text for t in targets})
            if record.kind == "sentence" and values > 1 and _alike(targets):
                targets, values = targets[:1], 1
            if not 1 <= values <= (MOST_VALUES if record.kind == "row" else 1):
                continue
            yield from _claims(law, record, targets, known, refuted)


def _of_other_cards(found: Mapping[str, Found], record: Record) -> bool:
    """Whether a speed that is stated elsewhere is of another number of cards than a record names: of a rack."""
    sustained = found["sustained"]
    several = min(s.quantity.low for s in sustained.stated) > _FASTEST_CARD
    elsewhere = sustained.scope > Scope.OWN and "gpus" not in found
    return "gpus" in record.facts and (several or elsewhere)


def _alike(targets: Sequence[Stated]) -> bool:
    """Whether numbers are one in several units: "9 million GPU-seconds, or about 104 GPU-days"."""
    middles = [t.quantity.middle for t in targets]
    return min(middles) > 0 and max(middles) <= (1 + _SAID_AGAIN) * min(middles)


def _passed_over(law: Law, template: str, record: Record, found: Sequence[Found], known: Sequence[Record]) -> bool:
    """Whether an expression whose quantities are all stated may still not be drawn here."""
    if min(one.scope for one in found) > Scope.SUBJECT:
        return True
    roles = dict(zip(law.roles(template), found, strict=True))
    alone = record.kind == "sentence" and template != LASTS and not _follows(record, found)
    if (law.own or alone) and any(one.scope > Scope.OWN or (alone and len(one.stated) > 1) for one in found):
        return True
    named = found[0].scope == Scope.OWN and _LAST.search(record.words)
    if template == LASTS and record.kind == "sentence" and not named:
        return True
    if template == PACE and not all(_BY_CLOCK.search(s.label) for s in found[1].stated):
        return True
    if law.target == "tokens" and "sequence" in roles and stated_of("epochs", record, known):
        return True  # samples of a data set that is read so many times: each has its own length
    priced = roles.get("usd_per_hour")
    if priced and record.kind != "row" and priced.scope > Scope.OWN:
        return True  # a price elsewhere is of the rows of a table, not of any sum that is named
    return _of_unsure_cards(law, template, record, roles, known)


def _of_unsure_cards(
    law: Law, template: str, record: Record, roles: Mapping[str, Found], known: Sequence[Record]
) -> bool:
    """Whether a price or a speed may be of one card, of all of them, or of others."""
    said = [r.words for r in known] if record.kind == "run" else [record.words]
    if template == HOURLY and any(_WHOLE_HOURS.search(words) for words in said):
        return True  # hours that are begun are paid for
    several = any(q.quantity.most > 1 for r in known for q in r.facts.get("gpus", ())) or any(
        (card.count or 1) > 1 for r in known for card in r.cards
    )
    if several and (template == HOURLY or "sustained" in roles):
        if law.told or not stated_of("gpus", record, known):
            return True  # the hour of one card, or of all
        if template == HOURLY and _PRICE_OF_ONE.search(record.words):
            return True  # the hour of one card, where several are paid
    if "sustained" not in roles:
        return False
    together = "gpus" in roles and roles["sustained"].scope == roles["gpus"].scope == Scope.OWN
    if together and not _EACH.search(record.words):
        return True  # what so many cards do together
    return _of_other_cards(roles, record)


def _claims(
    law: Law,
    record: Record,
    targets: Sequence[Stated],
    known: Sequence[Record],
    refuted: Mapping[int, Sequence[str]],
) -> Iterator[_Reckoned]:
    readings: list[str] = []
    wide = record.kind == "run"  # whether a number of another section is among them
    far: Stated | None = None
    for template in law.readings:
        found = [stated_of(role, record, known, law.told) for role in law.roles(template)]
        if not all(found) or _passed_over(law, template, record, found, known):
            continue
        wide = wide or any(one.scope > Scope.SECTION for one in found)
        for role, one in zip(law.roles(template), found, strict=True):
            if role == "usd_per_hour" and one.scope >= Scope.SECTION:
                far = one.stated[0]
        senses = [
            (_work(one.stated, known) if role == "work" else [])
            or _senses(one.stated, {} if template == PACE else refuted)
            for role, one in zip(law.roles(template), found, strict=True)
        ]
        for chosen in product(*senses):
            readings.append(template.format(**dict(zip(law.roles(template), chosen, strict=True))))
    unique = list(dict.fromkeys(readings))
    if law.target == "usd" and record.kind == "sentence" and (cut := _REDUCED.search(record.words)):
        unique += [f"( {reading} ) * {1 - float(cut[1]) / 100:g}" for reading in unique]
    if not unique or len(unique) > _MOST_READINGS:
        return
    for target in targets:
        if _BARE_TOTAL.fullmatch(target.label.strip()) and wide:
            continue  # of what is listed above it
        if law.target == "duration" and target.quantity.high < 1.0:
            continue  # of a step or a part of one
        if law.target == "usd" and _AND_MORE.search(target.label):
            continue
        # what a number is corrected to by the target says nothing of the target
        readings = [r for r in unique if "( " not in r or f"[{target.quantity.text}]" not in r]
        if not readings:
            continue
        about = "" if target.quantity.text.startswith("~") else "~"
        claim = Drafted(
            kind="expression",
            line=target.line,
            text=shortened(record.told(_told_of(target))),
            says={"value": f"{about}{target.quantity.text}", "readings": readings, "in_units": True},
        )
        yield _Reckoned(claim=claim, target=target, far=far)


def _told_of(target: Stated) -> str:
    """The number with its label; the label of what stands in a sentence is that sentence, which has it."""
    sentence = len(target.label.split()) > _LONGEST_LABEL
    return target.label if sentence else f"{target.label.lower()} {target.quantity.text}"


def _follows(record: Record, found: Sequence[Found]) -> bool:
    """Whether a sentence draws its number from itself and from what its section has said just before."""
    return (
        re.match(r"[^.]{2,40}:\s", record.words) is None  # which its section lists
        and "parameters" not in record.facts  # of a model of its own
        and _WRITTEN_OUT.search(record.words) is None  # its own arithmetic is judged
        and _CONCLUDES.search(record.words) is not None
        and _ELSE.search(record.words) is None
        and any(one.scope == Scope.OWN and len(one.stated) == 1 for one in found)
        and all(one.scope <= Scope.SECTION for one in found)
    )


def _work(stated: Sequence[Stated], known: Sequence[Record]) -> list[str]:
    """FLOPs that are not those of the parameters and tokens beside them, as those have them; empty where they are."""
    for record in known:
        own = {role: record.facts.get(role, []) for role in ("work", "parameters", "tokens")}
        if any(len(found) != 1 for found in own.values()) or own["work"][0] not in stated or len(stated) != 1:
            continue
        n, d = (own[role][0].quantity for role in ("parameters", "tokens"))
        ratio = 6 * n.middle * d.middle / own["work"][0].quantity.middle
        if not 1 / _FAR_OFF < ratio < _FAR_OFF:
            return [f"( 6 * [{n.text}] * [{d.text}] * [1 FLOP] )"]
    return []


def _senses(stated: Sequence[Stated], refuted: Mapping[int, Sequence[str]]) -> list[str]:
    """A quantity as it is stated; where others refute it, also as they have it."""
    corrected = [f"( {reading} )" for s in stated for reading in refuted.get(id(s), ())]
    return [*(f"[{s.quantity.text}]" for s in stated), *corrected]
