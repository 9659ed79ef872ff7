"""Launch and watch: one run per plan however many tabs, devices and promises shown beside the run."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")

from streamlit.testing.v1 import AppTest

from advisor.calibration.measure import Worker
from advisor.engines.guards import GuardLimits
from advisor.engines.state import RunState, run_status
from advisor.errors import AdvisorError
from advisor.hardware.here import ProcessorUse
from advisor.history.devices import read_devices
from advisor.history.follow import follower
from advisor.options import Goal
from advisor.store.folders import example_run
from advisor.store.plan_files import dump_plan, load_plan
from advisor.store.run_folder import PLAN, STDOUT, read_launch, read_run_config, run_row
from advisor.store.store import Store
from advisor.trainers.known import trainer_of_run
from advisor.workflows.compare import review
from advisor.workflows.data import prepare_data
from advisor.workflows.launch import give_more, launch, stop
from advisor.workflows.plan import recommend
from tests.advisor.plans import altered, changed, goal_of, guess, small_plan
from tests.terminal import document
from tests.ui.driver import app
from tests.ui.serving import ROOT, chromium, free_port, serving
from tests.waiting import waited
from trainer.telemetry_files import DeviceBuffer, TelemetryWriter

CALIBRATIONS = ROOT / "benchmarks" / "raw"  # of two CPU cores
LONG = 200_000  # steps of a run that does not end by itself during a test
LAUNCH = """
import sys
from advisor.store.plan_files import load_plan
from advisor.store.store import default_store
from advisor.workflows.launch import launch
launch(default_store(), load_plan(sys.argv[1]))
"""


def words(at: AppTest) -> str:
    kinds = (at.markdown, at.caption, at.info, at.warning, at.error, at.success, at.title, at.header)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


@pytest.fixture
def store(advisor_home):
    """A store whose runs are ended when the test is over."""
    found = Store(advisor_home)
    yield found
    for row in found.runs():
        stop(found, found.find_run(row.path), timeout_seconds=0.2, force=True)


def example_in(store: Store):
    folder = store.new_run_folder("nanochat-d2", datetime(2026, 11, 21, tzinfo=UTC))
    shutil.rmtree(folder)
    shutil.copytree(example_run(), folder)
    store.register_run(run_row(folder))
    return folder


def endless_plan():
    return changed(small_plan(), steps=LONG)


def test_two_tabs_launch_a_plan_once(store):
    plan, ready, said = endless_plan(), threading.Barrier(2), []

    def start():
        ready.wait()
        try:
            said.append(launch(store, plan).run_dir)
        except AdvisorError as error:
            said.append(error.message)

    tabs = [threading.Thread(target=start) for _ in range(2)]
    for tab in tabs:
        tab.start()
    for tab in tabs:
        tab.join()
    assert len(store.runs()) == 1
    refused = next(one for one in said if isinstance(one, str))
    assert "running already" in refused


def test_two_servers_launch_a_plan_once(store, tmp_path):
    path = store.save_plan(endless_plan())
    command = [sys.executable, "-c", LAUNCH, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ADVISOR_HOME": str(store.home)}
    servers = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [server.communicate(timeout=300)[1] for server in servers]
    assert sorted(server.returncode for server in servers) == [0, 1]
    assert "AdvisorError" in "".join(errors)
    assert len(store.runs()) == 1


def test_what_a_run_printed_last_is_shown(store):
    folder = example_in(store)
    (folder / STDOUT).write_text("".join(f"line {number} {'x' * 500}\n" for number in range(100)))
    at = app("watch").run()
    assert not at.exception
    shown = next(code.value for code in at.code if code.value.endswith("x" * 500)).splitlines()
    assert shown[-1].startswith("line 99 ") and 20 < len(shown) <= 40
    assert all(line.startswith("line ") for line in shown)  # none is cut


def test_curves_wait_for_a_few_points_while_a_run_goes_on(store):
    folder = example_in(store)
    log = folder / trainer_of_run(folder).log_name
    rows = log.read_text().splitlines(keepends=True)
    steps = [row for row in rows if '"step"' in row and '"loss"' in row]
    log.write_text("".join([*rows[: rows.index(steps[0])], *steps[:3]]))
    page = "from pathlib import Path\nfrom advisor.ui import live\nlive.curves(Path({!r}), None, running={})\n"
    for running, charts in ((True, 0), (False, 2)):
        at = AppTest.from_string(page.format(str(folder), running), default_timeout=60).run()
        assert not at.exception and len(at.get("arrow_vega_lite_chart")) + len(at.get("vega_lite_chart")) == charts
        assert ("3 of the first 5 points" in words(at)) is running


def test_a_plan_for_a_card_that_is_not_here_can_be_run_elsewhere(store):
    store.save_plan(recommend(Goal(gpu="l4", gpus=1, budget_usd=5.0, deadline_seconds=36000.0), store))
    at = app("watch").run()
    at.selectbox[0].select_index(0).run()
    assert not at.exception and not at.error
    said = words(at)
    assert "Random tokens take as long" in said
    assert "It cannot run on this machine" in said and "L4 24 GB" in said
    assert "`advisor calibrate --gpu l4`" in said  # a command that can be run
    assert any("RunPod" in list(frame.value.get("Provider", frame.value.get("provider", []))) for frame in at.table)
    where = at.segmented_control(key="launch-where") if hasattr(at, "segmented_control") else at.button_group[0]
    assert "this machine" not in where.options and where.value == "as files"
    assert "Launch" not in [button.label for button in at.button]
    assert "run a speed test on random tokens" in said
    assert any("python" in code.value or "bash" in code.value for code in at.code)  # what to type there
    where.set_value("ssh").run()
    assert at.button(key="launch-now").disabled  # until that host was asked
    at.text_input(key="launch-at-ssh").set_value("no such host!")
    at.button(key="launch-check").click().run()
    assert not at.exception and "is not a place to run" in at.error[0].value
    assert store.runs() == []


def test_a_plan_that_is_reviewed_stands_alone_without_an_older_run_below_it(store):
    example_in(store)
    store.save_plan(recommend(Goal(gpu="l4", gpus=1, budget_usd=5.0, deadline_seconds=36000.0), store))
    at = app("watch").run()
    assert [header.value for header in at.header] == ["Findings"]
    at.selectbox[0].select_index(0).run()
    assert not at.exception and "It cannot run on this machine" in words(at) and not at.header
    plan, run = at.selectbox[0], next(box for box in at.selectbox if box.label == "Run")
    again = app("watch", launch=plan.value).run()  # the address names the plan
    assert "It cannot run on this machine" in words(again) and not again.header
    example_in(store)
    again.run()
    run = next(box for box in again.selectbox if box.label == "Run")
    run.select_index(1 - run.options.index(run.format_func(run.value))).run()  # whoever chooses a run wants to see it
    assert not again.exception and again.selectbox[0].value is None and again.header[0].value == "Findings"
    assert "launch" not in again.query_params


def test_launch_watch_and_stop_from_the_page(store):
    store.save_plan(endless_plan())
    at = app("watch").run()
    at.selectbox[0].select_index(0).run()
    assert "grad_accum" in at.code[0].value  # the whole configuration is there to be reviewed
    at.button(key="launch-now").click().run()
    assert not at.exception and not at.error
    folder = store.find_run("latest")
    assert run_status(folder).state is RunState.RUNNING
    assert at.header[0].value == "Findings" and at.selectbox[0].value is None  # the run, in place of the form
    assert "random tokens" in words(at)  # what was said of it before stays said
    next(box for box in at.selectbox if box.label == "Plan to launch").select_index(0).run()
    assert "running already" in words(at)  # instead of a second form to launch it
    again = app("watch").run()  # another tab, or the same page reopened: the run is there
    stop = next(button for button in again.button if button.label.startswith("Stop"))
    stop.click().run()
    assert not again.exception
    assert run_status(folder).state is not RunState.RUNNING
    assert any(button.label.startswith("Resume") for button in again.button)


def test_more_time_reaches_a_run_while_it_goes_on(store):
    """Half an hour at $3.60 an hour is $1.80; five minutes more are $0.30."""
    # so many steps that no machine does them within the limit
    plan = changed(small_plan(), steps=100 * LONG)
    folder = launch(store, plan, limits=GuardLimits(max_hours=0.5, max_usd=1.0)).run_dir
    waited(lambda: follower(folder, store).look().step > 3)
    at = app("watch").run()
    assert not at.exception and "within its limit" not in words(at) and "stops at its limit in 1" in words(at)
    [bar] = [element.proto.body for element in at.get("html") if "run-bar" in element.proto.body]
    assert 'class="limit' in bar and 'class="end' in bar and "limit 16.7 min" in bar  # $1 is 1,000 s
    more = at.button(key=f"more-{folder.name}")
    assert more.label == "+5 min · $0.30"
    more.click().run()
    assert not at.exception and not at.error
    stop_at = read_run_config(folder).stop
    assert (stop_at.max_usd, stop_at.max_seconds) == (pytest.approx(1.3, abs=0.01), 1800.0)  # what binds is raised
    assert read_launch(folder).guards.max_usd == stop_at.max_usd
    waited(lambda: "new limits: " in (folder / STDOUT).read_text())
    [bar] = [element.proto.body for element in at.get("html") if "run-bar" in element.proto.body]
    assert "limit 21.7 min" in bar


def test_a_run_that_its_limit_stopped_gets_more_minutes_and_goes_on(store):
    folder = launch(store, endless_plan(), limits=GuardLimits(max_hours=1.0)).run_dir
    waited(lambda: follower(folder, store).look().step > 5)
    used = follower(folder, store).look().elapsed_seconds
    give_more(store, folder, GuardLimits(max_hours=(used + 6) / 3600))  # booked ahead are at most 5.5 s
    waited(lambda: run_status(folder).state is RunState.FINISHED)
    used = follower(folder, store).look().elapsed_seconds
    at = app("watch").run()
    assert "at its limit after" in words(at) and "checkpoint kept at step" in words(at)
    minutes = at.number_input(key=f"minutes-{folder.name}").value
    rest = LONG * follower(folder, store).look().step_seconds / 60
    assert minutes > 0.9 * rest  # enough for the rest at its pace
    at.button(key=f"resume-{folder.name}").click().run()
    assert not at.exception and not at.error
    assert run_status(folder).state is RunState.RUNNING
    assert read_run_config(folder).stop.max_seconds == pytest.approx(60 * minutes + used, abs=1)


@pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium")
def test_a_live_run_is_seen_without_scrolling_and_its_charts_share_a_crosshair(store, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    folder = launch(store, endless_plan(), limits=GuardLimits(max_hours=0.1)).run_dir
    waited(lambda: follower(folder, store).look().step > 30)
    with serving(store.home, free_port(), tmp_path) as address, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(180_000)
        page.goto(f"{address}/watch")
        charts = page.locator(".st-key-stack-run-curves .marks")
        charts.nth(1).wait_for()
        for part in (".run-bar", ".st-key-pair-numbers", ".st-key-stack-run-curves"):
            box = waited(page.locator(part).bounding_box)
            assert box["y"] > 0 and box["y"] + box["height"] <= 900, part
        left, right = (waited(charts.nth(place).bounding_box) for place in (0, 1))
        for side in ("y", "width", "height"):
            assert left[side] == pytest.approx(right[side])
        assert 1.7 < left["width"] / left["height"] < 2.3
        steps = charts.locator("text", has_text=" at step ")

        def hovered() -> list[int]:  # the charts are drawn anew every two seconds
            page.mouse.move(left["x"] + 200, left["y"] + 100)
            page.mouse.move(left["x"] + 300, left["y"] + 100)
            page.wait_for_timeout(300)
            return [int(text.rpartition(" ")[2]) for text in steps.all_text_contents()]

        shown = waited(lambda: len(found := hovered()) == 2 and found)
        assert shown[0] == pytest.approx(shown[1], rel=0.05)  # the points of a long run are thinned
        page.get_by_role("button", name="+5 min").click()
        waited(lambda: read_run_config(folder).stop.max_seconds == pytest.approx(660.0))
        page.get_by_role("button", name="Stop", exact=True).click()
        page.get_by_role("button", name="Resume from the last checkpoint").wait_for()
        browser.close()
    assert "Error" not in (tmp_path / "server.log").read_text()


def test_a_plan_without_data_is_launched_on_the_newest_prepared_folder_by_one_press(store, tmp_path):
    (tmp_path / "text.txt").write_text(" ".join(f"word{n % 500} is read" for n in range(60_000)))
    prepare_data([tmp_path / "text.txt"], store.home / "data" / "mine", vocab_size=400)
    shutil.copytree(CALIBRATIONS, store.home / "calibrations", ignore=shutil.ignore_patterns("speed"))
    plan = recommend(goal_of(["--gpu", "cpu", "--deadline", "90s", "--price", "0.10", "--budget", "$1"]), store)
    at = app("watch")
    at.session_state["plan-to-launch"] = str(store.save_plan(plan))
    at.run()
    assert not at.exception and not at.error
    assert at.button(key="launch-now").label == "Launch"
    assert any("memory" in c.value and "are free at" in (c.help or "") for c in at.caption)  # looked at before
    [data] = [box for box in at.selectbox if box.label == "Data"]
    assert data.options[0].startswith("mine · ") and "tokens" in data.options[0]
    assert "Planned again for these data" in words(at)
    data.select_index(1).run()
    start = at.button(key="launch-now")
    assert start.label == "Start a speed test on random tokens" and not start.disabled
    # the guard is what the plan was made within
    assert at.number_input(key=f"guard-usd-{plan.id}").value == 1.0
    assert at.number_input(key=f"guard-hours-{plan.id}").value == pytest.approx(90 / 3600)
    next(box for box in at.selectbox if box.label == "Data").select_index(0).run()
    at.button(key="launch-now").click().run()
    assert not at.exception and not at.error
    folder = store.find_run("latest")
    again, limits = load_plan(folder / PLAN), read_launch(folder).guards
    assert again.run.data.path == str((store.home / "data" / "mine").resolve())
    assert again.run.model.vocab_size == 400
    assert 45 < again.chosen.total_seconds.value <= 90 * 1.01  # and it is planned for the time that it may take
    assert (limits.max_usd, limits.max_hours) == (1.0, pytest.approx(90 / 3600))


def test_the_time_beside_other_programs_is_in_the_odds_and_in_the_countdown_of_the_start(store, monkeypatch):
    """The odds said 50 % beside "expect 2.1 h instead of 3 min", and the started run "2.8 min left"."""
    use = ProcessorUse(cores=2, used=2.0, wanted=8.0, largest=("python 7",))  # 5 programs for a core: at least 5 times
    monkeypatch.setattr("advisor.workflows.preflight.processor_use", lambda: use)
    plan = endless_plan()
    planned = plan.chosen.total_seconds.value
    at = app("watch", launch=store.save_plan(plan).name).run()
    hours = f"guard-hours-{plan.id}"
    at.number_input(key=hours).set_value(1.5 * planned / 3600).run()
    odds = r"(\d+) % chance that the deadline stops it before its end beside the other programs"
    assert int(re.search(odds, words(at))[1]) > 90  # alone it would keep this limit
    at.button(key="launch-no-limit").click().run()
    assert at.number_input(key=hours).value is None and "chance that the deadline" not in words(at)
    at.button(key="launch-now").click().run()
    folder = store.find_run("latest")
    assert read_launch(folder).guards.max_seconds is None
    busy = "Other programs use this machine"
    assert "**Starting**:" in words(at) and busy in words(at)
    [bar] = [element.proto.body for element in at.get("html") if "run-bar" in element.proto.body]
    end, unit = re.search(r"end ([\d.]+) (s|min)", bar).groups()
    assert float(end) * {"s": 1, "min": 60}[unit] > 5 * planned  # the end that the bar shows counts them too
    waited(lambda: follower(folder, store).look().step > 5)
    at.run()
    assert busy not in words(at) and "**Running**" in words(at)  # from now on its own pace counts


def test_plans_and_runs_that_look_alike_stay_chosen_when_another_control_is_used(store, tmp_path):
    plan = endless_plan()
    saved = [store.save_plan(replace(plan, id=f"plan-{place}")).name for place in (1, 2)]
    elsewhere = tmp_path / "elsewhere" / example_in(store).name  # as in a home that was copied
    shutil.copytree(store.home / "runs" / elsewhere.name, elsewhere)
    store.register_run(replace(run_row(elsewhere), id="another"))
    for name in saved:
        at = app("watch", launch=name).run()
        for hours in (2.0, 3.0):
            at.number_input(key=f"guard-hours-{name.removesuffix('.yaml')}").set_value(hours).run()
            assert not at.exception and at.selectbox[0].value == name
            assert at.query_params["launch"] in (name, [name])


def test_a_size_that_was_not_measured_can_be_measured_before_the_launch(store):
    with Worker("cpu") as worker:
        name = worker.start().device.name
    (store.home / "calibrations").mkdir(parents=True)
    for path in CALIBRATIONS.glob("*.yaml"):  # as if they had been made on this CPU
        text = path.read_text().replace("Intel(R) Xeon(R) Processor", name)
        (store.home / "calibrations" / path.name).write_text(text)
    size = ["--gpu", "cpu", "--depth", "1", "--seq-len", "32", "--tokens", "200k", "--deadline", "1h"]
    plan = recommend(goal_of(size), store)
    assert plan.chosen.step_seconds.basis == "extrapolated"
    at = app("watch", launch=store.save_plan(plan).name).run()
    assert "This size was not measured here" in words(at)
    at.button(key="launch-measure").click().run()
    assert not at.exception and not at.error
    measured = load_plan(at.session_state["plan-to-launch"])
    assert measured.chosen.step_seconds.basis == "measured" and measured.goal.deadline_seconds == 3600.0
    assert "This size was not measured here" not in words(at) and at.selectbox[0].value == f"{measured.id}.yaml"


def test_the_address_names_the_run_on_watch_and_the_ticked_ones_on_runs(store):
    first = example_in(store)
    second = store.new_run_folder("nanochat-d2", datetime(2026, 11, 22, tzinfo=UTC))
    shutil.rmtree(second)
    shutil.copytree(example_run(), second)
    store.register_run(run_row(second))
    at = app("watch", run=first.name).run()
    assert not at.exception
    assert next(box for box in at.selectbox if box.label == "Run").value == str(first)
    assert at.query_params["run"] in (first.name, [first.name])
    runs = app("runs", run=first.name).run()
    assert not runs.exception and runs.query_params["run"] in (first.name, [first.name])


def test_what_is_missing_is_said_before_the_button_is_live(store):
    plan = endless_plan()
    gone = replace(plan.run, data=replace(plan.run.data, path=str(store.home / "gone"), synthetic=False))
    at = app("watch")
    at.session_state["plan-to-launch"] = str(store.save_plan(replace(plan, run=gone)))
    at.run()
    assert any("does not exist" in error.value for error in at.error)
    assert at.button(key="launch-now").disabled


def test_a_limit_that_makes_no_sense_is_one_sentence(store):
    store.save_plan(altered(endless_plan(), usd_per_hour=None))
    at = app("watch").run()
    at.selectbox[0].select_index(0).run()
    at.text_input[0].set_value("soon:low").run()
    assert not at.exception and "is not STEP" in words(at)
    assert store.runs() == []


def test_the_expected_loss_is_shown_where_the_laws_give_one(store):
    folder = example_in(store)
    plan = load_plan(folder / PLAN)
    assert any("do not cover runs this small" in (caption.help or "") for caption in app("watch").run().caption)
    promised = altered(plan, id="with-a-loss", loss=guess(4.0))
    (folder / PLAN).write_text(dump_plan(promised))
    at = app("watch").run()
    assert not any("do not cover runs this small" in (caption.help or "") for caption in at.caption)
    assert any(metric.delta.endswith("(3.6-4.4)") for metric in at.metric)


def test_findings_are_those_of_the_analyzer(store):
    folder = example_in(store)
    said = words(app("watch").run()).replace("\\", "")
    assert "loss_noise" not in said and "Nothing wrong was found" in said  # the loss so far stands above
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    broken = [line | ({"loss": 12.0} if line["kind"] == "step" and line["step"] > 400 else {}) for line in lines]
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in broken))
    codes = [finding["code"] for finding in document("analyze", folder)["findings"]]
    said = words(app("watch").run()).replace("\\", "")
    assert codes and all(code in said for code in codes)


def test_a_host_without_a_card_is_read(store):
    # by hand from the recording: 171 readings, the last at 100 % of both cores and 2300 MHz
    (host,) = read_devices(example_run())
    gauges = {gauge.name: gauge for gauge in host.gauges}
    assert host.gpu is None and host.throttled == ()
    assert gauges["CPU busy"].now == pytest.approx(1.0, abs=0.02)
    assert gauges["CPU clock"].now == 2300 and len(gauges["CPU clock"].over_run) == 120
    assert max(gauges["memory of the run"].over_run) <= 506_413_056
    at = app("watch")
    example_in(store)
    [strip] = [element.proto.body for element in at.run().get("html") if "run-gauges" in element.proto.body]
    assert "CPU clock <b>2,300 MHz</b>" in strip and strip.count("<tr>") == 1 and strip.count("<img") == 5


def test_cards_are_read_from_the_newest_parts(tmp_path):
    slow = ("utilization_percent", "memory_used_bytes", "temperature_celsius", "sm_clock_mhz", "throttle_reasons")
    writer = TelemetryWriter(tmp_path, {})
    for minute in range(3):
        cards = [DeviceBuffer(gpu, slow) for gpu in (0, 1)]
        for gpu, card in enumerate(cards):
            for second in range(5):
                hot = 0x44 if (gpu, minute) == (1, 2) else 0
                reading = (97, 20 * 2**30, 60 + gpu, 1980 - 100 * gpu, hot)
                card.add(1_000_000 + 60_000 * minute + 1000 * second, 3500 + minute, reading)
        for second in range(5, 9):
            cards[0].add(1_000_000 + 60_000 * minute + 1000 * second, None, None)
        writer.write_part(cards)
    first, second = read_devices(tmp_path)
    gauges = {gauge.name: gauge for gauge in second.gauges}
    assert (first.gpu, second.gpu) == (0, 1) and first.throttled == ()
    assert (first.silent_seconds, second.silent_seconds) == (4.0, None)
    assert second.throttled == ("power cap", "hardware thermal slowdown")
    assert gauges["power"].now == pytest.approx(350.2) and gauges["busy"].now == pytest.approx(0.97)
    assert gauges["memory in use"].now == 20 * 2**30 and gauges["SM clock"].now == 1880
    assert second.unix_seconds == pytest.approx(1000 + 120 + 4)


def test_the_curve_of_a_long_run_begins_where_the_run_did(tmp_path):
    """300 minutes whose power rises by a watt each: 120 points, the first of the first minute, the last of the last."""
    writer, buffer = TelemetryWriter(tmp_path, {}), DeviceBuffer(0, ())
    for minute in range(300):
        for second in (0, 30):
            buffer.add(60_000 * minute + 1000 * second, 10 * (100 + minute), None)
        writer.write_part([buffer])
    (card,) = read_devices(tmp_path)
    (power,) = (gauge for gauge in card.gauges if gauge.name == "power")
    assert (power.now, len(power.over_run)) == (399, 120)
    assert (power.over_run[0], power.over_run[-1]) == (100, 399) and sorted(power.over_run) == list(power.over_run)


def test_no_telemetry_and_damaged_telemetry_are_said(store):
    assert read_devices(store.home) == []
    folder = example_in(store)
    (folder / "telemetry.parquet").write_bytes(b"PAR1 nothing of the kind PAR1")
    at = app("watch").run()
    assert not at.exception and "Telemetry cannot be read" in words(at)


def test_a_finished_run_is_scored_by_looking_at_runs(store):
    folder = example_in(store)
    assert store.scores() == []
    at = app("runs", view="Accuracy").run()
    assert not at.exception and "1 of 1 run inside the 80 % interval" in words(at)
    by_hand = review(store, str(folder), record=False).scored
    recorded = {row.quantity: row.actual for row in store.scores()}
    assert recorded["step_seconds"] == pytest.approx(by_hand.score("step_seconds").actual)
