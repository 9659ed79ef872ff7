"""Page GPUs: whether a model fits a card, named, pasted or by its depth, and how fast it trains there."""

from __future__ import annotations

import json
from functools import partial

import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")

from streamlit.testing.v1 import AppTest

from advisor.errors import AdvisorError
from advisor.workflows.goal import shape_of_config
from tests.ui import driver

# TinyLlama's sizes: 1.1 B parameters as published
CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip


app = partial(driver.app, "gpus")


def words(at: AppTest) -> str:
    kinds = (at.markdown, at.caption, at.info, at.warning, at.error)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def test_a_pasted_config_is_predicted_on_every_card():
    at = app().run()
    at.text_area(key="card_config").set_value(json.dumps(CONFIG)).run()
    assert not at.exception and not at.error
    # 2 x 32000 x 2048 + 22 x (2 x 2048^2 + 2 x 2048 x 256 + 3 x 2048 x 5632 + 2 x 2048) + 2048 = 1,100,048,384
    assert "llama of depth 22" in words(at) and "1,100,048,384" in words(at).replace("1.1 B", "1,100,048,384")
    cards = list(at.dataframe[0].value["GPU"])
    assert "h100-80gb-sxm" in cards
    assert "v100-16gb-sxm2" not in cards and "v100-32gb-sxm2" in cards  # its state alone is 17.6 GB


def test_a_ticked_card_says_the_largest_batch_and_context():
    script = (
        "import datetime\nfrom advisor.ui import gpus\n"
        "goal = gpus._controls()\nrows = gpus._market(goal, ())\n"
        "gpus._one(next(r for r in rows if r.spec.key == 'l4'), goal, datetime.date(2026, 11, 23))\n"
    )
    at = AppTest.from_string(script, default_timeout=180)
    at.query_params["card_model"] = "gpt2"
    at.run()
    assert not at.exception
    found = {metric.label: metric.value for metric in at.metric}
    context = int(found["Longest context that fits"].replace(",", "").replace(" ", "").replace("\u202f", ""))
    assert 2048 <= context <= 2**20 and context & (context - 1) == 0
    assert int(found["Largest micro-batch tried that fits"]) >= int(found["Micro-batch of a plan"].split(" x ")[0])


def test_adapters_make_a_model_fit_that_does_not_fit_whole():
    script = (
        "import datetime\nfrom advisor.ui import gpus\n"
        "goal = gpus._controls()\nrows = gpus._market(goal, ())\n"
        "gpus._one(next(r for r in rows if r.spec.key == 'rtx-4090'), goal, datetime.date(2026, 11, 23))\n"
    )
    at = AppTest.from_string(script, default_timeout=180)
    at.query_params["card_model"] = "llama-3-8b"
    at.query_params["lora_rank"] = "32"
    at.run()
    assert not at.exception
    assert "does not fit" in words(at)  # all of it
    assert "Largest micro-batch tried that fits" not in [metric.label for metric in at.metric]
    shown = next(t.value for t in at.table if "longest context" in t.value)
    assert "does not fit" not in list(shown["micro-batch"])[:2]
    assert list(shown["kind"]) == ["LoRA of rank 32", "QLoRA of rank 32", "16 of 32 blocks frozen"]
    # rank 32 in 32 layers: 4 x 4096 + 2 x (4096 + 1024) + 3 x (4096 + 14336) = 81,920: 83,886,080
    assert set(shown["trained"][:2]) == {"83.9 M"}


def test_cards_of_the_address_stand_side_by_side_and_are_planned_on_with_the_model_asked_about(monkeypatch):
    at = app()
    at.query_params.update({"cards": ["l4", "h100-80gb-sxm"], "llama_depth": "8", "card_family": "llama"})
    at.query_params.update({"card_seq": "1024", "card_filter": "ada"})
    at.run()
    assert not at.exception and not at.error
    assert at.text_input(key="card_filter").value == "ada"
    side = next(frame.value for frame in at.table if "h100-80gb-sxm" in frame.value.columns)
    assert list(side.columns[1:]) == ["l4", "h100-80gb-sxm"]
    cells = side.set_index(" ")
    # as the catalog has them: 24 GB less what the driver keeps, 121 and 989 TFLOP/s
    assert "121 TFLOP/s" in cells.loc["Bf16 / fp16 dense", "l4"].replace("\\", "")
    assert "989 TFLOP/s" in cells.loc["Bf16 / fp16 dense", "h100-80gb-sxm"].replace("\\", "")
    assert (cells["l4"] != cells["h100-80gb-sxm"]).all()
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("advisor.ui.gpus.st.switch_page", lambda page, query_params: asked.append(query_params))
    at.button(key="plan-on-these").click().run()
    from tests.ui.test_plan_page import app as plan_page
    from tests.ui.test_plan_page import ok, said_command

    goal = said_command(ok(plan_page(**asked[0]).run()))
    assert (goal.gpu, goal.family, goal.depth, goal.seq_len) == ("l4,h100-80gb-sxm", "llama", 8, 1024)
    at.multiselect(key="cards").set_value(["l4"]).run()
    assert at.subheader[0].value == "l4" and not any("h100-80gb-sxm" in frame.value.columns for frame in at.table)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "bert"}, "no model that is known here"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"head_dim": 128}, "heads of 128"),
        ({"num_attention_heads": 31}, "heads"),
    ],
)
def test_what_the_trainer_does_not_build_is_refused(change, said):
    with pytest.raises(AdvisorError, match=said) as refused:
        shape_of_config(json.dumps(CONFIG | change), 2048)
    assert refused.value.exit_code == 2 and refused.value.hint


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '"x"', '{"model_type": "llama"}', '{"num_hidden_layers": -3}']
)
def test_what_is_no_config_is_one_sentence(text):
    with pytest.raises(AdvisorError):
        shape_of_config(text, 2048)
