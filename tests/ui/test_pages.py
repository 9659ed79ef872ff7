"""Every page in every state, run by Streamlit's own test driver: no browser, no server, but the real code."""

import csv
import json
import os
import re
import shutil
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pandas as pd
import psutil
import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")

from streamlit.testing.v1 import AppTest

from advisor.calibration.quality import judged
from advisor.engines.state import this_host
from advisor.hardware.live_prices import Refreshed
from advisor.hardware.offers import offers_by_provider
from advisor.hardware.prices import live_prices_path, load_prices
from advisor.options import OPTIONS
from advisor.report.gpu_rows import offer_rows
from advisor.store.calibration import SettingBurst
from advisor.store.folders import example_run
from advisor.store.run_folder import read_launch, read_run_plan, run_row, write_launch
from advisor.store.store import Store, default_store, load_calibration
from advisor.ui.controls import OF_PAGE, in_controls, products, typed
from advisor.units import format_usd_rate
from advisor.workflows.calibrate import calibrated_since, calibrating
from advisor.workflows.compare import review
from advisor.workflows.goal import idle_options
from advisor.workflows.keep_runs import annotate
from tests.ui.adopting import adopted
from tests.ui.driver import app, with_drawers_open
from tests.ui.serving import ROOT
from tests.waiting import waited


def words(at: AppTest) -> str:
    kinds = (at.markdown, at.caption, at.info, at.warning, at.error, at.success, at.title, at.header)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


@pytest.fixture
def with_a_run(advisor_home):
    """A store that holds the recorded example run, compared with its plan."""
    store = Store(advisor_home)
    folder = store.new_run_folder("nanochat-d2", datetime(2026, 11, 21, tzinfo=UTC))
    shutil.rmtree(folder)
    shutil.copytree(example_run(), folder)
    store.register_run(run_row(folder))
    review(store, str(folder), record=True)
    return store


@pytest.mark.parametrize("page", ["calibrate", "watch", "runs", "gpus"])
def test_an_empty_store_is_met_with_what_to_do(page):
    at = app(page).run()
    assert not at.exception and not at.error
    said = words(at)
    expected = {"calibrate": "Nothing is calibrated yet", "watch": "No run yet", "runs": "No run on this machine yet"}
    assert expected.get(page, "prior") in said


def copied_in(store, name, day, change=lambda records: records, **launched):
    """One more copy of the example run, with a changed log."""
    folder = store.new_run_folder(name, datetime(2026, 11, day, 9, 30, tzinfo=UTC))
    shutil.rmtree(folder)
    shutil.copytree(example_run(), folder)
    write_launch(folder, replace(read_launch(folder), id=folder.name, name=name, **launched))
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in change(records)))
    store.register_run(run_row(folder))
    return folder


def up_to(step, **final):
    """The records of a run that came as far as this, with another end or none."""

    def change(records):
        records = [one for one in records if one["kind"] == "final" or one.get("step", 0) <= step]
        return [one | final for one in records if one["kind"] != "final" or final]

    return change


def test_runs_shows_the_same_numbers_as_compare(with_a_run):
    at = app("runs").run()
    assert not at.exception
    assert len(words(at).split()) < 50  # beside tables and charts; once 121
    row = with_a_run.runs()[0]
    scored = review(with_a_run, row.path, record=False).scored
    (table,) = (frame.value for frame in at.table)
    step = table[table["What"] == "step time"].iloc[0]
    # by hand: the median of the recorded log's steps after the first is 163.64 ms, promised were 167.92 ms
    gaps = dict(zip(table["What"], table["Gap"], strict=True))
    assert (step["Actual"], step["Gap"], gaps["throughput"]) == ("164 ms", "-2.6 %", "+2.6 %")
    assert "cost" not in gaps  # nothing was predicted and nothing paid
    assert scored.score("step_seconds").error == pytest.approx(-0.0255, abs=5e-5)
    (drawn,) = (name for name in table.columns if name.startswith("±"))
    assert step[drawn].startswith("![inside](data:image/svg")
    assert "1 of 1 run inside the 80 % interval" not in words(at)
    accuracy = app("runs", view="Accuracy", run=Path(row.path).name).run()
    assert not accuracy.exception and not accuracy.warning and not accuracy.dataframe
    assert "1 of 1 run inside the 80 % interval" in words(accuracy)
    # step time, memory and wall clock: throughput and MFU are the step time in other words
    assert "It takes 5 outcomes to show whether intervals are too narrow" in words(accuracy)
    (chart,) = (*accuracy.get("arrow_vega_lite_chart"), *accuracy.get("vega_lite_chart"))
    assert '"title": "predicted, ms"' in chart.proto.spec or '"title":"predicted, ms"' in chart.proto.spec


def test_the_list_has_each_state_in_a_word_and_explains_only_what_has_ended(with_a_run):
    here = {"host": this_host(), "pid": os.getpid(), "process_started": psutil.Process().create_time()}
    going = copied_in(with_a_run, "going", 22, up_to(70), **here)
    copied_in(with_a_run, "full", 23, up_to(120, outcome="out_of_memory"))
    copied_in(with_a_run, "told", 24, up_to(250, outcome="stopped"))
    copied_in(with_a_run, "gone", 25, up_to(300), **here | {"process_started": 1.0})
    at = app("runs", run=going.name).run()
    assert not at.exception and not at.warning
    table = at.dataframe[0].value.set_index("Run")
    assert {name.split(" of ")[0]: state for name, (state,) in table["State"].items()} == {
        "going": "running", "full": "failed", "told": "stopped", "gone": "lost", "nanochat-d2": "completed",
    }  # fmt: skip
    assert "going of 22 Nov 09:30" in table.index and list(table.columns)[-1] == "Problem"
    assert table["Problem"]["full of 23 Nov 09:30"] == "out of memory"
    whole, part = (table.loc[name] for name in ("nanochat-d2 of 21 Nov 00:00", "going of 22 Nov 09:30"))
    # by hand: the ledger has 88.2 s where 89.8 s were predicted; 70 of 501 steps; the losses of a random model of 4,096
    # tokens begin at ln 4096 = 8.3
    assert whole["Time / predicted"] == pytest.approx(98.2, abs=0.05) and pd.isna(part["Time / predicted"])
    assert part["Done"] == pytest.approx(13.97, abs=0.005) and part["Loss"] > whole["Loss"]
    losses = list(whole["Loss curve"])
    assert 12 <= len(losses) <= 16 and losses[0] == pytest.approx(8.3, abs=0.3) and losses[-1] < 5
    assert [head.value for head in at.header] == ["going of 22 Nov 09\\:30\\: running, step 70 of 501"]
    (scores,) = (frame.value for frame in at.table)  # and no table of causes
    so_far, cause = scores.set_index("What").loc["wall clock"][["Actual", "Cause"]]
    assert so_far.endswith(" s for 14 % of its steps") and cause == ""


def test_a_finished_run_is_watched_with_its_promises(with_a_run):
    at = app("watch").run()
    assert not at.exception
    assert len(words(at).split()) < 60  # beside numbers and charts; once 83
    numbers = {metric.label: metric for metric in at.metric}
    assert not {"Progress", "Time so far"} & set(numbers)  # of a complete run, whose time is in the first line
    speed = next(metric for label, metric in numbers.items() if label.startswith("Throughput"))
    assert speed.value == "28.2 k tok/s" and speed.delta == "planned 27.4 k tok/s (26.1-28.9 k tok/s)"
    assert speed.proto.color == speed.proto.MetricColor.GREEN  # inside what was promised
    assert [button.label for button in at.button] == ["Compare with its plan"]  # nothing to stop, nothing to resume
    assert "Completed in 88.2 s; predicted 89.8 s (85-95 s)" in words(at).replace("\\", "")  # at its end


def test_a_run_whose_log_is_damaged_is_one_sentence(with_a_run):
    folder = with_a_run.find_run("latest")
    (folder / "log.jsonl").write_text("nothing but words\n")
    for page in ("runs", "watch"):
        at = app(page).run()
        assert not at.exception
        assert "damaged" in words(at) or "No log yet" in words(at)


def test_gpus_rank_by_what_training_costs(advisor_home):
    at = app("gpus").run()
    table = at.dataframe[0].value
    assert {"H100 SXM 80 GB", "L4 24 GB", "RTX 4090 24 GB"} <= set(table["GPU"])
    fitting = table[table["Fits"] == "yes"]
    assert fitting["$ per M tokens"].is_monotonic_increasing and (fitting["Basis"] == "prior").all()
    before = len(table)
    at.text_input[0].set_value("h100").run()
    narrowed = at.dataframe[0].value
    assert 0 < len(narrowed) < before and narrowed["GPU"].str.contains("H100").all()
    at.text_input[0].set_value("no such card").run()
    assert "No GPU matches the filter" in words(at)


@pytest.mark.parametrize(
    ("card", "gpus", "said"),
    [("h200-141gb-sxm", 8, "rents no 8 of them together"), ("tpu-v4", 1, "No price known for tpu-v4; give")],
)
def test_a_card_that_is_ticked_says_who_rents_it(advisor_home, card, gpus, said):
    at = app("gpus", cards=card, card_gpus=str(gpus), card_model="gpt2", card_method="scratch").run()
    assert not at.exception and said in words(at)
    assert bool([t for t in at.table if "provider" in t.value]) == (gpus == 8)


def test_several_runs_are_compared_in_one_table_under_its_verdict(with_a_run):
    def lower(records):
        return [one | ({"loss": one["loss"] - 0.5} if one["kind"] == "step" else {}) for one in records]

    first, other = with_a_run.find_run("latest"), copied_in(with_a_run, "lower", 22, lower)
    at = app("runs")
    at.query_params["run"] = [other.name, first.name]
    at.run()
    assert not at.exception and not at.warning
    said = at.header[0].value
    assert said.replace("\\", "") == (
        "Compared with lower of 22 Nov 09:30, nanochat-d2 of 21 Nov 00:00 is worse at equal tokens, time and shares of "
        "the schedule"
    )
    (table,) = (frame.value for frame in at.table)
    # by hand: the log's last step is 501 x 4608 tokens; one run's losses are 0.5 below the other's
    assert list(table["At equal"]) == ["577 k tokens", "1.15 M tokens", "1.73 M tokens", "2.31 M tokens"]
    assert (table["Verdict"] == "worse").all() and all(
        cell.startswith("+0.5 (") for cell in table["Difference (80 % interval)"]
    )
    lost = table[["Loss of lower of 22 Nov 09:30", "Loss of nanochat-d2 of 21 Nov 00:00"]].astype(float)
    assert (lost.iloc[:, 1] - lost.iloc[:, 0]).to_numpy() == pytest.approx(0.5, abs=0.011)
    legend = next(text.value for text in at.markdown if text.value.startswith("![](data:image"))
    colours = re.findall(r"fill%3D%22%23([0-9A-F]{6})", legend)
    assert len(set(colours)) == 2 and "0072B2" not in colours  # blue is the prediction
    assert "The training settings do not differ." in words(at)
    at.segmented_control[0].set_value("hours").run()
    assert not at.exception and list(at.table[0].value["At equal"])[-1] != "2.31 M tokens"
    at.segmented_control[0].set_value("schedule").run()  # the title judges by it
    assert not at.exception and list(at.table[0].value["At equal"])[-1] == "100 % of the schedule"
    alone = app("runs", run=first.name).run()
    (chart,) = (*alone.get("arrow_vega_lite_chart"), *alone.get("vega_lite_chart"))
    assert f"#{colours[1]}" in chart.proto.spec and f"#{colours[0]}" not in chart.proto.spec  # it keeps its colour


def test_losses_on_other_data_are_not_compared_and_why_is_said_once(with_a_run):
    def elsewhere(records):
        header = records[0]
        return [header | {"data": (header["data"] or {}) | {"fingerprint": "another corpus"}}, *records[1:]]

    first, other = with_a_run.find_run("latest"), copied_in(with_a_run, "other", 22, elsewhere)
    at = app("runs")
    at.query_params["run"] = [first.name, other.name]
    at.run()
    assert not at.exception and "is not comparable at equal tokens" in at.header[0].value
    assert set(at.table[0].value["Verdict"]) == {"not comparable"}
    assert [c.value for c in at.caption].count("Not comparable\\: trained on different data") == 1


def test_a_run_is_named_tagged_and_deleted_on_its_page(with_a_run):
    folder = with_a_run.find_run("latest")
    (folder / "stdout.log").write_text("loading\nstep 501 of 501\n")
    at = app("runs").run()
    assert not at.exception and "3 of 3 predictions came true" in words(at)
    said = words(at).replace("\\", "")
    assert "nanochat-d2 of 21 Nov 00:00: completed in 88.2 s; predicted 89.8 s (85-95 s)" in said
    assert any("step 501 of 501" in code.value for code in at.code)  # the log's last line
    at.text_input[0].set_value("first try")
    at.text_area[0].set_value("two *cores*")
    at.multiselect[0].set_value(["baseline"])
    next(button for button in at.button if button.label == "Save").click().run()
    assert not at.exception and not at.error
    assert any(title.value.startswith("first try\\: completed") for title in at.header)
    assert at.dataframe[0].value["Run"].tolist() == ["first try"] and "baseline" in at.dataframe[0].value["Tags"][0]
    assert "two \\*cores\\*" in words(at)  # as it was typed
    at.multiselect(key="runs-tags").set_value(["baseline"]).run()
    assert len(at.dataframe[0].value) == 1
    copied_in(with_a_run, "other", 20)
    annotate(with_a_run.find_run("other"), tags=["apart"])
    both = app("runs").run()
    both.multiselect(key="runs-tags").set_value(["baseline", "apart"]).run()  # which no run has
    assert not both.exception and both.dataframe[0].value.empty and len(both.header) == 0
    next(button for button in at.button if button.label.startswith("Delete ")).click().run()
    assert not at.exception and "is deleted" in "\n".join(s.value for s in at.success) and not folder.exists()
    assert at.dataframe[0].value["Run"].tolist() == ["other of 20 Nov 09:30"]


def test_a_calibration_is_followed_and_cancelled(advisor_home):
    at = app("calibrate").run()
    at.selectbox[0].set_value("cpu")
    at.number_input[0].set_value(120)
    at.number_input[1].set_value(6.0)
    try:
        at.button[0].click().run()
        assert not at.exception
        store = default_store()
        assert calibrating(store).look().running and "Cancel" in [button.label for button in at.button]
        another = app("calibrate").run()  # a second tab shows the same one, and offers no second start
        assert [button.label for button in another.button] == ["Cancel"]
        since = calibrating(store).look().unix_seconds
        waited(lambda: calibrated_since(store, since) is not None, 300)  # a burst was measured
        at.run()
        assert any("Configuration" in table.value for table in at.table)
    finally:
        calibrating(default_store()).cancel()
    at.run()
    assert not at.exception and not calibrating(store).look().running
    assert "was interrupted" in words(at)
    assert "Calibrate" in [button.label for button in at.button]


def test_two_calibrations_of_one_device_are_compared(advisor_home):
    (advisor_home / "calibrations").mkdir()
    recorded = sorted((ROOT / "benchmarks" / "raw").glob("cpu-nanochat-*.yaml"))[:2]
    for path in recorded:
        shutil.copy(path, advisor_home / "calibrations")
    at = app("calibrate").run()
    known = at.dataframe[0].value
    assert list(known["Verdict"]) == ["good", "good"] and not at.warning
    newest = judged(load_calibration(recorded[1])).held_out_error
    assert newest.configurations in list(known["Configurations"])  # as many as the chart has points
    said = f"Good: {100 * newest.coverage:.0f} % of the test predictions fell in their 80 % intervals."
    assert said in at.success[0].value.replace("\\", "") and "Plan with it" in [button.label for button in at.button]
    charts = len(at.get("arrow_vega_lite_chart")) + len(at.get("vega_lite_chart"))
    assert charts == 1  # predicted and measured
    script = "from advisor.ui import calibrate, loaders\ncalibrate._compare(loaders.store().list_calibrations())\n"
    table = AppTest.from_string(script, default_timeout=180).run().table[0].value
    assert table.shape == (5, 3) and list(table[""])[0] == "Matrix products"
    assert table.map(lambda cell: cell != "").all().all()


def test_a_calibration_that_is_not_believed_says_why(advisor_home):
    recorded = load_calibration(sorted((ROOT / "benchmarks" / "raw").glob("cpu-nanochat-*.yaml"))[0])
    default_store().save_calibration(replace(recorded, bursts=recorded.bursts[:1], status="partial"))
    at = app("calibrate").run()
    assert list(at.dataframe[0].value["Verdict"]) == ["rejected"]
    assert "it was interrupted after 1 configuration" in at.warning[0].value
    labels = [button.label for button in at.button]
    assert "Repeat it" in labels and "Plan with it" not in labels


def test_prices_say_their_age_and_can_be_asked_for_anew(advisor_home, monkeypatch):
    monkeypatch.setattr("advisor.ui.gpus.can_refresh", lambda: False)
    at = app("gpus").run()
    assert "shipped with this program" in words(at)
    assert at.button(key="refresh-prices").disabled and "pip install 'training-advisor[prices]'" in words(at)
    monkeypatch.setattr("advisor.ui.gpus.can_refresh", lambda: True)
    at.run()
    with open(ROOT / "profiles" / "prices.csv", newline="") as file:
        listed = next(row for row in csv.DictReader(file) if row["provider"] == "aws")
    today = datetime.now(UTC).date()

    def answered(day):
        live_prices_path().parent.mkdir(parents=True, exist_ok=True)
        with open(live_prices_path(), "w", newline="") as file:
            writer = csv.DictWriter(file, list(listed))
            writer.writeheader()
            writer.writerow({**listed, "snapshot_date": day.isoformat()})
        rows = tuple(row for row in load_prices() if row.snapshot_date == day)
        return Refreshed(rows=rows, failures={"vast": "no route"}, rejected=0, unmatched=())

    monkeypatch.setattr("advisor.ui.gpus.refresh_prices", answered)
    at.button(key="refresh-prices").click().run()
    assert not at.exception
    said = words(at)
    assert "1 prices fetched today from AWS" in said and "no answer from Vast.ai" in said
    assert f"refreshed {today}" in said.replace("\\", "")
    at.run()
    assert "prices fetched today" in words(at)  # it stays said


def test_the_price_of_a_whole_node_is_not_that_of_one_of_its_gpus():
    rows = {row["provider"]: row for row in offer_rows(offers_by_provider("h200-141gb-sxm", 1), date(2026, 11, 23))}
    dollars = float(rows["AWS"]["$/h"].removeprefix("$"))
    assert rows["AWS"]["$/GPU-h"] == f"{format_usd_rate(dollars / 8)} x 8"  # p5en.48xlarge has eight


def test_a_calibration_shows_what_each_setting_gives(advisor_home):
    """Base steps of 80 and 125 ms (their geometric mean is 100) around a setting's 125 ms: speed 0.8 of the base."""
    calibration = load_calibration(sorted((ROOT / "benchmarks" / "raw").glob("cpu-nanochat-*.yaml"))[0])
    like = next(b for b in calibration.bursts if b.completed)

    def burst(setting, seconds, mib, **changes) -> SettingBurst:
        measured = {"step_seconds": (seconds,) * 4, "reference_seconds": (0.001,), "resident_peak_bytes": mib << 20,
                    "resident_before_bytes": mib << 19}  # fmt: skip
        return SettingBurst(**vars(replace(like, **measured | changes)), setting=setting)

    failed = {"outcome": "out_of_memory", "reason": "no room\nTraceback", "trained": False}
    bursts = (
        burst(None, 0.080, 200), burst("--optimizer muon", 0.125, 350), burst(None, 0.125, 200),
        burst("attention: math", 0.1, 300, **failed), burst(None, 0.1, 200),
    )  # fmt: skip
    default_store().save_calibration(replace(calibration, setting_bursts=bursts))
    script = "from advisor.ui import calibrate, loaders\ncalibrate._one(loaders.store().list_calibrations()[0])\n"
    said = words(AppTest.from_string(script, default_timeout=180).run())
    centre, low, high, memory = re.search(
        r"\| --optimizer muon \| ([\d.]+) \(([\d.]+)-([\d.]+)\) \| (.*?) \|", said
    ).groups()
    assert float(centre) == 0.8 and 0.6 < float(low) < 0.8 < float(high) < 1 and memory == "+75 MiB"
    assert "| attention: math | - | - |" in said and "attention\\: math does not run here" in said
    assert "no room" in said and "Traceback" not in said
    assert "not tried for lack of time" in said and "--activation-checkpointing full" in said


def test_a_calibration_can_be_removed(advisor_home):
    default_store().save_calibration(
        load_calibration(sorted((ROOT / "benchmarks" / "raw").glob("cpu-nanochat-*.yaml"))[0])
    )
    [entry] = default_store().list_calibrations()
    script = "from advisor.ui import calibrate, loaders\ncalibrate._one(loaders.store().list_calibrations()[0])\n"
    at = AppTest.from_string(script, default_timeout=180).run()
    at.button(key="remove-calibration").click().run()
    assert default_store().list_calibrations() == [] and not entry.path.exists()


def test_nothing_is_calibrated_beside_a_run(advisor_home, monkeypatch):
    monkeypatch.setattr("advisor.ui.calibrate.training_here", lambda store: ["small-20261123"])
    at = app("calibrate").run()
    assert "small-20261123 is training on this machine" in words(at).replace("\\", "")
    assert [button.disabled for button in at.button if button.label == "Calibrate"] == [True]


def test_a_damaged_calibration_is_one_sentence(advisor_home):
    (advisor_home / "calibrations").mkdir()
    (advisor_home / "calibrations" / "cpu-1.yaml").write_text("id: [")
    at = app("calibrate").run()
    assert not at.exception and len(at.error) == 1
    assert "cpu-1.yaml" in at.error[0].value and "Traceback" not in words(at)


SPOKEN = """
plan | --budget needs a price | “**Budget**” needs a price
plan | give --price 0.50 or --kwh-price 0.30 | give “**Your own prices: 0.50**” or “**Electricity: 0.30**”
plan | on spot machines; --spot any allows these | on spot machines; “**Spot machines: any**” allows these
plan | more GPUs: --gpu any, or --gpus 1 | more GPUs: “**GPUs left empty**”, or “**How many GPUs: 1**”
plan | --own 2xrtx-4090: no | “**Your own machines: 2xrtx-4090**”: no
plan | --deadline 0 s: none | “**Deadline: 0 s**”: none
plan | --ratio-counts N | “**Which parameters to count**” N
plan | there narrow them: advisor calibrate --gpu l4 | there narrow them: `advisor calibrate --gpu l4`
plan | drop --provider: `advisor gpus` lists all | drop “**Providers**”: the page **What fits** lists all
plan | pip install 'torch==2.14.*' --index-url https://x.y | `pip install 'torch==2.14.*' --index-url https://x.y`
plan | a-b - c, x--y | a-b - c, x--y
watch | --budget needs a price | “**Stop before spending more than ($)**” needs a price
watch | wait (advisor watch X), or stop | wait (`advisor watch X`), or stop
analyze | state --gpu and --gpus | state “**GPU**” and “**Number of GPUs**”
analyze | --format NAME forces one | `--format` NAME forces one
adopt | unrecognized arguments: --nope | unrecognized arguments: `--nope`
"""


@pytest.mark.parametrize(("page", "text", "said"), [line.split(" | ") for line in SPOKEN.strip().splitlines()])
def test_a_page_speaks_of_its_controls_not_of_options(page, text, said):
    assert in_controls(text, OF_PAGE[page], str) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2 x l4 from aws", "2 x L4 24 GB from aws"),
        ("l4: measure it, advisor calibrate --gpu l4", "L4 24 GB: measure it, advisor calibrate --gpu l4"),
        ("on l4 (`--gpu l4`)", "on L4 24 GB (`--gpu l4`)"),
        ("your own price l4=-1", "your own price l4=-1"),
    ],
)
def test_a_key_has_its_products_name_but_not_in_what_is_typed(text, said):
    assert products(text) == said


def test_the_controls_named_are_on_their_pages(with_a_run):
    adopted(with_a_run.home)
    # fields that follow a model or an upload
    later = {OPTIONS[name].label for name in idle_options(())} | {OF_PAGE["analyze"]["--reader"]}
    for page, expected in OF_PAGE.items():
        if page == "fleet":  # the fields of its file, of which none is a control
            continue
        at = app(page)
        if page == "watch":
            plan = read_run_plan(example_run())
            without_data = replace(plan.run, data=replace(plan.run.data, path=None, synthetic=False))
            at.session_state["plan-to-launch"] = str(with_a_run.save_plan(replace(plan, run=without_data)))
        with_drawers_open(at).run()
        labels = _labels(at)
        for control in expected.values():
            shown = control.replace(" left empty", "").removesuffix(": any")
            assert shown in labels or shown in later, page


def test_what_one_formatter_wrote_sorts_as_numbers_in_one_unit():
    rows = [
        {"Cost": "$1.11", "Time": "35 min", "Memory": "2 GiB", "Tokens": "970 k", "Batch": "24 x 16"},
        {"Cost": "$13.30", "Time": "14.2 h", "Memory": "512 MiB", "Tokens": "1.5 M", "Batch": "8 x 2"},
        {"Cost": "unknown", "Time": "-", "Memory": "", "Tokens": "97 k", "Batch": "8 x 1"},
    ]
    frame = typed(rows, rows[0])[0].data
    assert list(frame["Cost"])[:2] == [1.11, 13.3] and frame["Cost"].isna().tolist() == [False, False, True]
    assert frame["Time"][1] / frame["Time"][0] == pytest.approx(14.2 * 60 / 35)
    assert frame["Memory"][0] == 4 * frame["Memory"][1] and frame["Tokens"][1] == 1.5e6 / 970e3 * frame["Tokens"][0]
    assert list(frame["Batch"]) == ["24 x 16", "8 x 2", "8 x 1"]
    page = typed(rows, rows[0])[0].to_html()  # the cells show what the formatter wrote
    assert all(f">{cell}<" in page for row in rows[:2] for cell in row.values())
    assert list(typed([{"Steps": "135"}, {"Steps": "2.4 k"}], ["Steps"])[0].data["Steps"]) == [135, 2400]
    assert list(typed([{"Cost": "$1,240"}, {"Cost": "$980"}], ["Cost"])[0].data["Cost"]) == [1240, 980]


def _labels(at):
    kinds = ("text_input", "number_input", "multiselect", "selectbox", "checkbox", "segmented_control", "button")
    return [element.label for kind in kinds for element in getattr(at, kind)]


def test_a_fault_of_the_program_is_one_sentence_too(monkeypatch, capsys):
    script = "from advisor.ui.frame import guarded\n\ndef page():\n    [][0]\n\nguarded(page)()\n"
    assert AppTest.from_string(script).run().exception  # under ADVISOR_DEBUG, as in these tests
    monkeypatch.delenv("ADVISOR_DEBUG")
    at = AppTest.from_string(script).run()
    assert not at.exception
    assert "Unexpected IndexError" in at.error[0].value and "ADVISOR\\_DEBUG=1" in at.error[0].value
    assert "IndexError" in capsys.readouterr().err  # the server's log has all of it


@pytest.mark.parametrize(
    ("page", "query", "fields", "button", "said"),
    [
        ("gpus", {"card_model": "0B"}, {}, None, "0B is not known here. Paste its config.json below"),
        (
            "gpus",
            {},
            {"card_config": '{"model_type": "llama"}'},
            None,
            "not describe a known model (llama). Llama,",
        ),
        (
            "adopt",
            {"adopted": "mine", "adopt_budget": "$5"},
            {},
            None,
            "a price State it: “Price ($ per GPU-hour): 2.50”",
        ),
        (
            "adopt",
            {"adopted": "mine", "adopt_deadline": "soon"},
            {},
            None,
            "“Deadline”: 'soon' is not a duration Write",
        ),
        ("adopt", {"adopted": "mine", "adopt_deadline": "8:00"}, {}, None, "may be a time of day or a duration Today"),
        ("adopt", {}, {"adopt-command": "a | b"}, "Adopt it", "| needs a shell"),
        ("data", {}, {"data-path": "/no/such"}, "Prepare", "There is no file /no/such Name one on the machine"),
    ],
)
def test_a_refusal_names_the_fields_of_its_page_and_leaves_the_rest_of_it(
    advisor_home, page, query, fields, button, said
):
    adopted(advisor_home)
    at = app(page, **query).run()
    for key, value in fields.items():
        next(f for f in (*at.text_input, *at.text_area) if f.key == key).set_value(value)
    if button:
        next(b for b in at.button if b.label == button).click()
    if fields:
        at.run()
    [refusal] = at.error
    plain = re.sub(r"[*\\]", "", refusal.value).replace("  \n", " ")
    assert not at.exception and said in plain and not re.search(r"--[a-z]|[A-Z]{4,}_", plain), plain
    assert page != "adopt" or "Adopted command" in [box.label for box in at.selectbox]
    assert page != "data" or "Folder of tokenized data" in [box.label for box in at.text_input]
