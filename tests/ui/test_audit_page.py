"""Page Audit: a pasted plan is judged as `advisor audit` judges it."""

from __future__ import annotations

import json
from functools import partial

import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")

from streamlit.testing.v1 import AppTest

from advisor.store.store import default_store
from advisor.workflows.audit import audit_cards
from tests.ui import driver

PLAN = """# Plan

- depth: 10
- width: 640
- vocab size: 32000

We train a 7B model on one RTX 4090 with bf16 on 100B tokens. This takes 3 days and costs $50.

Training runs at 50 steps of 1,000 tokens in 10 seconds, that is 5,000 tokens per second.
"""


app = partial(driver.app, "audit")


def words(at: AppTest) -> str:
    kinds = (at.markdown, at.caption, at.info, at.warning, at.error, at.header)
    said = "\n".join(str(element.value) for kind in kinds for element in kind)
    return said + "\n".join(frame.value.to_csv() for frame in at.table)


def test_a_pasted_plan_is_judged_as_the_command_judges_it(advisor_home, tmp_path):
    at = app().run()
    assert "Paste a plan or a report" in words(at) and not at.exception
    at.text_area(key="audit-text").set_value(PLAN).run()
    assert not at.exception and not at.error
    path = tmp_path / "plan.md"
    path.write_text(PLAN)
    [judged] = audit_cards([path], default_store())
    said = words(at)
    assert not judged.judged and "Nothing here could be checked: write its figures as lines" in said
    assert "--reader" in said  # how the sentences can be read
    assert "7: We train a 7B model" in at.code[0].value  # the prompt to copy
    assert len(at.get("download_button")) == 2


def test_a_sentence_is_checked_once_its_figures_are_lines(advisor_home):
    """2e12 tokens at 400,000 a second take 57.9 days."""
    at = app().run()
    sentence = (
        "We train a 7B model on 2 T tokens at 400,000 tok/s, done in 10 days on 8 H100 for $3,456 at $1.80 an hour."
    )
    at.text_area(key="audit-text").set_value(sentence).run()
    at.button(key="audit-lines").click().run()
    lines = at.text_area(key="audit-text").value.splitlines()
    assert {"parameters: 7B", "tokens: 2 T", "duration: 10 days", "cost: $3,456", "GPU: h100-80gb-sxm", "GPUs: 8"} <= {
        *lines
    }
    assert not at.exception and "57.9 days, not 10 days" in words(at)


def test_the_example_in_the_empty_field_can_be_checked_without_an_assistant(advisor_home):
    """38 days of 8 GPUs at $1.80 an hour are 38 * 24 * 8 * 1.80 = $13,133; 1e11 / 30,000 / 86,400 = 38.6 days."""
    at = app().run()
    at.text_area(key="audit-text").set_value(at.text_area(key="audit-text").placeholder).run()
    said = words(at)
    assert not at.exception and "Wrong (1)" in said and "13,100, not" in said and "Holds (1)" in said


def test_what_an_assistant_answered_is_judged(advisor_home):
    """6 x 7e9 x 1e11 FLOPs in three days are 16 PFLOP/s: a hundred times what a 4090 has."""
    at = app().run()
    at.text_area(key="audit-text").set_value(PLAN).run()
    quote = PLAN.splitlines()[6]
    claim = {"id": "days", "kind": "training_time", "text": "it takes three days", "value": "3 days", "gpu": "rtx-4090"}
    claim |= {"parameters": "7 billion", "tokens": "100 billion", "quote": quote, "also": ["This takes 3 days"]}
    at.text_area(key="audit-answer").set_value(json.dumps({"title": "t", "run": {}, "claims": [claim]})).run()
    assert not at.exception and not at.error
    said = words(at)
    assert "it takes three days" in said and "Wrong (1)" in said and "line 7" in said
    at.text_area(key="audit-answer").set_value("I cannot do that").run()
    assert "The reader's answer is not JSON" in words(at)


def test_sentences_alone_wait_for_an_assistant():
    at = app().run()
    at.text_area(key="audit-text").set_value("At $2.50 per GPU-hour the run costs $384,000.").run()
    assert not at.exception and not at.error and "or have an assistant read it" in at.info[0].value
    assert "1: At $2.50 per GPU-hour" in at.code[-1].value


def test_lines_of_names_and_values_are_checked_as_a_table_is(advisor_home):
    """1e11 tokens at 30,000 a second take 38.6 days; 38 days of 8 GPUs at $1.80 an hour cost $13,133."""
    at = app().run()
    lines = ("GPUs: 8 x A100", "throughput: 30,000 tokens/s", "tokens: 100B", "time: 38 days", "price: $1.80/h",
             "cost: $12,000")  # fmt: skip
    at.text_area(key="audit-text").set_value("\n".join(lines)).run()
    said = words(at)
    assert not at.exception and "Wrong (1)" in said and "13,100, not" in said and "Holds (1)" in said
    assert "38 days in hours" in said
