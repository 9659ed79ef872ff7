"""A real server of the app in a process of its own, and a real Chromium: for tests, screenshots and the benchmark."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
START_SECONDS = 180.0


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(home: Path, port: int, folder: Path) -> Iterator[str]:
    """`advisor app` from a folder that holds no settings, as from an installed package; gives its address."""
    environment = {**os.environ, "ADVISOR_HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
    environment.pop("STREAMLIT_SERVER_PORT", None)
    command = [sys.executable, "-m", "advisor", "app", "--port", str(port)]
    with open(folder / "server.log", "ab") as out:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(address, server, folder / "server.log")
        yield address
    finally:
        server.kill()
        server.wait(10)


def _wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert server.poll() is None, f"the server ended at once: {log.read_text()[-2000:]}"
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"no answer from {address} within {START_SECONDS:.0f} s: {log.read_text()[-2000:]}")


def chromium() -> str | None:
    """The installed browser; None where there is none."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def choose_page(page: Any, name: str) -> None:
    """Choose a page by its name in the menu of its group, as a person does with the mouse."""
    from advisor.ui.frame import PAGES  # needs the app's packages, which only the server has otherwise

    group = next(group for group, pages in PAGES.items() if name in [title for title, *_ in pages])
    page.get_by_test_id("stTopNavSection").filter(has_text=re.compile(f"^{group}$")).click()
    page.get_by_role("menuitem", name=name, exact=True).click()
