"""Whose the numbers of a sentence are: a model that is named, the report's own run, another one, or nobody named.

Numbers are combined only where they are of one subject. What names none is of the report's one model, where it has one,
and of the model that the sentence before it in its paragraph names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from advisor.auditing.paper.cards import mentions
from advisor.auditing.paper.document import Passage
from advisor.auditing.paper.stated import data_name, in_words, size_told

_ONE_MODEL = 1.5  # times apart: sizes that are one model's, with and without its tables
_SIZED = re.compile(
    r"(?<![\w./-])([A-Za-z][\w.]*(?:-[A-Za-z\d][\w.]*?)*)([- ])(\d+(?:\.\d+)?)\s?([BM])(?![A-Za-z])"
    r"(?![\s-]*(?:[Tt][Oo][Kk]|sample|example|pairs|image|rows|doc|seq|char|word|byte))"
)
_TAKES = (
    r"(?:took|takes?|has|had|was|is|reach\w*|saw|sees|us(?:es|ed)|cost|costs|train(?:s|ed)|runs?|ran|needs?|achiev\w+"
    r"|process\w*|sustain\w*|deliver\w*|gets?|got)\b"
)
_LED = re.compile(rf"(?:The )?([A-Za-z][\w.-]*)(?:(?:'s|’s)(?: [\w-]+){{1,2}})?(?: \([^)]*\))? {_TAKES}")
_OWN = re.compile(r"(?:our|my)\s", re.IGNORECASE)
_WE = re.compile(r"(?:we|I)\s", re.IGNORECASE)  # of whatever is the report's own
_OTHER = re.compile(
    r"(?:the|a|their|its|this)\s(?:[\w-]+\s)?(?:baselines?|reference|paper|authors?|competitors?|predecessor|others)\b"
    r"|(?:baselines?|others|they|their)\b",
    re.IGNORECASE,
)
_MODEL = re.compile(r"(?:base )?model(?: name| size)?\s*:\s*(.{2,60})$", re.IGNORECASE)
_NO_NAME = re.compile(r"[A-Z]+s?|.*\d[BM]")  # "MFU", "GPUs"; a name with its size is read with it
_FORMAT = re.compile(r"(?:b?fp?|int|tf|nf|e\dm)\d", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A subject by its names and size; `main`: of what names none too; `other`: a baseline, another's work."""

    names: frozenset[str] = frozenset()
    size: float | None = None
    own: bool = False
    other: bool = False
    main: bool = False

    def __bool__(self) -> bool:
        return bool(self.names or self.size or self.own or self.other)


NOBODY = Subject()


def subject_in(text: str, size: float | None = None) -> Subject:
    """The subject that a sentence or a label names, with the parameters that it states."""
    names, sizes = {name for name in [_leading(text)] if name}, set() if size is None else {size}
    for match in _SIZED.finditer(text):
        if _is_name(match[1], joined=match[2] == "-") and not data_name(text[: match.start(3)]):
            names.add(match[1].lower())
            sizes.add(float(match[3]) * (1e9 if match[4] == "B" else 1e6))
    return Subject(
        names=frozenset(names),
        size=sizes.pop() if len(sizes) == 1 else max(sizes) if sizes and _alike(sizes) else None,
        own=not names and _OWN.match(text) is not None,
        other=not names and _OTHER.match(text) is not None,
    )


def _leading(text: str) -> str | None:
    """The proper name with which a sentence begins: it has a capital, a digit or a point inside, or owns something."""
    match = _LED.match(text)
    if match is None or mentions(match[1]) or _FORMAT.match(match[1]) or _NO_NAME.fullmatch(match[1]):
        return None
    name = match[1]
    inside = re.search(r"[a-z]", name) and re.search(r".[A-Z\d]|\w\.\w", name)
    owner = name[0].islower() and name in match[0] and re.match(r"['’]s", match[0][len(name) :])
    return name.lower() if inside or owner else None


def _is_name(word: str, *, joined: bool) -> bool:
    """Whether a word before a size is a model's name: "Llama-2-70B", "TinyLlama 1.1B", not "a 7B" or "Training 7B"."""
    if mentions(word) or _FORMAT.match(word):
        return False
    return bool(re.search(r"[A-Z\d]", word)) if joined else bool(re.search(r"[A-Za-z].*[A-Z\d]", word))


def _alike(sizes: Iterable[float]) -> bool:
    known = list(sizes)
    return max(known) < _ONE_MODEL * min(known)


def _one_size(one: Subject, other: Subject) -> bool:
    return not (one.size and other.size) or _alike((one.size, other.size))


def same(one: Subject, other: Subject) -> bool:
    """Whether numbers of two subjects may be combined."""
    if one.other != other.other or not _one_size(one, other):
        return False
    if one.names and other.names:
        return any(a.startswith(b) or b.startswith(a) for a in one.names for b in other.names)
    if bool(one.names) != bool(other.names):
        return one.main if one.names else other.main
    if bool(one.size) != bool(other.size):
        return one.main if one.size else other.main
    return True


def subjects_of(passages: Sequence[Passage]) -> list[Subject]:
    """Whose each passage of a report speaks: what it names, else what its paragraph named before it."""
    found: list[Subject] = []
    before: Passage | None = None
    for passage in passages:
        beside = before is not None and before.section == passage.section and passage.line - before.line <= 1
        own = subject_in(passage.text, size=_size(passage.text))
        anew = own.names or own.own or own.other or passage.fenced or _WE.match(passage.text)
        if found and beside and not anew and _one_size(own, found[-1]):
            own = replace(found[-1], size=found[-1].size or own.size)
        found.append(own)
        before = passage
    return _ranked(found, [p.headings[0] for p in passages if p.headings][:1] + _declared(passages))


def _size(text: str) -> float | None:
    """The parameters that a sentence states once."""
    sizes = {s.quantity.middle for s in in_words(text, 0) if s.role == "parameters"}
    told = size_told(text) if not sizes else None
    return sizes.pop() if len(sizes) == 1 else told.middle if told else None


def _declared(passages: Sequence[Passage]) -> list[str]:
    return [m[1] for p in passages if (m := _MODEL.match(p.text))]


def _ranked(subjects: Sequence[Subject], titles: Sequence[str]) -> list[Subject]:
    """The subjects, those marked that are meant where none is named: a report's one model, that of its title."""
    sizes = [s.size for s in subjects if s.size]
    one_size = not sizes or _alike(sizes)
    named = [s for s in subjects if s.names]
    one_name = one_size and not any(s.own for s in subjects) and all(_share(named[0], s) for s in named)
    titled = [subject for title in titles if (subject := subject_in(title)).names]
    known = []
    for subject in subjects:
        main = (one_name or any(_share(t, subject) for t in titled)) if subject.names else one_size
        known.append(replace(subject, main=main and not subject.other))
    return known


def _share(one: Subject, other: Subject) -> bool:
    return same(replace(one, main=False), replace(other, main=False))
