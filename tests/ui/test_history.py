"""The addresses of the app in a real browser: nothing is lost on the way back, nothing is asked of the network."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

from playwright.sync_api import Page, expect, sync_playwright

from tests.ui.serving import choose_page, chromium, free_port, serving

PATIENCE_MS = 180_000
LOG = "\n".join(
    f"step {step:05d}/01000 | loss: {3 + 300 / (step + 50):.6f} | dt: 250.00ms | tok/sec: 65,536" for step in range(300)
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("home"), free_port(), tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser):
    opened = browser.new_page(viewport={"width": 1440, "height": 900})
    opened.set_default_timeout(PATIENCE_MS)
    yield opened
    opened.close()


def settled(page: Page) -> None:
    page.wait_for_timeout(300)
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')


def go(page: Page, name: str, path: str) -> None:
    choose_page(page, name)
    page.wait_for_url(f"**/{path}**")
    settled(page)


def answer(page: Page, *, other_than: str | None = None, like: str | None = None) -> str:
    """The plan in a sentence, waited for: on a busy machine a page answers long after it was asked."""
    heading = page.locator("h2").first
    heading.wait_for()
    for _ in range(PATIENCE_MS // 250):
        settled(page)
        said = heading.inner_text()
        if said != other_than and like in (None, said):
            return said
    raise AssertionError(f"after {PATIENCE_MS / 1000:.0f} s the page says {said!r}")


def has_budget(page: Page, text: str) -> None:
    """Wait until the field shows this; the answer may be drawn before it."""
    expect(page.get_by_role("textbox", name="Budget")).to_have_value(text, timeout=30_000)


def test_the_goal_survives_other_pages_and_the_way_back(page, address):
    outside = []
    page.on("request", lambda asked: outside.append(asked.url) if not asked.url.startswith((address, "data:", "blob:",
            address.replace("http", "ws"))) else None)  # fmt: skip
    page.goto(f"{address}/")
    before = answer(page)
    page.get_by_role("textbox", name="Budget").fill("$20")
    page.keyboard.press("Enter")
    page.wait_for_url("**budget=%2420**")
    said = answer(page, other_than=before)
    page.get_by_role("slider", name="Depth").press("ArrowLeft")
    page.wait_for_url("**if_depth=**")
    said = answer(page, other_than=said)
    go(page, "What fits", "gpus")
    page.get_by_role("combobox", name="Method").click()
    page.get_by_role("option", name="LoRA", exact=True).click()
    page.wait_for_url("**card_method=lora**")
    page.go_back()
    answer(page, like=said)
    has_budget(page, "$20")
    go(page, "What fits", "gpus")
    go(page, "Plan", "plan")
    answer(page, like=said)
    has_budget(page, "$20")
    assert "budget=%2420" in page.url and "if_depth=" in page.url
    assert "card_" not in page.url  # a field of another page
    assert outside == []


def test_a_report_survives_other_pages_a_refresh_and_rapid_downloads(page, address):
    page.goto(f"{address}/analyze")
    page.locator('input[type="file"]').set_input_files(
        {"name": "train.log", "mimeType": "text/plain", "buffer": LOG.encode()}
    )
    page.get_by_role("button", name="Markdown").wait_for()
    settled(page)
    files = []
    page.on("download", lambda download: files.append(download.suggested_filename))
    for name in ("HTML report", "Markdown", "CSV"):
        page.get_by_role("button", name=name).click()
    end = 60
    while len(files) < 3 and end:
        page.wait_for_timeout(500)
        end -= 1
    assert sorted(files) == ["train.log.csv", "train.log.html", "train.log.md"]
    go(page, "What fits", "gpus")
    go(page, "Analyze", "analyze")
    page.get_by_text("Report on train.log, as uploaded before.").wait_for()
    page.reload()
    page.get_by_text("Report on train.log, as uploaded before.").wait_for()
    page.get_by_role("button", name="Markdown").wait_for()


def test_sliders_leave_one_entry_so_that_back_leads_to_the_page_before(page, address):
    page.goto(f"{address}/gpus")
    settled(page)
    go(page, "Plan", "plan")
    said = answer(page)
    for _ in range(3):
        page.get_by_role("slider", name="Depth").press("ArrowLeft")
        said = answer(page, other_than=said)
    page.wait_for_url("**if_depth=**")
    page.go_back()
    page.wait_for_url("**/gpus**")


def test_a_reload_keeps_what_is_drawn(page, address):
    page.goto(f"{address}/plan?gpu=l4&tab=Memory&front-axes=time+and+loss")
    page.get_by_text("workspaces, fragmentation").wait_for()
    page.reload()
    page.get_by_text("workspaces, fragmentation").wait_for()
    assert page.get_by_role("radio", name="time and loss").get_attribute("aria-checked") == "true"
    assert "gpu=l4" in page.url and page.get_by_text("L4 24 GB").first.is_visible()
