"""The page Fleet."""

from __future__ import annotations

import json
import re
from datetime import datetime

import pytest
from streamlit.testing.v1 import AppTest

from advisor import api
from advisor.report import fleet as words

OWN = """
pools: {desk: {kind: owned, gpu: rtx-4090, gpus: 1}}
runs:
- {name: first, goal: {model: gpt2, tokens: 100M}, deadline: 2d}
- {name: second, goal: {model: gpt2, tokens: 100M}, deadline: 2d}
"""


def page() -> AppTest:
    def draw():
        from advisor.ui import fleet
        from advisor.ui.frame import guarded

        guarded(fleet.page)()

    return AppTest.from_function(draw, default_timeout=60)


def test_runs_of_a_file_are_planned_and_drawn():
    at = page().run()
    assert not at.exception and "kind: owned" in at.text_area[0].value  # the example
    at.text_area[0].set_value(OWN)
    at.button(key="fleet-plan").click().run()
    assert not at.exception
    shown = " ".join(one.value for one in at.markdown)
    assert "2 runs cost" in shown and "each of 2 deadlines is met" in shown
    [chart] = at.get("vega_lite_chart") or at.get("arrow_vega_lite_chart")
    assert json.loads(chart.proto.spec)["height"] >= 2 * 24 + 90  # so that rows, legend and axis have room


def test_a_fact_has_one_number(tmp_path, advisor_home):
    (tmp_path / "fleet.yaml").write_text(OWN.replace("gpus: 1}", "gpus: 1, usd_per_gpu_hour: 2}") + "budget: 100\n")
    made = api.fleet(tmp_path / "fleet.yaml", effort=0.1).record
    schedule, budgets = words.tables(made)
    for row, bar in zip(schedule.rows, words.bars(made), strict=True):
        assert [f"{datetime.fromisoformat(bar[at]):%a %d %b %H:%M}" for at in ("start", "end")] == [*row[3:5]]
    assert f"2 runs cost {budgets.rows[0][1]} " in words.sentence(made)
    assert sum(one.usd.value for one in made.outlooks) == pytest.approx(made.total_usd.value)


def test_faults_of_the_file_are_shown_with_their_lines():
    at = page().run()
    at.text_area[0].set_value(OWN.replace("gpus: 1", "gpus: none").replace("name: second", "name: first"))
    at.button(key="fleet-plan").click().run()
    (error,) = at.error
    assert "line 2" in error.value and "two runs are called first" in error.value and "/tmp" not in error.value


def test_a_typed_model_that_nobody_knows_is_said_at_once():
    at = page().run()
    assert not at.error and not at.button(key="fleet-add-run").disabled
    for key, typed, said in (
        ("fleet-model", "frobnicator-13b", "is not known here.  \nOr type the path of its config.json"),
        ("fleet-model", "qwen3-9b", "Did you mean "),
        ("fleet-tokens", "many", "“**Number of tokens**”\\: 'many' is not a number"),
        ("fleet-tokens", "0", "more than 0  \nGive more than 0"),
        ("fleet-model", "qwen3-8b", "It can be fine-tuned\\: choose qlora under “**Method**”"),
        ("fleet-deadline", "3", "'3' has no unit"),
    ):
        at = page()
        at.session_state[key] = typed
        at.run()
        assert said in at.error[0].value and at.button(key="fleet-add-run").disabled
        assert not re.search("--[a-z]|advisor ", at.error[0].value)  # the words of a terminal


def test_a_file_is_written_from_fields():
    at = page().run()
    next(one for one in at.button if one.label == "Start empty").click().run()
    at.selectbox(key="fleet-gpu").set_value("rtx-4090")
    at.number_input(key="fleet-gpus").set_value(1).run()
    at.button(key="fleet-add-gpus").click().run()
    at.text_input(key="fleet-name").set_value("mine: first")
    at.selectbox(key="fleet-model").set_value("qwen2.5-7b")
    at.selectbox(key="fleet-method").set_value("qlora").run()
    at.session_state["fleet-runs"] = True
    at.button(key="fleet-add-run").click().run()
    assert at.session_state["fleet-runs"] is False  # the form closes on success
    at.button(key="fleet-set-budget").click().run()
    at.button(key="fleet-plan").click().run()
    assert not at.exception and not at.error
    shown = " ".join(one.value for one in at.markdown)
    assert "1 run costs \\$0.00 without electricity on average" in shown and "each of 1 deadlines is met" in shown
