"""Measures how quickly the app answers: slider moves on Plan, reruns of every page, and the first page after a start.

    python benchmarks/app_speed.py [--moves 60]

Streamlit's own test driver times a rerun. It runs the page's script as the server does and also reads back what the
script drew, so it takes slightly longer than the server. Sliders move to new positions, so that no earlier answer can
be reused. Headless Chromium times the first page, from the server's first passed health check until the answer's
sentence is on the screen. Without Chromium, this part is left out with a message. Targets: 120 ms at the 95th
percentile, 2.5 s.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PAGES = ("plan", "calibrate", "watch", "runs", "analyze", "gpus")
RERUNS = 20
WHOLE = ("if_depth", "if_micro_batch", "if_seq_len", "if_gpus")


def app(page: str):
    """Return a page under the test driver, drawn once so that its loaders are warm."""
    from streamlit.testing.v1 import AppTest

    script = f"from advisor.ui.frame import guarded\nfrom advisor.ui import {page}\nguarded({page}.page)()\n"
    driver = AppTest.from_string(script, default_timeout=120)
    begun = time.perf_counter()
    driver.run()
    assert not driver.exception, f"{page}: {driver.exception}"
    gc.collect()
    gc.freeze()  # as the server does after its first plan
    return driver, time.perf_counter() - begun


def timed(driver) -> float:
    """Return the seconds of one rerun."""
    begun = time.perf_counter()
    driver.run()
    assert not driver.exception
    return time.perf_counter() - begun


def slider_moves(count: int) -> list[float]:
    """Return the seconds of moves of Plan's integer sliders (depth, micro-batch, context, GPUs), each in turn."""
    driver, _ = app("plan")
    seconds = []
    for move in range(count):
        sliders = [one for one in driver.select_slider if one.key in WHOLE]
        slider = sliders[move % len(sliders)]
        turn = move // len(sliders)
        slider.set_value(int(slider.options[turn % len(slider.options)]))
        seconds.append(timed(driver))
    return seconds


def first_page(home: Path) -> float | None:
    """Return the seconds from a healthy server to the answer on the screen; None without a browser."""
    from tests.ui.serving import chromium, free_port, serving

    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium() is None:
        return None
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page()
        with tempfile.TemporaryDirectory() as folder, serving(home, free_port(), Path(folder)) as address:
            begun = time.perf_counter()
            page.goto(address)
            page.get_by_text(re.compile(r"Train a .* model")).first.wait_for(timeout=60_000)
            seconds = time.perf_counter() - begun
        browser.close()
    return seconds


def said(name: str, seconds: list[float]) -> str:
    """Return the median and 95th percentile in milliseconds, as text."""
    p95 = statistics.quantiles(seconds, n=20)[-1]
    return f"{name:28} {1000 * statistics.median(seconds):6.0f} ms median  {1000 * p95:6.0f} ms p95  ({len(seconds)})"


def main() -> None:
    """Print one line for each timing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=60, help="of the sliders of Plan")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["ADVISOR_HOME"] = name
        seconds = first_page(Path(name))
        print("first page                   " + ("no Chromium here" if seconds is None else f"{seconds:6.2f} s"))
        print(said("a slider's move on plan", slider_moves(options.moves)))
        for page in PAGES:
            driver, cold = app(page)
            print(said(f"rerun of {page}", [timed(driver) for _ in range(RERUNS)]) + f"  first {cold:.2f} s")


if __name__ == "__main__":
    main()
