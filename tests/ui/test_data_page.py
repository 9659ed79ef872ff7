"""Page Data: text becomes a token folder, its tokens are shown as they are, and a plan's epochs are the planner's."""

from __future__ import annotations

import random
import shutil
from functools import partial

import numpy as np
import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")

from advisor.units import format_tokens
from advisor.workflows.data import prepare_data, preview, read_data
from tests.ui import driver

WORDS = ("the", "köln", "run", "loss", "token", "train", "a", "falls", "step", "🙂")


def text(seed: int = 0, words: int = 20_000) -> str:
    draw = random.Random(seed)
    return "\n\n".join(" ".join(draw.choice(WORDS) for _ in range(100)) for _ in range(words // 100))


app = partial(driver.app, "data")


def prepared(tmp_path):
    (tmp_path / "text.txt").write_text(text())
    return prepare_data([tmp_path / "text.txt"], tmp_path / "tokens", vocab_size=300), tmp_path / "tokens"


def test_a_path_becomes_a_token_folder_that_is_looked_at_and_offered_again(advisor_home, tmp_path):
    (tmp_path / "text.txt").write_text(text())
    at = app().run()
    assert not at.exception and any("Nothing is prepared yet" in info.value for info in at.info)
    at.text_input(key="data-path").set_value(str(tmp_path / "text.txt"))
    at.text_input(key="data-name").set_value("my words")
    at.number_input(key="data-vocabulary").set_value(300)
    next(button for button in at.button if button.label == "Prepare").click().run()
    assert not at.exception and not at.error, [e.value for e in at.error]
    meta = read_data(advisor_home / "data" / "my-words")
    assert at.text_input(key="folder").value == str(advisor_home / "data" / "my-words")
    shown = at.table[0].value.to_csv().replace("\\", "")
    assert format_tokens(meta.tokens) in shown and "text.txt" in shown
    again = app().run()
    assert again.text_input(key="folder").value == str(advisor_home / "data" / "my-words")  # the page shows something
    assert not [button for button in again.button if (button.key or "").startswith("pick-")]  # it is shown already
    assert not again.exception and format_tokens(meta.tokens) in again.table[0].value.to_csv().replace("\\", "")


def test_what_a_terminal_prepared_where_the_app_runs_is_offered(advisor_home, tmp_path, monkeypatch):
    meta, folder = prepared(tmp_path)
    monkeypatch.chdir(tmp_path)
    at = app().run()
    assert not any("Nothing is prepared yet" in info.value for info in at.info)
    at.text_input(key="folder").set_value("elsewhere").run()
    at.button(key=f"pick-{folder}").click().run()
    assert not at.exception and at.text_input(key="folder").value == str(folder)
    assert format_tokens(meta.tokens) in at.table[0].value.to_csv().replace("\\", "")


def test_tokens_are_shown_from_any_place_as_the_file_has_them(tmp_path):
    meta, folder = prepared(tmp_path)
    at = app(folder=str(folder), data_first="240").run()
    assert not at.exception and not at.error
    numbers = np.fromfile(folder / "tokens.bin", dtype="<u2")[240:360]
    frame = at.dataframe[0].value
    assert list(frame["Token"]) == numbers.tolist() and frame["Place"].iloc[0] == 240
    whole, tokens = preview(folder, meta, 0, meta.tokens)
    assert whole.startswith(text()[:40]) or whole[:200] in text()
    assert preview(folder, meta, meta.tokens - 3, 120)[1][-1].number == np.fromfile(folder / "tokens.bin", "<u2")[-1]


def test_part_of_a_folders_name_is_that_folder_and_many_passes_over_it_are_a_warning(advisor_home, tmp_path):
    _, folder = prepared(tmp_path)
    shutil.copytree(folder, advisor_home / "data" / "my-words")
    at = driver.app("plan", gpu="l4", data="words").run()
    assert not at.error and at.selectbox(key="data").value == str(advisor_home / "data" / "my-words")
    assert any(warning.value.startswith("The data would be seen ") for warning in at.warning)


def test_a_plan_is_made_on_these_data(tmp_path, monkeypatch):
    _, folder = prepared(tmp_path)
    at = app(folder=str(folder)).run()
    assert not at.exception and not at.error
    asked: list[dict[str, str]] = []
    monkeypatch.setattr("advisor.ui.data.st.switch_page", lambda page, query_params: asked.append(query_params))
    at.button(key="plan-on-data").click().run()
    assert asked == [{"data": str(folder)}]


@pytest.mark.parametrize(
    ("query", "said"),
    [({"folder": "/no/such/folder"}, "does not exist"), ({"folder": "/"}, "is not a token folder")],
)
def test_what_is_no_token_folder_is_one_sentence(query, said):
    at = app(**query).run()
    assert not at.exception and said in at.error[0].value.replace("\\", "")


def test_without_its_package_nothing_can_be_prepared_and_the_page_says_which(monkeypatch, advisor_home):
    monkeypatch.setattr("advisor.ui.data.can_prepare", lambda: False)
    at = app().run()
    assert not at.exception and {b.label: b.disabled for b in at.button}["Prepare"]
    assert at.button(key="make-corpus").disabled and any("training-advisor[train]" in c.value for c in at.caption)


def test_a_preparation_that_fails_leaves_no_bar(advisor_home, tmp_path):
    (tmp_path / "text.txt").write_text("too short")
    at = app().run()
    at.text_input(key="data-path").set_value(str(tmp_path / "text.txt"))
    next(button for button in at.button if button.label == "Prepare").click().run()
    assert not at.exception and at.error and not at.get("progress"), at.error


def test_nothing_to_prepare_is_said():
    at = app().run()
    next(button for button in at.button if button.label == "Prepare").click().run()
    assert not at.exception and "no text to prepare" in at.error[0].value
