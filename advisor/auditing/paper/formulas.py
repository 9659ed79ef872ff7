"""Formulas that a text writes in names, "total = 2 × vocab × width + ...", reckoned for its tables and sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from advisor.auditing.expression import gives
from advisor.auditing.paper.document import Document, Grid
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures

_ASSIGNED = re.compile(r"^\W*(?P<name>[A-Za-z][\w ]{0,40}?)\s*[=≈]\s*(?P<value>[^=≈#]+?)\s*(?:#.*)?$")
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<number>\d[\d,]*(?:\.\d+)?)|(?P<op>[×x*·/÷+()-])|(?P<power>[²³]))"
)
_SIGNS = {"×": "*", "·": "*", "x": "*", "÷": "/"}
_COUNTING = re.compile(r"^(?:(?:the|total|overall|number|num|n|of|count)_)+|_(?:count|total)$")
_BOUND = re.compile(r"\b([A-Za-z_]\w*)\s?=\s?(\d[\d,]*(?:\.\d+)?)(?![\w.])")
_MOST_TOKENS, _DEEPEST = 40, 4


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A name and the tokens of what it is said to be."""

    target: str
    tokens: tuple[str, ...]

    @property
    def names(self) -> set[str]:
        """The names that it needs."""
        return {token for token in self.tokens if re.match(r"[a-z_]", token)}


def drafts(document: Document) -> Iterator[Drafted]:
    """Cells and sentences that state a formula's result beside its arguments."""
    stated = _formulas(document)
    for formula in stated.values():
        if not formula.names:
            continue
        for grid in document.grids:
            yield from _of_table(formula, grid, stated)
        if any(_comes_out(formula, grid, stated) for grid in document.grids):
            yield from _of_sentences(formula, document, stated)


def _formulas(document: Document) -> dict[str, Formula]:
    """What is assigned to each name; a name that is given several values means no one of them."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for passage in document.passages:
        match = _ASSIGNED.match(passage.text)
        if match and (tokens := _tokens(match["value"])):
            found.setdefault(_plain(match["name"]), set()).add(tokens)
    return {name: Formula(target=name, tokens=next(iter(each))) for name, each in found.items() if len(each) == 1}


def _tokens(text: str) -> tuple[str, ...]:
    """Names, numbers and signs; empty where the text is no arithmetic of them."""
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None or len(tokens) > _MOST_TOKENS:
            return ()
        if match["power"]:
            if not tokens or not re.match(r"[\w]", tokens[-1]):
                return ()
            tokens += ["*", tokens[-1]] * (1 if match["power"] == "²" else 2)
        elif match["op"] or match["name"] == "x":
            sign = match["op"] or "x"
            tokens.append(_SIGNS.get(sign, sign))
        else:
            tokens.append(_plain(match["name"]) if match["name"] else match["number"])
        at = match.end()
    words = sum(bool(re.match(r"\w", token)) for token in tokens)
    signs = sum(token in "*/+-" for token in tokens)
    return tuple(tokens) if words == signs + 1 else ()


def _plain(name: str) -> str:
    """A name in the form in which a column's title and a variable compare."""
    return _COUNTING.sub("", re.sub(r"\W+", "_", re.sub(r"\([^)]*\)", "", name).strip().lower()).strip("_"))


def _reading(formula: Formula, values: Mapping[str, str], stated: Mapping[str, Formula], depth: int = 0) -> str | None:
    """The expression with its arguments put in; None where one of them is nowhere stated."""
    pieces = []
    for token in formula.tokens:
        if re.match(r"\d", token):
            pieces.append(f"[{token}]")
        elif not re.match(r"[a-z_]", token):
            pieces.append(token)
        elif token in values:
            pieces.append(f"[{values[token]}]")
        else:
            other = stated.get(token)
            inner = _reading(other, values, stated, depth + 1) if other and depth < _DEEPEST else None
            if inner is None:
                return None
            pieces.append(f"( {inner} )")
    return " ".join(pieces)


def _rows(formula: Formula, grid: Grid, stated: Mapping[str, Formula]) -> Iterator[tuple[int, Figure, str]]:
    """Line, stated result and reading of each row that has the arguments."""
    names = [_plain(name) for name in grid.header]
    if formula.target not in names:
        return
    at = names.index(formula.target)
    for row in grid.rows:
        result = _alone(row.cells[at])
        values = {
            name: figure.quantity.text
            for name, cell in zip(names, row.cells, strict=True)
            if name != formula.target and (figure := _alone(cell))
        }
        reading = _reading(formula, values, stated) if result else None
        if result and reading and any(f"[{value}]" in reading for value in values.values()):
            yield row.line, result, reading


def _alone(cell: str) -> Figure | None:
    found = figures(cell)
    return found[0] if found and found[0].start <= 2 else None


def _comes_out(formula: Formula, grid: Grid, stated: Mapping[str, Formula]) -> bool:
    """Whether a row agrees with the formula: it is that column's, and what disagrees is an error."""
    return any(gives(_about(result), [reading]) for _, result, reading in _rows(formula, grid, stated))


def _of_table(formula: Formula, grid: Grid, stated: Mapping[str, Formula]) -> Iterator[Drafted]:
    if not _comes_out(formula, grid, stated):
        return
    for line, result, reading in _rows(formula, grid, stated):
        yield _claim(line, f"{formula.target}: {result.raw}", result, reading)


def _of_sentences(formula: Formula, document: Document, stated: Mapping[str, Formula]) -> Iterator[Drafted]:
    """As "depth=3 gives 6M parameters", by the formula for parameters."""
    noun = re.split("_", formula.target)[-1].rstrip("s")
    for passage in document.passages:
        bound = {_plain(name): value for name, value in _BOUND.findall(passage.text)}
        results = _results(passage.text, noun)
        if not bound or not results:
            continue
        reading = _reading(formula, bound, stated)
        if reading and any(f"[{value}]" in reading for value in bound.values()):
            yield _claim(passage.line, passage.text, results[-1], reading)


def _results(text: str, noun: str) -> Sequence[Figure]:
    return [f for f in figures(text) if f.dimension == "count" and len(noun) > 3 and f.noun.startswith(noun)]


def _about(figure: Figure) -> str:
    return f"~{figure.quantity.text.lstrip('~')}"


def _claim(line: int, text: str, result: Figure, reading: str) -> Drafted:
    says = {"value": _about(result), "readings": [reading], "in_units": True}
    return Drafted(kind="expression", line=line, text=shortened(text), says=says)
