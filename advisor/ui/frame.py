"""The frame of the app: page configuration and navigation."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

import streamlit as st

from advisor.cli import explain
from advisor.errors import AdvisorError
from advisor.ui import analyze, calibrate, gpus, plan, runs, watch
from advisor.ui.tables import plain

PAGES = (
    ("Plan", ":material/explore:", plan.page, "plan"),
    ("Calibrate", ":material/speed:", calibrate.page, "calibrate"),
    ("Launch and watch", ":material/play_circle:", watch.page, "watch"),
    ("Runs", ":material/checklist:", runs.page, "runs"),
    ("Analyze", ":material/troubleshoot:", analyze.page, "analyze"),
    ("GPUs", ":material/memory:", gpus.page, "gpus"),
)


# Streamlit leaves a hand's breadth above the first word, and wide margins on narrow windows.
_STYLE = """<style>
.stMainBlockContainer { padding: 3.5rem 2rem 2rem; max-width: 100rem; }
.stMainBlockContainer h2 { padding-top: .25rem; }
[data-testid="stTable"] td { font-variant-numeric: tabular-nums; vertical-align: top; }
[data-testid="stMetricValue"] { font-size: 1.75rem; }
[data-testid="stMetricLabel"] p, [data-testid="stMetricDelta"] * { white-space: normal; }
@media (max-width: 1100px) {
  [class*="st-key-stack-"] [data-testid="stHorizontalBlock"] { flex-wrap: wrap; }
  [class*="st-key-stack-"] [data-testid="stColumn"] { flex: 1 1 100%; min-width: 100%; }
  [class*="st-key-pair-"] [data-testid="stHorizontalBlock"] { flex-wrap: wrap; }
  [class*="st-key-pair-"] [data-testid="stColumn"] { flex: 1 1 45%; min-width: 45%; }
}
</style>"""


def main() -> None:
    """Draw the page that the address names; the first is the plan."""
    st.set_page_config(page_title="training-advisor", page_icon=":material/route:", layout="wide")
    st.html(_STYLE)
    pages = [
        st.Page(guarded(function), title=title, icon=icon, url_path=path, default=path == PAGES[0][3])
        for title, icon, function, path in PAGES
    ]
    st.navigation(pages, position="top").run()


def guarded(page: Callable[[], None]) -> Callable[[], None]:
    """A page whose errors are one sentence with the way out, never a traceback.

    ADVISOR_DEBUG=1 shows where errors came from, and leaves faults of the program to Streamlit.
    """

    def run() -> None:
        try:
            page()
        except Exception as error:  # the one place where a page's error becomes words; reruns are no Exception
            expected, debugged = isinstance(error, AdvisorError), bool(os.environ.get("ADVISOR_DEBUG"))
            if debugged and not expected:
                raise
            message, hint, _ = explain(error)
            st.error(plain(message) + (f"  \n{plain(hint)}" if hint else ""), icon=":material/error:")
            if debugged:
                st.code(traceback.format_exc())
            elif not expected:
                traceback.print_exc()  # for the server's log

    run.__name__ = page.__module__.rsplit(".", 1)[-1]
    return run


if __name__ == "__main__":
    main()
