"""The pages Plan and Runs on a desk and a telephone: what decides is in sight, nothing is cut off or covered."""

from __future__ import annotations

import itertools
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

from playwright.sync_api import sync_playwright

from advisor.store.folders import example_run
from advisor.store.run_folder import read_launch, run_row, write_launch
from advisor.store.store import Store
from tests.ui.serving import chromium, free_port, serving

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium"),
]

# controls whose box reaches out of what is shown of their group
CUT = """() => [...document.querySelectorAll('[data-testid="stButtonGroup"] [role="radio"]')]
  .filter(b => b.getBoundingClientRect().right > b.parentElement.getBoundingClientRect().right + 1)
  .map(b => b.innerText)"""

# the labels of a chart's dots and limits, with left, top, right and lower end, without the space above capitals
BOXES = """chart => [...chart.querySelectorAll('.mark-text text')].map(t => [t, t.getBoundingClientRect()])
  .map(([t, b]) => [t.textContent, b.left, b.top + 3, b.right, b.bottom - 3])"""


def test_the_total_stays_in_view_beside_the_sliders_and_nothing_lies_over_them(tmp_path_factory):
    folders = (tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("served"))
    with serving(folders[0], free_port(), folders[1]) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for width in (1280, 390):
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.set_default_timeout(180_000)
            page.goto(f"{address}/plan?gpu=l4&gpus=1")
            page.get_by_role("button", name="Reset").wait_for()
            last = page.get_by_test_id("stSlider").last
            last.scroll_into_view_if_needed()
            last.evaluate("e => e.scrollIntoView({block: 'end'})")
            last.hover()
            page.wait_for_timeout(1000)
            total = page.get_by_role("heading", name="What if")
            assert 0 <= total.bounding_box()["y"] < last.bounding_box()["y"] and total.is_visible()
            knob, below = last.get_by_role("slider").bounding_box(), page.get_by_text("more").last.bounding_box()
            assert knob["y"] + knob["height"] <= below["y"] + 2
            page.close()
        browser.close()


def test_what_decides_stands_on_one_screen_and_no_label_of_the_chart_lies_over_another(tmp_path_factory):
    folders = (tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("served"))
    with serving(folders[0], free_port(), folders[1]) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(180_000)
        page.goto(f"{address}/plan?budget=20&deadline=8")
        page.get_by_text("Click a dot to see its run").wait_for()
        front = page.get_by_test_id("stVegaLiteChart").filter(has=page.locator("text", has_text="balanced"))
        metrics, rows = page.get_by_test_id("stMetric"), page.get_by_role("button", name=re.compile("^Shown?$"))
        assert (metrics.count(), rows.count()) == (4, 3)
        parts = [page.get_by_role("heading", name=re.compile("^Train a ")), *metrics.all(), *rows.all(), front]
        ends = [box["y"] + box["height"] for box in (part.bounding_box() for part in parts)]
        assert max(ends) == ends[-1] <= 900
        tops = [page.get_by_test_id("stSlider").nth(n).bounding_box() for n in range(6)]
        assert len({box["x"] for box in tops}) == 1 and tops[0]["y"] < ends[-1]  # one column, beside the options
        for sight in ("cost and loss", "time and loss", "cost and time"):
            page.get_by_role("radio", name=sight).click()
            page.wait_for_timeout(1500)
            boxes = front.evaluate(BOXES)
            assert {"conservative", "balanced", "aggressive"} <= {text for text, *_ in boxes}
            assert any(" x " in text for text, *_ in boxes)  # the neighbour worth knowing
            for (text, *a), (other, *b) in itertools.combinations(boxes, 2):
                apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
                assert apart, (sight, text, other)
        page.set_viewport_size({"width": 1024, "height": 900})
        page.wait_for_timeout(1500)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1024
        first, second, third = (row.bounding_box()["y"] for row in rows.all())
        assert second - first < 70 and third - second < 70  # still a row each
        browser.close()


def test_runs_begins_with_its_table_and_names_every_run_on_a_telephone(tmp_path_factory):
    home, served = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("served")
    store, names = Store(home), []
    for hour in (8, 9):
        folder = store.new_run_folder("nanochat-d2", datetime(2026, 11, 21, hour, tzinfo=UTC))
        shutil.rmtree(folder)
        shutil.copytree(example_run(), folder)
        write_launch(folder, replace(read_launch(folder), id=folder.name))
        store.register_run(run_row(folder))
        names.append(folder.name)
    with serving(home, free_port(), served) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for width, height in ((1440, 900), (390, 844)):
            page = browser.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(180_000)
            page.goto(f"{address}/runs?run={names[0]}&run={names[1]}")
            page.get_by_text("The training settings do not differ.").wait_for()
            table = page.get_by_test_id("stDataFrame").bounding_box()
            assert table["y"] < 400 and table["y"] + table["height"] < 900
            for words in ("nanochat-d2 of 21 Nov 08:00", "nanochat-d2 of 21 Nov 09:00"):  # the legend, whole
                box = page.get_by_test_id("stMarkdownContainer").get_by_text(words).last.bounding_box()
                assert box["x"] >= 0 and box["x"] + box["width"] <= width
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.close()
        browser.close()


def test_no_choice_is_cut_off_and_four_numbers_are_large(tmp_path_factory):
    folders = (tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("served"))
    with serving(folders[0], free_port(), folders[1]) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.set_default_timeout(180_000)
        page.goto(address)
        page.get_by_test_id("stMetric").nth(3).wait_for()
        labels = [label.split("\n")[0] for label in page.get_by_test_id("stMetricLabel").all_inner_texts()]
        assert labels[:4] == ["Cost", "Time", "Validation loss", "Tokens"]
        assert page.evaluate(CUT) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        # the answer and the launch are in the first two screens, the first option too, the others below it
        shown = page.get_by_role("button", name=re.compile("^Shown?$"))
        rows = [shown.nth(n).bounding_box()["y"] for n in range(3)]
        assert rows == sorted(rows) and rows[0] < 2 * 844
        assert page.get_by_role("button", name="Launch…").bounding_box()["y"] < 2 * 844
        boxes = [page.get_by_test_id("stMetric").nth(n).bounding_box() for n in range(4)]
        assert boxes[0]["y"] == boxes[1]["y"] < boxes[2]["y"] == boxes[3]["y"]  # two and two
        browser.close()
