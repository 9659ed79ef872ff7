"""The verdict of each kind and form of claim about a made-up run: `verdicts.yaml` has the claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from advisor.auditing.kinds import forms, kinds, named
from advisor.auditing.quantity import parse_quantity
from advisor.auditing.verdict import BAD, Ruling
from tests.advisor.auditing.made_up import ask, judge

CASES = yaml.safe_load(Path(__file__).with_name("verdicts.yaml").read_text(encoding="utf-8"))
ONE_SIDED = {  # statements of a loss, shares of something that is not said, what is never judged or never right
    *("unsaved_work", "not_judged", "clip_share", "optimal", "clipping_works", "clipping_stabilised", "not_on_gpu"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["claim"]))
def test_a_claim_is_judged_by_its_numbers(case: dict[str, Any]) -> None:
    judged = ask(**case["claim"])
    assert judged.judgement.ruling == case["verdict"], (judged.judgement, case.get("why"))
    assert (judged.finding is not None) == (judged.judgement.ruling in BAD)


def test_every_form_has_a_true_and_a_false_claim() -> None:
    verdicts: dict[str, set[str]] = {}
    for case in CASES:
        found = named(case["claim"])
        assert found is not None, case
        verdicts.setdefault(found[0].name, set()).add(case["verdict"])
    sayings = {name for name, form in forms().items() if form.kind == "saying"}  # false as they stand
    assert verdicts.keys() | sayings | {"rests_on"} == forms().keys()
    for form in verdicts.keys() - sayings - ONE_SIDED:
        assert "holds" in verdicts[form], form
        assert verdicts[form] & {"wrong", "does not follow"}, form


def test_a_saying_is_never_right() -> None:
    for name, form in forms().items():
        if form.kind == "saying" and not form.fields:
            assert ask("saying", that=name).judgement.ruling in BAD


STATE = {"kind": "training_memory", "parameters": "70 billion"}
PEAK = {"kind": "gpu_fact", "fact": "peak", "gpu": "h100-80gb-sxm", "precision": "bf16"}


@pytest.mark.parametrize(
    ("claim", "texts"),
    [
        # 16 · 70e9 = 1.12e12 bytes where the text says mixed precision, 8 · 70e9 = 560e9 at the very least elsewhere
        ({**STATE, "value": "140 GB", "quote": "AdamW in mixed precision needs 140 GB"}, ("1.12 TB or more", "140 GB")),
        ({**STATE, "value": "140 GB", "quote": "AdamW needs 140 GB"}, ("560 GB or more", "140 GB")),
        ({**PEAK, "value": "1,979 TFLOP/s"}, ("1,979 TFLOP/s against 989 TFLOP/s dense",)),
        ({"kind": "power_sampling", "rate": "100 Hz", "run": {"gpu": "h100-80gb-sxm"}}, ("100 Hz against 1 Hz",)),
        ({"kind": "gpu_fact", "fact": "power", "value": "700 W"}, ("400 W",)),
    ],
)  # fmt: skip
def test_both_numbers_of_a_verdict_are_shown_in_their_unit(claim, texts) -> None:
    judgement = ask(**claim).judgement
    assert judgement.ruling in BAD
    assert all(text in f"{judgement.so} || {judgement.arithmetic}" for text in texts), judgement


def dimensions(side: str) -> set[str]:
    """What the last number of a calculation can be: "7 B" are bytes or billions."""
    for mark in (" = ", " to ", ", at least ", ", at most "):
        side = side.rpartition(mark)[2]
    side = side.removesuffix(" dense").replace("µs", "us")
    found = {parse_quantity(side, wanted).dimension for wanted in ((), ("count",))}
    return {"count" if one == "times" else one for one in found}


def test_what_is_held_against_each_other_has_one_unit_and_differs_where_it_is_wrong() -> None:
    held = 0
    for case in CASES:
        judgement = ask(**case["claim"]).judgement
        mine, against, bound = judgement.arithmetic.partition(" against ")
        if against and "printed norms" not in mine and "losses" not in case["claim"]:
            held += 1
            assert dimensions(mine) & dimensions(bound), (case, judgement.arithmetic)
            assert judgement.ruling not in BAD or mine != bound, judgement.arithmetic
            assert {mine, bound} - {"0", "1", "2"}, judgement.arithmetic  # a yes and a no are no numbers
    assert held > 50


def test_there_are_few_kinds() -> None:
    assert len(kinds()) <= 35


def test_the_decisive_number_is_said() -> None:
    assert "70.4 M" in ask("parameters", value="124 M").judgement.so
    assert "the run wide" in ask("run_identity", steps="1,000", elapsed="900 s").judgement.so
    assert "2:4 sparsity" in ask("gpu_fact", fact="peak", value="624 TFLOP/s").judgement.so
    # 28 · 70,371,840 / 2.039e12 = 966 µs
    assert "966 µs" in ask("phase_time", phase="optimizer", value="0.3 ms").judgement.so


@pytest.mark.parametrize(
    ("fields", "low", "high"),
    [
        # solved for another quantity than it is written for: 20,000 steps · 65,536 tokens ÷ 218,453 tok/s = 6,000 s
        ({"that": "time", "value": "{}", "rate": "218,453 tok/s"}, "1.66 h", "1.67 h"),
        ({"that": "steps", "value": "{}", "tokens": "1.31 billion"}, "19,989", "20,010"),  # ÷ 65,536
        ({"that": "ratio", "value": "{}"}, "18.6", "18.7"),  # 1.311 B ÷ 70.37 M
        ({"that": "usd", "value": "{}"}, "$3.32", "$3.34"),  # 6,000 s at $2.00/h
        ({"that": "mfu", "value": "{}", "step_time": "0.15 s"}, "69.4 %", "69.6 %"),  # twice 34.76 %
        # 6 to 7.2 · 7e9 · 1e11 FLOP ÷ (40 % · 312e12 · 8) = 48.7 to 58.4 days, and 1.1 times either way
        ({"that": "time", "value": "{}", "parameters": "7 billion", "tokens": "100 billion", "gpu": "a100",
          "gpus": "8", "mfu": "40 %"}, "45 days", "63 days"),
    ],
)  # fmt: skip
def test_a_quantity_is_solved_from_whatever_is_stated(fields: dict[str, str], low: str, high: str) -> None:
    for text in (low, high):
        assert ask("quantity", **{**fields, "value": text}).judgement.ruling is Ruling.HOLDS, text
    far = {low: f"{low[0] if low[0] == '$' else ''}{float(low.strip('$').split()[0].replace(',', '')) / 4:g}"}
    unit = low.partition(" ")[2]
    assert ask("quantity", **{**fields, "value": f"{far[low]} {unit}".strip()}).judgement.ruling is Ruling.WRONG


@pytest.mark.parametrize(
    ("fields", "ruling", "says"),
    [  # 6 to 7.2 · 7e9 · 2e12 FLOP ÷ (40 % · 989e12 · 256) are 9.6 to 11.5 days; 1.6 times either way accuses nobody
        ({"that": "time", "value": "14 days", "mfu": "40 %"}, "cannot be judged", "9.6 days to 11.5 days"),
        ({"that": "time", "value": "22 days", "mfu": "40 %"}, "wrong", "9.6 days to 11.5 days, not 22 days"),
        # 10 days · 256 · 24 = 61,440 GPU-hours, and 61,440 · $2.50 = $153,600
        ({"that": "time", "value": "61,440 GPU-h", "time": "10 days", "mfu": "40 %"}, "holds", ""),
        ({"that": "time", "value": "153,600 GPU-h", "time": "10 days", "mfu": "40 %"}, "wrong", "58,958"),
        ({"that": "usd", "value": "$153,600", "time": "10 days", "price": "$2.50/h", "mfu": "40 %"}, "holds", ""),
        ({"that": "usd", "value": "$384,000", "time": "25 days", "price": "$2.50/h", "mfu": "40 %"},
         "does not follow", "it is reckoned from 25 days, which is wrong: 9.6 days to 11.5 days"),
    ],
)  # fmt: skip
def test_a_claim_is_held_against_every_number_of_its_statement(fields, ruling, says) -> None:
    whole = {"parameters": "7 billion", "tokens": "2 T", "gpu": "h100-80gb-sxm", "gpus": "256"}
    judgement = ask("quantity", **whole, **fields).judgement
    assert judgement.ruling == ruling and says in judgement.so, judgement


def test_a_claim_of_its_own_model_takes_no_number_from_the_run() -> None:
    """The run does 218 k tok/s; another model on the same GPU need not."""
    claim = {"that": "rate", "value": "2,500 tok/s", "parameters": "7 billion", "gpu": "a100", "gpus": "1"}
    assert ask("quantity", **claim).judgement.ruling is Ruling.HOLDS


def test_a_wrong_premise_is_accused_once() -> None:
    entry = {"id": "size", "kind": "parameters", "text": "124 M parameters", "value": "124 M", "line": 3}
    state = {"kind": "memory_part", "part": "weights", "value": "496 MB", "bytes_each": "4", "text": "496 MB"}
    sound = {"kind": "expression", "value": "496", "readings": ["[124 M] * [4]"], "text": "4 · 124 M"}
    whole = {"kind": "rests_on", "text": "so it fits", "premises": ["size"]}
    first, *others = judge(
        entry,
        {"id": "state", "line": 4, **state, "premises": ["size"]},
        {"id": "sound", "line": 5, **sound},
        {"id": "whole", "line": 9, **whole},
    )
    assert first.finding is not None and [one.finding for one in others] == [None, None, None]
    assert [one.judgement.ruling for one in others] == [Ruling.DOES_NOT_FOLLOW, Ruling.HOLDS, Ruling.DOES_NOT_FOLLOW]
    assert all("line 3" in one.judgement.so and "wrong" in one.judgement.so for one in others)
    alone = judge({"id": "state", **state})[0]
    assert alone.judgement.ruling is Ruling.WRONG and alone.finding is not None


@pytest.mark.parametrize("kind", ["rests_on", "memory_part"])
def test_one_wrong_premise_of_several_excuses_a_claim_at_any_distance(kind: str) -> None:
    size = {"kind": "parameters", "text": "the size"}
    right = {"id": "right", **size, "value": "70.4 M", "line": 2}
    wrong = {"id": "wrong", **size, "value": "124 M", "line": 3}
    needs = {"rests_on": {}, "memory_part": {"value": "900 MB", "part": "weights", "bytes_each": "4"}}[kind]
    near = {"id": "near", "kind": kind, "text": "near", **needs, "line": 4}
    far = {"id": "far", "kind": "rests_on", "text": "far", "premises": ["near", "right"], "line": 5}
    excused = judge(right, wrong, {**near, "premises": ["right", "wrong"]}, far)
    assert [one.judgement.ruling for one in excused] == [
        Ruling.HOLDS, Ruling.WRONG, Ruling.DOES_NOT_FOLLOW, Ruling.DOES_NOT_FOLLOW]  # fmt: skip
    assert [one.finding is not None for one in excused] == [False, True, False, False]
    assert all(one.judgement.so.startswith("it rests on line 3, which is wrong") for one in excused[2:])
    sound = judge(right, {**near, "premises": ["right"]})[1]
    assert (sound.finding is not None) == (kind == "memory_part")  # right premises excuse nothing


def test_claims_that_rest_on_each_other_are_judged_all_the_same() -> None:
    circle = [{"id": a, "kind": "rests_on", "text": a, "premises": [b]} for a, b in ("ab", "ba")]
    assert {one.judgement.ruling for one in judge(*circle)} == {Ruling.CANNOT_BE_JUDGED}


def test_names_with_card_are_read_as_former_names() -> None:
    old = {"name": "LLaMA-2-70B", "fact": "card_hours", "value": "1.7 M GPU-h"}
    assert (
        ask("published_training", **old).judgement
        == ask("published_training", **{**old, "fact": "gpu_hours"}).judgement
    )
    for former, name in (("cards_cost_less", "gpus_cost_less"), ("starved_card", "starved_gpu")):
        assert ask("saying", that=former).judgement == ask("saying", that=name).judgement
