"""What a text praises, or expects, that its own numbers do not bear out: an idle card, a model that sees few tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from advisor.audit.paper.cards import Mention
from advisor.audit.paper.document import Document, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import figures
from advisor.audit.paper.records import Record, records
from advisor.audit.paper.training import Context
from advisor.audit.paper.words import ADAPTERS, NOT_TRAINING, TRAINING, phrase
from advisor.audit.quantity import Quantity

_PRAISED = re.compile(
    r"\b(?:excellent|outstanding|impressive|exceptional|amazing|superb|incredible|blazing|optimal|great|efficient)\b"
    r"|\bA\+",
    re.IGNORECASE,
)
_NOT_SO = re.compile(
    r"\bnot\b|n't\b|\bif\b|\bcould\b|\bwould\b|\bless\b|\bmore\b|\bthan\b|\bvs\b|\bsav|\breduc|\bexpect|\btarget|\?|\bgoal",
    re.IGNORECASE,
)
_OF_MEMORY = re.compile(r"\bmemory\b|\bv?ram\b", re.IGNORECASE)
_FREE = re.compile(r"\s*\+?\s*(?:available|free|unused|headroom|remaining)\b", re.IGNORECASE)
_OF_EACH = re.compile(r"\s*(?:/|per|each|on each) ?(?:GPU|card|device)?\b", re.IGNORECASE)
_CONVERGES = re.compile(
    r"\b(?:full(?:y)?|complete|proper|reach) (?:convergence|converged?|trained)\b|\bto converge\b", re.IGNORECASE
)
_FIRST_LOSS = phrase(
    r"\b(?:initial|first|step[- ]?0|starting) (?:step )?loss\b|\bloss\b[^.;:]{0,20}\bstep 0\b", re.IGNORECASE
)
_NOT_UNTRAINED = re.compile(
    r"fine-?tun|\bLoRA\b|\bresum|pre-?trained|\bSFT\b|from_pretrained|continu|distill|classif|regress|diffusion|\bimages?\b"
    r"|\bspeech|\baudio|\breward|\bRL\b|\bvalue loss|\bpolicy|normali[sz]ed loss|\bbits\b|\bbyte",
    re.IGNORECASE,
)
_LANGUAGE = re.compile(r"\b(?:CausalLM|GPT\w*|language model|LLM|LLaMA\w*|nanochat)\b|\w+ForCausalLM", re.IGNORECASE)
_LEAST_MODEL, _APART = 1e7, 10.0  # parameters; times from the smallest model to the largest
_UNTRAINED = 15.0  # losses above are sums, judged elsewhere


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such claim of a sentence or bullet."""
    if not TRAINING.search(document.text):
        return
    known = records(document)
    context = Context(document, known)
    for passage in document.passages:
        if _PRAISED.search(passage.text) and not _NOT_SO.search(passage.text):
            yield from _slow(passage, known, context)
            yield from _empty(passage, context)
        yield from _enough(passage, known, context)
    yield from _first_loss(document)


def _best(context: Context) -> Mention | None:
    """The one chip of a report."""
    chips = {m.name.upper(): m for m in context.everywhere}
    return next(iter(chips.values())) if len(chips) == 1 else None


def _sizes(known: Sequence[Record]) -> list[Quantity]:
    """The models of a report, the smallest first; none where they are too far apart to be meant together."""
    stated = {s.quantity.middle: s.quantity for r in known for s in r.facts.get("parameters", ())}
    sizes = [stated[size] for size in sorted(stated) if size >= _LEAST_MODEL]
    return sizes if sizes and sizes[-1].middle < _APART * sizes[0].middle else []


def _slow(passage: Passage, known: Sequence[Record], context: Context) -> Iterator[Drafted]:
    """As "15,570 tokens/sec is excellent", of a small model: reckoned as if one card did it all."""
    card, rates = _best(context), [f for f in figures(passage.text) if f.dimension == "rate"]
    sizes = _sizes(known)
    if card is None or not sizes or len(rates) != 1 or NOT_TRAINING.search(passage.text):
        return
    says = {"what": "rate", "value": rates[0].quantity.text, "parameters": sizes[-1].text, "gpu": card.key}
    yield Drafted(kind="praised", line=passage.line, text=shortened(passage.text), says=says)


def _empty(passage: Passage, context: Context) -> Iterator[Drafted]:
    """As "2.5 GB per GPU (efficient)" on a card of 80, "excellent memory efficiency (90 % available)"."""
    text, card = passage.text, _best(context)
    around = " ".join((text, *passage.headings))
    if card is None or not _OF_MEMORY.search(text) or ADAPTERS.search(around) or NOT_TRAINING.search(around):
        return
    says: dict[str, object] = {"what": "memory", "gpu": card.key}
    found = figures(text)
    sizes = [f for f in found if f.dimension == "bytes" and _OF_EACH.match(text, f.end)]
    shares = [f for f in found if f.dimension == "fraction"]
    if len(sizes) == 1 and not shares:
        yield Drafted(
            kind="praised", line=passage.line, text=shortened(text), says=says | {"value": sizes[0].quantity.text}
        )
    elif len(shares) == 1 and not sizes:
        free = _FREE.match(text, shares[0].end)
        value = f"{100 * (1 - shares[0].quantity.middle):.3g} %" if free else shares[0].quantity.text
        yield Drafted(kind="praised", line=passage.line, text=shortened(text), says=says | {"value": value})


def _enough(passage: Passage, known: Sequence[Record], context: Context) -> Iterator[Drafted]:
    """As "1000 steps for full convergence" of a model that sees a hundredth of a token for each parameter by then."""
    steps = [f for f in figures(passage.text) if f.dimension == "count" and re.match(r"(?:training )?steps\b", f.noun)]
    sizes = _sizes(known)
    if len(steps) != 1 or not _CONVERGES.search(passage.text) or not sizes:
        return
    if ADAPTERS.search(context.text) or re.search(r"fine-?tun", context.text, re.IGNORECASE):
        return
    told = {role: {s.quantity.middle for r in known for s in r.facts.get(role, ())} for role in _OF_A_STEP}
    if any(len(told[role]) != 1 for role in _OF_A_STEP[:2]) or len(told["accumulation"]) > 1 or not told["gpus"]:
        return
    each = max(told["gpus"]) * max(told["accumulation"], default=1.0)
    for role in _OF_A_STEP[:2]:
        each *= max(told[role])
    tokens = each * steps[0].quantity.middle
    says = {"value": sizes[0].text, "tokens": f"{tokens / 1e6:.4g} M"}
    yield Drafted(kind="tokens_support", line=passage.line, text=shortened(passage.text), says=says)


_OF_A_STEP = ("micro_batch", "sequence", "accumulation", "gpus")


def _first_loss(document: Document) -> Iterator[Drafted]:
    """As "Initial loss (step 0): 0.55" of a language model that nobody had trained before."""
    if _NOT_UNTRAINED.search(document.text) or not _LANGUAGE.search(document.text):
        return
    told: set[int] = set()
    for passage in document.passages:
        own = _FIRST_LOSS.search(passage.text)
        above = passage.headings and _FIRST_LOSS.search(passage.headings[-1])
        found = [f for f in figures(passage.text[own.end() :] if own else passage.text) if f.dimension == "count"]
        labelled = re.match(r"[^:]{2,40}:\s*~?\d+\.\d+$", passage.text)
        if passage.section in told or not (own or (above and labelled)) or passage.text in passage.headings:
            continue
        losses = [f for f in found if "." in f.raw and 0 < f.value < _UNTRAINED]
        if len(losses) == 1:
            told.add(passage.section)
            says = {"value": losses[0].quantity.text}
            yield Drafted(kind="untrained_loss", line=passage.line, text=shortened(passage.text), says=says)
