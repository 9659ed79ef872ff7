"""The frame of the app: page configuration and navigation."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from urllib.parse import urlsplit

import streamlit as st

from advisor.errors import AdvisorError, explain
from advisor.ui import adopt, analyze, audit, calibrate, data, gpus, plan, runs, watch
from advisor.ui.controls import ENTERED, IN_ADDRESS, OF_PAGE, in_controls
from advisor.ui.tables import plain

# In the session state: the page of the last run, what the address asked of it, and a path that belongs to no page.
_SHOWN, _ASKED, _NO_PAGE = "page-shown", "page-asked", "no-page"
PAGES = (
    ("Plan", ":material/explore:", plan.page, "plan"),
    ("Calibrate", ":material/speed:", calibrate.page, "calibrate"),
    ("Adopt", ":material/handshake:", adopt.page, "adopt"),
    ("Launch and watch", ":material/play_circle:", watch.page, "watch"),
    ("Runs", ":material/checklist:", runs.page, "runs"),
    ("Analyze", ":material/troubleshoot:", analyze.page, "analyze"),
    ("Audit", ":material/fact_check:", audit.page, "audit"),
    ("What fits", ":material/memory:", gpus.page, "gpus"),
    ("Data", ":material/dataset:", data.page, "data"),
)


# The icon is drawn here, because Streamlit fetches its named page icons from the network.
_ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="#0072B2" stroke-width="2.5">
<circle cx="5" cy="19" r="2.5"/><circle cx="19" cy="5" r="2.5"/>
<path d="M7.5 19H15a3.5 3.5 0 0 0 0-7H9a3.5 3.5 0 0 1 0-7h7.5"/>
</svg>"""

# Streamlit leaves much space above the first word, wide margins on narrow windows, and makes captions and selected
# words so pale that they are hard to read (contrast below 4.5 to 1).
_STYLE = """<style>
.stMainBlockContainer { padding: 3.5rem 2rem 2rem; max-width: 100rem; }
.stMainBlockContainer h1 { padding-top: .25rem; font-size: 2.25rem; }
.stMainBlockContainer h2 { font-size: 1.5rem; padding-block: .5rem; }
.stMainBlockContainer h3 { font-size: 1.15rem; padding-block: .25rem; }
[data-testid="stCaptionContainer"] { opacity: .85; }
[data-testid="stButtonGroup"] [aria-checked="true"] p, [role="tab"][aria-selected="true"] p,
[data-testid="stSliderThumbValue"], [data-testid="stSliderThumbValue"] p {
  color: light-dark(#005a8e, #7cc0ee);
}
[data-testid="stTable"] { overflow-x: auto; }
[data-testid="stTable"] td { font-variant-numeric: tabular-nums; vertical-align: top; }
[class*="st-key-pair-strip-"] [data-testid="stElementToolbar"] { display: none; }
.st-key-stale-answer { opacity: .55; }
/* A dark page swallows the dark blue of lines and bands. Words on charts keep clear of the lines behind them. */
svg.marks [stroke="#0072B2"] { stroke: light-dark(#0072B2, #56B4E9); }
svg.marks [fill="#0072B2"] { fill: light-dark(#0072B2, #56B4E9); }
svg.marks [stroke="#56B4E9"] { stroke: light-dark(#56B4E9, #0072B2); }
svg.marks [fill="#56B4E9"] { fill: light-dark(#56B4E9, #0072B2); }
svg.marks .role-mark text { paint-order: stroke; stroke: light-dark(#ffffff, #171614); stroke-width: 4px; }
[data-testid="stMetricValue"] { font-size: 1.75rem; }
[data-testid="stMetricLabel"] p, :has(> [data-testid="stMetricDelta"]), [data-testid="stMetricDelta"],
[data-testid="stMetric"] [data-testid="stMetricDelta"] * {
  white-space: normal; overflow: visible; height: auto;
}
:has(> .st-key-sticky-total) {
  position: sticky; top: 3.5rem; z-index: 5; padding-block: .25rem;
  background: light-dark(#ffffff, #171614);
}
@media (max-width: 1100px) {
  [class*="st-key-stack-"] [data-testid="stHorizontalBlock"] { flex-wrap: wrap; }
  [class*="st-key-stack-"] [data-testid="stColumn"] { flex: 1 1 100%; min-width: 100%; }
  [class*="st-key-pair-"] [data-testid="stHorizontalBlock"] { flex-wrap: wrap; }
  [class*="st-key-pair-"] [data-testid="stColumn"] { flex: 1 1 45%; min-width: 45%; }
}
@media (max-width: 640px) {
  .st-key-cards [data-testid="stHorizontalBlock"]:has(> [data-testid="stColumn"]) {
    flex-wrap: nowrap; overflow-x: auto;
  }
  .st-key-cards [data-testid="stColumn"] { flex: 0 0 82%; min-width: 82%; }
}
@media (max-width: 480px) {
  .stMainBlockContainer { padding-inline: 1rem; }
  [data-testid="stMetricValue"] { font-size: 1.5rem; }
  [data-testid="stButtonGroup"] [role="radio"] { padding-inline: .3rem; min-width: 0; }
}
</style>"""


# Streamlit adds an entry to the browser's history for each change of a page's address. Back would then only undo single
# slider moves, which the page would write again at once. So each page keeps one entry.
_ONE_ENTRY_A_PAGE = """<script>
if (!window.oneEntryAPage) {
  window.oneEntryAPage = true;
  const push = history.pushState.bind(history);
  history.pushState = (state, title, url) =>
    ["/", new URL(url ?? location, location).pathname].includes(location.pathname)
      ? history.replaceState(state, title, url) : push(state, title, url);
}
</script>"""


def main() -> None:
    """Draw the page that the address names. Without a name, draw the plan with what the address asks for."""
    st.set_page_config(page_title="training-advisor", page_icon=_ICON, layout="wide")
    st.html(_STYLE)
    st.html(_ONE_ENTRY_A_PAGE, unsafe_allow_javascript=True)
    pages = [st.Page(guarded(function), title=title, icon=icon, url_path=path) for title, icon, function, path in PAGES]

    def home() -> None:
        st.session_state[_NO_PAGE] = _path()
        st.switch_page(pages[0], query_params={name: st.query_params.get_all(name) for name in st.query_params})

    # The default page has no path of its own. If it were the plan, the path /plan would not exist.
    st.navigation([st.Page(home, default=True, visibility="hidden"), *pages], position="top").run()


def _path() -> str:
    """Return the part of the address's path that follows the path of the app, without slashes."""
    return urlsplit(st.context.url or "").path.strip("/").removeprefix(st.get_option("server.baseUrlPath")).strip("/")


def guarded(page: Callable[[], None]) -> Callable[[], None]:
    """Wrap a page so that an error appears as a sentence with a way out, never as a traceback.

    ADVISOR_DEBUG=1 shows where errors came from, and leaves faults of the program to Streamlit.
    """

    name = page.__module__.rsplit(".", 1)[-1]

    def run() -> None:
        st.session_state[ENTERED] = st.session_state.get(_SHOWN) != name
        if st.session_state[ENTERED]:
            st.session_state[_ASKED] = _address()
        st.session_state[_SHOWN] = name
        above = st.container()
        try:
            page()
        except Exception as error:  # only here do a page's errors become words; reruns are no Exception
            expected, debugged = isinstance(error, AdvisorError), bool(os.environ.get("ADVISOR_DEBUG"))
            if debugged and not expected:
                raise
            message, hint, _ = explain(error)
            if message.startswith("unexpected "):
                hint = "This is a fault of the program. Start the app with ADVISOR_DEBUG=1 to see where."
            controls = OF_PAGE.get(name, {})
            words = [in_controls(text, controls, plain) for text in (message, hint) if text]
            st.error("  \n".join(words), icon=":material/error:")
            if debugged:
                st.code(traceback.format_exc())
            elif not expected:
                traceback.print_exc()  # for the server's log
        # Name once what the address asks for and this app does not know.
        unknown = [f"page {path}"] if (path := st.session_state.pop(_NO_PAGE, "")) else []
        unknown += _unknown(st.session_state.pop(_ASKED, {}))
        if unknown:
            named = ", ".join(map(plain, unknown))
            above.warning(f"Left out, because it is unknown here: {named}.", icon=":material/link_off:")

    run.__name__ = name
    return run


def _address() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _unknown(asked: dict[str, list[str]]) -> list[str]:
    """Return what the address asked for but no control took: names without a control, and values that were refused."""
    now, held = _address(), st.session_state
    unknown = [name for name in now if name in asked and name not in held and name not in held.get(IN_ADDRESS, ())]
    for name, values in asked.items():
        there = held.get(name)
        holds = {str(value).lower() for value in (there if isinstance(there, (list, tuple)) else [there])}
        for value in values:
            if value and value not in now.get(name, ()) and value.lower() not in holds:
                unknown.append(f"{name}={value}")
    return unknown


if __name__ == "__main__":
    main()
