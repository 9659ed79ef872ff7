"""What a report states, by subject: the numbers of a row, of a column, of a section, each with its line."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from advisor.auditing.paper.cards import Mention, mentions
from advisor.auditing.paper.document import Document, Grid, Passage, Row
from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.roles import role_of, unit_of_label
from advisor.auditing.paper.stated import EACH, MORE_OF_IT, Stated, in_words, size_in, size_told
from advisor.auditing.paper.subjects import NOBODY, Subject, subjects_of
from advisor.auditing.quantity import parse_quantity

_PAIR = re.compile(r"^(?P<label>[^:=|]{2,60}?)\s*[:=]\s*(?P<value>\S.*)$")
_PARTS = re.compile(r"\s*[│|;]\s*|,\s+(?=[A-Za-z][\w /]{2,20}:\s)")
_METRICS = re.compile(
    r"metric|parameter|setting|phase|item|property|spec|aspect|measure|quantity|category", re.IGNORECASE
)
_OTHER_TOKENS = re.compile(
    r"data|corpus|available|context|max|input|output|prompt|vocab|special|generat|new\b|per\b|average|length"
    r"|valid|test|eval",
    re.IGNORECASE,
)
_SEEN = re.compile(r"\b(?:num_?|total )?(?:input|output)[ _](?=tokens[ _](?:seen|processed))", re.IGNORECASE)
_ARITHMETIC = re.compile(r"\d[^:]*?[×x*/÷+]\s*~?\$?\d")
_LEAST_TITLES = 2  # columns with the name of a quantity: the rows are the subjects then
_PRICED = re.compile(r"\s*(?:\(|@|\bat\b)\s*\$[^)]*\)?")
_OF_SAMPLES = re.compile(r"(?:samples?|seqs?|sequences?|images?|imgs?|examples?|clips?|frames?|it|steps?)\b")
_A_STEP = re.compile(r"\s*(?:/|per|a|each|every)\s*(?:step|iter(?:ation)?|it)\b", re.IGNORECASE)
_DERIVED = re.compile(
    r"ratio|expected|speed-?up|change|difference|improvement|delta|notes?|status|observed|impact|source", re.IGNORECASE
)
_NAMES = re.compile(
    r"^(?:model|run|config(?:uration)?|experiment|variant|setup|name|size|job|task|gpu(?![- ]?h(?:ou)?rs?\b)|hardware"
    r"|scenario|stage|method)s?\b",
    re.IGNORECASE,
)


_SPEAKS_OF_IT = re.compile(
    r"(?:this|that|it|(?:the |this )?(?:whole |full |entire )?(?:run|training|job|pre-?training))\s+"
    r"(?:should |will |would |only |just )*(?:takes?|costs?|needs?|finish(?:es)?|lasts?)\b",
    re.IGNORECASE,
)
_A_TRAINING = re.compile(r"\b(?:pre-?)?train(?:s|ed|ing)?\b", re.IGNORECASE)


@dataclass(kw_only=True)
class Record:
    """Numbers that are of one subject and stand together."""

    subject: str
    section: int
    headings: tuple[str, ...]
    kind: str  # row | section | sentence
    facts: dict[str, list[Stated]] = field(default_factory=dict)
    cards: list[Mention] = field(default_factory=list)
    words: str = ""
    line: int = 0
    about: Subject = NOBODY  # of a sentence, whose its numbers are

    def add(self, stated: Stated) -> None:
        """One more number; what is stated again is kept beside the first."""
        self.facts.setdefault(stated.role, []).append(stated)

    def told(self, what: str) -> str:
        """What is said of the subject: "7B on 8 GPUs: 12 h"; without one, of nothing named."""
        return f"{self.subject.rstrip(': ')}: {what}" if self.subject else what

    @property
    def key(self) -> str:
        """The subject in a form in which names compare."""
        return plain_name(self.subject)


@lru_cache(maxsize=10_000)  # subjects and headings are compared with each other again and again
def plain_name(name: str) -> str:
    """A name without case, punctuation and remarks in parentheses: "LLaMA3-2.2B (old)" is "llama3 2.2b"."""
    bare = re.sub(r"\([^)]*\)", " ", name.lower())
    return " ".join(re.findall(r"[a-z0-9]+(?:\.[a-z0-9]+)*", bare))


def same_subject(one: str, other: str) -> bool:
    """Whether two plain names mean one thing: the same words, or one begins with all of the other's."""
    if not one or not other:
        return False
    a, b = one.split(), other.split()
    short, long = (a, b) if len(a) <= len(b) else (b, a)
    return long[: len(short)] == short and (len(short[0]) > 1 or len(short) > 1)


def records(document: Document) -> list[Record]:
    """All records of a document, in order."""
    about = subjects_of(document.passages)
    named = {p.text for p, one in zip(document.passages, about, strict=True) if one.names and not one.main}
    found = [*_sections(document.passages, named), *_sentences(document.passages, about)]
    for grid in document.grids:
        found += _listed(grid) if _is_list(grid) else _columns(grid) if is_transposed(grid) else _rows(grid)
    return [record for record in found if record.facts]


def _sections(passages: Iterable[Passage], elsewhere: Container[str]) -> Iterator[Record]:
    """What the "label: value" lines of a section state, but for those that are of a model that is not the report's."""
    held: Record | None = None
    for passage in passages:
        if held is None or passage.section != held.section:
            if held:
                yield held
            subject = passage.headings[-1] if passage.headings else ""
            held = Record(
                subject=subject, section=passage.section, headings=passage.headings, kind="section", line=passage.line
            )
            for stated in in_words(subject, passage.line):
                if stated.role in ("tokens", "parameters", "gpus", "steps"):
                    held.add(stated)
            _add_size(held, subject)
            cards = mentions(subject)
            if len(cards) == 1 and cards[0].count and "gpus" not in held.facts:
                held.add(_cards_stated(cards[0], passage.line))
        held.words += passage.text + "\n"
        held.cards += mentions(passage.text)
        labelled = [] if passage.text in elsewhere else list(pairs(passage.text, passage.line)) or _bullet(passage)
        for stated in labelled:
            held.add(stated)
        if named := re.match(r"(?:base )?model(?: name| size)?\s*:\s*(.{2,60})$", passage.text, re.IGNORECASE):
            _add_size(held, named[1])
    if held:
        yield held


def _bullet(passage: Passage) -> Iterator[Stated]:
    """What a short line without a label states: "8x H100 GPUs", "11.2B tokens"."""
    sentence = passage.text.endswith((".", "!", "?"))
    if sentence or len(passage.text.split()) > 6 or ":" in passage.text or passage.text in passage.headings:
        return
    yield from in_words(passage.text, passage.line)
    cards = mentions(passage.text)
    if len(cards) == 1 and cards[0].count and not re.search(r"\d\s*GPUs", passage.text):
        yield _cards_stated(cards[0], passage.line)


def _cards_stated(card: Mention, line: int) -> Stated:
    """The number of cards that a name is given with."""
    return Stated(role="gpus", quantity=parse_quantity(str(card.count)), line=line, label=card.name)


def _sentences(passages: Sequence[Passage], about: Sequence[Subject]) -> Iterator[Record]:
    """What single sentences state by units and nouns."""
    before: Passage | None = None
    for one, subject in zip(passages, about, strict=True):
        passage = _with_what_it_speaks_of(one, before)
        before = one
        record = Record(
            subject="",
            section=passage.section,
            headings=passage.headings,
            kind="sentence",
            words=passage.text,
            line=passage.line,
            cards=mentions(passage.text),
            about=subject,
        )
        for stated in in_words(passage.text, passage.line):
            record.add(stated)
        counted = [card for card in record.cards if card.count]
        if len(counted) == 1 and len({card.name for card in record.cards}) == 1 and "gpus" not in record.facts:
            record.add(_cards_stated(counted[0], passage.line))
        several = re.search(r"\bvs\.?\b|\bthan\b|\btokens?\b[^.]{0,20}:", passage.text)
        size = size_told(passage.text) if not several and "parameters" not in record.facts else None
        if size:
            record.add(Stated(role="parameters", quantity=size, line=passage.line, label="name"))
        yield record


def _with_what_it_speaks_of(passage: Passage, before: Passage | None) -> Passage:
    """ "This takes 3 days and costs $50." with the sentence before it, where that names the training it speaks of."""
    if before is None or before.section != passage.section or passage.fenced or passage.line - before.line > 1:
        return passage
    if not _SPEAKS_OF_IT.match(passage.text) or not _A_TRAINING.search(before.text):
        return passage
    said = {stated.role for stated in in_words(before.text, before.line)}
    own = {stated.role for stated in in_words(passage.text, passage.line)}
    sizes = {"tokens", "parameters"}
    if "tokens" not in said or own & sizes or own & said:  # what both state may be of two things
        return passage
    return replace(passage, text=f"{before.text} {passage.text}")


def pairs(text: str, line: int) -> Iterator[Stated]:
    """Numbers that a "label: value" line states; several of them where bars or commas part them."""
    logged = re.match(
        r"\W*(?:iter(?:ation)?|step)\s*:?\s*\d", text, re.IGNORECASE
    )  # a time beside it is that of a step
    for part in _PARTS.split(text):
        match = _PAIR.match(re.sub(r"^\W+(?=[A-Za-z])", "", part.strip()))
        if match is None or len(match["label"].split()) > 7 or _ARITHMETIC.search(match["label"]):
            continue
        value = _result(match["value"])
        found = figures(value)
        if not found or found[0].start > 2 or re.search(r"[=→]|->|^\s*to\s[~$]?\d", value[found[0].end :]):
            continue
        yield from (stated for stated in in_words(match["label"], line) if stated.role == "usd_per_hour")
        if MORE_OF_IT.match(value[found[0].end :]):
            continue  # what is still to come, or was saved
        label = _PRICED.sub("", match["label"])
        if _A_STEP.match(value, found[0].end) and found[0].dimension == "seconds":
            label = "step time"
        label = "step time" if logged and label.strip().lower() in ("time", "dt") else label
        each = " per GPU" if EACH.match(value[found[0].end :].lstrip()) else ""
        if stated := _stated(label + each, found[0], line):
            yield stated
        for figure in found[1:]:  # "$81 (at $3/GPU/hour)"
            if figure.dimension == "usd_per_hour" and found[0].dimension == "usd":
                yield Stated(role="usd_per_hour", quantity=figure.quantity, line=line, label=label)


def _result(value: str) -> str:
    """Of arithmetic that is written out, what it is said to come to: the rest as it stands."""
    last = re.search(r"(?:=|≈)\s*~?([^=≈]+)$", value)
    return last[1] if last and figures(value[: last.start()]) and figures(last[1]) else value


def _stated(label: str, figure: Figure, line: int) -> Stated | None:
    role = role_of(label, figure)
    if role is None or "?" in label:
        return None
    if role in ("rate", "gpu_rate") and _OF_SAMPLES.match(figure.noun):
        return None
    if role == "batch" and (figure.scaled or figure.noun.startswith("token")):
        role = "step_tokens"
    if role == "tokens" and _OTHER_TOKENS.search(_SEEN.sub("", label)):
        return None
    if role == "rate" and EACH.search(label):
        role = "gpu_rate"
    quantity = figure.quantity
    unit = unit_of_label(role, label)
    if unit and quantity.dimension == "count":
        text = quantity.text.split()
        scaled = " ".join((text[0], unit)) if len(text) == 1 else f"{text[0]} {_scale(text[1])}{unit}"
        try:
            quantity = parse_quantity(scaled)
        except ValueError:
            return None
    if role in ("duration", "step_time") and quantity.dimension == "count":
        return None
    return Stated(role=role, quantity=quantity, line=line, label=label)


def _scale(word: str) -> str:
    return {"k": "k ", "M": "M ", "billion": "B "}.get(word, "")


def is_transposed(grid: Grid) -> bool:
    """Whether the columns are the subjects: metrics stand in the first column."""
    if len(grid.header) < 2:
        return False
    if sum(bool(_column_role(grid, i)) for i in range(1, len(grid.header))) >= _LEAST_TITLES:
        return False
    labels = [row.cells[0] for row in grid.rows]
    named = sum(bool(_row_roles(row)) for row in grid.rows)
    return bool(_METRICS.search(grid.header[0])) or bool(
        (not _NAMES.search(grid.header[0]) or re.match(r"config", grid.header[0], re.IGNORECASE))
        and len(labels) > 1
        and named > 0.6 * len(labels)
    )


def _column_role(grid: Grid, at: int) -> str | None:
    """The quantity of a column by its title and its first number."""
    found = next((f for row in grid.rows for f in figures(row.cells[at])[:1]), None)
    return role_of(grid.header[at], found) if found else None


def _row_roles(row: Row) -> set[str]:
    found = figures(row.cells[1]) if len(row.cells) > 1 else []
    role = role_of(row.cells[0], found[0]) if found else None
    return {role} if role else set()


def _rows(grid: Grid) -> Iterator[Record]:
    """One record a row; its subject is the first cell that is a name."""
    name_at = next((i for i, h in enumerate(grid.header) if _NAMES.search(h)), None)
    for row in grid.rows:
        at = (
            name_at
            if name_at is not None
            else next((i for i, c in enumerate(row.cells) if re.search(r"[A-Za-z]{2}", c)), 0)
        )
        record = Record(
            subject=row.cells[at],
            section=grid.section,
            headings=grid.headings,
            kind="row",
            words=" | ".join(row.cells),
            line=row.line,
            cards=mentions(" | ".join(row.cells)),
        )
        for i, cell in enumerate(row.cells):
            found = figures(cell)
            if i == at and not re.match(r"(?:model )?size|param", grid.header[i], re.IGNORECASE):
                continue
            if found and found[0].start <= 2 and (stated := _stated(grid.header[i], found[0], row.line)):
                record.add(stated)
            for part in found[1:]:
                if (
                    found[0].dimension == part.dimension == "seconds"
                    and "(" in cell
                    and (more := _stated(grid.header[i], part, row.line))
                ):
                    record.add(more)
        counted = mentions(row.cells[at])
        if len(counted) == 1 and counted[0].count:
            record.facts.setdefault("gpus", [_cards_stated(counted[0], row.line)])
        for stated in _in_header(grid, row.line):
            record.facts.setdefault(stated.role, [stated])
        for stated in in_words(row.cells[at], row.line):
            record.facts.setdefault(stated.role, [stated])
        _add_size(record, row.cells[at])
        yield record


def _in_header(grid: Grid, line: int) -> Iterator[Stated]:
    """What a header says of all its rows: "(10T tokens, 1K GPUs)", "@ $2.30/h"."""
    for label in grid.header:
        for figure in figures(label):
            if figure.dimension == "usd_per_hour":
                yield Stated(role="usd_per_hour", quantity=figure.quantity, line=line, label=label)
            elif (
                figure.dimension == "count"
                and re.match(r"tokens\b", figure.noun)
                and re.search(r"time|day|hour|cost|min", label, re.IGNORECASE)
            ):
                yield Stated(role="tokens", quantity=figure.quantity, line=line, label=label)
            elif (
                figure.dimension == "count"
                and re.match(r"(?:gpu|[ahbv]\d)", figure.noun)
                and re.search(r"time|day|hour|cost", label, re.IGNORECASE)
            ):
                yield Stated(role="header_gpus", quantity=figure.quantity, line=line, label=label)
            elif (
                figure.dimension == "count"
                and re.match(r"(?:total )?(?:iter|step)", figure.noun)
                and re.search(r"time|hour|cost", label, re.IGNORECASE)
            ):
                yield Stated(role="steps", quantity=figure.quantity, line=line, label=label)


def _is_list(grid: Grid) -> bool:
    """Whether a table is a list of a section's settings: one column of labels, one of values."""
    return len(grid.header) == 2 and is_transposed(grid) and not mentions(grid.header[1])


def _listed(grid: Grid) -> Iterator[Record]:
    """What such a list states, as its section's "label: value" lines would."""
    for record in _columns(grid):
        record.kind, record.subject = "section", grid.headings[-1] if grid.headings else ""
        yield record


def _columns(grid: Grid) -> Iterator[Record]:
    """One record a column of values."""
    for i, name in enumerate(grid.header[1:], 1):
        if _DERIVED.search(name):
            continue
        record = Record(
            subject=name, section=grid.section, headings=grid.headings, kind="row", line=grid.line, cards=mentions(name)
        )
        for row in grid.rows:
            found = figures(row.cells[i])
            record.cards += mentions(row.cells[i])
            if found and found[0].start <= 2 and (stated := _stated(row.cells[0], found[0], row.line)):
                record.add(stated)
        _add_size(record, name)
        yield record


def _add_size(record: Record, name: str) -> None:
    """Parameters from a model's name, where the record states none."""
    if "parameters" not in record.facts and (size := size_in(name)):
        record.add(Stated(role="parameters", quantity=size, line=record.line, label="name"))
