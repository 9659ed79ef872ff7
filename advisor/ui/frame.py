"""The frame of the app: page configuration and navigation."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import streamlit as st

from advisor.errors import AdvisorError, close_matches, explain
from advisor.hardware.catalog import one_catalog
from advisor.ui import adopt, analyze, audit, calibrate, data, fleet, gpus, plan, runs, watch
from advisor.ui.controls import ENTERED, IN_ADDRESS, OF_PAGE, error_words, escaped

_SHOWN, _ASKED = "page-shown", "page-asked"  # in the session: the page of the last run, what the address asked of it
# The pages by what they are for. A page's address does not name its group.
PAGES = {
    "Plan": (
        ("Plan", ":material/explore:", plan.page, "plan"),
        ("What fits", ":material/memory:", gpus.page, "gpus"),
        ("Fleet", ":material/calendar_month:", fleet.page, "fleet"),
        ("Data", ":material/dataset:", data.page, "data"),
    ),
    "Run": (
        ("Launch and watch", ":material/play_circle:", watch.page, "watch"),
        ("Runs", ":material/checklist:", runs.page, "runs"),
    ),
    "Judge": (
        ("Analyze", ":material/troubleshoot:", analyze.page, "analyze"),
        ("Audit", ":material/fact_check:", audit.page, "audit"),
    ),
    "Measure": (
        ("Calibrate", ":material/speed:", calibrate.page, "calibrate"),
        ("Adopt", ":material/handshake:", adopt.page, "adopt"),
    ),
}


# The icon is drawn here, because Streamlit fetches its named page icons from the network.
_ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="#0072B2" stroke-width="2.5">
<circle cx="5" cy="19" r="2.5"/><circle cx="19" cy="5" r="2.5"/>
<path d="M7.5 19H15a3.5 3.5 0 0 0 0-7H9a3.5 3.5 0 0 1 0-7h7.5"/>
</svg>"""

_STYLE = Path(__file__).with_name("frame.css")


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
    st.html(f"<style>{_STYLE.read_text(encoding='utf-8')}</style>")
    st.html(_ONE_ENTRY_A_PAGE, unsafe_allow_javascript=True)
    groups = {
        group: [st.Page(guarded(page), title=title, icon=icon, url_path=path) for title, icon, page, path in pages]
        for group, pages in PAGES.items()
    }

    def home() -> None:
        st.switch_page(groups["Plan"][0], query_params=_address())

    # The default page has no path of its own. If it were the plan, the path /plan would not exist.
    st.navigation({"": [st.Page(home, default=True, visibility="hidden")], **groups}, position="top").run()


def guarded(page: Callable[[], None]) -> Callable[[], None]:
    """Wrap a page so that an error appears as a sentence with a hint, never as a traceback.

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
            with one_catalog():
                page()
        except Exception as error:  # only here do a page's errors become words; reruns are no Exception
            expected, debugged = isinstance(error, AdvisorError), bool(os.environ.get("ADVISOR_DEBUG"))
            if debugged and not expected:
                raise
            message, hint, _ = explain(error)
            if message.startswith("unexpected "):
                hint = "This is a fault of the program. Start the app with ADVISOR_DEBUG=1 to see where."
            st.error(error_words(AdvisorError(message, hint), OF_PAGE.get(name, {})), icon=":material/error:")
            if debugged:
                st.code(traceback.format_exc())
            elif not expected:
                traceback.print_exc()  # for the server's log
        # Name once what the address asks for and this app does not know. Streamlit itself reports an unknown path.
        if unknown := _without_control(st.session_state.pop(_ASKED, {})):
            named = ", ".join(map(escaped, unknown))
            above.warning(
                f"The link has what this page does not know and ignores: {named}.",
                icon=":material/link_off:",
            )

    run.__name__ = name
    return run


def _address() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _without_control(asked: dict[str, list[str]]) -> list[str]:
    """Return what the address asked for but no control took: names without a control, and values that were refused."""
    now, state = _address(), st.session_state
    here = [name for name in state if isinstance(name, str) and name.isidentifier()]
    unknown = [
        name + (f" (did you mean {close[0]}?)" if (close := close_matches(name, here)) else "")
        for name in now
        if name in asked and name not in state and name not in state.get(IN_ADDRESS, ())
    ]
    for name, values in asked.items():
        chosen = state.get(name)
        taken = {str(value).lower() for value in (chosen if isinstance(chosen, (list, tuple)) else [chosen])}
        refused = (v for v in values if v and v not in now.get(name, ()) and v.lower() not in taken)
        instead = f" ({chosen} is taken)" if isinstance(chosen, str) and chosen else ""
        unknown += [f"{name}={value}{instead}" for value in refused]
    return unknown


if __name__ == "__main__":
    main()
