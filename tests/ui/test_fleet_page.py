"""The page Fleet."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

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
    assert len(at.get("vega_lite_chart")) == 1 or len(at.get("arrow_vega_lite_chart")) == 1


def test_faults_of_the_file_are_shown_with_their_lines():
    at = page().run()
    at.text_area[0].set_value(OWN.replace("gpus: 1", "gpus: none").replace("name: second", "name: first"))
    at.button(key="fleet-plan").click().run()
    (error,) = at.error
    assert "line 2" in error.value and "two runs are called first" in error.value and "/tmp" not in error.value
