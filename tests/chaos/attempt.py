"""One attempt at a run in a process that can be killed at any moment, forked from one that has torch loaded already."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path

from trainer.schema import RunConfig

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["trainer.run"])


def start(config: RunConfig, folder: Path, *, clock_jump_seconds: float = 0.0, file_limit: int | None = None):
    """Start an attempt; `file_limit` is the most bytes that any file may have, as on a disk that is full."""
    process = _CONTEXT.Process(target=_attempt, args=(config, str(folder), clock_jump_seconds, file_limit), daemon=True)
    process.start()
    return process


def _attempt(config: RunConfig, folder: str, clock_jump_seconds: float, file_limit: int | None) -> None:
    import resource
    import signal

    import torch

    from trainer.run import run

    with open(Path(folder) / "stdout.log", "a", encoding="utf-8") as out:
        sys.stdout = sys.stderr = out
        torch.set_num_threads(1)  # sums in one order, on any machine
        if file_limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        if clock_jump_seconds:
            _jump(clock_jump_seconds)
        code = 0
        try:
            run(config, folder)
        except OSError as error:
            print(error)
            code = 1
        out.flush()
    os._exit(code)


def _jump(seconds: float) -> None:
    """The wall clock is set, by turns forth and back, while the run goes on."""
    real, began = time.time, time.monotonic()
    time.time = lambda: real() + seconds * (1 if int(5 * (time.monotonic() - began)) % 2 else -1)
