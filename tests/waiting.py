"""Waiting for what other processes do, on a machine that does other things."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def waited(happens: Callable[[], Found], seconds: float = 300.0, pause: float = 0.05) -> Found:
    """Returns what is found once it is true; the deadline only ends what hangs."""
    end = time.monotonic() + seconds
    while not (found := happens()):
        assert time.monotonic() < end, f"it never happened within {seconds:g} s"
        time.sleep(pause)
    return found
