"""`advisor audit` of a text: what is found in sentences and tables, and how each is judged. All texts are made up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from advisor.auditing.audit import Judged
from advisor.auditing.load import card_from_dict
from advisor.auditing.quantity import figures
from advisor.auditing.schema import examples
from advisor.auditing.verdict import Ruling
from advisor.errors import AdvisorError
from advisor.store.store import Store
from advisor.workflows.audit import audit_cards, write_draft

BAD = (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW)


def judged(tmp_path: Path, text: str, name: str = "report.md") -> list[Judged]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return list(audit_cards([path], Store(tmp_path / "home"))[0].judged)


def accused(tmp_path: Path, text: str, name: str = "report.md") -> list[int]:
    """Lines of what is wrong or unfounded; a text without any claim accuses nobody."""
    try:
        found = judged(tmp_path, text, name)
    except AdvisorError:
        return []
    return [j.claim.line or 0 for j in found if j.judgement.ruling in BAD]


@pytest.mark.parametrize(
    ("text", "quantity"),
    [
        ("about 1.36B parameters", "~1.36 billion"),
        ("it took 14h 16m", "14.27 h"),
        ("$2.30/GPU/hr", "$2.30 /h"),
        ("500k-1M tokens", "0.5-1 M"),
        ("roughly 107k tokens/second", "~107 k tok/s"),
        ("12,000 GPU-hours", "12,000 GPU-h"),
        ("a ratio of 71:1", "71 x"),
        ("at 312 TFLOPS", "312 TFLOP/s"),
        ("~158M tokens/hour", "~158 M tok/h"),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, quantity: str) -> None:
    assert [f.quantity.text for f in figures(text)] == [quantity]


def test_names_dates_and_factors_are_no_quantities() -> None:
    assert figures("LLaMA-2 on 2026-02-05, see arXiv:2309.09530 and v1.2.3") == ()
    assert [f.quantity.text for f in figures("24 × 2048 on 8×H100")] == ["24", "2048", "8"]


def test_arithmetic_in_a_text_is_reckoned_again(tmp_path: Path) -> None:
    text = (
        "# Batch\n\n- One card: 16 × 2048 = 32,768 tokens\n- Four cards: 768 / 4 = 128 steps each\n"
        "- The head: 2.1B × 64K = 134M weights\n- Time: 90 s × 400 = 10 hours\n- Data: 60B / 3B = 20:1\n"
    )
    assert accused(tmp_path, text) == [4, 5]


def test_a_result_stands_for_every_number_that_rounds_to_it(tmp_path: Path) -> None:
    text = (
        "# Notes\n\n- 2/3 = 0.67\n- ~1.3 × 8 = 10\n- 7 days / 3 = 2.3 days\n- 12 × $0.70 = $8.40\n- 8 × 80GB"
        " = 640GB\n- 4 KB × 300K = 1.2GB\n"
    )
    assert accused(tmp_path, text) == []


def test_a_draft_is_a_card_that_can_be_corrected_and_audited(tmp_path: Path) -> None:
    report, card = tmp_path / "report.md", tmp_path / "card.yaml"
    report.write_text(
        "# R\n\n- Four cards: 768 / 4 = 128 steps\n\nThe disk is 40 GB.\n\nGrok has 314B weights.\n", encoding="utf-8"
    )
    assert write_draft(report, card) == 1
    store = Store(tmp_path / "home")
    first, second = audit_cards([report, card], store)
    assert [j.judgement for j in first.judged] == [j.judgement for j in second.judged]
    assert first.card.unplaced == ("line 5: The disk is 40 GB.", "line 7: Grok has 314B weights.")
    raw = yaml.safe_load(card.read_text(encoding="utf-8"))
    raw["claims"][0]["value"] = "192"
    card.write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert audit_cards([card], store)[0].judged[0].judgement.ruling is Ruling.HOLDS


def test_a_text_without_claims_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(AdvisorError, match="states nothing that can be judged"):
        judged(tmp_path, "# Hello\n\nNothing to see.\n")


def test_every_example_is_a_claim_of_a_card() -> None:
    for that, entry in examples().items():
        claim = {"id": "a", "kind": entry["kind"], "that": that, "text": entry["says"], **entry["fields"]}
        problems: list[str] = []
        assert card_from_dict({"schema": 1, "id": "x", "title": "t", "run": {}, "claims": [claim]}, problems), problems


def test_an_unknown_card_is_refused(tmp_path: Path) -> None:
    claim = {"id": "a", "kind": "card_memory", "text": "t", "value": "80 GB", "gpu": "h1000"}
    problems: list[str] = []
    card_from_dict({"schema": 1, "id": "x", "title": "t", "run": {"gpu": "rtx-9999"}, "claims": [claim]}, problems)
    assert len(problems) == 2 and all("unknown GPU" in problem for problem in problems)


def test_any_text_is_drafted_or_refused(tmp_path: Path) -> None:
    """Lines of sound texts cut, joined and shuffled at random: a card comes out, or a refusal in words."""
    from tests.advisor.auditing.test_true_papers import TEXTS

    lines = "\n".join(TEXTS.values()).split("\n")
    chance = random.Random(7)
    for _ in range(40):
        chosen = [line[: chance.randint(1, 90)] for line in chance.choices(lines, k=25)]
        accused(tmp_path, "\n".join(chosen).replace("5", chance.choice(["5", "0", "5e9", "-", "5%"])))
