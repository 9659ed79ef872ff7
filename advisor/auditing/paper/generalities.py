"""Comparisons of unequal work, ranges with named members, rules of thumb with their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from advisor.auditing.paper import reckoned
from advisor.auditing.paper.document import Document, Passage
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.records import Record, plain_name, records
from advisor.auditing.paper.scopes import stated_of
from advisor.auditing.paper.stated import Stated, size_in
from advisor.auditing.paper.words import phrase

_WAY = re.compile(r"\b(faster|slower|longer|quicker)\b", re.IGNORECASE)
_ACCUMULATION = phrase(
    r"(?:grad(?:ient)?[ _-]?accum\w*)(?:\s+steps?)?\b(?:(?!\bper\b)[^.|]){0,60}?"
    r"\b(?:dominant|slower|slows|bottleneck|main (?:factor|reason|cause)|biggest factor)\b",
    re.IGNORECASE,
)
_REPEATED = re.compile(r"epochs? (?:on|over|of)\b.{0,60}(?:≈|=|equivalent|equals|is like|worth|same as)", re.IGNORECASE)
_LIMIT = re.compile(
    r"\b(?:beyond|after|more than|past)\s+(?=\d).{0,25}epochs?\b.{0,60}\b(?:memori[sz]|no (?:further |more"
    r" )?(?:gain|benefit|value)|useless|nothing)",
    re.IGNORECASE,
)
_FORMULA = re.compile(
    r"^(?P<label>[^:=≈]{3,60})\s*[:=≈]\s*(?:~|≈)?\s*(?:(?P<times>\d+(?:\.\d+)?)\s*[x×*]\s*)?model size(?:\s*\([^)]*\))?"
    r"(?:\s*(?P<op>[/×x*÷])\s*(?P<factor>\d+(?:\.\d+)?))?",
    re.IGNORECASE,
)
_ADAPTED = phrase(
    r"^(?!.*\b(?:memory|VRAM|parameters|optimi[sz]er|cost)\b).*\b(?:reduc\w+|slash\w*|cuts?|lower\w*|sav\w+|fewer|less)\b[^.;]{0,40}"
    r"\b(?:FLOPs?|floating[- ]point operations|compute|computations?)\b",
    re.IGNORECASE,
)
_SAYS_OPTIMAL = phrase(
    r"(?:optimal|chinchilla)[^.;]{0,60}?(?:\bwould be|\bis\b|:|=|≈|→|\bsuggests?|\bneeds?|\brequires?"
    r"|\bmeans?)[^.;]{0,45}\btokens?\b"
    r"|^(?:for|a) [^.;]{0,40}(?:that's|that is|needs?|requires?|≈|=)[^.;]{0,25}\btokens?\b",
    re.IGNORECASE,
)
_LOWER_LOSS = phrase(
    r"\b(?:lower|better|smaller|higher) (?:\w+ )?(?:loss|perplexity)\b"
    r"|\b(?:loss|nats|perplexity)\b[^;]{0,90}\b(?:better|stronger|superior)\b[^.;]{0,20}\b(?:model|LM|tokeni[sz]er)\b",
    re.IGNORECASE,
)
_PER_BYTE = re.compile(r"\bper[- ](?:byte|character|char)\b|\bnot\b|n't\b|\bcannot\b", re.IGNORECASE)
_CLEARLY = 1.3
_OPTIMAL = re.compile(r"chinchilla|compute[- ]optimal|tokens[- ]per[- ]param|\b20\s?[x×]\s", re.IGNORECASE)


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such claim of passages and tables."""
    known = records(document)
    yield from _unequal(document, known)
    yield from _ranges(document)
    yield from _losses(document, known)
    yield from _formulas(document.passages)
    yield from _totals(document, known)
    expansion = re.search(r"(?:2\.67|8/3|2\.66)", document.text)
    before = ""
    for passage in document.passages:
        text, line = passage.text, passage.line
        if _ACCUMULATION.search(text) and not re.search(r"\bmemory|VRAM|\bper (?:iter|step)|not\b|\?", text):
            yield Drafted(kind="conclusion", line=line, text=shortened(text), says={"that": "accumulation_slows"})
        yield from _adapted(f"{before} {text}" if text.startswith("This ") else text, passage)
        before = text
        yield from _repetition(text, line)
        yield from _optimal(text, line, passage, known)
        added = re.search(r"SwiGLU.{0,120}?(?:add|more|extra|increas)", text)
        found = [f for f in figures(text) if f.dimension == "fraction" and "flop" in text[f.end : f.end + 25].lower()]
        if added and len(found) == 1:
            says = {"value": found[0].quantity.text} | ({"expansion": "2.667"} if expansion else {})
            yield Drafted(kind="swiglu_cost", line=line, text=shortened(text), says=says)


def _unequal(document: Document, known: Sequence[Record]) -> Iterator[Drafted]:
    """ "A is faster than B" where both have a step's time and a step's tokens; cells that say so of their row."""
    timed = {r.key: r for r in known if r.kind == "row" and r.key and _step(r, known)}
    for passage in document.passages:
        way = _WAY.search(passage.text)
        than = re.search(r"\bthan\b", passage.text[way.end() :]) if way else None
        if way is None or than is None or re.search(r"per token|tokens?/s|tok/s", passage.text, re.IGNORECASE):
            continue
        first = _named(passage.text[: way.start()], timed)
        second = _named(passage.text[way.end() + than.end() :], timed)
        if first and second and first is not second:
            yield from _compared(passage.text, passage.line, first, second, way[1], known)
    for grid in document.grids:
        names = {row.line: timed.get(_key_of(row.line, known)) for row in grid.rows}
        fastest = next(
            (
                names[row.line]
                for row in grid.rows
                if any(re.match(r"\W*fastest\b", c, re.IGNORECASE) for c in row.cells)
            ),
            None,
        )
        for row in grid.rows:
            way = next((m for c in row.cells if len(c) < 30 and (m := _WAY.search(c))), None)
            mine = names[row.line]
            if way and mine and fastest and mine is not fastest and _reversed(mine, fastest, known):
                yield from _compared(" | ".join(row.cells), row.line, mine, fastest, way[1], known)


def _reversed(one: Record, other: Record, known: Sequence[Record]) -> bool:
    """Whether a subject is clearly the faster one by the token; else a cell may mean the step, as its column does."""
    mine, its = _step(one, known), _step(other, known)
    if mine is None or its is None:
        return False
    each, others = (s.quantity.middle / t.quantity.middle for s, t in (mine, its))
    return each * _CLEARLY < others


def _key_of(line: int, known: Sequence[Record]) -> str:
    return next((r.key for r in known if r.kind == "row" and r.line == line), "")


def _step(record: Record, known: Sequence[Record]) -> tuple[Stated, Stated] | None:
    """Seconds and tokens of a step of one subject, where each is stated once."""
    seconds, tokens = (stated_of(role, record, known).stated for role in ("step_time", "step_tokens"))
    return (seconds[0], tokens[0]) if len(seconds) == 1 and len(tokens) == 1 else None


def _named(text: str, timed: dict[str, Record]) -> Record | None:
    words = f" {plain_name(text)} "
    found = {key.split()[0]: r for key, r in timed.items() if f" {key.split()[0]} " in words}
    return next(iter(found.values())) if len(found) == 1 else None


def _compared(
    text: str, line: int, first: Record, second: Record, way: str, known: Sequence[Record]
) -> Iterator[Drafted]:
    one, two = _step(first, known), _step(second, known)
    if one is None or two is None:
        return
    says = {"seconds": one[0].quantity.text, "tokens": one[1].quantity.text}
    says |= {"than_seconds": two[0].quantity.text, "than_tokens": two[1].quantity.text}
    says["way"] = "slower" if way.lower() in ("slower", "longer") else "faster"
    yield Drafted(kind="unequal_work", line=line, text=shortened(text), says=says)


def _ranges(document: Document) -> Iterator[Drafted]:
    """A range of factors or ratios that names members whose own are stated elsewhere."""
    members = _members(document)
    texts = [(p.text, p.line) for p in document.passages]
    texts += [(" | ".join(row.cells), row.line) for grid in document.grids for row in grid.rows]
    for text, line in texts:
        spans = [f for f in figures(text) if f.dimension == "times" and f.quantity.low < f.quantity.high]
        named = [name for name in members if re.search(rf"(?<!\\w){re.escape(name)}(?!\\w)", text)]
        if len(spans) != 1 or len(named) < 2:
            continue
        is_ratio = re.search(r":\s?1\b", text[spans[0].start : spans[0].end + 3]) is not None
        values = [f for name in named for ratio, f in members[name] if ratio == is_ratio]
        if len(values) >= 2 and not text.startswith(tuple(named)):
            says = {"value": spans[0].quantity.text, "members": [f.quantity.text for f in values]}
            yield Drafted(kind="range_of", line=line, text=shortened(text), says=says)


def _members(document: Document) -> dict[str, list[tuple[bool, Figure]]]:
    """Names that begin a row or a line, with the factor (or the ratio to one) that is stated of them."""
    found: dict[str, list[tuple[bool, Figure]]] = {}
    texts = [(p.text, p.text) for p in document.passages]
    texts += [(row.cells[0], row.cells[-1]) for grid in document.grids for row in grid.rows]
    for label, text in texts:
        name = re.match(r"\W{0,2}([A-Z][A-Za-z]+[A-Z0-9][\w-]*|[A-Z][a-z]{4,})\b", label)
        if name is None or (label is text and ":" not in text[:60]):
            continue
        for figure in figures(text):
            if figure.dimension == "times" and figure.quantity.low == figure.quantity.high:
                ratio = re.search(r":\s?1$", figure.raw) is not None
                found.setdefault(name[1], []).append((ratio, figure))
                break
    return found


def _losses(document: Document, known: Sequence[Record]) -> Iterator[Drafted]:
    """The best loss among models of several vocabularies; a loss below what is predicted for the optimum."""
    sizes = {s.quantity.text for r in known for s in r.facts.get("vocabulary", []) if s.quantity.low >= 1000}
    for passage in document.passages:
        best = re.search(r"\b(?:best|lowest|better)\s+(?:\w+\s+){0,2}loss\b", passage.text, re.IGNORECASE)
        if best and len(sizes) >= 2:
            yield Drafted(
                kind="compared_losses",
                line=passage.line,
                text=shortened(passage.text),
                says={"vocabularies": sorted(sizes)},
            )
        told = _vocabularies(passage.text)
        per_token = _LOWER_LOSS.search(passage.text) and not _PER_BYTE.search(passage.text)
        if len(told) == 2 and per_token and not best:
            yield Drafted(
                kind="compared_losses", line=passage.line, text=shortened(passage.text), says={"vocabularies": told}
            )
    for grid in document.grids:
        names = [h.lower() for h in grid.header]
        promised = next(
            (
                i
                for i, n in enumerate(names)
                if re.search(r"(?:expected|predicted|projected).*(?:optimal|final|loss)", n)
            ),
            None,
        )
        reached = [i for i, n in enumerate(names) if re.search(r"loss", n) and i != promised]
        if promised is None or not reached or not re.search(r"loss", " ".join((*grid.headings, *names))):
            continue
        for row in grid.rows:
            later, now = figures(row.cells[promised]), figures(row.cells[reached[-1]])
            if later and now and later[0].dimension == now[0].dimension == "count" and 0.5 < now[0].value < 15:
                says = {"value": later[0].quantity.text, "reached": now[0].quantity.text}
                yield Drafted(kind="loss_prediction", line=row.line, text=shortened(" | ".join(row.cells)), says=says)


def _vocabularies(text: str) -> list[str]:
    """The sizes of vocabularies that a sentence sets against each other."""
    if not re.search(r"\bvocab|\btokeni[sz]er", text, re.IGNORECASE):
        return []
    return [f.quantity.text for f in figures(text) if f.dimension == "count" and 1000 <= f.value <= 1e6]


def _formulas(passages: Sequence[Passage]) -> Iterator[Drafted]:
    """ "Optimizer state: model size / 2": parts of the state as shares of the model's size, and their total."""
    parts: dict[int, list[float]] = {}
    unit: dict[int, float] = {}
    for passage in passages:
        match = _FORMULA.match(passage.text)
        if match is None:
            continue
        share = float(match["times"] or 1)
        if match["factor"]:
            share = share / float(match["factor"]) if match["op"] in "/÷" else share * float(match["factor"])
        label = match["label"].lower()
        if re.search(r"total|vram (?:needed|required)", label):
            if len(listed := parts.get(passage.section, [])) >= 2:
                says = {"value": f"~{share:g} x", "parts": [f"{part:g} x" for part in listed]}
                yield Drafted(kind="state_total", line=passage.line, text=shortened(passage.text), says=says)
            continue
        parts.setdefault(passage.section, []).append(share)
        if re.search(r"param|weights", label) and re.search(r"fp16|bf16", label):
            unit[passage.section] = 2 / share
        if re.search(r"optimi[sz]er|adam", label) and not re.search(
            r"8-?bit|sgd|adafactor|lion", passage.text, re.IGNORECASE
        ):
            each = share * unit.get(passage.section, 4.0)
            yield Drafted(
                kind="optimizer_state", line=passage.line, text=shortened(passage.text), says={"value": f"{each:g}"}
            )


def _totals(document: Document, known: Sequence[Record]) -> Iterator[Drafted]:
    """ "2000 iterations, 6B tokens" of runs whose tokens a step stand in a table."""
    stated = [s for r in known for s in r.facts.get("step_tokens", [])]
    steps = list(dict.fromkeys(f"[{s.quantity.text}]" for s in stated))
    refuted = reckoned.refuted(document, known)
    steps += dict.fromkeys(f"( {reading} )" for s in stated for reading in refuted.get(id(s), ()))
    if not 1 <= len(steps) <= 8:
        return
    for record in known:
        if record.kind != "sentence" or {len(record.facts.get(role, ())) for role in ("steps", "tokens")} != {1}:
            continue
        tokens, count = record.facts["tokens"][0], record.facts["steps"][0]
        text = re.search(r"\bper\b|/ ?(?:step|iter)", record.words)
        if text is None and tokens.quantity.low >= 1e6:
            readings = [f"[{count.quantity.text}] * {each}" for each in steps]
            says = {"value": f"~{tokens.quantity.text.lstrip('~')}", "readings": readings, "in_units": True}
            yield Drafted(kind="expression", line=record.line, text=shortened(record.words), says=says)


def _adapted(words: str, passage: Passage) -> Iterator[Drafted]:
    """As "LoRA cuts the FLOPs by 95 %", "to 5 %"."""
    cut = [f for f in figures(passage.text) if f.dimension == "fraction"]
    if _ADAPTED.search(passage.text) and len(cut) == 1 and re.search(r"\b(?:LoRA|adapters?)\b", words):
        left = re.search(r"\bto (?:only |just |about |under |below |~)?$", passage.text[: cut[0].start])
        says = {"value": f"{100 * (1 - cut[0].value):g} %" if left else cut[0].quantity.text}
        yield Drafted(kind="adapter_saving", line=passage.line, text=shortened(passage.text), says=says)


def _repetition(text: str, line: int) -> Iterator[Drafted]:
    found = figures(text)
    epochs = [f for f in found if f.dimension == "count" and f.noun.startswith("epoch")]
    tokens = [f for f in found if f.dimension == "count" and f.noun.startswith("token") and f.scaled]
    if _REPEATED.search(text) and epochs and len(tokens) == 2 and epochs[0].start < tokens[0].start:
        says = {
            "value": f"~{tokens[1].quantity.text.lstrip('~')}",
            "tokens": tokens[0].quantity.text,
            "epochs": epochs[0].quantity.text,
        }
        yield Drafted(kind="repetition_worth", line=line, text=shortened(text), says=says)
    if _LIMIT.search(text) and epochs:
        yield Drafted(
            kind="repetition_limit", line=line, text=shortened(text), says={"epochs": epochs[0].quantity.text}
        )


def _optimal(text: str, line: int, passage: Passage, known: Sequence[Record]) -> Iterator[Drafted]:
    """ "Chinchilla-optimal for 7B is 140B tokens"."""
    if (
        not _SAYS_OPTIMAL.search(text)
        or not _OPTIMAL.search(text)
        or re.search(r"over-?train|beyond|more than|times|below|under|instead|≈ ?\d+ ?[x×]|\d[x×] ", text)
    ):
        return
    found = figures(text)
    tokens = [
        f
        for f in found
        if f.dimension == "count" and re.match(r"(?:training )?tokens?\b(?! per)", f.noun) and f.value > 1e8
    ]
    sizes = [f for f in found if f.dimension == "count" and re.match(r"(?:param|model)", f.noun) and f.value > 1e7]
    size = sizes[0].quantity if len(sizes) == 1 else (size_in(text) if not sizes else None)
    if len(tokens) == 1 and size is not None and size.middle < tokens[0].value:
        says = {"value": tokens[0].quantity.text, "parameters": size.text}
        yield Drafted(kind="optimal_tokens", line=line, text=shortened(text), says=says)
