"""Guesses about runs: what a score is made of, and that no question gives its answer away."""

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from guess import guess  # noqa: E402

# the estimate and the ends of its interval, as multiples of the truth; the last misses by a factor of 1 / 0.8
GUESSES = ((1.0, 0.9, 1.2), (1.1, 0.8, 1.28), (0.5, 0.4, 0.8))


def test_three_answers_are_scored_and_the_others_counted_as_refused(tmp_path, monkeypatch, capsys):
    memory = [row for row in guess.questions() if row["quantity"] == "peak_memory_gib"]
    answers = tmp_path / "hand.jsonl"
    with answers.open("w") as file:
        for row, ends in zip(memory, GUESSES, strict=False):
            value, low, high = (float(row["value"]) * end for end in ends)
            print(json.dumps({"id": row["id"], "value": value, "low": low, "high": high}), file=file)
        print(json.dumps({"id": memory[3]["id"], "value": 2.0, "low": 3.0, "high": 4.0}), file=file)  # no estimate
    monkeypatch.setattr(sys, "argv", ["guess.py", "score", str(answers)])
    guess.main()
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    found = {cells[1]: cells[2:] for cells in lines if cells[0] == "hand"}
    score = (math.log(1.2 / 0.9) + math.log(1.28 / 0.8) + math.log(0.8 / 0.4) + 10 * math.log(1 / 0.8)) / 3
    scored = ["10.0% / 50%", "67%", "1.60", f"{score:.2f}", "+0.0%"]
    assert found["peak memory"] == [str(len(memory)), str(len(memory) - 3), *scored]
    assert found["all"][2:] == scored
    assert found["hours"][1:3] == [found["hours"][0], "-"]  # all refused


def test_no_question_gives_its_answer_away_and_each_owner_has_one_of_a_kind():
    rows = guess.questions()
    assert len(rows) >= 60 and not [row["id"] for row in rows if guess.gives_away(row)]
    assert len({(row["owner"], row["quantity"]) for row in rows}) == len(rows)
    assert {row["confidence"] for row in rows} == {"high", "medium"}
    row = {"owner": "someone", "value": "13107.2"}
    for told in ("131,072 tokens a step", "someone's trainer", "13107.2"):
        assert guess.gives_away({**row, "question": told})


@pytest.mark.parametrize(
    "said, answer",
    [
        ('{"value": 2, "low": 1, "high": 3}', {"value": 2, "low": 1, "high": 3}),
        ("nobody knows", {"error": "nobody knows"}),
        ('{"value": 2, "low": 5, "high": 3}', {"error": '{"value": 2, "low": 5, "high": 3}'}),
    ],
)
def test_a_reader_is_asked_and_what_is_no_estimate_is_a_refusal(said, answer):
    row = guess.questions()[0]
    assert list(guess.ask([row], f"echo '{said}'", timeout=10)) == [{"id": row["id"], **answer}]
