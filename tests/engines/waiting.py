"""Waiting for runs elsewhere, on a machine that does other things."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

from advisor.engines.engines import describe
from advisor.engines.state import RunState
from advisor.workflows.launch import stop
from tests.waiting import waited
from trainer.runlog import load_run_log

SECONDS = 300.0  # that a run of these tests may take


def stopped_midway(store, folder, live):
    """The state of a run that was stopped in its middle: it is frozen from a step on until it was asked to stop.

    `live`: where its log is written.
    """
    log = live / "log.jsonl"
    waited(lambda: log.exists() and len(load_run_log(log).steps) > 10, pause=0.01)
    pid = load_run_log(log).header["pid"]
    os.kill(pid, signal.SIGSTOP)
    waker = threading.Thread(target=_wake_once_asked, args=(pid,))
    waker.start()
    try:
        return stop(store, folder, timeout_seconds=SECONDS)
    finally:
        waker.join()


def _wake_once_asked(pid):
    """SIGCONT, once SIGTERM lies before a frozen process or its engine woke it already."""
    status = Path(f"/proc/{pid}/status")

    def asked():
        if not status.exists():
            return True
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        pending = int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)
        return fields["State"].strip()[0] != "T" or bool(pending >> (signal.SIGTERM - 1) & 1)

    try:
        waited(asked)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def over(folder, store):
    """The state of a run once it neither waits nor runs."""
    waited(lambda: describe(folder, store).state not in (RunState.RUNNING, RunState.QUEUED))
    return describe(folder, store)
