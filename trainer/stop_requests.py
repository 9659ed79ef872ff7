"""Receives requests from outside to save and end a run: signals, and the notice that its machine is taken away."""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_POLL_SECONDS = 1.0
_ANSWER_SECONDS = 1.0
_NOT_YET = ("", "false", "none")  # Google's metadata service answers FALSE until the notice is given


class StopRequests:
    """The first request to stop, in words, and its time."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.asked_at: float | None = None  # by the monotonic clock

    def ask(self, reason: str) -> None:
        """Ask the run to stop. Only the first reason is kept."""
        if self.reason is None:
            self.asked_at = time.monotonic()
            self.reason = reason

    @contextmanager
    def from_signals(self) -> Iterator[None]:
        """Let SIGTERM and SIGINT ask to stop after the present step. A second SIGINT interrupts at once."""

        def receive(number: int, _frame: Any) -> None:
            if self.reason is not None and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.ask(f"received {signal.Signals(number).name}")

        before = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Notice:
    """A file or loopback address that is checked every second until it announces that the machine is taken away."""

    def __init__(self, where: str):
        """Ignore a notice that exists already, because it was meant for an earlier run."""
        self.where = where
        self._url = where if "://" in where else None
        self._old = self._stamp()
        self._due = 0.0

    def given(self) -> bool:
        """Tell whether the notice has come. Checks at most once a second."""
        if time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + _POLL_SECONDS
        stamp = self._stamp()
        return stamp is not None and stamp != self._old

    def _stamp(self) -> str | None:
        """Return the present state: a file's time, or an address's answer. Returns None if there is nothing."""
        if self._url is not None:
            return _answer(self._url)
        try:
            return str(Path(self.where).stat().st_mtime_ns)
        except OSError:
            return None


def _answer(url: str) -> str | None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())  # this machine only
    try:
        with opener.open(url, timeout=_ANSWER_SECONDS) as response:
            text = response.read(4096).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None
    return None if text.lower() in _NOT_YET else text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
