"""Reads the events of a trace in Chrome's JSON one mebibyte at a time, also if it is cut, damaged or very large."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from advisor.errors import AdvisorError

_BLOCK = 2**20
_MOST_CHARACTERS = 32 * 2**20  # of one event or one setting
_FIRST_KEY = re.compile(r'\{\n( {2,12})"')
_VALUE = re.compile(r"[^\s,]")
# Events that nothing here needs: Python frames, which are often most of a file, arrows, instants and counters.
_SKIPPED = re.compile(r'\s*"ph": (?:"X",\s*"cat": "python_function"|"[sftiC]")')
_DECODER = json.JSONDecoder(strict=False)


class JsonStream:
    """Yields the events of a trace. The values of all other keys are in `head` once the events are exhausted."""

    def __init__(self, stream: BinaryIO, name: str):
        self.head: dict[str, Any] = {}
        self.cut = False  # the file ended inside a value
        self.broken = 0  # events that are no JSON
        self._in_lines = True
        self._stream, self._name = stream, name
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text, self._at, self._ended = "", 0, False

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield every event that is a dictionary. Raises AdvisorError if the file is something else."""
        try:
            start = self._next_character()
            self._at += 1
            if start == "[":
                yield from self._list()
            elif start == "{":
                yield from self._top()
            else:
                raise AdvisorError(f"{self._name} is not JSON", "export the trace again")
        except RecursionError as error:
            raise AdvisorError(f"{self._name} is nested too deeply for a trace", "export the trace again") from error

    def _top(self) -> Iterator[dict[str, Any]]:
        while (character := self._next_character()) not in ("}", ""):
            key = self._value()
            if self._next_character() != ":":
                break
            self._at += 1
            if key == "traceEvents" and self._next_character() == "[":
                self._at += 1
                yield from self._list()
            elif (value := self._value()) is not None:
                self.head[str(key)] = value
        self.cut = self.cut or character != "}"

    def _list(self) -> Iterator[dict[str, Any]]:
        while (character := self._next_character()) not in ("]", ""):
            if character == "{" and (many := self._many()):
                yield from many
                continue
            value = self._value()
            if isinstance(value, dict):
                yield value
        self.cut = self.cut or character == ""
        self._at += 1

    def _many(self) -> list[dict[str, Any]]:
        """Return the buffer's events if each begins on its own line, as torch writes them: together they are fast."""
        layout = _FIRST_KEY.match(self._text, self._at) if self._in_lines else None
        if layout is None:
            return []
        # A JSON string has no line break, and values inside an event are indented further: this lies between events.
        margin = layout[1][2:]
        between = f"\n{margin}}},\n{margin}{{"
        if (end := self._text.rfind(between, self._at)) < 0:
            self._more()
            if (end := self._text.rfind(between, self._at)) < 0:
                self._in_lines = False
                return []
        pieces = self._text[self._at + 1 : end].split(between)
        self._at = end + len(between) - 1
        wanted = ["{" + piece + "}" for piece in pieces if not _SKIPPED.match(piece)]
        try:
            return list(_DECODER.decode(f"[{','.join(wanted)}]")) or [{}]
        except ValueError:
            return [self._event(event) for event in wanted]

    def _event(self, text: str) -> dict[str, Any]:
        try:
            value: dict[str, Any] = _DECODER.decode(text)
        except ValueError:
            self.broken += 1
            return {}
        return value

    def _value(self) -> Any:
        """Return the next value, or None if it is broken or the file ends before it does."""
        self._next_character()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                inside_text = "Unterminated" in error.msg or error.pos >= len(self._text) - 16
                if inside_text and self._more():
                    continue
                self.cut = self.cut or inside_text
                self.broken += not inside_text
                self._skip_broken()
                return None
            # A number at the end of the buffer may go on in the file.
            characters = end - self._at
            if end < len(self._text) or not self._more():
                self._at += characters
                return value

    def _skip_broken(self) -> None:
        """Go to the next event that begins as torch writes them, or to the end."""
        while (found := self._text.find("\n  {", self._at + 1)) < 0:
            self._at = max(self._at + 1, len(self._text) - 4)
            if not self._more():
                self._at = len(self._text)
                return
        self._at = found + 3

    def _next_character(self) -> str:
        while True:
            found = _VALUE.search(self._text, self._at)
            self._at = found.start() if found else len(self._text)
            if found or not self._more():
                return found[0] if found else ""

    def _more(self) -> bool:
        """Add as much to the buffer as it holds, at least one block. Returns False at the end of the file."""
        rest = self._text[self._at :]
        if self._ended:
            return False
        if len(rest) > _MOST_CHARACTERS:
            raise AdvisorError(f"{self._name} has a value that is far too long for a trace", "export the trace again")
        block = self._stream.read(max(_BLOCK, len(rest)))
        self._ended = not block
        self._text, self._at = rest + self._decoder.decode(block, final=self._ended), 0
        return not self._ended
