"""Every test gets its own empty ADVISOR_HOME; property tests have no deadline, since shared machines stall."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: workers share the cores

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: children would ignore it as well
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.pop("COLUMNS", None)  # the width of whoever runs the tests

settings.register_profile("house", deadline=None, max_examples=50)
settings.load_profile("house")


@pytest.fixture(autouse=True)
def advisor_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh home folder for the test and its child processes."""
    home = tmp_path_factory.mktemp("advisor-home")
    monkeypatch.setenv("ADVISOR_HOME", str(home))
    return home
