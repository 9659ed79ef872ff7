"""The curves of logs on the page Analyze: any scalar against steps, tokens, time or dollars, smoothed and marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import streamlit as st

from advisor.report.overlays import AXES, LOSS, Look, overlay, scalars
from advisor.ui.controls import ANALYZE, in_controls
from advisor.ui.tables import plain, side_by_side
from advisor.workflows.analysis import Analysis

QUERY: Final = "query-params"
CURVES, AGAINST, SMOOTH, LOGARITHMIC, MARKS = SETTINGS = ("curves", "against", "smooth", "logarithmic", "marks")
_SMOOTH = {"none": 0.0, "1 %": 0.01, "2 %": 0.02, "5 %": 0.05, "10 %": 0.1, "20 %": 0.2}
_LOG = ("y axis", "x axis")
_MOST_CURVES = 6


def curves(analyses: Sequence[Analysis]) -> None:
    """Draw the controls, and a chart for each selected scalar, which at first is the loss of all runs."""
    offered = scalars(analyses)
    if not offered:
        st.caption("No curve can be drawn of these logs.")
        return
    names, look = _controls(offered)
    drawn = [(name, overlay(analyses, name, look, validation=True)) for name in names]
    for first in range(0, len(drawn), 2):
        pair = drawn[first : first + 2]
        columns = side_by_side(f"curves-{first}", (1,) * len(pair))
        for column, (name, plot) in zip(columns, pair, strict=True):
            if plot is None:
                known = "no value above zero" if look.log_x or look.log_y else "not known"
                column.caption(f"{offered[name]} against {AXES[look.axis]}: {known} of these logs.")
                continue
            column.markdown(f"**{plain(plot.title)}**")
            column.altair_chart(plot.chart, width="stretch", key=f"curve-{name}")
            column.caption(in_controls(plot.caption, ANALYZE, plain))


def _controls(offered: dict[str, str]) -> tuple[list[str], Look]:
    columns = st.container(key="pair-curves").columns((2.4, 1, 1, 1.4, 1.4), vertical_alignment="bottom")
    known = [name for name in st.session_state.get(CURVES, []) if name in offered]
    if CURVES in st.session_state and known != st.session_state[CURVES]:
        st.session_state[CURVES] = known  # other logs have other curves
    first = [name for name in (LOSS, "tokens_per_second") if name in offered] or [next(iter(offered))]
    names = columns[0].multiselect(
        "Curves", list(offered), first, key=CURVES, bind=QUERY, format_func=offered.__getitem__,
        max_selections=_MOST_CURVES, placeholder="choose some",
        help="A quantity of the logs. The training loss is drawn with the validation loss.",
    )  # fmt: skip
    against = columns[1].selectbox(
        "Against", list(AXES), key=AGAINST, bind=QUERY, format_func=AXES.__getitem__,
        help="Dollars need a price, time a clock or step times, tokens the batch. Each run's time starts at 0.",
    )  # fmt: skip
    smooth = columns[2].selectbox(
        "Smooth", list(_SMOOTH), key=SMOOTH, bind=QUERY,
        help="A running median over this share of the rows; the logged values stay faintly behind it.",
    )  # fmt: skip
    logarithmic = columns[3].pills(
        "Logarithmic", _LOG, selection_mode="multi", key=LOGARITHMIC, bind=QUERY,
        help="The axis of the values, the axis across, or both.",
    )  # fmt: skip
    marks = columns[4].toggle(
        "Findings, phases", True, key=MARKS, bind=QUERY,
        help="Vertical lines at findings, at the end of warm-up and where the learning rate begins to fall.",
    )  # fmt: skip
    look = Look(
        axis=against,
        smooth=_SMOOTH[smooth],
        log_y="value" in logarithmic,
        log_x="x axis" in logarithmic,
        marks=marks,
    )
    return names, look
