"""Page What fits: whether a model fits a card, named, pasted or by its depth, and how fast it trains there."""

from __future__ import annotations

import json
from functools import partial

import pandas as pd
import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")

from streamlit.testing.v1 import AppTest

from advisor.errors import AdvisorError
from advisor.hardware.offers import cheapest_offer
from advisor.report.gpu_rows import TRAINING_NUMBERS
from advisor.store.store import default_store
from advisor.units import format_bytes, format_centre, format_estimate, format_rate
from advisor.workflows.goal import find_any_model, model_of_config
from advisor.workflows.plan import recommend
from tests.advisor.plans import goal_of
from tests.ui import driver
from tests.ui.test_plan_page import app as plan_page
from tests.ui.test_plan_page import ok, said_command

# TinyLlama's sizes: 1.1 B parameters as published
CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip


app = partial(driver.app, "gpus")


def words(at: AppTest) -> str:
    kinds = (at.markdown, at.caption, at.info, at.warning, at.error)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def test_a_form_of_another_page_that_holds_no_rank_changes_nothing():
    at = app()
    at.session_state["lora_rank"] = None  # as the page Plan leaves it
    at.run()
    assert not at.exception and not at.error and "It fits on" in words(at)


def test_one_question_in_one_row_is_answered_yes_with_the_numbers_of_the_command():
    at = app(card_model="Qwen/Qwen3-8B", cards="rtx-4090", card_method="qlora", card_seq="1024").run()
    assert not at.exception and not at.error
    [said] = [m.value.replace("\\", "") for m in at.markdown if m.value.startswith("## ")]
    goal = goal_of(["--gpu", "rtx-4090", "--finetune", "qlora", "--model", "Qwen/Qwen3-8B", "--tokens", "1M"])
    run = recommend(goal, default_store()).chosen
    takes, rate = run.prediction.device_bytes, run.prediction.tokens_per_second
    span = format_estimate(takes, format_bytes).split("(")[1].rstrip(")")
    assert said == f"## RTX 4090 24 GB. Yes, probably: {span} of 24 GiB"
    assert 0.9 * 24 * 2**30 < takes.high < 24 * 2**30
    shown = {metric.label: metric.value for metric in at.metric}
    assert shown["Memory per GPU"] == format_centre(takes, format_bytes)
    assert shown["Throughput"] == format_centre(rate, format_rate)
    cost = 1e6 * run.offer.usd_per_hour / 3600 / rate.value
    assert float(shown["Cost per million tokens"][1:]) == pytest.approx(cost, rel=0.05)
    assert f"{int(100 * run.prediction.fit_probability)} % chance that it fits" in words(at)
    assert at.query_params["cards"] in ("rtx-4090", ["rtx-4090"])  # the address holds keys, the page says products
    assert "RTX 4090 24 GB" in words(at)


def test_what_qlora_takes_without_recomputed_activations_is_explained():
    takes = {}
    for method in ("lora", "qlora"):
        at = app(card_model="llama-3.1-8b", cards="a100-80gb-sxm", card_method=method, card_seq="1024").run()
        [takes[method]] = [float(metric.value.split()[0]) for metric in at.metric if metric.label.startswith("Memory")]
        assert ("Recomputed, it takes " in words(at)) == (method == "qlora")
    assert takes["qlora"] > takes["lora"]  # the surprise that the answer explains
    assert float(words(at).split("Recomputed, it takes ")[1].split()[0]) < takes["lora"]


def test_a_mixture_of_experts_is_fine_tuned_and_not_trained_from_scratch(monkeypatch):
    at = app(card_model="qwen3-30b-a3b", card_method="qlora", cards="a6000").run()
    assert not at.exception and not at.error and "8 of its 128 experts" in words(at)
    [said] = [m.value.replace("\\", "") for m in at.markdown if m.value.startswith("## ")]
    assert said.startswith("## RTX A6000 48 GB. Yes")
    at = app(card_model="qwen3-30b-a3b", card_method="scratch").run()
    assert "split over several GPUs" in at.info[0].value
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("advisor.ui.controls.st.switch_page", lambda page, query_params: asked.append(query_params))
    next(button for button in at.button if button.label == "Plan its layout").click().run()
    plan = plan_page(**asked[0]).run()
    assert not plan.exception and not plan.error and "## Train qwen3-30b-a3b " in words(plan)
    assert "tokens **(assumed: 20 for each active parameter)**" in words(plan)
    next(field for field in plan.text_input if field.label == "Number of tokens").set_value("1B").run()
    assert "(assumed" not in words(plan) and plan.text_input(key="tokens").value == "1B"
    # a fine-tune of all its weights stays one, with the examples that were typed
    at = app(card_model="qwen3-30b-a3b", card_method="full").run()
    at.number_input(key="card_examples").set_value(5_000).run()
    next(button for button in at.button if button.label == "Plan its layout").click().run()
    plan = plan_page(**asked[1]).run()
    assert not plan.exception and not plan.error
    assert "## Fine-tune qwen3-30b-a3b (all weights) on " in words(plan) and "5,000 examples 3 times" in words(plan)
    # the page Plan offers the same where it refuses
    refused = plan_page(model="qwen3-30b-a3b", gpu="h100-80gb-sxm", budget="", deadline="30 d").run()
    assert not refused.error and "## Fine-tune qwen3-30b-a3b (QLoRA" in words(refused)
    refused.selectbox(key="finetune").set_value(None).run()  # from scratch
    assert "not build mixtures of experts" in refused.error[0].value and "advisor plan" not in refused.error[0].value
    next(button for button in refused.button if button.label == "Plan its layout").click().run()
    assert not refused.exception and not refused.error and "Train qwen3-30b-a3b " in words(refused)


def test_what_does_not_fit_stays_in_the_list_with_by_how_much():
    at = app(card_model="llama-3-8b", card_method="full", cards="rtx-4090").run()
    assert not at.exception and not at.error
    [said] = [m.value.replace("\\", "") for m in at.markdown if m.value.startswith("## ")]
    assert said.startswith("## RTX 4090 24 GB. No: it takes ") and said.endswith(", and 24 GiB are available")
    listed = at.dataframe[0].value.set_index("GPU")
    row = listed.loc["RTX 4090 24 GB"]
    assert row["Fits"] == "no" and row["Free"] < -24
    assert row["Takes"] + row["Free"] == pytest.approx(24, abs=0.1)
    # numbers are numbers, so that they sort as such
    assert all(pd.api.types.is_numeric_dtype(listed[name]) for name in TRAINING_NUMBERS)


def test_prices_are_per_gpu_and_what_is_sold_by_eight_says_so():
    at = app(card_model="gpt2", card_method="scratch").run()
    assert not at.exception and not at.error
    listed = at.dataframe[0].value.set_index("GPU")
    mi300x = listed.loc["V100 SXM2 32 GB"]
    machine = cheapest_offer("v100-32gb-sxm2", 1)
    assert machine.rented == 8 and mi300x["$ per GPU-hour"] == pytest.approx(machine.usd_per_hour / 8)
    assert "by 8: $" in mi300x["From"]
    an_hour = mi300x["$ per M tokens"] * mi300x["Tokens/s"] * 3600 / 1e6
    assert an_hour == pytest.approx(machine.usd_per_hour / 8, rel=0.1)


def test_a_pasted_config_is_predicted_and_a_wrong_one_is_said_beside_the_question():
    at = app(card_method="scratch").run()
    at.text_area(key="card_config").set_value(json.dumps(CONFIG)).run()
    assert not at.exception and not at.error
    assert "It fits on " in words(at)
    fits = at.dataframe[0].value.set_index("GPU")["Fits"]
    assert fits["H100 SXM 80 GB"] == "yes"
    assert fits["V100 SXM2 16 GB"] == "no" and fits["V100 SXM2 32 GB"] == "yes"  # its state alone is 17.6 GB
    at.text_area(key="card_config").set_value(json.dumps(CONFIG | {"model_type": "bert"})).run()
    assert not at.exception and at.error[0].value.startswith("**Model**: config.json does not describe a known model")
    assert at.selectbox(key="card_model") is not None  # the question is still there


def test_gpus_of_the_address_stand_side_by_side_and_are_planned_on_with_the_model_asked_about(monkeypatch):
    at = app(card_model="tinyllama-1.1b", card_method="scratch")
    at.query_params.update({"cards": ["l4", "h100-80gb-sxm"], "card_seq": "1024", "card_filter": "ada"})
    at.run()
    assert not at.exception and not at.error
    assert at.text_input(key="card_filter").value == "ada"
    side = next(frame.value for frame in at.table if "H100 SXM 80 GB" in frame.value.columns)
    cells = side.set_index(" ")
    # as the catalog has them: 121 and 989 TFLOP/s
    assert "121 TFLOP/s" in cells.loc["Bf16 / fp16 dense", "L4 24 GB"].replace("\\", "")
    assert "989 TFLOP/s" in cells.loc["Bf16 / fp16 dense", "H100 SXM 80 GB"].replace("\\", "")
    found = {metric.label: metric.value for metric in at.metric}
    assert int(found["Longest context that fits"].replace(",", "")) >= 1024
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("advisor.ui.controls.st.switch_page", lambda page, query_params: asked.append(query_params))
    at.button(key="plan-on-these").click().run()
    goal = said_command(ok(plan_page(**asked[0]).run()))
    assert (goal.gpu, goal.family, goal.depth, goal.seq_len) == ("l4,h100-80gb-sxm", "llama", 22, 1024)


def test_a_fine_tune_is_planned_for_the_examples_and_the_rank_that_are_asked_for_on_a_machine_of_ones_own(monkeypatch):
    at = app(card_model="qwen3-8b", cards="rtx-4090", card_method="qlora", card_seq="1024", card_rank="64").run()
    at.number_input(key="card_examples").set_value(25_000)
    at.checkbox(key="card_mine").check()
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("advisor.ui.controls.st.switch_page", lambda page, query_params: asked.append(query_params))
    at.button(key="plan-on-these").click().run()
    goal = said_command(ok(plan_page(**asked[0]).run()), out=False)
    assert (goal.examples, goal.lora_rank, goal.finetune, goal.seq_len) == (25_000, 64, "qlora", 1024)
    assert [(machine.gpu, machine.gpus) for machine in goal.own] == [("rtx-4090", 1)]
    assert recommend(goal, default_store()).chosen.cost_usd.value == 0


def test_gpus_that_no_plan_can_have_are_not_offered_to_the_plan():
    at = app(card_model="gpt2", card_method="scratch", cards="gaudi3").run()
    assert not at.exception and at.button(key="plan-on-these").disabled


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "bert"}, "does not describe a known model"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"num_attention_heads": 31}, "heads"),
    ],
)
def test_what_the_trainer_does_not_build_is_refused(change, said):
    with pytest.raises(AdvisorError, match=said) as refused:
        model_of_config(json.dumps(CONFIG | change), seq_len=2048)
    assert refused.value.exit_code == 2 and refused.value.hint


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '"x"', '{"model_type": "llama"}', '{"num_hidden_layers": -3}']
)
def test_what_is_no_config_is_one_sentence(text):
    with pytest.raises(AdvisorError):
        model_of_config(text, seq_len=2048)


def test_a_model_that_is_not_known_names_the_field_for_its_config():
    said = app(card_model="model-9b").run().error[0].value.replace("\\", "")
    assert said == "**Model**: model-9b is not known here.  \nPaste its config.json below, or type a size such as 9B."
    near = app(card_model="qwen3-9b").run().error[0].value.replace("\\", "")
    assert "Did you mean qwen3-" in near and "llama" not in near


def test_a_wrong_name_or_value_in_a_link_names_the_closest():
    at = app(card_method="qlor", method="lora").run()
    said = at.warning[0].value.replace("\\", "")
    assert "method (did you mean card_method?)" in said and "card_method=qlor (qlora is taken)" in said
    assert not at.exception and at.selectbox(key="card_method").value == "qlora"


def test_a_pasted_model_is_planned_on_with_examples_as_short_as_the_context(monkeypatch, advisor_home):
    at = app(card_method="lora", cards="a6000", card_seq="512").run()
    at.text_area(key="card_config").set_value(json.dumps(CONFIG)).run()
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("advisor.ui.controls.st.switch_page", lambda page, query_params: asked.append(query_params))
    at.button(key="plan-on-these").click().run()
    goal = said_command(ok(plan_page(**asked[0]).run()), out=False)
    assert (goal.length, goal.seq_len, goal.budget_usd) == (512, 512, None)
    assert find_any_model(goal.model).parameters == pytest.approx(1.1e9, rel=0.01)
