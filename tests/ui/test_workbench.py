"""Page Analyze's curves: any scalar of any log, on the axis and with the smoothing asked for."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")

from streamlit.testing.v1 import AppTest

from advisor.findings.chart_data import points
from advisor.report.plots import LOSS, Look, overlay, plots, scalars
from advisor.store.store import Store
from advisor.ui.uploads import Upload, judge_uploads
from advisor.workflows.analysis import Given
from tests.advisor.findings.build import telemetry
from tests.ui import driver
from tests.ui.serving import chromium, free_port, serving

GIVEN = Given(gpu="h100-80gb-sxm", gpus=1, usd_per_gpu_hour=3.6)


def log(milliseconds: float = 250.0, *, gain: float = 0.0, steps: int = 300) -> str:
    """Steps of one length, a loss with known noise, and a learning rate that falls from step 200 on."""
    noise = random.Random(int(10 * gain))
    return "Total batch size 16,384 => gradient accumulation steps: 1\n" + "\n".join(
        f"step {step:05d}/{steps:05d} ({100 * step / steps:.2f}%) | loss: {3 - gain + 300 / (step + 50):.6f} | "
        f"lrm: {1.0 if step < 200 else 1 - (step - 200) / 100:.2f} | dt: {milliseconds:.2f}ms | tok/sec: 65,536 "
        f"| mfu: {20 + noise.random():.2f}"
        for step in range(steps)
    )


def judged(*logs: str):
    uploads = [Upload(name=f"run{n}.log", content=text.encode) for n, text in enumerate(logs)]
    return judge_uploads(uploads, GIVEN, Store("/nonexistent")).analyses


def drawn(plot) -> list[dict]:
    """Each layer's rows, as the chart holds them."""
    spec = plot.chart.to_dict()
    return [{**layer, "rows": spec["datasets"][layer.get("data", spec.get("data"))["name"]]} for layer in spec["layer"]]


@pytest.mark.parametrize(
    ("milliseconds", "unit", "last"),
    [(1.0, "milliseconds", 299.0), (250.0, "seconds", 74.75), (6000.0, "minutes", 29.9), (120_000.0, "hours", 9.97)],
)
def test_time_is_told_in_the_unit_that_its_length_asks_for(milliseconds, unit, last):
    analyses = judged(log(milliseconds))
    [curve, *_] = drawn(overlay(analyses, LOSS, Look(axis="hours")))
    assert curve["encoding"]["x"]["title"] == unit
    # 299 steps lie between the first and the last
    assert max(row["time"] for row in curve["rows"]) == pytest.approx(last, rel=1e-2)
    of_report = next(plot for plot in plots(analyses[0]) if plot.title == "Loss against time")
    assert drawn(of_report)[0]["encoding"]["x"]["title"] == unit


def test_dollars_are_hours_times_the_price_and_a_logarithmic_axis_leaves_zero_out():
    [curve, *_] = drawn(overlay(judged(log(6000.0)), LOSS, Look(axis="usd", log_x=True, log_y=True)))
    # 299 steps of 6 s at $3.60 an hour are $1.794
    assert max(row["usd"] for row in curve["rows"]) == pytest.approx(1.794, rel=1e-3)
    assert min(row["usd"] for row in curve["rows"]) > 0
    encoding = curve["encoding"]
    assert (encoding["x"]["scale"]["type"], encoding["y"]["scale"]["type"]) == ("log", "log")


def test_smoothing_is_a_running_median_before_a_faint_curve_as_logged():
    spiked = log().replace("loss: 5.000000", "loss: 50.000000")  # of step 100
    plot = overlay(judged(spiked), LOSS, Look(smooth=0.05))
    behind, curve, *_ = (layer["rows"] for layer in drawn(plot))
    assert max(row["value"] for row in behind) == 50 and max(row["value"] for row in curve) < 9.1
    window = [3 + 300 / (step + 50) for step in range(200 - 7, 200 + 8)]  # 5 % of 300 rows
    assert next(row["value"] for row in curve if row["step"] == 200) == pytest.approx(np.median(window), abs=1e-5)
    assert "faint: as logged" in plot.caption


def test_where_the_learning_rate_falls_is_marked_on_every_axis():
    analyses = judged(log(), log(gain=0.5))
    for axis, field, where in (("step", "step", 205), ("tokens", "tokens", 205 * 16384), ("hours", "time", 205 / 4)):
        *_, marks = drawn(overlay(analyses, LOSS, Look(axis=axis, marks=True)))
        falls = [row for row in marks["rows"] if row["words"] == "run1.log: the learning rate falls from here"]
        assert [row[field] for row in falls] == [pytest.approx(where, rel=0.01)]


def test_every_column_of_a_log_can_be_drawn_in_words_and_units():
    rows = [
        json.dumps({"step": step, "loss": 4 - step / 100, "grad_norm": 1 + step / 50, "memory_bytes": 20_000_000_000})
        for step in range(1, 60)
    ]  # fmt: skip
    analyses = judged("\n".join(rows))
    offered = scalars(analyses)
    assert list(offered)[0] == LOSS and offered["grad_norm"] == "Grad norm"
    held = [name for name in offered if name.endswith("_bytes")]
    assert held, offered
    [curve, *_] = drawn(overlay(analyses, held[0], Look()))
    assert curve["encoding"]["y"]["title"] == "GiB"
    assert curve["rows"][0]["value"] == pytest.approx(20e9 / 2**30)


def test_what_the_cards_did_in_several_runs_is_drawn_over_each_other():
    """Power, utilisation, memory and temperature at the steps that were trained meanwhile, the mean of all cards."""
    stamped = [json.dumps({"step": step, "loss": 4 - step / 100, "timestamp": 2.0 * step}) for step in range(1, 60)]
    first, second = judged("\n".join(stamped), "\n".join(stamped[:40]))
    read = telemetry(300, gpus=2, power_watts=np.tile([300.0, 340.0], 300))
    first = replace(first, case=replace(first.case, run=replace(first.case.run, telemetry=read)))
    offered = scalars([first, second])
    assert offered["telemetry/power_watts"] == "Power" and list(offered)[0] == LOSS
    plot = overlay([first, second], "telemetry/power_watts", Look())
    [curve, *_] = drawn(plot)
    assert {row["value"] for row in curve["rows"]} == {320.0}
    assert min(row["step"] for row in curve["rows"]) == 1 and max(row["step"] for row in curve["rows"]) == 59
    assert "run1.log" in plot.caption  # which has none
    assert "telemetry/power_watts" not in scalars([second])


def test_a_validation_loss_begins_when_it_was_taken():
    rows = [f"step {step} loss {4 - step / 100:.4f} lr 1e-3 time 2000ms" for step in range(60)]
    rows[40] += "\nstep 40: train loss 3.6000, val loss 3.7000"
    rows[50] += "\nstep 50: train loss 3.5000, val loss 3.6500"
    [analysis] = judged("\n".join(rows))
    held = points(analysis.case, "eval_loss")
    assert [point.value for point in held] == [3.7, 3.65], analysis.run.format
    assert held[0].hours == pytest.approx(80 / 3600)  # 40 steps of 2 s


app = partial(driver.app, "analyze")


def ok(at: AppTest) -> AppTest:
    assert not at.exception and not at.error, [e.value for e in at.error]
    return at


@pytest.mark.long
@pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_curves_stand_on_the_first_screen_and_nothing_is_cut_off(width, tmp_path_factory):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    folders = (tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("served"))
    with serving(folders[0], free_port(), folders[1]) as address, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.set_default_timeout(180_000)
        page.goto(f"{address}/analyze")
        files = [{"name": f"{n}.log", "mimeType": "text/plain", "buffer": log(gain=n).encode()} for n in (0.0, 0.5)]
        page.locator("input[type=file]").set_input_files(files)
        chart = page.get_by_test_id("stVegaLiteChart").first
        chart.wait_for()
        if width == 1280:
            assert chart.bounding_box()["y"] + 260 < 900  # all of its curves; the name of its lower axis may be below
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        browser.close()
