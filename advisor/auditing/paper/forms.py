"""Faults by their form, whatever the run: shares of a loss or of an accuracy above chance, scaling that is not so.

Each rule reads what is compared and in which way, not how a text words it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.auditing.paper.document import Document, Grid, Passage
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.records import Record, records
from advisor.auditing.paper.stated import Stated
from advisor.auditing.paper.words import phrase

_LOSS = re.compile(r"\b(?:loss|nll|cross-?entropy|perplexity|ppl)\b", re.IGNORECASE)
_SHARE = re.compile(
    r"\bmatch|\bof the way\b|\breach\w*|\brecover\w*|\bachiev\w*|\bretain\w*|\bof (?:the )?(?:baseline|original"
    r"|gpt|target|reference|full|sota|performance|quality)|\bquality\b|\bas good\b|\bparity\b|\baccura\w+\b",
    re.IGNORECASE,
)
_SHARE_TITLE = re.compile(r"match|% of|vs|ratio|recover|relative|share|parity|percent", re.IGNORECASE)
# accuracy by guessing among so many answers (the benchmarks' own papers)
_CHANCE = (
    (r"hella-?swag|mmlu|arc[- _]?(?:c|e|easy|challenge)?\b|open-?book-?qa|obqa|\brace\b|sciq|truthfulqa|agieval", 25),
    (r"piqa|wino-?grande|winogrande|boolq|copa\b|story-?cloze|\bwic\b|\brte\b|qnli|sst-?2", 50),
    (r"commonsense-?qa|csqa|\blogiqa", 20),
)
_QUANTITY_OF = {"double": 2, "twice": 2, "triple": 3, "quadruple": 4, "half": 0.5, "halv": 0.5}
_FACTOR = re.compile(r"\b(doubl\w*|twice|tripl\w*|quadrupl\w*|halv\w*)|(\d+(?:\.\d+)?)\s?(?:[x×]|times)", re.IGNORECASE)
_PER_PARAMETER = re.compile(
    r"tokens?[ -](?:per|/)[ -]param|chinchilla[- ]optimal|compute[- ]optimal|proportional(?:ly)? (?:more )?tokens"
    r"|same ratio|20 ?[x×] (?:tokens|param)|tokens? scale|both (?:model|param)",
    re.IGNORECASE,
)
_MODEL_GROWS = re.compile(r"\b(?:model|parameters?|param count|size)\b", re.IGNORECASE)
_COST = re.compile(r"\b(?:cost|compute|flops?|training time|time|budget|gpu-?hours?)\b", re.IGNORECASE)
_UNIFORM = re.compile(
    r"\buniform\b|\brandom (?:guess|init|chance|baseline|predict)\w*|\bguess\w*|\bln\s?\(?v|\blog\(?v|\binitial loss\b"
    r"|\bat init\w*",
    re.IGNORECASE,
)

# a difference in what a model learned, and its one cause
_CAUSED = phrase(
    r"\b(?:gap|improvement|difference|gain|advantage|regression)s?\b[^.;]{0,50}\b(?:comes? from|came from"
    r"|(?:is|are|was) (?:entirely |mainly |purely )?(?:due to|caused by|explained by|a result of|because of"
    r"|attributable to)|stems? from|(?:is|are) the well-known)\b",
    re.IGNORECASE,
)
_QUALITY = re.compile(
    r"\b(?:loss|accuracy|quality|perplexity|bench\w*|eval\w*|score|model|hella\w*|mmlu|core|data mix|val)\b|\bover v\d",
    re.IGNORECASE,
)
_HEDGED = re.compile(
    r"\b(?:may|might|could|likely|probably|possibly|suspect|perhaps|partly|seems?|appears?|hypothes\w+|not|speed|throughput"
    r"|faster|memory|time|tok/s|latency|mfu)\b",
    re.IGNORECASE,
)
_CONTROLLED = re.compile(
    r"\bablat\w+|\bcontrolled\b|\bisolat\w+|\bonly (?:difference|change)\b|\bseeds?\b|\ball else (?:being )?equal\b"
    r"|\beverything else\b|\bsweep\w*",
    re.IGNORECASE,
)
_AMORTIZED = re.compile(r"\bover (\d+) years\b", re.IGNORECASE)
_NEAR = 0.015  # of a quotient that a percentage is said to be
_CLOSE = 3  # lines from one sentence to the next of the same matter
_SAME = re.compile(r"\b(?:would|it|that|this|same)\b", re.IGNORECASE)
_RULE = re.compile(
    r"(?P<low>\d+(?:\.\d+)?)(?:\s?-\s?(?P<high>\d+(?:\.\d+)?))?\s?(?:[x×]\s)?tokens?\s?(?:per|/|for each)\s?param",
    re.IGNORECASE,
)
_SUPPORTS = re.compile(r"\bsupport\w*|\bcapacity\b|\bsufficient\b|\benough\b|\bcan train\b|\boptimal\b", re.IGNORECASE)


def drafts(document: Document) -> Iterator[Drafted]:
    """Every fault of these forms."""
    controlled = _CONTROLLED.search(document.text) is not None
    for passage in document.passages:
        yield from _share_of_loss(passage)
        yield from _share_of_accuracy(passage)
        yield from _squared(passage)
        yield from _uniform(passage)
        if not controlled:
            yield from _caused(passage)
    for before, passage in zip(document.passages, document.passages[1:], strict=False):
        yield from _owned(passage, before.text if before.section == passage.section else "")
    for grid in document.grids:
        yield from _shares_of_rows(grid)
    yield from _linear(document)
    yield from _supported(document)


def _share_of_loss(passage: Passage) -> Iterator[Drafted]:
    """As "loss 3.40 vs 3.29: 97% match": the quotient of two losses, called a share of quality."""
    text = passage.text
    shares = [f for f in figures(text) if f.dimension == "fraction" and 0.5 < f.value <= 1.1]
    losses = [f for f in figures(text) if f.dimension == "count" and "." in f.raw and 0.1 < f.value < 20]
    if len(shares) != 1 or len(losses) != 2 or not _LOSS.search(text) or not _SHARE.search(text):
        return
    a, b = sorted(f.value for f in losses)
    if abs(a / b - shares[0].value) < _NEAR:
        yield _quality(passage.line, text, shares[0], "loss")


def _share_of_accuracy(passage: Passage) -> Iterator[Drafted]:
    """As "HellaSwag 27%, 92% of GPT-2's 29.4%": the quotient of two accuracies of which most is chance."""
    chance = _chance(passage.text)
    found = [f for f in figures(passage.text) if f.dimension == "fraction" and f.value <= 1]
    if chance is None or len(found) < 2 or not _SHARE.search(passage.text):
        return
    for share in found:
        others = [f for f in found if f is not share]
        for a in others:
            for b in others:
                near = a.value < b.value and abs(a.value / b.value - share.value) < _NEAR
                if near and share.value > 0.5 and _misleads(a.value, b.value, chance):
                    yield _accuracy(passage.line, passage.text, share, a, b, chance)
                    return
        if len(others) == 2 and re.search(r"of the way|gap", passage.text, re.IGNORECASE):
            a, b = sorted(others, key=lambda f: f.value)
            if share.value > 0.5 and share.value > 2 * (a.value - chance) / (b.value - chance):
                yield _accuracy(passage.line, passage.text, share, a, b, chance)
                return


def _misleads(a: float, b: float, chance: float) -> bool:
    """Whether chance makes up most of what the smaller accuracy is said to be a share of."""
    return b > chance and a / b > 1.3 * max(a - chance, 0.0) / (b - chance)


def _shares_of_rows(grid: Grid) -> Iterator[Drafted]:
    """Rows of losses and of accuracies with a column that calls their quotient a match."""
    for at, name in enumerate(grid.header):
        if not at or not _SHARE_TITLE.search(name):
            continue
        for row in grid.rows:
            share = next(iter(figures(row.cells[at])), None)
            numbers = [f for i, c in enumerate(row.cells) if i not in (0, at) for f in figures(c)[:1]]
            if share is None or share.dimension != "fraction" or not 0.5 < share.value <= 1.1:
                continue
            pairs = [(a, b) for a in numbers for b in numbers if a.value < b.value]
            pairs = [(a, b) for a, b in pairs if abs(a.value / b.value - share.value) < _NEAR]
            chance = _chance(row.cells[0])
            text = " | ".join(row.cells)
            if _LOSS.search(row.cells[0]) and pairs:
                yield _quality(row.line, text, share, "loss")
            elif chance and pairs and _misleads(_accuracy_of(pairs[0][0]), _accuracy_of(pairs[0][1]), chance):
                yield _accuracy(row.line, text, share, *pairs[0], chance)


def _accuracy_of(figure: Figure) -> float:
    """An accuracy as a share of one; scores are often printed without their sign."""
    return figure.value if figure.dimension == "fraction" else figure.value / 100


def _chance(text: str) -> float | None:
    return next((percent / 100 for names, percent in _CHANCE if re.search(names, text, re.IGNORECASE)), None)


def _quality(line: int, text: str, share: Figure, of: str) -> Drafted:
    return Drafted(
        kind="share_of_quality", line=line, text=shortened(text), says={"value": share.quantity.text, "of": of}
    )


def _accuracy(line: int, text: str, share: Figure, a: Figure, b: Figure, chance: float) -> Drafted:
    percents = {
        name: f.quantity.text if f.dimension == "fraction" else f"{f.quantity.text} %"
        for name, f in (("reached", a), ("target", b))
    }
    says = {"value": share.quantity.text, "of": "accuracy", "chance": f"{100 * chance:g} %", **percents}
    return Drafted(kind="share_of_quality", line=line, text=shortened(text), says=says)


def _squared(passage: Passage) -> Iterator[Drafted]:
    """As "twice the model at fixed tokens per parameter costs twice": compute grows with the square of the size."""
    text = passage.text
    factors = [_factor(m) for m in _FACTOR.finditer(text)]
    if not (_PER_PARAMETER.search(text) and _MODEL_GROWS.search(text) and _COST.search(text)):
        return
    if len(factors) == 2 and factors[0] == factors[1] and factors[0] not in (0.0, 1.0):
        says = {"value": f"{factors[1]:g} x", "size": f"{factors[0]:g} x"}
        yield Drafted(kind="compute_of_size", line=passage.line, text=shortened(text), says=says)


def _factor(match: re.Match[str]) -> float:
    if match[2]:
        return float(match[2])
    return next((float(f) for word, f in _QUANTITY_OF.items() if match[1].lower().startswith(word[:4])), 0.0)


def _uniform(passage: Passage) -> Iterator[Drafted]:
    """The loss of a uniform guess among so many tokens: its logarithm."""
    text = passage.text
    if not _UNIFORM.search(text) or not _LOSS.search(text):
        return
    found = figures(text)
    sizes = [f for f in found if f.dimension == "count" and 200 <= f.value <= 300_000 and _of_vocabulary(text, f)]
    losses = [f for f in found if f.dimension == "count" and "." in f.raw and 2 < f.value < 14]
    if len({f.value for f in sizes}) == 1 and len({f.value for f in losses}) == 1:
        says = {"value": losses[0].quantity.text, "vocabulary": sizes[0].quantity.text}
        yield Drafted(kind="uniform_loss", line=passage.line, text=shortened(text), says=says)


def _of_vocabulary(text: str, figure: Figure) -> bool:
    around = text[max(0, figure.start - 25) : figure.end + 20]
    return re.search(r"vocab|tokens?\b|ln|log|classes", around, re.IGNORECASE) is not None


def _caused(passage: Passage) -> Iterator[Drafted]:
    """As "the gap comes from the new data": a difference of quality laid to one cause in a report that varied none."""
    match = _CAUSED.search(passage.text)
    if match and _QUALITY.search(passage.text) and not _HEDGED.search(passage.text):
        yield Drafted(kind="one_cause", line=passage.line, text=shortened(passage.text))


def _owned(passage: Passage, before: str) -> Iterator[Drafted]:
    """A machine's price spread over years, with upkeep: what it comes to a month, and an hour of one card."""
    text = f"{before} {passage.text}"
    match = _AMORTIZED.search(passage.text)
    sums = [f for f in figures(text) if f.dimension == "usd"]
    if match is None or len(sums) != 2 or not re.search(r"\bmonth", text, re.IGNORECASE):
        return
    price, monthly = sorted(sums, key=lambda f: -f.value)
    upkeep = re.search(r"(\d+(?:\.\d+)?)\s?%\s+(?:annual|yearly|per year)", passage.text, re.IGNORECASE)
    months = 12 * float(match[1])
    readings = [f"[{price.quantity.text}] / {months:g}"]
    if upkeep:
        share = 1 + float(upkeep[1]) / 100 * float(match[1])
        readings = [f"[{price.quantity.text}] * {share:.6g} / {months:g}"]
    says = {"value": f"~{monthly.quantity.text.lstrip('~')}", "readings": readings, "in_units": True}
    yield Drafted(kind="expression", line=passage.line, text=shortened(text), says=says)


def _linear(document: Document) -> Iterator[Drafted]:
    """A time on more cards that is shorter than in proportion: two sentences of one section, of one run."""
    known = [r for r in records(document) if r.kind == "sentence"]
    for one in known:
        for two in known:
            if one.section == two.section and 0 < two.line - one.line <= _CLOSE and (pair := _timed(one, two)):
                (cards, time), (more, less) = pair
                says = {"value": less.quantity.text, "gpus": more.quantity.text}
                says |= {"than": time.quantity.text, "than_gpus": cards.quantity.text}
                yield Drafted(kind="linear_speedup", line=two.line, text=shortened(two.words), says=says)


def _timed(one: Record, two: Record) -> tuple[tuple[Stated, Stated], tuple[Stated, Stated]] | None:
    """Cards and time of both; None where one of them is not of a whole run, or of another."""
    sides = [(r.facts.get("gpus", []), r.facts.get("duration", [])) for r in (one, two)]
    if any(len(g) != 1 or len({d.quantity.text for d in t}) not in (1, 2) for g, t in sides):
        return None
    if not _SAME.search(two.words) or any(role in two.facts for role in ("parameters", "tokens", "rate", "mfu")):
        return None
    if {c.name for c in one.cards} != {c.name for c in two.cards} and two.cards:
        return None
    (cards, times), (more, less) = sides
    return (cards[0], times[-1]), (more[0], less[-1])


def _supported(document: Document) -> Iterator[Drafted]:
    """Models that so many tokens are said to be enough for, beside those tokens: in a row, in a section's list."""
    rules = {(m["low"], m["high"]) for p in document.passages for m in _RULE.finditer(p.text)}
    low, high = rules.pop() if len(rules) == 1 else (None, None)
    ratio = {"ratio": f"{low}-{high}" if high else low} if low else {}
    for grid in document.grids:
        tokens_at = [i for i, h in enumerate(grid.header) if re.search(r"\btokens?\b", h, re.IGNORECASE)]
        sizes_at = [i for i, h in enumerate(grid.header) if _SUPPORTS.search(h) and i not in tokens_at]
        if len(tokens_at) != 1 or len(sizes_at) != 1:
            continue
        for row in grid.rows:
            one, other = (next(iter(figures(row.cells[at])), None) for at in (tokens_at[0], sizes_at[0]))
            if one and other and one.dimension == other.dimension == "count" and one.scaled and other.scaled:
                says = {"value": other.quantity.text, "tokens": one.quantity.text, **ratio}
                yield Drafted(kind="tokens_support", line=row.line, text=shortened(" | ".join(row.cells)), says=says)
    for record in records(document):
        tokens, sizes = record.facts.get("tokens", []), [s for s in record.facts.get("parameters", [])]
        sizes += record.facts.get("capacity", [])
        if len(tokens) != 1 or len(sizes) != 1 or record.kind == "sentence":
            continue
        if _SUPPORTS.search(sizes[0].label):
            says = {"value": sizes[0].quantity.text, "tokens": tokens[0].quantity.text, **ratio}
            text = record.told(f"{tokens[0].quantity.text} tokens for {sizes[0].quantity.text} parameters")
            yield Drafted(kind="tokens_support", line=sizes[0].line, text=shortened(text), says=says)
