"""Page Adopt: a command is measured beside the page, and what the page says of it is what the command line says."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")

from streamlit.testing.v1 import AppTest

from advisor.engines.engines import describe
from advisor.engines.state import goes_on
from advisor.errors import AdvisorError
from advisor.options import LaunchOptions
from advisor.store.adopted import load_adopted, save_adopted
from advisor.store.store import default_store
from advisor.units import format_count
from advisor.workflows.adopt import adopting, runs_of_command, start_adopting, typed_command, was_adopted
from advisor.workflows.adopt_launch import launching
from advisor.workflows.compare import review
from tests.engines.adopted_runs import beside_other_work, plan_of
from tests.ui import driver
from tests.ui.adopting import SCRIPT, adopted
from tests.ui.serving import chromium, free_port, serving
from tests.waiting import waited

app = partial(driver.app, "adopt")


def words(at: AppTest) -> str:
    kinds = (at.markdown, at.caption, at.info, at.warning, at.error, at.header)
    said = "\n".join(str(element.value) for kind in kinds for element in kind)
    return (said + "\n".join(frame.value.to_csv() for frame in at.table)).replace("\\", "")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("python train.py --data 'my text.txt'", ("python", "train.py", "--data", "my text.txt")),
        ("torchrun --nproc-per-node 2 \\\n  train.py", ("torchrun", "--nproc-per-node", "2", "train.py")),
        ("OMP_NUM_THREADS=1 python train.py", ("env", "OMP_NUM_THREADS=1", "python", "train.py")),
    ],
)
def test_a_command_is_parted_as_a_shell_parts_it(text, found):
    assert typed_command(text) == found


@pytest.mark.parametrize("text", ["python train.py | tee log", "python train.py && echo done", "python 'train.py", ""])
def test_what_only_a_shell_understands_is_refused_with_a_way_out(text):
    with pytest.raises(AdvisorError) as caught:
        typed_command(text)
    assert caught.value.hint and caught.value.exit_code == 2


def test_a_command_that_was_adopted_shows_its_knobs_bursts_and_plan(advisor_home):
    adopted(advisor_home)
    at = app(adopted="mine", adopt_deadline="60 s", adopt_price="3.6").run()
    assert not at.exception and not at.error
    said = words(at)
    assert "--bsz changes the sequences of a micro-batch" in said and "dead" in said
    bursts = next(frame.value for frame in at.table if "Predicted" in frame.value)
    assert list(bursts["Step"]) == ["14 ms", "18 ms", "12 ms", "26 ms"] and (bursts["Predicted"] != "").all()
    assert "each batch predicted from the others" in said
    # start-up 2 s and a step of 14 ms: a deadline of 60 s is some 4,000 steps, and no more than would end by then
    steps = int(said.split("plan mine-")[1].split(": ")[1].split(" steps")[0].replace(",", "").replace(" ", ""))
    assert 2500 < steps < 58 / 0.014
    assert "`--iters` did not end a burst as it should" in said and "cost $0.0" in said
    # the same frame as on the page Plan: sentence, four numbers, the odds of the limit, warnings on top
    assert f"## Run mine for {format_count(steps)} steps on " in said.replace("\\", "")
    assert [metric.label for metric in at.metric][:3] == ["Cost", "Time", "Step time"] and len(at.metric) == 4
    assert at.metric[2].value == "14 ms" and "chance of staying within the deadline" in at.metric[1].proto.help
    assert any("did not end a burst as it should" in one.value for one in at.warning)
    assert "Launch it" in [button.label for button in at.button]


def test_too_few_batches_to_know_the_error_are_a_warning_above_the_plan(advisor_home):
    whole = adopted(advisor_home)
    save_adopted(advisor_home, replace(whole, bursts=whole.bursts[:3]))
    at = app(adopted="mine", adopt_deadline="60 s").run()
    # which bursts would help: those that did not run, or those of a batch that no option changes
    assert not at.exception and "**Time for the test runs (seconds)**" in at.warning[0].value
    short = replace(whole.bursts[2], outcome="completed", steady=False)
    save_adopted(advisor_home, replace(whole, bursts=(*whole.bursts[:2], short)))
    warning = app(adopted="mine", adopt_deadline="60 s").run().warning[0].value
    assert "a command that does more steps" in warning and "more time" not in warning
    save_adopted(advisor_home, replace(whole, bursts=whole.bursts[:1], verdicts=()))
    at = app(adopted="mine", adopt_deadline="60 s").run()
    assert "fewer than four batch sizes" in at.warning[0].value and "more time" not in at.warning[0].value
    assert "“**Your flags for micro-batch, steps … (if --help does not show them)**” micro" in at.warning[0].value
    save_adopted(advisor_home, whole)
    assert not any("Fewer than four" in one.value for one in app(adopted="mine").run().warning)


def test_an_address_cannot_put_a_command_in_the_page(advisor_home):
    at = app(**{name: "touch here" for name in ("adopt-command", "adopt_command", "command", "words")}).run()
    assert not at.exception
    assert at.text_area(key="adopt-command").value == ""


def test_without_a_limit_it_asks_and_a_wrong_one_is_one_sentence(advisor_home):
    adopted(advisor_home)
    at = app().run()
    assert not at.exception and "State how long it trains" in words(at)
    at.text_input(key="adopt_deadline").set_value("soon").run()
    assert not at.exception and len(at.error) == 1 and "soon" in at.error[0].value
    at.text_input(key="adopt_deadline").set_value("1 s").run()
    assert not at.exception and "No step ends within" in words(at)


def test_a_command_that_fails_says_so_and_one_that_is_cancelled_leaves_nothing_running(advisor_home, tmp_path):
    store = default_store()
    at = app().run()
    assert "Adopted command" not in [box.label for box in at.selectbox]
    at.text_area(key="adopt-command").set_value(f"{sys.executable} {SCRIPT} --crash-at 1")
    at.text_input(key="adopt-folder").set_value(str(tmp_path))
    next(button for button in at.button if button.label == "Adopt it").click().run()
    assert not at.exception and not at.error
    waited(lambda: not adopting(store).look().running)
    at.run()
    assert "never_seen was not adopted" in words(at).replace("*", "") and "the user's own mistake" in words(at)
    said = at.error[0].value.lower()
    assert "--steps 300”" in said  # its own words, not those of this page
    assert not any(part in said for part in ("error: ", "hint: ", "reading the", "unchanged\n"))
    at.button(key="adopt-close").click().run()
    assert not at.error and not app().run().error  # nor after a reload

    start_adopting(store, f"{sys.executable} {SCRIPT}", tmp_path, name="long", budget_seconds=100)
    with pytest.raises(AdvisorError, match="an adoption is running already"):
        start_adopting(store, f"{sys.executable} {SCRIPT}", tmp_path)
    waited(lambda: any("unchanged" in line for line in adopting(store).last_lines()))
    assert "Cancel" in [button.label for button in app().run().button]
    adopting(store).cancel(with_children=True)
    state = adopting(store).look()
    assert not state.running and not was_adopted(store, state)


@pytest.mark.long
@pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium")
def test_from_a_pasted_command_to_its_score_on_a_telephone(advisor_home, tmp_path):
    """In a real browser, 390 pixels wide, against a real server, with a script that nobody has seen."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    with serving(advisor_home, free_port(), tmp_path) as address, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.set_default_timeout(180_000)
        page.goto(f"{address}/adopt?adopt_steps=2000&adopt_price=3.6")
        page.get_by_label("Command", exact=True).fill(f"{sys.executable} {SCRIPT}")
        page.get_by_label("Folder", exact=True).fill(str(tmp_path))
        page.get_by_label("Time for the test runs (seconds)", exact=True).fill("150")
        page.get_by_role("button", name="Adopt it").click()
        page.get_by_text("running the command unchanged").first.wait_for()
        page.get_by_text("each batch predicted from the others").wait_for(state="attached")  # in another tab
        kept = load_adopted(advisor_home, "never_seen")
        assert {v.name: v.verdict for v in kept.verdicts}["micro_batch"] == "works"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.get_by_role("button", name="Launch it").click()
        page.get_by_text("Blue band: as planned.").wait_for()  # its steps are drawn
        page.get_by_role("button", name="Compare with its plan").click()  # it has ended
        page.get_by_text("predictions came true").first.wait_for()  # it is scored
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        browser.close()
    [folder] = runs_of_command(default_store(), "never_seen")
    assert any(row.run_id == folder.name and row.quantity == "step_seconds" for row in default_store().scores())
    sources = [burst.source for burst in load_adopted(advisor_home, "never_seen").bursts]
    busy = beside_other_work(review(default_store(), str(folder), record=True).not_learnt)
    assert sources.count("run") == (not busy)


def test_the_page_of_all_runs_shows_one_of_an_adopted_command_by_its_own_numbers(advisor_home, tmp_path):
    """It was read as one of our trainer's there, which has another configuration."""
    store = default_store()
    folder = launching(store, plan_of(store, tmp_path, 30), LaunchOptions()).start().run_dir
    waited(lambda: not goes_on(describe(folder, store).state))
    script = "from advisor.ui.frame import guarded\nfrom advisor.ui import watch\nguarded(watch.page)()\n"
    at = AppTest.from_string(script, default_timeout=180).run()
    assert not at.exception and not at.error
    numbers = {metric.label: metric.value for metric in at.metric}
    assert "Progress" not in numbers and numbers["A step"].endswith("s")
    assert "Completed" in words(at)
    again = app(adopted="never_seen", adopt_steps="30").run()
    assert not again.exception and not again.error
    assert "Its runs (1)" in [button.label for button in again.button]
