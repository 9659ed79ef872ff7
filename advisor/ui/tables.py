"""Tables and text on a page: text wraps, numbers are right-aligned, and text from a log is never read as Markdown."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.elements.lib.column_types import ColumnConfig

from advisor.report.table import Table, in_markdown
from advisor.ui.controls import products
from advisor.units import Formatter, format_bytes, format_percent, format_seconds, format_tokens, format_usd

_MARKUP = re.compile(r"([\\`*_{}\[\]<>$~|#:!])")
_LIST_MARK = re.compile(r"^(\s*)([-+]|\d+[.)])(?=\s|$)")

_NOTHING = ("", "-", "unknown")  # cells that hold no number
_FORMATTERS = (format_usd, format_percent, format_seconds, format_bytes, format_tokens)
_NUMBER = {"text-align": "right !important", "white-space": "nowrap"}  # Streamlit writes "left" into each cell


def plain(text: object) -> str:
    """Escape text so that Markdown, formulas and directives of Streamlit in it appear literally."""
    return _LIST_MARK.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", str(text)))


def table(rows: Iterable[Mapping[str, object]], right: Sequence[str] = ()) -> None:
    """Draw rows of words under their column names. The columns in `right` hold numbers. Draws nothing without rows."""
    frame = pd.DataFrame(list(rows))
    if frame.empty:
        return
    frame = frame.map(plain)
    numbers: list[Hashable] = [name for name in frame.columns if name in right]
    style = frame.style.set_properties(subset=numbers, **_NUMBER).set_table_styles(
        [
            {"selector": f"th.col{place}", "props": "text-align: right !important"}
            for place, name in enumerate(frame.columns)
            if name in right
        ]
    )
    st.table(style, border="horizontal", hide_index=True)


def pairs(rows: Iterable[Sequence[str]], names: Sequence[str], right: Sequence[str] = ()) -> None:
    """Draw rows that are given as sequences of cells, under the column `names`."""
    table((dict(zip(names, row, strict=True)) for row in rows), right)


def numbers_in(formats: Mapping[str, str], widths: Mapping[str, int] = MappingProxyType({})) -> dict[str, ColumnConfig]:
    """Return the configuration of a selectable table's number columns, each with the format that adds its unit.

    They sort as numbers. `widths` are in pixels, for columns of words too.
    """
    words = {name: st.column_config.TextColumn(width=width) for name, width in widths.items() if name not in formats}
    return words | {
        name: st.column_config.NumberColumn(format=form, width=widths.get(name)) for name, form in formats.items()
    }


def typed(rows: Iterable[Mapping[str, object]], numbers: Iterable[str]) -> tuple[pd.DataFrame, dict[str, ColumnConfig]]:
    """Return rows of words for a table that can be sorted, and its column configuration.

    If one formatter wrote all cells of a column in `numbers`, they become numbers in one unit, which the format names.
    The cells of other columns stay words, on the right.
    """
    frame, config = pd.DataFrame(list(rows)), {}
    for name in [name for name in numbers if name in frame]:
        found = _as_numbers([str(cell) for cell in frame[name]])
        if found is None:
            config[name] = st.column_config.TextColumn(alignment="right")
        else:
            frame[name], config[name] = found[0], st.column_config.NumberColumn(format=found[1])
    return frame, config


def _as_numbers(cells: Sequence[str]) -> tuple[list[float | None], str] | None:
    """Return cells as numbers in the unit of the largest, with the format. None unless one formatter wrote them all."""
    for words in _FORMATTERS:
        read = [None if cell in _NOTHING else _read_back(cell, words) for cell in cells]
        known = [value for value in read if value is not None]
        if not known or len(known) < sum(cell not in _NOTHING for cell in cells):
            continue
        factor, suffix = words.unit(max(map(abs, known)))
        values = [None if value is None else float(f"{value / factor:.3g}") for value in read]
        if not suffix and not words.prefix:
            return read, "localized"
        return values, f"{words.prefix}%.4g {suffix}".strip().replace(" %", " %%")
    return None


def _read_back(cell: str, words: Formatter) -> float | None:
    """Return the number that a formatter wrote. Returns None if the cell was not written by it."""
    written = re.fullmatch(rf"(-?){re.escape(words.prefix)}([\d,]+(?:\.\d+)?)(\D*)", cell)
    factor = next((factor for _, factor, suffix in words.steps if written and suffix == written[3]), None)
    if written is None or factor is None:
        return None
    return float(f"{written[1]}{written[2].replace(',', '')}") * factor


def grid(table: Table) -> None:
    """Draw a small table of words in full, with the common names of GPUs."""
    st.markdown(products(in_markdown(table).replace("$", "\\$")))


def commands(*lines: str) -> None:
    """Show how to get the same answer elsewhere: a command, and a call in Python."""
    for line in lines:
        st.code(line, language="python" if line.startswith("import ") else "bash", wrap_lines=True)


def side_by_side(key: str, widths: Sequence[int]) -> list[DeltaGenerator]:
    """Return columns that stack if the window is narrow, because tables need their width."""
    return st.container(key=f"stack-{key}").columns(widths, gap="large")
