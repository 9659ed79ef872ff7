"""Three made-up texts with an assistant's recorded answers: the verdict of every claim, and the benchmark's figures."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.terminal import advisor

TEXTS = Path(__file__).with_name("texts")
WORDS = {"ok": "holds", "wrong": "wrong", "does_not_follow": "does not follow", "cannot_be_judged": "cannot be judged"}
KEY = list(csv.DictReader((TEXTS / "key.csv").open(encoding="utf-8", newline="")))


@pytest.mark.parametrize("name", ["small-run", "fine-tune", "scaling"])
def test_every_claim_of_a_text_that_an_assistant_read_is_judged_as_the_key_has_it(name: str) -> None:
    text, answer = TEXTS / f"{name}.md", TEXTS / f"{name}.json"
    asked = advisor("audit", "--schema", text, expect=0).stdout
    assert all(line in asked for line in text.read_text(encoding="utf-8").splitlines())
    document = json.loads(advisor("audit", text, "--answer", answer, "--json", expect=0).stdout)
    found = {claim["id"]: (claim["line"], claim["verdict"]) for claim in document["claims"]}
    assert found == {row["id"]: (int(row["line"]), WORDS[row["verdict"]]) for row in KEY if row["file"] == text.name}


def test_what_an_assistant_misread_is_listed_with_the_reason_and_not_judged() -> None:
    document = json.loads(
        advisor("audit", TEXTS / "fine-tune.md", "--answer", TEXTS / "fine-tune.json", "--json", expect=0).stdout
    )
    [unplaced] = document["unplaced"]
    assert unplaced == "a number that the text does not have: its quote does not have the number 20"


def test_the_mfu_of_its_sentence_binds_a_claim_whose_reader_left_it_out(tmp_path):
    """6 x 7e9 x 2e12 / (256 x 989e12 x 0.4) = 9.6 days; without the 40 % 25 days would be 15 % of the peak."""
    report, answer = tmp_path / "report.md", tmp_path / "answer.json"
    report.write_text("A 7B model on 2T tokens with 256 H100 SXM: at 40 % MFU this takes 25 days.\n")
    claim = {"id": "a", "kind": "quantity", "that": "time", "text": "25 days", "quote": report.read_text().strip()}
    claim |= {"value": "25 days", "parameters": "7B", "tokens": "2T", "gpu": "H100 SXM", "gpus": "256"}
    answer.write_text(json.dumps({"title": "t", "run": {}, "claims": [claim]}))
    document = json.loads(advisor("audit", report, "--answer", answer, "--json").stdout)
    [judged] = document["claims"]
    assert judged["verdict"] == "wrong" and "9.6 days" in json.dumps(judged)
