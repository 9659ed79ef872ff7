"""The page Plan has every option that the command has, from the one table of options."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")

from streamlit.testing.v1 import AppTest

from advisor.cli.plan import command
from advisor.options import OPTIONS
from advisor.planning.command import plan_command
from advisor.ui.controls import ENTERED
from tests.advisor.plans import goal_of
from tests.ui.driver import with_drawers_open

FORM = "from advisor.ui import plan_form\nfrom advisor.planning.command import plan_command\nimport streamlit as st\n"
PAGE = f"{FORM}plan_form.begin()\nst.code(plan_command(plan_form.goal()))\n"
ASKED = {  # by the address: each kind of control that is not among the page's own tests
    "params": "1.5B", "compile": "no", "precision": "fp16", "sharding": "full", "gpus": "8", "gpu": "h100-80gb-sxm",
    "global_batch": "512k", "micro_batch": "16", "grid_carbon": "50", "data_tokens": "3B", "epochs": "2",
    "family": "llama", "kwh_price": "0.3", "seq_len": "4096", "sure": "true", "price": "2.1", "software": "nanogpt",
}  # fmt: skip
WORDS = """--gpu h100-80gb-sxm --gpus 8 --budget 50 --deadline 24h --params 1.5B --no-compile --precision fp16
--global-batch 512k --micro-batch 16 --grid-carbon 50 --data-tokens 3B --family llama --kwh-price 0.3 --sharding full
--seq-len 4096 --sure --price 2.1 --software nanogpt --epochs 2"""


def test_every_option_is_a_control_and_an_option_of_the_command():
    kinds = ("text_input", "number_input", "selectbox", "multiselect", "checkbox", "button_group")
    drawn = {"rl"}  # stated by the control of --finetune
    model = {"model": "qwen3-8b"}
    ours = {"model": "gpt2-medium"}  # that the trainer builds
    for query in ({"ratio": "20", "data_tokens": "1B"}, ours, model | {"finetune": "lora"}, model | {"rl": "grpo"}):
        at = with_drawers_open(AppTest.from_string(PAGE, default_timeout=60))
        at.query_params.update(query)
        at.run()
        drawn |= {control.key for kind in kinds for control in at.get(kind)}
    assert drawn >= set(OPTIONS)
    assert set(OPTIONS) <= {param.name for param in command.params}


def test_the_number_of_gpus_left_open_says_what_it_then_is():
    """It said "automatic", and one GPU of the named type was planned, with what fits no single one refused."""
    at = with_drawers_open(AppTest.from_string(PAGE, default_timeout=60)).run()
    [box] = [box for box in at.multiselect if box.key == "gpus"]
    assert box.placeholder == "one rented type: 1; any: 1,2,4,8"
    assert "Default: 1; for several types of GPU, or any: 1,2,4,8" in box.help.replace("\\", "")


def test_controls_of_a_closed_drawer_hold_what_they_held():
    at = AppTest.from_string(PAGE, default_timeout=60)
    with_drawers_open(at).run()
    at.session_state[ENTERED] = False  # as on any rerun of a page that is open
    at.text_input(key="tokens").set_value("1B").run()
    at.session_state["drawer-tune"] = at.session_state["drawer-settings"] = False
    at.run()
    assert not at.exception and "--tokens 1B" in at.code[0].value
    assert at.text_input(key="tokens").value == "1B"  # drawn although closed: what it holds is part of the question
    assert "precision" not in {box.key for box in at.selectbox}  # nothing is set there, so nothing is drawn


def test_a_model_is_typed_as_well_as_chosen():
    at = AppTest.from_string(PAGE, default_timeout=60)
    at.query_params["model"], at.query_params["gpu"] = "meta-llama/Llama-3.1-8B", "h200-141gb-sxm"
    at.run()
    assert not at.exception and "--model llama-3.1-8b" in at.code[0].value


def test_a_link_states_the_goal_of_the_same_words():
    at = AppTest.from_string(PAGE, default_timeout=60)
    for name, value in ASKED.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception, at.exception
    assert at.code[0].value == plan_command(goal_of(WORDS.split()))


def test_a_fine_tune_is_answered_on_the_page_as_by_the_command():
    page = "from advisor.ui.frame import guarded\nfrom advisor.ui import plan\nguarded(plan.page)()\n"
    at = AppTest.from_string(page, default_timeout=60)
    asked = {"gpu": "l4", "model": "Qwen/Qwen3-8B", "finetune": "qlora", "examples": "5k", "budget": "", "deadline": ""}
    for name, value in asked.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception and not at.error, at.error
    said = "\n".join(element.value for element in (*at.markdown, *at.caption))
    assert "Fine-tune qwen3-8b (QLoRA of rank 16) on" in said and "Tokens/s" in at.dataframe[0].value.columns
    start, command, call, _ = (code.value for code in at.code)  # the last one is the link
    assert start == "bash run.sh"
    assert command.startswith("advisor plan --gpu l4") and "--finetune qlora" in command
    assert "advisor.plan(gpu='l4'" in call and "finetune='qlora'" in call
