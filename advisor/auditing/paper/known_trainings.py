"""What a text tells of well-known trainings as facts: their cards, tokens and card-hours."""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.auditing.paper.cards import mentions
from advisor.auditing.paper.document import Document, Grid, Passage
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.roles import role_of
from advisor.auditing.paper.stated import size_told
from advisor.auditing.paper.words import NOT_TRAINING, phrase
from advisor.auditing.trainings import named

_MAKERS = r"(?:Meta|OpenAI|DeepSeek|Google|DeepMind|BigScience|TII|MosaicML|Microsoft|Bloomberg|Alibaba|Facebook)"
_WAS = phrase(
    rf"\b(?:was|were) (?:originally )?(?:pre-?)?trained\b|\b{_MAKERS}\b[^.;]{{0,25}}\b(?:pre-?)?trained\b"
    r"|\boriginal (?:pre-?)?training\b|\btraining run\b"
    r"|\b(?:required|took|needed|used|cost)\b[^.;]{0,60}\b(?:to train|training)\b"
    r"|\btraining (?:of )?[^.;]{0,30}\b(?:required|took|used|needed|cost)\b",
    re.IGNORECASE,
)
_NOT_THAT = re.compile(
    r"\bfine-?tun\w*|\b(?:would|could|should|if|our|we|my|your|you|I|suppose|assum\w+|example|hypothetical|equivalent"
    r"|reproduc\w+|replicat\w+|continued|LoRA|adapt\w*|distill\w*|like|similar|today|instead|unlike|than|vs|compared"
    r"|estimat\w+|imagine|let's|on (?:a|one|single))\b",
    re.IGNORECASE,
)
_LISTED = re.compile(
    r"^(?:org(?:ani[sz]ation)?|developer|company|lab|maker|year|released?|release date|published)s?$", re.IGNORECASE
)
_OF_CARDS = re.compile(r"^(?:gpus?|hardware|chips?|accelerators?|gpu type|training hardware)(?: used)?$", re.IGNORECASE)
_LEAST_TOKENS = 1e10
_IN_PARENTHESES = re.compile(r"\((\d+(?:\.\d+)?B)\)")
_IT_TOOK = re.compile(r"(?:the |its )?(?:pre-?)?training (?:took|required|used|consumed|cost)\b", re.IGNORECASE)
_PRETRAINING = re.compile(r"\b(?:full |complete )?pre-?train(?:ing|ed)?\b|\bfrom scratch\b", re.IGNORECASE)
_PART_OF_IT = re.compile(
    r"\bcontinued\b|\btokens?\b|\bsteps?\b|\bepochs?\b|\bfine-?tun|\bper\b|\bpart\b", re.IGNORECASE
)


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such statement of a sentence, and of tables that list trainings with who did them."""
    of_line: tuple[int, str] = (0, "")  # the training that a paragraph names, by its line
    for passage in document.passages:
        yield from _told(passage)
        yield from _in_time(passage)
        plain = _IN_PARENTHESES.sub(r"\1", passage.text)
        if found := named(plain):
            of_line = (passage.line, found[0])
        elif of_line[0] == passage.line and _IT_TOOK.match(plain) and len(hours := _hours(plain)) == 1:
            yield _claim(of_line[1], passage.line, plain, {"fact": "card_hours", "value": hours[0].quantity.text})
    for grid in document.grids:
        if any(_LISTED.search(title) for title in grid.header):
            yield from _rows(grid)


def _told(passage: Passage) -> Iterator[Drafted]:
    """As "GPT-3 was trained on 10,000 A100"."""
    text = passage.text
    training = named(text)
    if training is None or not _WAS.search(text) or _NOT_THAT.search(text) or NOT_TRAINING.search(text):
        return
    name = training[0]
    cards = {card.name.upper(): card.name for card in mentions(text)}
    if len(cards) == 1:
        yield _claim(name, passage.line, text, {"fact": "card", "words": next(iter(cards.values()))})
    for fact, stated in (("tokens", _tokens(text)), ("card_hours", _hours(text))):
        if len(stated) == 1:
            yield _claim(name, passage.line, text, {"fact": fact, "value": stated[0].quantity.text})


def _in_time(passage: Passage) -> Iterator[Drafted]:
    """As "LLaMA-13B: 2-3 days for full pre-training (8× H100)": its published tokens on those cards."""
    text = passage.text
    training, size = named(text), size_told(text)
    cards = [card for card in mentions(text) if card.count]
    times = [f for f in figures(text) if f.dimension == "seconds"]
    if training is None or size is None or not training[1].tokens or not _PRETRAINING.search(text):
        return
    if len(cards) != 1 or len(times) != 1 or _tokens(text) or NOT_TRAINING.search(text) or _PART_OF_IT.search(text):
        return
    says = {"value": times[0].quantity.text, "parameters": size.text, "gpu": cards[0].name, "gpus": str(cards[0].count)}
    says |= {"tokens": f"{min(training[1].tokens) / 1e9:g} billion"}
    yield Drafted(kind="training_time", line=passage.line, text=shortened(text), says=says)


def _rows(grid: Grid) -> Iterator[Drafted]:
    """Rows of a list of trainings, each number by the title of its column."""
    for row in grid.rows:
        training = named(row.cells[0])
        if training is None:
            continue
        words = " | ".join(row.cells)
        for title, cell in zip(grid.header[1:], row.cells[1:], strict=True):
            cards = {card.name.upper(): card.name for card in mentions(cell)}
            if _OF_CARDS.search(title) and len(cards) == 1:
                yield _claim(training[0], row.line, words, {"fact": "card", "words": next(iter(cards.values()))})
            found = figures(cell)
            role = role_of(title, found[0]) if len(found) == 1 else None
            fact = {"tokens": "tokens", "gpu_hours": "card_hours"}.get(role or "")
            if fact and (fact != "tokens" or found[0].value > _LEAST_TOKENS):
                value = found[0].quantity.text
                if fact == "card_hours" and found[0].dimension == "count":
                    value = f"{found[0].value:g} GPU-h"
                yield _claim(training[0], row.line, words, {"fact": fact, "value": value})


def _tokens(text: str) -> list[Figure]:
    return [
        f for f in figures(text) if f.dimension == "count" and f.noun.startswith("token") and f.value > _LEAST_TOKENS
    ]


def _hours(text: str) -> list[Figure]:
    return [f for f in figures(text) if f.dimension == "gpu_hours"]


def _claim(name: str, line: int, text: str, says: dict[str, str]) -> Drafted:
    return Drafted(kind="published_training", line=line, text=shortened(text), says={"name": name} | says)
