"""One page of the app under Streamlit's test driver."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")

from streamlit.testing.v1 import AppTest


def app(page: str, **query: str) -> AppTest:
    """The page, not run yet, with what its address asks."""
    script = f"from advisor.ui.frame import guarded\nfrom advisor.ui import {page}\nguarded({page}.page)()\n"
    at = AppTest.from_string(script, default_timeout=180)
    for name, value in query.items():
        at.query_params[name] = value
    return at


def with_drawers_open(at: AppTest) -> AppTest:
    """The page Plan with all its controls drawn, as after a click on "More" and "Advanced"."""
    at.session_state["drawer-tune"] = at.session_state["drawer-settings"] = True
    return at
