"""Waiting for runs elsewhere, on a machine that does other things."""

from __future__ import annotations

import time

from advisor.launch.engines import describe
from advisor.launch.state import RunState

SECONDS = 300.0  # that a run of these tests may take


def waited(happens, seconds=SECONDS):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.1)


def over(folder, store):
    """The state of a run once it neither waits nor runs."""
    waited(lambda: describe(folder, store).state not in (RunState.RUNNING, RunState.QUEUED))
    return describe(folder, store)
