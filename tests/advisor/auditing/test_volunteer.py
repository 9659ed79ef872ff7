"""What a card's facts say though no claim does, with values of independent arithmetic."""

from __future__ import annotations

import json
from typing import Any

import pytest

from advisor import api
from advisor.auditing.audit import Audit, audit
from advisor.auditing.load import card_from_dict
from advisor.auditing.verdict import Ruling
from advisor.report.audit import OTHER_FACTS, facts_line, markdown, text_lines
from tests.advisor.auditing.made_up import RUN, believe

HARMLESS = [
    {"id": "a", "kind": "parameters", "text": "about 70 M", "value": "~70 M"},
    {"id": "b", "kind": "tokens_per_step", "text": "65,536 a step", "value": "65,536"},
]
VAST = {"steps": 10, "step_time": "99 s", "micro_batch": 8192}
NOT_RUN = dict.fromkeys(("steps_done", "step_time", "memory_used"))


def audited(claims: list[dict[str, Any]] | None = None, timing: dict[str, str] | None = None, **run: Any) -> Audit:
    facts = {name: value for name, value in {**RUN, **run}.items() if value is not None}
    raw = {"schema": 1, "id": "c", "title": "t", "run": facts, "claims": claims or HARMLESS}
    problems: list[str] = []
    card = card_from_dict({**raw, **({"timing": timing} if timing else {})}, problems)
    assert card is not None, problems
    return audit(card, believe)


def said(one: Audit) -> dict[str, tuple[Ruling, str]]:
    return {j.claim.id.removeprefix("facts-"): (j.judgement.ruling, j.judgement.so) for j in one.volunteered}


def test_two_harmless_claims_are_not_all_that_is_said() -> None:
    """218,453 tok/s · 496,435,200 FLOP ÷ 312 TFLOP/s = 34.8 %; 1.31 B tokens ÷ 70.4 M = 18.6; 20,000 · 0.3 s · $2."""
    one = audited()
    facts = said(one)
    assert "34.8 %" in facts["mfu"][1]
    assert facts["ratio"][1].startswith("18.6 tokens")
    assert facts["usd"][1] == "1.7 h and $3.33 for all steps"
    assert audited(price=None).volunteered and said(audited(price=None))["usd"][1] == "1.7 h for all steps"
    assert "80 GiB" in facts["memory_total"][1]
    assert facts["checkpoint_size"][1].startswith("563 MB to 844 MB")  # 8 and 12 bytes · 70,371,840
    assert facts_line(one) == f"From its declared facts alone: {len(facts)} more figures, none with a problem"
    assert OTHER_FACTS in "\n".join(text_lines(one)) and OTHER_FACTS in markdown([one])


NAMES = ("depth", "width", "parameters", "GPUs", "tok/s", "MFU", "tokens", "time", "cost", "price")
CELLS = ("32", "4096", "9.1 B", "8 x A100", "30,000", "55 %", "100 B", "38 days", "$12,000", "$1.80 per GPU-hour")
DOWN = "\n".join(("| name | value |", "|---|---|", *(f"| {n} | {c} |" for n, c in zip(NAMES, CELLS, strict=True))))
ACROSS = "\n".join(f"| {' | '.join(row)} |" for row in (NAMES, ["---"] * len(NAMES), CELLS))


@pytest.mark.parametrize("table", [DOWN, ACROSS])
@pytest.mark.parametrize(
    ("old", "new", "verdicts"),
    [
        # 38 * 24 * 8 * 1.80 = $13,133; 12 * 32 * 4096^2 = 6.4 B; 1e11 / 3e4 = 38.6 days, 38 if all three are rounded
        ("", "", {"cost": "wrong", "parameters": "wrong", "time": "holds", "MFU": "holds"}),
        ("$12,000", "$13,100", {"cost": "holds"}),
        ("9.1 B", "6.6 B", {"parameters": "cannot be judged"}),
        ("38 days", "36 days", {"time": "wrong"}),
        ("30,000", "60,000", {"time": "wrong", "MFU": "wrong"}),
    ],
)
def test_the_numbers_of_a_table_are_checked_against_each_other(tmp_path, table, old, new, verdicts) -> None:
    path = tmp_path / "plan.md"
    path.write_text(f"# Plan\n\n{table.replace(old, new)}\n")
    claims = json.loads(api.audit(path).to_json())["claims"]
    judged = {claim["text"].partition(":")[0]: str(claim["verdict"]) for claim in claims}
    assert {name: judged[name] for name in verdicts} == verdicts


def test_what_no_check_reads_is_named_with_the_reason(tmp_path) -> None:
    path = tmp_path / "plan.md"
    text = "- depth: 0\n- width: 640\n- learning rate: -1\n\n"
    text += "| mood | number |\n|---|---|\n| good | 7 |\n\n| a | b | c |\n|---|---|---|\n| 1 | 2 | 3 |\n"
    path.write_text(text)
    unplaced = json.loads(api.audit(path).to_json())["unplaced"]
    assert unplaced[:2] == ["line 1, depth: 0: no run has this", "line 3, learning rate: -1: no run has this"]
    assert "good (line 7)" in "".join(unplaced) and "table at line 9" in "".join(unplaced)


def test_a_bill_is_the_price_times_gpus_times_hours() -> None:
    """20,000 steps of 0.3 s are 1.667 hours, at $2 an hour for each of 8 GPUs, or for the machine of 8."""
    assert said(audited(gpus=8))["usd"][1] == "1.7 h and $26.70 for all steps"
    assert said(audited(gpus=8, price_of="gpu"))["usd"][1] == "1.7 h and $26.70 for all steps"
    assert said(audited(gpus=8, price_of="machine"))["usd"][1] == "1.7 h and $3.33 for all steps"


@pytest.mark.parametrize(
    ("run", "timing", "which"),
    [
        ({"initial_loss": "17.5"}, None, "initial_loss"),  # ln 32,000 = 10.37
        ({"dataset": "0.1 GB"}, None, "epochs"),
        ({"learning_rate": 0.5}, None, "learning_rate"),
        ({"step_time": "0.05 s"}, None, "mfu"),  # 1.31 M tok/s: 209 % of the peak
        (
            {**VAST, **NOT_RUN},
            None,
            "memory_total",
        ),  # 2 bytes · 8192 · 1024 · 10 · 640 = 107 GB
        ({}, {"forward": "90 ms", "backward": "40 ms"}, "healthy_phases"),
        ({}, {"optimizer": "0.2 ms"}, "optimizer"),  # 28 · 70,371,840 ÷ 2.039e12 = 0.97 ms
    ],
)
def test_bad_news_is_said_unasked_and_is_a_finding(
    run: dict[str, Any], timing: dict[str, str] | None, which: str
) -> None:
    good, bad = audited(), audited(timing=timing, **run)
    assert said(good).get(which, (Ruling.HOLDS, ""))[0] is Ruling.HOLDS
    assert said(bad)[which][0] in (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW)
    assert len(bad.findings) > len(good.findings)
    assert "none with" not in facts_line(bad)


@pytest.mark.parametrize(
    ("run", "timing", "which"),
    [
        ({"initial_loss": "2.4"}, None, "initial_loss"),  # a fine-tune
        ({"learning_rate": 1e-5}, None, "learning_rate"),  # the same: no law of pretraining is for it
        ({"dataset": "0.1 GB", "data": "random"}, None, "epochs"),  # random tokens are never read twice
        ({"dataset": "0.8 GB"}, None, "epochs"),  # 4 to 9 passes: a note, no problem
        (
            {**VAST, "steps_done": 9},
            None,
            "memory_total",
        ),  # it ran: something was recomputed
        ({**VAST, **NOT_RUN, "gpus": 8}, None, "memory_total"),  # split over cards
        ({**VAST, **NOT_RUN, "micro_batch": 2048}, None, "memory_total"),  # 27 GB where all is recomputed
        ({}, {"forward": "90 ms", "backward": "95 ms"}, "healthy_phases"),  # adapters: gradients of activations only
        ({"gpus": 8}, {"optimizer": "0.2 ms"}, "optimizer"),  # an eighth of the state on each card
    ],
)
def test_what_another_way_of_training_explains_is_no_problem(
    run: dict[str, Any], timing: dict[str, str] | None, which: str
) -> None:
    one = audited(timing=timing, **run)
    assert "none with a problem" in facts_line(one), said(one).get(which)


def test_a_rate_far_below_the_laws_is_a_problem_of_a_run_that_begins_untrained() -> None:
    assert said(audited(learning_rate=1e-6, initial_loss="10.4"))["learning_rate"][0] is Ruling.DOES_NOT_FOLLOW


def test_what_is_claimed_is_not_said_twice_and_what_is_unknown_not_at_all() -> None:
    assert "mfu" not in said(audited([{"id": "m", "kind": "mfu", "text": "MFU of 35 %", "value": "~35 %"}]))
    unstated = dict.fromkeys(name for name in RUN if name not in ("family", "depth", "width"))
    assert said(audited(**unstated)).keys() == {"checkpoint_size"}
