"""The page of figures, written when every test passed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.tally import page

REPORT = os.environ.get("ADVISOR_CHAOS_REPORT")


@pytest.fixture(scope="session", autouse=True)
def report(request):
    """The page states what the tests assert."""
    yield
    if REPORT and not request.session.testsfailed:
        Path(REPORT).write_text(page(), encoding="utf-8")
