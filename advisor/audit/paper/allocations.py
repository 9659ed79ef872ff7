"""What a text says of compute-optimal training: ratios of named models, formulas of C, budgets with two allocations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from advisor.audit.paper.document import Document, Grid, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import figures
from advisor.audit.paper.stated import size_told
from advisor.audit.paper.words import SPARSE_MODEL, phrase
from advisor.audit.trainings import named
from advisor.units import format_count

_OPTIMAL = re.compile(r"\b(?:Chinchilla|compute)[- ]optimal\b", re.IGNORECASE)
_NOT_OPTIMAL = re.compile(
    r"\bbeyond\b|\bpast\b|\bfar\b|\bnot\b|n't\b|\bover-?train|\bbelow\b|\bunder\b|\bthan\b|\binstead\b|\bvs\b|\bwould\b|\?"
    r"|\bshould\b|\bratio\b|\btimes\b|\d\s?[x×]\b|\bpoint\b|\bto be\b|\bnear\b|\bminimum\b|\bif\b",
    re.IGNORECASE,
)
_ROOT = re.compile(
    r"\b(?P<what>params|parameters|N(?:_opt)?|model_size|n_params)\b[^=≈\n]{0,12}[=≈]\s*(?:math\.|np\.)?(?:sqrt|√)\s?\(?\s*"
    r"(?:C|compute|flops)\s*/\s*(?:\(?\s*(?P<six>6)\s?[*×x]\s?(?P<ratio>\d+(?:\.\d+)?)\s?\)?|(?P<by>\d+(?:\.\d+)?))\s*\)?",
    re.IGNORECASE,
)
_POWER = re.compile(
    r"\bN(?:_?opt|_?optimal)?\b\s*[=≈∝]\s*(?P<factor>0?\.\d+)\s*[*×·x]\s*C\s*\^\s*\{?\s*0?\.50?\b", re.IGNORECASE
)
_BUDGET = re.compile(r"\bbudget\b|\bcompute\b|\bFLOPs?\b|\bscale\b", re.IGNORECASE)
_PAIR_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s?([MBT])(?:illion)?\b(?!\s?tok)", re.IGNORECASE)
_PAIR_TOKENS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s?([MBT])\s?tok", re.IGNORECASE)
_SCALES = {"M": 1e6, "B": 1e9, "T": 1e12}
_INSTEAD = phrase(r"^\W*(?:better|instead|optimal|should be|chinchilla)\b", re.IGNORECASE)
_SAME_BUDGET = re.compile(r"\b(?:budget for|same (?:compute|budget|FLOPs)|instead of)\b", re.IGNORECASE)
_EQUAL = 1.6  # times: budgets are told in round numbers
_LEAST_FORMULA, _MOST_FORMULA = 60.0, 240.0  # of C: between 10 and 40 tokens a parameter
_NEAR = 4  # lines


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such statement of sentences, formulas and tables."""
    lead = ""
    for passage in document.passages:
        yield from _named_optimal(passage, lead)
        yield from _formula(passage)
        if passage.text.endswith(":"):
            lead = passage.text
    for one, other in pairwise(document.passages):
        if other.section == one.section and other.line - one.line <= _NEAR:
            yield from _instead(one, other)
    for grid in document.grids:
        if _BUDGET.search(grid.header[0]):
            yield from _budgets(grid)


def _named_optimal(passage: Passage, lead: str) -> Iterator[Drafted]:
    """As "LLaMA 13B: trained on 1T tokens (Chinchilla-optimal)"."""
    text = passage.text
    if not _OPTIMAL.search(text) or _NOT_OPTIMAL.search(text) or SPARSE_MODEL.search(text):
        return
    tokens = [f for f in figures(text) if f.dimension == "count" and f.noun.startswith("token") and f.scaled]
    around = [text, lead, *reversed(passage.headings[-1:])]
    size = next((s for words in around if words and (s := size_told(words))), None)
    training = next((t for words in around if words and (t := named(words))), None)
    if len(tokens) == 1:
        told = tokens[0].quantity.text
    elif not tokens and training and training[1].tokens and re.search(r"\btrain|\bused?\b", text, re.IGNORECASE):
        told = f"{training[1].tokens[0] / 1e9:g} billion"
    else:
        return
    if size is not None and re.search(r"\btrain(?:ed|s|ing)?\b", text, re.IGNORECASE):
        says = {"value": told, "parameters": size.text}
        yield Drafted(kind="optimal_tokens", line=passage.line, text=shortened(text), says=says)


def _formula(passage: Passage) -> Iterator[Drafted]:
    """As "params = sqrt(C / 6)", "N_opt = 0.4 · C^0.5": C = 6·N·D with 20 tokens a parameter is 120·N²."""
    if match := _ROOT.search(passage.text):
        divisor = float(match["by"] or 6 * float(match["ratio"]))
    elif match := _POWER.search(passage.text):
        divisor = 1 / float(match["factor"]) ** 2
    else:
        return
    says = {"value": "20", "readings": [f"[{divisor:.4g}] / 6"], "in_units": True}
    if not _LEAST_FORMULA <= divisor <= _MOST_FORMULA:
        what = f"{passage.text} (6·N·D = C: {divisor / 6:.3g} tokens a parameter)"
        yield Drafted(kind="expression", line=passage.line, text=shortened(what), says=says)


def _pair(text: str) -> tuple[float, float] | None:
    """Parameters and tokens of one training that a cell or bullet states."""
    tokens = [float(n) * _SCALES[s.upper()] for n, s in _PAIR_TOKENS.findall(text)]
    sizes = [float(n) * _SCALES[s.upper()] for n, s in _PAIR_SIZE.findall(_PAIR_TOKENS.sub(" ", text))]
    return (sizes[0], tokens[0]) if len(sizes) == len(tokens) == 1 and sizes[0] > 0 < tokens[0] else None


def _budgets(grid: Grid) -> Iterator[Drafted]:
    """Rows of one budget each with two allocations of it: both come to as much compute."""
    for row in grid.rows:
        pairs = [pair for cell in row.cells[1:] if (pair := _pair(cell))]
        if len(pairs) == 2 and not SPARSE_MODEL.search(" ".join(row.cells)):
            yield from _unequal(pairs, " | ".join(row.cells), row.line)


def _instead(one: Passage, other: Passage) -> Iterator[Drafted]:
    """As "a budget for 10B on 100B tokens", "better: 3B on 1T tokens"."""
    first, second = _pair(one.text), _pair(other.text)
    if first and second and _INSTEAD.search(other.text) and _SAME_BUDGET.search(f"{one.text} {other.text}"):
        yield from _unequal([first, second], other.text, other.line)


def _unequal(pairs: Sequence[tuple[float, float]], text: str, line: int) -> Iterator[Drafted]:
    (n, d), (m, t) = pairs
    ratio = (m * t) / (n * d)
    if max(ratio, 1 / ratio) > _EQUAL and math.isfinite(ratio):
        product = f"[{n / 1e6:g} M] * [{d / 1e6:g} M]"
        says = {"value": f"~{m * t:.4g}", "readings": [product], "in_units": True}
        words = f"{text} ({format_count(m)} × {format_count(t)} against {format_count(n)} × {format_count(d)})"
        yield Drafted(kind="expression", line=line, text=shortened(words), says=says)
