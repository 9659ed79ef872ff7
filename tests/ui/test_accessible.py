"""Every page in a real Chromium, on light and dark ground, as those meet it who see less or use no mouse."""

from __future__ import annotations

import itertools
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytest.importorskip("axe_playwright_python", reason="axe is not installed: pip install axe-playwright-python")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from advisor.store.folders import example_run
from advisor.store.run_folder import run_row
from advisor.store.store import Store
from advisor.ui import frame
from advisor.workflows.compare import review
from advisor.workflows.keep_runs import annotate
from tests.ui.adopting import adopted
from tests.ui.serving import chromium, free_port, serving

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium"),
]

PAGES = [path for group in frame.PAGES.values() for *_, path in group]
STANDARDS = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}
MOST_STOPS = 15  # of the keyboard on the way to the main action
READABLE, LARGE = 4.5, 3.0  # WCAG 2.1, 1.4.3
CONTROLS = r'- (button|link|tab|textbox|combobox|checkbox|radio|slider|switch|spinbutton)(?: "((?:[^"\\]|\\.)*)")?'
ICON = re.compile(r"(?:[a-z]+_)+[a-z]+\b")  # what stands for a picture: play_circle
PALE = r"""([readable, large]) => {
  const light = c => {
    const [r, g, b] = c.slice(0, 3).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const colour = text => { const n = text.match(/[\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const over = (top, share, ground) => ground.map((v, i) => v * (1 - share) + top[i] * share);
  const pale = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.textContent.trim(), element = texts.currentNode.parentElement;
    if (!text || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    if (style.visibility === "hidden" || box.width < 2 || box.height < 2) continue;
    if (element.closest("[disabled], [aria-disabled=true], [data-testid=stIconMaterial]")) continue;
    const grounds = [];
    let opacity = 1;
    for (let at = element; at; at = at.parentElement) {
      const s = getComputedStyle(at), c = colour(s.backgroundColor);
      opacity *= parseFloat(s.opacity);
      if (at.closest("[data-testid=stSlider]")) continue;  // the value stands above its knob, not on it
      if (c[3] > 0) grounds.push(c);
      if (c[3] === 1) break;
    }
    if (opacity < 0.05) continue;  // shown where the mouse is only
    const ground = grounds.reverse().reduce((below, c) => over(c, c[3], below), [255, 255, 255]);
    const own = colour(style.color), seen = over(own, own[3] * opacity, ground);
    const [high, low] = [light(seen), light(ground)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05), size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700) ? large : readable;
    if (ratio < least) pale.push(ratio.toFixed(2) + ": " + text.slice(0, 60));
  }
  return pale;
}"""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A store with one finished run that has a note and tags, and an adopted command."""
    home = tmp_path_factory.mktemp("accessible")
    store = Store(home)
    folder = store.new_run_folder("nanochat-d2", datetime(2026, 11, 21, tzinfo=UTC))
    shutil.rmtree(folder)
    shutil.copytree(example_run(), folder)
    store.register_run(run_row(folder))
    review(store, str(folder), record=True)
    annotate(folder, name="first", note="two cores", tags=["baseline"])
    adopted(home)
    return home


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_can_be_read_named_and_walked_through(home, tmp_path, scheme):
    with serving(home, free_port(), tmp_path) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 1000})
        for name in PAGES:
            page.goto(f"{address}/{name}")
            page.wait_for_selector("h1", timeout=120_000)
            page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]', timeout=120_000)
            page.wait_for_load_state("networkidle")
            assert page.locator("h1").count() == 1, name
            assert page.evaluate(PALE, [READABLE, LARGE]) == [], name
            for role, called in re.findall(CONTROLS, page.locator("body").aria_snapshot()):
                assert not ICON.match(called), (name, role, called)
            assert against_standards(page) == [], name
            headings = "[...document.querySelectorAll('h1,h2,h3,h4,h5')].map(h => Number(h.tagName[1]))"
            levels = page.evaluate(headings)
            assert all(after - before <= 1 for before, after in itertools.pairwise(levels)), (name, levels)
            page.locator("body").press("Home")
            walked = []
            for _ in range(8):
                page.keyboard.press("Tab")
                walked.append(
                    page.evaluate(
                        "() => { const e = document.activeElement, b = e.getBoundingClientRect();"
                        " return [e.tagName, b.width > 0 && b.height > 0, e.innerText.trim()] }"
                    )
                )
            assert all(tag != "BODY" and seen for tag, seen, _ in walked), (name, walked)
            assert [text for *_, text in walked[1:5]] == list(frame.PAGES), (
                "the keyboard does not reach the groups first"
            )
        # A group opens with Enter, and its pages are reached with the arrows.
        page.goto(f"{address}/audit")
        page.wait_for_selector("h1", timeout=120_000)
        page.get_by_test_id("stTopNavSection").first.wait_for()
        for key in ("Tab", "Tab", "Enter", "ArrowDown", "Enter"):
            page.keyboard.press(key)
            page.wait_for_timeout(300)
        page.wait_for_url("**/gpus**")
        page.goto(f"{address}/plan")
        page.get_by_role("button", name="Launch…").wait_for(timeout=120_000)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # past the names of the pages
        stops = 1
        while "Launch…" not in page.evaluate("document.activeElement.innerText"):
            page.keyboard.press("Tab")
            stops += 1
            assert stops <= MOST_STOPS
        browser.close()


def against_standards(page) -> list[tuple[str, str]]:
    """What axe-core finds against WCAG 2.1 A and AA: its rule, and the element."""
    found = Axe().run(page, options=STANDARDS).response["violations"]
    return [(rule["id"], node["html"][:300]) for rule in found for node in rule["nodes"]]
