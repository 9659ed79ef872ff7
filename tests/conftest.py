"""Every test gets its own empty ADVISOR_HOME and leaves no process behind; no property test has a deadline."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: workers share the cores

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: children would ignore it as well
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.pop("COLUMNS", None)  # the width of whoever runs the tests

# The same cases on every machine and in every run; `make explore` draws new ones and prints how to repeat what it finds
settings.register_profile("house", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500, print_blob=True)
settings.load_profile("house")

_TEST = "ADVISOR_TEST"  # in the environment of whatever a test starts, a detached run included
_starts: list[str] = []  # of processes by this one
sys.addaudithook(lambda event, _: _starts.append(event) if event == "subprocess.Popen" else None)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Seed what a test draws without a generator of its own; a torch that is loaded later starts with a fixed seed."""
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def advisor_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh home folder for the test and its child processes; no process that the test started outlives it."""
    home = tmp_path_factory.mktemp("advisor-home")
    monkeypatch.setenv("ADVISOR_HOME", str(home))
    monkeypatch.setenv(_TEST, str(home))
    _starts.clear()
    yield home
    for child in multiprocessing.active_children():
        child.kill()
    for process in psutil.process_iter() if _starts else ():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(_TEST) == str(home):
                process.kill()
