"""HTML as numbered lines of Markdown-like text: headings, bullets, table rows; each with the line it stands on."""

from __future__ import annotations

from html.parser import HTMLParser

_BLOCKS = frozenset(
    ("p", "div", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "table", "ul", "ol", "section", "article", "header")
    + ("footer", "pre", "blockquote", "dt", "dd", "br")
)
_UNREAD = frozenset(("script", "style", "nav", "noscript", "svg", "template"))


class _Reader(HTMLParser):
    """Collects text; a block's end, or a new one, begins a line."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[tuple[int, str]] = []
        self._text, self._start, self._mark = "", 0, ""
        self._unread = 0
        self._row: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open a block, a row or a cell."""
        if tag in _UNREAD:
            self._unread += 1
        elif tag == "tr":
            self._flush()
            self._row, self._start = [], self.getpos()[0]
        elif tag in ("td", "th") and self._row is not None:
            self._row.append("")
        elif tag in _BLOCKS and self._row is None:
            self._flush()
            self._mark = "#" * int(tag[1]) + " " if tag[0] == "h" and tag[1:].isdigit() else "- " if tag == "li" else ""

    def handle_endtag(self, tag: str) -> None:
        """Close what was open."""
        if tag in _UNREAD:
            self._unread = max(0, self._unread - 1)
        elif tag == "tr" and self._row is not None:
            self.lines.append((self._start, "| " + " | ".join(cell.strip() for cell in self._row) + " |"))
            self._row = None
        elif tag in _BLOCKS and self._row is None:
            self._flush()
            if tag in ("table", "p", "ul", "ol") or tag[0] == "h":
                self.lines.append((self.getpos()[0], ""))

    def handle_data(self, data: str) -> None:
        """Text of the open block or cell."""
        if self._unread or not data.strip():
            return
        words = " ".join(data.split())
        if self._row is not None:
            if self._row:
                self._row[-1] += words.replace("|", "/") + " "
            return
        if not self._text:
            self._start = self.getpos()[0] + data[: len(data) - len(data.lstrip())].count("\n")
        self._text += words + " "

    def _flush(self) -> None:
        if self._text.strip():
            self.lines.append((self._start, self._mark + self._text.strip()))
        self._text = ""


def lines_of_html(text: str) -> list[tuple[int, str]]:
    """Readable lines of an HTML page in order, with line numbers of the file."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    reader._flush()
    return reader.lines
