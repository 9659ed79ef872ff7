"""A report's text cut into passages and tables, each with its line: Markdown, HTML, or plain text of a PDF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from advisor.readers.chunks import read_text
from advisor.readers.markdown_text import Table, parts, repaired

_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SPELT = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_COUNTED = (
    "second|minute|hour|day|week|month|year|epoch|pass|byte|bit|billion|million|trillion|percent|per cent|GPU|card"
    "|device|node|layer|head|checkpoint"
)
# what is written in several ways, and one of them; in this order
_PLAIN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, flags), replacement)
    for pattern, replacement, flags in (
        (r"!?\[([^\]]*)\]\([^)]*\)", r"\1", 0),  # links
        (r"(?<=\S)\[\^[\w-]{1,20}\]|<br\s*/?>", " ", 0),
        (r"(?<=[\d)A-Z])\s?\*\s?(?=[\d(~$A-Z])|(?<=\w) \* (?=\w)|\\times", " × ", 0),  # a product, no emphasis
        (r"\*{1,3}|`+|(?<!\w)__|__(?!\w)|</?[a-z][^>]{0,80}>|^\s*(?:\[[ x?]\]|>+)\s+|\\(?=[$%])", "", 0),
        (r"[–—‒](?=\s?[~$]?\d)|−", "-", 0),
    )
)
_POWER = re.compile(
    r"(?:(\d(?:\.\d+)?)\s?(?:[×x·]|\\cdot)\s?|(?<![\w.]))10(?:\^|\*\*)?((?<=[\^*])\{?-?\d{1,2}\}?|[⁻⁰¹²³⁴-⁹]{1,3})(?![\d.])"
)
_MATHS = re.compile(r"\$\s?(\\sim\s?|\\approx\s?|~\s?)?(\d[\d.,]*(?:e-?\d+)?)\s?\$(?![\d.])")  # no money
_NUMBER_WORD = re.compile(
    rf"(?<![-\w])({'|'.join(_SPELT[1:])})(?=[ -](?:full |more |whole |training )?(?:{_COUNTED})e?s?\b)", re.IGNORECASE
)
_STARTS = re.compile(r"\s*(?:(?:[-*+•◦▪‣]|\d{1,2}[.)])\s+(?=\S)|(?:```|~~~)|#{1,6}\s|\||\*\*[^*]+\*\*|[\s|:+=\-─━═]*$)")
_BULLET = re.compile(r"^\s*(?:[-*+•◦▪‣]|\d{1,2}[.)])\s+(?=\S)")
_LABELLED = re.compile(r"\s*[A-Z][\w/-]*(?: [\w/-]+){0,3}\s*:\s+\S")
_SENTENCE = re.compile(
    r"(?<!e\.g\.)(?<!i\.e\.)(?<! vs\.)(?<!approx\.)(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z~$\d✅❌⚠])"
)
_LONGEST = 12  # lines of a paragraph that a sentence may run on
_MOST_LINES = 100_000


@dataclass(frozen=True, kw_only=True)
class Passage:
    """One sentence, bullet, cell of a table or line of a code block, without markup."""

    text: str
    line: int
    in_table: bool = False


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report: its title, its passages in the order of reading, and its tables."""

    title: str
    passages: tuple[Passage, ...]
    tables: tuple[Table, ...]
    lines: tuple[tuple[int, str], ...]

    def line_of(self, number: str, first: int) -> int:
        """The line of a paragraph, from one of its lines on, that prints a number: a wrapped sentence has several."""
        whole = re.compile(rf"(?<![\d.,]){re.escape(number)}(?![\d]|[.,]\d)")
        for at, text in self.lines:
            if first <= at < first + _LONGEST:
                if not text.strip():
                    break
                if whole.search(text):
                    return at
        return first


def read_document(path: Path) -> Document:
    """Reads a report; raises AdvisorError where the file cannot be read."""
    text = repaired(read_text(path)).replace("\r\n", "\n")
    markup = path.suffix.lower() in (".html", ".htm", ".xhtml") or text.lstrip().lower().startswith(
        ("<!doctype", "<html")
    )
    lines = _lines_of_html(text) if markup else list(enumerate(text.split("\n"), 1))
    return document_of(lines[:_MOST_LINES], path.name)


def document_of(lines: Sequence[tuple[int, str]], name: str) -> Document:
    """Cuts numbered lines of Markdown-like text."""
    found = tuple(_passages(lines))
    tables = tuple(one for one in parts("\n".join(line for _, line in lines)) if isinstance(one, Table))
    heading = next((plain(line.lstrip("# ")) for _, line in lines if line.startswith("#")), "")
    title = heading or next((one.text for one in found if len(one.text) < 200), name)
    return Document(title=title, passages=found, tables=tables, lines=tuple(lines))


def _passages(lines: Sequence[tuple[int, str]]) -> Iterator[Passage]:
    """Every line as part of a paragraph, as cells of a row, or by itself in a code block."""
    at, fenced, held = 0, False, ""
    while at < len(lines):
        number, line = lines[at]
        at += 1
        if line.lstrip().startswith(("```", "~~~")):
            fenced, held = not fenced, ""
        elif line.count("|") + line.count("│") >= 2:
            cells = (plain(cell) for cell in line.replace("│", "|").strip().strip("|").split("|"))
            yield from (Passage(text=cell, line=number, in_table=not fenced) for cell in cells if cell)
        elif fenced:
            # a line that begins with an operator goes on with the one above
            own = plain(line)
            held = f"{held} {own}" if own[:1] in "×÷+=≈" and own and held and "=" not in held else own
            yield from [Passage(text=held, line=number)] if held else []
        elif line.lstrip().startswith("#"):
            yield Passage(text=plain(line.lstrip("# ")), line=number)
        else:
            starts, text = [(0, number)], plain(_BULLET.sub("", line)) + " "
            while at < len(lines) and len(lines[at - 1][1]) > 50 and _continues(lines[at - 1][1], lines[at][1]):
                starts.append((len(text), lines[at][0]))
                text += plain(lines[at][1]) + " "
                at += 1
            for start, sentence in _sentences(text):
                yield Passage(text=sentence, line=next(n for offset, n in reversed(starts) if offset <= start))


def _continues(before: str, line: str) -> bool:
    """Whether a line belongs to the paragraph or bullet of the one before."""
    if _STARTS.match(line) or before.endswith("  ") or before.rstrip(" *").endswith(":"):
        return False
    return not (_LABELLED.match(line) and _LABELLED.match(before))  # one of a list of settings


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    for end, after in [*((m.start(), m.end()) for m in _SENTENCE.finditer(text)), (len(text), len(text))]:
        if piece := text[start:end].strip():
            yield start, piece
        start = after


def plain(text: str) -> str:
    """Text without Markdown's marks; dashes, signs and small numbers before their units spelt one way."""
    for pattern, replacement in _PLAIN:
        text = pattern.sub(replacement, text)
    text = _POWER.sub(lambda m: f"{m[1] or 1}e{m[2].translate(_RAISED).strip('{}')}", text)
    text = _MATHS.sub(lambda m: f"{'~' if m[1] else ''}{m[2]}", text)
    text = _NUMBER_WORD.sub(lambda m: str(_SPELT.index(m[1].lower()) + 1), text)
    return " ".join(text.split())


_BLOCKS = frozenset(("p", "div", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "table", "ul", "ol", "section", "br"))
_BLOCKS |= {"article", "header", "footer", "pre", "blockquote"}
_UNREAD = frozenset(("script", "style", "nav", "noscript", "svg", "template"))


class _Page(HTMLParser):
    """Collects the text of a page as lines of Markdown; a block's end, or a new one, begins a line."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[tuple[int, str]] = []
        self._text, self._start, self._unread = "", 0, 0

    def _is_block(self, tag: str) -> bool:
        """Whether a tag begins or ends a line; inside a row only the row does."""
        return tag == "tr" or (tag in _BLOCKS and not self._text.startswith("|"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opens a block, a row or a cell."""
        self._unread += tag in _UNREAD
        if self._is_block(tag):
            self.flush()
            self._text = "#" * int(tag[1]) + " " if tag[0] == "h" and tag[1:].isdigit() else "- " if tag == "li" else ""
        elif tag in ("td", "th"):
            self._start = self._start if self._text else self.getpos()[0]
            self._text += "| "

    def handle_endtag(self, tag: str) -> None:
        """Closes what was open."""
        self._unread -= tag in _UNREAD and self._unread > 0
        if self._is_block(tag):
            self.flush()
            self.lines += [] if tag == "tr" else [(self.getpos()[0], "")]

    def handle_data(self, data: str) -> None:
        """Adds text to the open block or cell."""
        if self._unread or not data.strip():
            return
        if not self._text.strip("#- "):
            self._start = self.getpos()[0] + data[: len(data) - len(data.lstrip())].count("\n")
        self._text += " ".join(data.split()).replace("|", "/") + " "

    def flush(self) -> None:
        """Ends the open line; below the first row of a table it draws a rule."""
        text = self._text.strip()
        if text.strip("#- "):
            first = text.startswith("|") and not (self.lines and self.lines[-1][1].startswith("|"))
            self.lines.append((self._start, f"{text} |" if text.startswith("|") else text))
            self.lines += [(self._start, "|---" * text.count("|") + "|")] if first else []
        self._text = ""


def _lines_of_html(text: str) -> list[tuple[int, str]]:
    """Readable lines of a page in order, with line numbers of the file."""
    page = _Page()
    page.feed(text)
    page.close()
    page.flush()
    return page.lines
