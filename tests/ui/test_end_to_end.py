"""The whole story in a real browser: a budget, a plan, a run that outlives browser and server, its score, a log.

ADVISOR_SCREENSHOTS=FOLDER also writes a picture of every page in both themes at 1440 and 900 pixels, and those of the
README (`make screenshots`). Skipped where
Chromium (Debian's package `chromium`) or Playwright is missing.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

from playwright.sync_api import sync_playwright

from advisor.engines.state import RunState, run_status
from advisor.store.store import Store
from advisor.ui.controls import LAUNCH
from advisor.workflows.launch import stop
from tests.ui.serving import ROOT, choose_page, chromium, free_port, serving
from trainer.schema import Outcome

CALIBRATION = ROOT / "benchmarks" / "raw" / "cpu-nanochat-20261121-042637-seed0.yaml"  # of two CPU cores
PAGES = {
    "plan": "plan",
    "calibrate": "calibrate",
    "adopt": "adopt",
    "watch": "watch",
    "runs": "runs",
    "analyze": "analyze",
    "audit": "audit",
    "gpus": "gpus",
    "data": "data",
}
TABLE = ".dvn-scroller"  # of a table whose rows can be ticked
PATIENCE_MS = 180_000
LOG = "\n".join(
    f"step {step:05d}/01000 ({step / 10:.2f}%) | loss: {3 + 300 / (step + 50):.6f} | lrm: 1.00 | dt: 250.00ms "
    "| tok/sec: 65,536 | mfu: 20.00"
    for step in range(300)
)

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium")


@pytest.fixture
def store(advisor_home):
    """A store with a recorded calibration of a CPU, whose runs are ended when the test is over."""
    (advisor_home / "calibrations").mkdir()
    shutil.copy(CALIBRATION, advisor_home / "calibrations")
    found = Store(advisor_home)
    yield found
    for row in found.runs():
        stop(found, found.find_run(row.path), timeout_seconds=0.2, force=True)


@pytest.fixture
def browser():
    """A headless Chromium of the system; without its sandbox, which root may not use."""
    with sync_playwright() as player:
        opened = player.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


def open_page(browser, address: str, theme: str = "light", width: int = 1440):
    page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=theme)
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    page.get_by_role("heading", level=1).first.wait_for()
    return page


def settled(page) -> None:
    """Wait until the page's script has ended and the charts are drawn."""
    idle = "document.querySelector('[data-test-script-state=\"notRunning\"]')"
    busy = 'document.querySelector(\'[data-testid="stSkeleton"], [data-testid="stSpinner"]\')'
    page.wait_for_function(f"() => {idle} && !{busy}")
    page.wait_for_timeout(300)  # an answer is followed by the charts' own drawing
    page.wait_for_function(f"() => {idle} && !{busy}")
    page.wait_for_timeout(400)


@pytest.mark.long
def test_from_a_budget_to_a_scored_run_and_an_analysed_log(store, browser, tmp_path):
    port = free_port()
    with serving(store.home, port, tmp_path) as address:
        page = open_page(browser, f"{address}/?deadline=20+s&price=0.10")
        page.get_by_role("combobox", name="GPUs").first.fill("cpu")
        page.get_by_role("option", name="this CPU", exact=True).click()
        assert "/plan?" in page.url  # where the root leads, with all that was asked of it
        budget = page.get_by_label("Budget", exact=True)
        budget.fill("$1")
        budget.press("Enter")
        page.get_by_text(re.compile(r"Train a .* model .* on this CPU")).first.wait_for()
        settled(page)
        page.get_by_role("button", name="Launch…").click()
        page.get_by_text("The full configuration").wait_for()
        settled(page)
        # filled with the deadline, which half of the runs miss
        allowed = page.get_by_role("spinbutton", name=LAUNCH["--deadline"])
        allowed.fill("0.1")
        allowed.press("Enter")
        settled(page)
        page.get_by_role("button", name="Start a speed test on random tokens").click()  # there are no data
        page.get_by_role("button", name="Stop", exact=True).wait_for()
        page.close()
    # neither a browser nor a server is there any more: the run goes on, and a new server finds it
    folder = store.find_run("latest")
    assert run_status(folder).state is RunState.RUNNING
    with serving(store.home, port, tmp_path) as address:
        page = open_page(browser, f"{address}/watch")
        if wanted := os.environ.get("ADVISOR_SCREENSHOTS"):
            page.wait_for_timeout(5000)
            crop(page, Path(wanted) / "readme-watch.png")
        page.get_by_role("button", name="Compare with its plan").wait_for(timeout=3 * PATIENCE_MS)  # it has ended
        assert run_status(folder).outcome is Outcome.COMPLETED
        assert page.get_by_text(re.compile("Completed in ")).first.is_visible()
        choose_page(page, "Runs")
        page.get_by_role("cell", name="step time", exact=True).first.wait_for()
        page.get_by_role("tab", name="Accuracy").click()
        # on a busy machine the run is set aside, which is said instead
        page.get_by_text(re.compile("of 1 run inside the 80 % interval|does not count in the medians")).first.wait_for()
        choose_page(page, "Analyze")
        page.locator("input[type=file]").set_input_files(
            {"name": "train.log", "mimeType": "text/plain", "buffer": LOG.encode()}
        )
        page.get_by_text("65.5 k tok/s").first.wait_for()
        with page.expect_download() as download:
            page.get_by_role("button", name="Markdown").click()
        assert "nanochat" in Path(download.value.path()).read_text()
        page.close()
        no_table_is_wider_than_a_small_window(browser, address)
        if wanted:
            photograph(browser, address, Path(wanted))
    assert "Error" not in (tmp_path / "server.log").read_text()
    assert store.scores()


def no_table_is_wider_than_a_small_window(browser, address: str) -> None:
    for name in ("plan", "gpus", "calibrate", "runs"):
        page = open_page(browser, f"{address}/{name}", width=900)
        settled(page)
        assert not page.get_by_text("Page not found").is_visible()
        if name != "plan":
            page.locator(TABLE).first.wait_for()
        assert page.evaluate(
            f"() => [...document.querySelectorAll('{TABLE}')].every(t => t.scrollWidth <= t.clientWidth + 2)"
        )
        page.close()


def crop(page, path: Path) -> None:
    """What is seen without scrolling, as the README shows it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": 1440, "height": 1000})


def photograph(browser, address: str, folder: Path) -> None:
    """Every page in both themes at both widths, whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for theme in ("light", "dark"):
        for width in (1440, 900):
            for name, path in PAGES.items():
                page = open_page(browser, f"{address}/{path}", theme, width)
                if name == "analyze":
                    page.get_by_role("button", name="Look at a recorded example").click()
                    page.get_by_text("Money and time").wait_for()
                settled(page)
                if (theme, width) == ("light", 1440) and name != "watch":
                    crop(page, folder / f"readme-{name}.png")
                whole_height(page, width)
                page.screenshot(path=folder / f"{name}-{theme}-{width}.png")
                page.close()


def whole_height(page, width: int, most: int = 4000) -> None:
    """Make the window as high as what it shows: the page scrolls inside of it."""
    height = page.evaluate("() => document.querySelector('[data-testid=\"stMain\"]').scrollHeight")
    page.set_viewport_size({"width": width, "height": min(height + 40, most)})
    page.wait_for_timeout(600)
