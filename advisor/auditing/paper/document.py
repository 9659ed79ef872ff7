"""A report's text cut into passages and tables, each with its line: Markdown, HTML, or plain text of a PDF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.auditing.paper.hypertext import lines_of_html
from advisor.readers.bounded import read_text
from advisor.readers.markdown_text import repaired

_FENCE = re.compile(r"\s*(?:```|~~~)")
_HEADING = re.compile(r"^(#{1,6})\s+(.*\S)")
_NUMBERED = re.compile(r"^(?:\d+\.)+\d*\s+[A-Z][^.|]{2,70}$")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_POWER = re.compile(
    r"(\d(?:\.\d+)?)\s?(?:[×x·*]|\\times|\\cdot)\s?10(?:\^|\*\*)?((?<=[\^*])\{?-?\d{1,2}\}?|[⁻⁰¹²³⁴-⁹]{1,3})(?!\d)"
)
_BARE_POWER = re.compile(r"(?<![\w.])10(?:\^|\*\*)?((?<=[\^*])\{?-?\d{1,2}\}?|[⁻⁰¹²³⁴-⁹]{1,3})(?![\d.])")
_IN_MATHS = re.compile(
    r"\$\s?(\\sim\s?|\\approx\s?|~\s?)?(\d[\d.,]*(?:e-?\d+)?)\s?\$(?![\d.])"
)  # $\sim 10^{15}$ is no money
_BULLET = re.compile(r"^\s*(?:[-*+•◦▪‣]|\d{1,2}[.)])\s+(?=\S)")
_PART = re.compile(
    r"(?:Part|Step|Phase|Stage|Strategy|Option|Case|Example|Chapter|Section|Scenario|Method)\b", re.IGNORECASE
)
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_SPELT_OUT = re.compile(
    rf"(?<![-\w])({'|'.join(_NUMBERS[1:])})(?=[ -](?:full |more |whole |training )?(?:seconds?|minutes?|hours?|days?"
    r"|weeks?|months?|years?|epochs?|passes|bytes|bits|billion|million|trillion|percent|per cent|GPUs|cards"
    r"|devices|nodes"
    r"|layers|heads|checkpoints)\b)",
    re.IGNORECASE,
)
_RULE = re.compile(r"^[\s|:+=\-─━═]*$")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_FOOTNOTE = re.compile(r"(?<=\S)\[\^[\w-]{1,20}\]")
_SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z~$\d✅❌⚠])")
_SHORTENED = re.compile(
    r"\b(?:e\.g|i\.e|vs|approx|est|cf|ca|al|Fig|Eq|Sec|Tab|No|resp|incl|max|min|avg)\.$", re.IGNORECASE
)
_LABELLED = re.compile(r"\s*[A-Z][\w/-]*(?: [\w/-]+){0,3}\s*:\s+\S")
_LONGEST = 12  # lines of a paragraph that a sentence may run on
_MOST_LINES = 100_000


@dataclass(frozen=True, kw_only=True)
class Passage:
    """One sentence, bullet or line of a code block, without markup."""

    text: str
    line: int
    headings: tuple[str, ...]  # from the title down
    fenced: bool = False
    section: int = 0  # counts headings: passages of one number stand together
    order: int = 0  # of reading, tables included
    under: str = ""  # the bullet that this one stands under


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table."""

    line: int
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table; every row has as many cells as the header."""

    header: tuple[str, ...]
    rows: tuple[Row, ...]
    line: int
    headings: tuple[str, ...]
    section: int = 0
    order: int = 0


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report: its title, and passages and tables in the order of reading."""

    name: str
    title: str
    passages: tuple[Passage, ...]
    grids: tuple[Grid, ...]
    lines: tuple[tuple[int, str], ...] = ()  # as they were cut

    def line_of(self, number: str, first: int) -> int:
        """The line of a paragraph, from one of its lines on, that prints a number: a wrapped sentence has several."""
        following = [(n, text) for n, text in self.lines if first <= n < first + _LONGEST]
        for at, text in following:
            if not text.strip():
                break
            if re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d]|[.,]\d)", text):
                return at
        return first

    @property
    def text(self) -> str:
        """All words of passages and tables, for what holds of the whole report."""
        cells = (
            cell for grid in self.grids for row in (Row(line=0, cells=grid.header), *grid.rows) for cell in row.cells
        )
        return "\n".join([*(p.text for p in self.passages), *cells])


def read_document(path: Path) -> Document:
    """Read a report; AdvisorError where the file cannot be read."""
    text = repaired(read_text(path)).replace("\r\n", "\n")
    markup = path.suffix.lower() in (".html", ".htm", ".xhtml") or re.match(
        r"\s*<(?:!doctype|html)", text, re.IGNORECASE
    )
    lines = lines_of_html(text) if markup else list(enumerate(text.split("\n"), 1))
    return document_of(lines[:_MOST_LINES], path.name)


def document_of(lines: Sequence[tuple[int, str]], name: str) -> Document:
    """Cut numbered lines of Markdown-like text."""
    cutter = _Cutter(lines)
    cutter.cut()
    titles = [h for p in cutter.passages for h in p.headings[:1]]
    first = next((p.text for p in cutter.passages if len(p.text) < 200), name)
    return Document(
        name=name,
        title=titles[0] if titles else first,
        passages=tuple(cutter.passages),
        grids=tuple(cutter.grids),
        lines=tuple(lines),
    )


class _Cutter:
    """Walks the lines once; what it has found stands in `passages` and `grids`."""

    def __init__(self, lines: Sequence[tuple[int, str]]) -> None:
        self.lines = lines
        self.passages: list[Passage] = []
        self.grids: list[Grid] = []
        self._levels: list[tuple[int, str]] = []
        self._section = self._order = 0
        self._fenced = False
        self._bullets: list[tuple[int, str]] = []  # indentation and text of those that the present one stands under

    def cut(self) -> None:
        """Every line becomes part of a heading, a table or a passage."""
        at = 0
        while at < len(self.lines):
            number, line = self.lines[at]
            if _FENCE.match(line):
                self._fenced = not self._fenced
                at += 1
            elif re.match(r"\s*<!--.*-->\s*$", line) or not line.strip() or _RULE.match(line):
                at += 1
            elif not self._fenced and (found := _heading(self.lines, at)):
                self._enter(*found, number)
                at += 1
            elif grid := _grid(self.lines, at, self._fenced):
                self._order += 1
                self._add_grid(grid[0])
                at = grid[1]
            elif self._fenced:
                self._add(plain(line), number)
                at += 1
            else:
                at = self._paragraph(at)

    def _enter(self, level: int, text: str, line: int) -> None:
        self._levels = [entry for entry in self._levels if entry[0] < level] + [(level, plain(text))]
        self._section += 1
        self._bullets = []
        self._add(plain(text), line)

    def _add_grid(self, rows: list[Row]) -> None:
        header, *body = rows
        names = tuple(h for _, h in self._levels)
        self.grids.append(
            Grid(
                header=header.cells,
                rows=tuple(body),
                line=header.line,
                headings=names,
                section=self._section,
                order=self._order,
            )
        )

    def _add(self, text: str, line: int, under: str = "") -> None:
        if text:
            self._order += 1
            names = tuple(h for _, h in self._levels)
            self.passages.append(
                Passage(
                    text=text,
                    line=line,
                    headings=names,
                    fenced=self._fenced,
                    section=self._section,
                    order=self._order,
                    under=under,
                )
            )

    def _under(self, at: int, text: str) -> str:
        """The bullet that the paragraph at a line stands under; it is remembered itself if it is one."""
        line = self.lines[at][1]
        indent = len(line) - len(line.lstrip())
        if not _BULLET.match(line):
            self._bullets = self._bullets if indent else []
            return ""
        self._bullets = [entry for entry in self._bullets if entry[0] < indent]
        under = self._bullets[-1][1] if self._bullets else ""
        self._bullets.append((indent, text.strip()))
        return under

    def _paragraph(self, at: int) -> int:
        """Consecutive lines of prose or one bullet, cut into sentences; the index after them."""
        end = at + 1
        while end < len(self.lines) and _continues(self.lines, end):
            end += 1
        text = ""
        starts: list[tuple[int, int]] = []
        for number, line in self.lines[at:end]:
            starts.append((len(text), number))
            text += plain(_BULLET.sub("", line) if not starts[1:] else line) + " "
        under = self._under(at, text)
        for start, sentence in sentences(text):
            self._add(sentence, next(n for offset, n in reversed(starts) if offset <= start), under)
        return end


def plain(text: str) -> str:
    """Text without Markdown's marks; dashes, signs and small numbers before their units spelt one way."""
    text = _LINK.sub(r"\1", text)
    text = re.sub(r"<br\s*/?>", " ", _FOOTNOTE.sub("", text))
    text = re.sub(r"(?<=[\d)A-Z])\s?\*\s?(?=[\d(~$A-Z])", " × ", text)  # a product, no emphasis
    text = re.sub(r"(?<=\w) \* (?=\w)", " × ", text)
    text = re.sub(r"\*{1,3}|`+|(?<!\w)__|__(?!\w)|</?[a-z][^>]{0,80}>", "", text)
    text = re.sub(r"^\s*(?:\[[ x?]\]|>+)\s+", "", text).replace("\\$", "$").replace("\\%", "%").replace("\\times", "×")
    text = _POWER.sub(lambda m: f"{m[1]}e{m[2].translate(_RAISED).strip('{}')}", text)
    text = _BARE_POWER.sub(lambda m: f"1e{m[1].translate(_RAISED).strip('{}')}", text)
    text = _IN_MATHS.sub(lambda m: f"{'~' if m[1] else ''}{m[2]}", text)
    text = re.sub(r"[–—‒](?=\s?[~$]?\d)", "-", text).replace("−", "-").replace("\u00a0", " ").replace("\u202f", " ")
    text = _SPELT_OUT.sub(lambda m: str(_NUMBERS.index(m[1].lower()) + 1), text)
    return " ".join(text.split())


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Sentences with the offset at which each begins."""
    start = 0
    for match in _SENTENCE.finditer(text):
        if _SHORTENED.search(text[: match.start()]):
            continue
        if piece := text[start : match.start()].strip():
            yield start, piece
        start = match.end()
    if piece := text[start:].strip():
        yield start, piece


def _heading(lines: Sequence[tuple[int, str]], at: int) -> tuple[int, str] | None:
    """Level and text of a heading: with marks, underlined, or a short line alone that no sentence is."""
    line = lines[at][1]
    if match := _HEADING.match(line):
        return len(match[1]), match[2]
    following = lines[at + 1][1] if at + 1 < len(lines) else ""
    if line.strip() and "|" not in line and re.fullmatch(r"\s*(={3,}|-{3,})\s*", following):
        return (1 if "=" in following else 2), line.strip()
    alone = (at == 0 or not lines[at - 1][1].strip()) and not following.strip()
    words = line.strip()
    bold = re.fullmatch(r"\*\*([^*]{3,80}?):?\*\*:?", words)
    if alone and bold:
        return 6, bold[1]
    if alone and not _BULLET.match(line) and (_NUMBERED.match(words) or _is_title(words)):
        return (3 if re.search(r"\d", words) else 2), words
    return None


def _is_title(words: str) -> bool:
    """Whether a line that stands alone names what follows: short, capital first, no sentence and no stated value."""
    stated = re.search(r"\d[\d,.]*\s*%|[$=|]", words) or (":" in words and not _PART.match(words))
    short = len(words) <= 80 and len(words.split()) <= 13
    return bool(short and not stated and re.match(r"[A-Z]", words) and words[-1] not in ".,;:!")


def _continues(lines: Sequence[tuple[int, str]], at: int) -> bool:
    """Whether a line belongs to the paragraph or bullet above it."""
    line = lines[at][1]
    if not line.strip() or _BULLET.match(line) or _FENCE.match(line) or _RULE.match(line) or _HEADING.match(line):
        return False
    if line.lstrip().startswith("|") or re.match(r"\s*\*\*[^*]+\*\*\s*:?|\s*\*\*[^*]+:\*\*", line):
        return False
    before = lines[at - 1][1]
    if _LABELLED.match(line) and _LABELLED.match(before):
        return False  # one of a list of settings
    return not before.endswith("  ") and not re.search(r":\s*\**\s*$", before) and len(before) > 50


def _grid(lines: Sequence[tuple[int, str]], at: int, fenced: bool) -> tuple[list[Row], int] | None:
    """The table that begins at a line (header first), and the index after it."""
    line = lines[at][1]
    bars = line.count("|") + line.count("│")
    ruled = at + 1 < len(lines) and _ruled(lines[at + 1][1])
    if (bars >= 2 and (ruled or not re.search(r":\s*\d", line))) or (bars == 1 and ruled):
        return _piped(lines, at)
    cells = _apart(line)
    if len(cells) < 3 or not all(re.match(r"[A-Za-z#%$(*]", cell) for cell in cells):
        return None
    rows, end = [Row(line=lines[at][0], cells=tuple(cells))], at + 1
    while end < len(lines) and lines[end][1].strip():
        if not _RULE.match(lines[end][1]):
            found = _apart(lines[end][1])
            if len(found) != len(cells):
                break
            rows.append(Row(line=lines[end][0], cells=tuple(found)))
        end += 1
    return (rows, end) if len(rows) >= 2 else None


def _piped(lines: Sequence[tuple[int, str]], at: int) -> tuple[list[Row], int] | None:
    rows: list[Row] = []
    end, width = at, 0
    while end < len(lines) and ("|" in lines[end][1] or "│" in lines[end][1]):
        if not _RULE.match(lines[end][1].replace("│", "|").replace("┼", "+")):
            cells = _cells(lines[end][1])
            width = width or len(cells)
            rows.append(Row(line=lines[end][0], cells=tuple((cells + [""] * width)[:width])))
        end += 1
    return (rows, end) if len(rows) >= 2 and width >= 2 else None


def _cells(line: str) -> list[str]:
    clean = line.strip().replace("│", "|")
    clean = clean[1:] if clean.startswith("|") else clean
    clean = clean[:-1] if clean.endswith("|") else clean
    return [plain(cell) for cell in clean.split("|")]


def _ruled(line: str) -> bool:
    return "-" in line and _RULE.match(line) is not None


def _apart(line: str) -> list[str]:
    return [plain(cell) for cell in re.split(r"\s{2,}|\t", line.strip()) if cell.strip()]
