"""One attempt at a run in a process that can be killed at any moment, forked from one that has torch loaded already."""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

from tests.trainer.forked import CONTEXT
from trainer.schema import RunConfig, dump_config


def start(
    config: RunConfig,
    folder: Path,
    *,
    clock_jump_seconds: float = 0.0,
    file_limit: int | None = None,
    plain_user: bool = False,
):
    """Start an attempt; `file_limit` is the most bytes that any file may have, as on a disk that is full.

    `plain_user`: permissions of files hold for it, also where the tests are run by root.
    """
    (folder / "run.yaml").write_text(dump_config(config), encoding="utf-8")
    arguments = (str(folder), clock_jump_seconds, file_limit, plain_user)
    process = CONTEXT.Process(target=_attempt, args=arguments, daemon=True)
    process.start()
    return process


def _attempt(folder: str, clock_jump_seconds: float, file_limit: int | None, plain_user: bool) -> None:
    import resource
    import signal

    import torch

    from trainer.__main__ import leave, main

    with open(Path(folder) / "stdout.log", "a", encoding="utf-8") as out:
        sys.stdout = sys.stderr = out
        torch.set_num_threads(1)  # sums in one order, on any machine
        if file_limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        if plain_user:
            _give_up_capabilities()
        if clock_jump_seconds:
            _jump(clock_jump_seconds)
        leave(main([str(Path(folder) / "run.yaml"), "--out", folder]))


def _jump(seconds: float) -> None:
    """The wall clock is set, by turns forth and back, while the run goes on."""
    real, began = time.time, time.monotonic()
    time.time = lambda: real() + seconds * (1 if int(5 * (time.monotonic() - began)) % 2 else -1)


def _give_up_capabilities() -> None:
    """What lets root write where its permissions say no: capset(2) with three empty sets, version 3 of its header."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "capset")
