"""Runs a command as an attempt at a run, whose limits count it: `python -m advisor.engines.attempt RUN CONFIG COMMAND`.

CONFIG is the run's configuration or its plan, which has the price. The exit status is the command's. Signals are passed
on to the command and its children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from trainer.budget import LEAST_INTERVAL_SECONDS, Budget, read_spent
from trainer.schema import load_config

if __name__ == "__main__":
    folder, stop = Path(sys.argv[1]), load_config(sys.argv[2]).stop
    age_seconds = time.time() - psutil.Process().create_time()
    budget = Budget(lambda: folder, stop, read_spent(folder), age_seconds=age_seconds)
    budget.book()  # before it starts, so that a command that is killed has been counted
    child = subprocess.Popen(sys.argv[3:], start_new_session=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.killpg(child.pid, number))
    while child.poll() is None:
        budget.book()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(LEAST_INTERVAL_SECONDS)
    budget.end()
    sys.exit(child.returncode)
