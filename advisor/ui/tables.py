"""Tables and words on a page: text that wraps, numbers on the right, nothing that a log says taken for Markdown."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.elements.lib.column_types import ColumnConfig

_MARKUP = re.compile(r"([\\`*_{}\[\]<>$~|#:!])")
_LIST_MARK = re.compile(r"^(\s*)([-+]|\d+[.)])(?=\s|$)")

_NUMBER = {"text-align": "right !important", "white-space": "nowrap"}  # Streamlit writes "left" into each cell


def plain(text: object) -> str:
    """Words as they are: what would be Markdown, a formula or a directive of Streamlit in them stays text."""
    return _LIST_MARK.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", str(text)))


def table(rows: Iterable[Mapping[str, object]], right: Sequence[str] = ()) -> None:
    """Rows of words with their columns' names; the columns in `right` hold numbers. Nothing without rows."""
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
    """Rows given as sequences of cells below the columns' `names`."""
    table((dict(zip(names, row, strict=True)) for row in rows), right)


def right_aligned(names: Iterable[str]) -> dict[str, ColumnConfig]:
    """The column configuration of a selectable table whose columns of these names hold numbers."""
    return {name: st.column_config.TextColumn(alignment="right") for name in names}


def side_by_side(key: str, widths: Sequence[int]) -> list[DeltaGenerator]:
    """Columns that stand below each other where the window is narrow: tables need their width."""
    return st.container(key=f"stack-{key}").columns(widths, gap="large")
