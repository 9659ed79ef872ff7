"""Lists whose opening line names the model or the time, and whose items leave both to it.

As "To train this 7B model on 8 H100: … 24 hours: … 45B tokens": judged by the peak of the cards alone, with the fewest
tokens that the list states, so that only what no reading makes possible is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from advisor.audit.paper.cards import Mention, mentions
from advisor.audit.paper.document import Document, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import Figure, figures
from advisor.audit.paper.stated import in_words, size_told
from advisor.audit.paper.words import LEANER, NOT_TRAINING, SPARSE_MODEL
from advisor.audit.quantity import Quantity

_LEAST_TOKENS, _LEAST_MODEL = 1e8, 1e7
_LEAST_TIME = 600.0  # seconds: shorter ones are of steps and tests
_BATCH = re.compile(r"\b(?:global[_ ]?)?batch(?:[_ ]?size)?\s*=\s*(\d+(?:,\d{3})*)", re.IGNORECASE)
_SEQUENCE = re.compile(r"\bseq(?:uence)?(?:[_ ]?len(?:gth)?)?\s*=\s*(\d+(?:,\d{3})*)", re.IGNORECASE)
_STEPS = re.compile(r"(?:additional |more |further |total |training )?(?:steps|iterations)\b")
_ABOUT_TOKENS = re.compile(r"[^:]{0,30}\btokens\b[^:]{0,10}:", re.IGNORECASE)
_REACHED = re.compile(
    r"\b(?:max(?:imum)?|process\w*|train(?:s|ed)?|covers?|reach\w*|see|sees|up to|at \d+ ?% MFU)\b", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class _List:
    """An opening line with the lines that follow it in its section."""

    lead: Passage
    items: Sequence[Passage]


def drafts(document: Document) -> Iterator[Drafted]:
    """What the items of such lists claim."""
    lists = _lists(document.passages)
    for number, one in enumerate(lists):
        section = [other for other in lists if other.lead.section == one.lead.section]
        words = " ".join(p.text for other in section for p in (other.lead, *other.items))
        if NOT_TRAINING.search(words) or SPARSE_MODEL.search(words) or LEANER.search(words):
            continue
        size, card = _size(one, section), _card(section)
        before = [p for other in lists[: number + 1] if other in section for p in other.items]
        for item in one.items:
            yield from _steps(item, before)
            if size and card:
                yield from _card_hours(item, size, card, before)
                yield from _tokens(item, one.lead, size, card)


def _lists(passages: Sequence[Passage]) -> list[_List]:
    found: list[_List] = []
    items: list[Passage] = []
    lead: Passage | None = None
    for passage in passages:
        opens = passage.text.rstrip().endswith(":")
        if lead is not None and (opens or passage.section != lead.section):
            found.append(_List(lead=lead, items=tuple(items)))
            lead = None
        if opens:
            lead, items = passage, []
        elif lead is not None:
            items.append(passage)
    return [*found, _List(lead=lead, items=tuple(items))] if lead is not None else found


def _size(one: _List, section: Sequence[_List]) -> Quantity | None:
    """The model of a list: its opening line's, else the only one that the section's opening lines name."""
    if own := _model(one.lead.text):
        return own
    sizes = {size.text: size for other in section if (size := _model(other.lead.text))}
    return next(iter(sizes.values())) if len(sizes) == 1 else None


def _model(text: str) -> Quantity | None:
    stated = [s.quantity for s in in_words(text, 0) if s.role == "parameters"]
    size = stated[0] if len(stated) == 1 else size_told(text) if not stated else None
    return size if size and size.low >= _LEAST_MODEL else None


def _card(section: Sequence[_List]) -> Mention | None:
    """The one card, with its number, that the lists of a section name."""
    named = [m for other in section for p in (other.lead, *other.items) for m in mentions(p.text)]
    same = len({(m.name.upper(), m.count) for m in named}) == 1
    return named[0] if same and named[0].count else None


def _counted(item: Passage, pattern: str) -> list[Figure]:
    return [f for f in figures(item.text) if f.dimension == "count" and re.match(pattern, f.noun)]


def _budgets(items: Sequence[Passage]) -> list[Figure]:
    """Numbers of tokens that items state, bare billions of a line about tokens too."""
    return [f for p in items for f in figures(p.text) if _is_budget(p.text, f)]


def _is_budget(text: str, figure: Figure) -> bool:
    told = figure.noun.startswith("token") or (figure.scaled and _ABOUT_TOKENS.match(text))
    return figure.dimension == "count" and figure.value >= _LEAST_TOKENS and bool(told)


def _card_hours(item: Passage, size: Quantity, card: Mention, before: Sequence[Passage]) -> Iterator[Drafted]:
    """Card-hours of an item against the fewest tokens that the lists have stated so far."""
    hours = [f for f in figures(item.text) if f.dimension == "gpu_hours"]
    budgets = _budgets([p for p in before if p.line < item.line])
    if len(hours) != 1 or not budgets:
        return
    fewest = min(budgets, key=lambda f: f.value)
    says = {"value": hours[0].quantity.text, "parameters": size.text, "tokens": fewest.quantity.text, "gpu": card.name}
    yield Drafted(kind="training_time", line=item.line, text=shortened(item.text), says=says)


def _tokens(item: Passage, lead: Passage, size: Quantity, card: Mention) -> Iterator[Drafted]:
    """Tokens of an item in the time that the opening line gives."""
    times = [f for f in figures(lead.text) if f.dimension == "seconds"]
    tokens = [f for f in _counted(item, r"tokens\b") if f.value >= _LEAST_TOKENS]
    if len(times) != 1 or times[0].value < _LEAST_TIME or len(tokens) != 1 or not _REACHED.search(item.text):
        return
    rate = tokens[0].value / times[0].value
    says = {"value": f"{rate:.6g} tok/s", "parameters": size.text, "gpu": card.name, "gpus": str(card.count)}
    text = shortened(f"{item.text} ({times[0].raw.strip()}: {rate:,.4g} tokens a second)")
    yield Drafted(kind="training_rate", line=item.line, text=text, says=says)


def _steps(item: Passage, before: Sequence[Passage]) -> Iterator[Drafted]:
    """As "batch=2048, seq=2048: 16,276 steps": the tokens of the list, or what is left of them, by those a step."""
    batch, sequence = _BATCH.search(item.text), _SEQUENCE.search(item.text)
    counted = [f for f in figures(item.text) if f.dimension == "count" and _STEPS.match(f.noun) and not f.scaled]
    budgets = [f.quantity.text for f in _budgets([p for p in before if p.line < item.line])]
    if batch is None or sequence is None or len(counted) != 1 or not 1 <= len(budgets) <= 3:
        return
    step = f"([{batch[1]}] * [{sequence[1]}])"
    readings = [f"[{text}] / {step}" for text in budgets]
    readings += [f"([{a}] - [{b}]) / {step}" for a in budgets for b in budgets if a != b]
    says = {"value": f"~{counted[0].quantity.text.lstrip('~')}", "readings": readings, "in_units": True}
    yield Drafted(kind="expression", line=item.line, text=shortened(item.text), says=says)
