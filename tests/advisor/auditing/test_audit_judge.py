"""What an assistant copied from a report, judged through the tool that it calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from advisor.auditing.verdict import Ruling
from advisor.mcp_server import audit_judge
from advisor.report.audit import objections
from advisor.store.store import Store
from advisor.workflows.audit import audit_cards

BILL = "We train on 4 A100 GPUs at $1.20 per GPU-hour for 36 hours, which costs {} in all."


def judged(value: str, run: dict[str, Any] | None = None, **claim: Any) -> dict[str, Any]:
    entry = {"id": "c", "text": "the bill", "quote": BILL.format(value), "kind": "quantity", "that": "usd"}
    answer = {"title": "t", "run": run or {}, "claims": [{**entry, "value": value, **claim}]}
    [row] = audit_judge(f"# Bill\n\n{BILL.format(value)}\n", json.dumps(answer))["rows"]
    return row


WRITTEN = {"kind": "arithmetic", "that": "expression", "readings": ["[4] * [1.20] * [36]"]}
PRICE, HOURS = {"price": "$1.20/h"}, {"time": "36 h"}
A100 = {**PRICE, "gpu": "a100-80gb-sxm"}


@pytest.mark.parametrize(
    ("run", "claim"),
    [
        ({}, {**PRICE, **HOURS, "gpus": "4"}),
        ({}, {**PRICE, **HOURS, "gpus": "4", "gpu": "a100"}),
        ({**PRICE, "gpus": 4}, HOURS),
        ({**A100, "gpus": 4}, HOURS),
        ({**A100, "gpus": 4}, {**HOURS, "gpu": "a100"}),
        (A100, {**HOURS, "gpus": "4"}),
        ({}, WRITTEN),
    ],
)
def test_a_bill_counts_every_gpu_at_the_price_that_is_stated(run, claim):
    for value, verdict in (("$172.80", "holds"), ("$43.20", "wrong"), ("$21.60", "wrong"), ("$400", "wrong")):
        row = judged(value, run, **claim)
        assert row["verdict"] == verdict and row["so"].startswith(("$173", "$172 to $174")), (value, row)


@pytest.mark.parametrize(
    ("text", "run", "verdict"),
    [
        ("The machine of 8 GPUs costs $20 an hour: 10 hours are $200.", {}, "holds"),
        ("An 8xH100 at $20 an hour: 10 hours are $200.", {}, "holds"),
        ("We pay $20 an hour for 8 GPUs: 10 hours are $200.", {"price": "$20/h", "price_of": "machine"}, "holds"),
        ("We pay $20 an hour for 8 GPUs: 10 hours are $200.", {"price": "$20/h"}, "wrong"),
    ],
)
def test_a_price_is_multiplied_unless_it_is_of_the_whole_machine(text, run, verdict):
    claim = {"id": "c", "text": "the bill", "quote": text, "kind": "quantity", "that": "usd", "value": "$200",
             "time": "10 hours", "gpus": "8", **({} if run else {"price": "$20/h"})}  # fmt: skip
    [row] = audit_judge(text, json.dumps({"title": "t", "run": run, "claims": [claim]}))["rows"]
    assert row["verdict"] == verdict, row


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ({"time": "144 GPU-h"}, "its quote does not have the number 144"),
        ({"quote": "which costs nothing"}, "the text does not have the words"),
        ({"gpu": "h100"}, "does not name the GPU h100"),
    ],
)
def test_a_claim_that_its_quote_does_not_carry_is_listed_with_the_reason(claim, why):
    row = judged("$172.80", **claim)
    assert row["verdict"] == "unplaced" and why in row["claim"]


@pytest.mark.parametrize("reading", ["4 * 1.20 * 36", "four times [1.20] * [36]"])
def test_an_expression_without_its_brackets_is_refused(reading):
    row = judged("$172.80", **{**WRITTEN, "readings": [reading]})
    assert row["verdict"] in ("cannot be judged", "unplaced") and "brackets" in row.get("so", "brackets")


def row_of(text: str, run: dict[str, Any] | None = None, **claim: Any) -> dict[str, Any]:
    """The verdict on one claim whose quote is the last line of a text."""
    entry = {"id": "c", "text": "the claim", "quote": text.splitlines()[-1], **claim}
    [row] = audit_judge(text, json.dumps({"title": "t", "run": run or {}, "claims": [entry]}))["rows"]
    return row


CHANGE = {"kind": "arithmetic", "that": "change", "way": "less"}


@pytest.mark.parametrize(
    ("text", "claim", "verdict"),
    [
        # 94.55 to 94.65 of 98.5 to 99.5 min are 3.9 to 5.0 % less; 11.09 to 3.46 are 68.8 %
        ("It took 94.6 min instead of 99 (4.3 %)", {**CHANGE, "value": "4.3 %", "from": 99, "to": 94.6}, "holds"),
        ("It fell from 11.09 to 3.46, by 67 %", {**CHANGE, "value": "67 %", "from": 11.09, "to": 3.46}, "wrong"),
        # a table that cuts decimals off: 28,242 / 2,048 = 13.79
        ("| T | S/s | tok/s |\n|---|---|---|\n| 2048 | 13 | 28242 |",
         {"kind": "arithmetic", "that": "expression", "value": "13", "readings": ["[28242] / [2048]"]}, "holds"),
        ("GPU rent: 24 h x $2.29/h = $45",  # $54.96
         {"kind": "arithmetic", "that": "expression", "value": "$45", "readings": ["[24 h] * [$2.29/h]"]}, "wrong"),
        ("24 h x $2.29/h = $55",
         {"kind": "arithmetic", "that": "expression", "value": "$55", "readings": ["[24 h] * [$2.29/h]"]}, "holds"),
        ("28242 tokens of 2048 are 13 a second",
         {"kind": "arithmetic", "that": "expression", "value": "13", "readings": ["[28242] / [2048]"]}, "wrong"),
        ("$61 here, and there $61.23", {"kind": "agreement", "that": "agreement", "words": ["$61", "$61.23"]}, "holds"),
        ("$61 here, and there $64", {"kind": "agreement", "that": "agreement", "words": ["$61", "$64"]}, "wrong"),
        ("about +5% here and 5% there", {"kind": "agreement", "that": "agreement", "words": ["5%", "+5%"]}, "holds"),
        # weights of 8 billion parameters in 16 bits, which the words say and no number does
        ("In fp16 the weights of an 8B model take 16 GB",
         {"kind": "quantity", "that": "bytes", "value": "16 GB", "parameters": "8B", "bytes_each": "2",
          "part": "weights"}, "holds"),
    ],
)  # fmt: skip
def test_what_a_report_rounds_cuts_off_or_leaves_to_words_is_no_fault(text, claim, verdict):
    row = row_of(text, **claim)
    assert row["verdict"] == verdict, row


def test_attention_over_long_sequences_is_no_fault_of_an_mfu():
    """1.4 billion parameters, 65,536 tokens: 24 blocks of 2,048 have 6 times the FLOPs of the weights alone."""
    text = "The 1.4B model with sequences of 65536 reaches 5506 tok/s on one H100, an MFU of 26 %"
    claim = {"kind": "quantity", "that": "mfu", "value": "26 %", "parameters": "1.4B", "rate": "5506 tok/s",
             "gpu": "h100", "gpus": "1", "precision": "bf16"}  # fmt: skip
    assert row_of(text, {"seq_len": 65536}, **claim)["verdict"] != "wrong"
    assert row_of(text, {}, **claim)["verdict"] == "wrong"  # of usual lengths it is
    rate = "A rate of 3.13E+14 FLOP/s"
    assert row_of(rate, kind="quantity", that="flops", value="3.13E+14 FLOP/s", gpu="h100")["verdict"] == "unplaced"


def test_a_claim_that_cannot_be_settled_needs_no_reason():
    assert row_of("It is fast", kind="not_judged", that="not_judged")["verdict"] == "cannot be judged"


def one(text: str, run: dict[str, Any] | None = None, **claim: Any) -> dict[str, Any]:
    entry = {"id": "c", "text": "claimed", "quote": text, **claim}
    return audit_judge(text, json.dumps({"title": "t", "run": run or {}, "claims": [entry]}))["rows"][0]


@pytest.mark.parametrize(("value", "verdict"), [("$400,000", "holds"), ("$102,400,000", "wrong")])
def test_gpu_hours_are_paid_once_however_many_gpus_the_run_has(value, verdict):
    text = f"200,000 GPU-hours on 256 H100 at $2.00 an hour cost {value}."
    run = {"gpus": 256, "gpu": "h100", "price": "$2.00/h"}
    bill = {"kind": "quantity", "that": "usd", "value": value, "time": "200,000 GPU-hours"}
    assert one(text, run, **bill)["verdict"] == verdict
    assert one(text, run, **bill, gpu="h100")["verdict"] == verdict


def test_the_price_of_a_machine_on_demand_says_nothing_of_a_spot_machine():
    text = "On a spot machine the 2 hours on 8 H100 cost only $15."
    run = {"price": "$3/h", "gpus": 8, "gpu": "h100"}
    row = one(text, run, kind="quantity", that="usd", value="$15", time="2 hours", gpus="8")
    assert row["verdict"] == "cannot be judged"


@pytest.mark.parametrize(("value", "verdict"), [("4 bytes", "holds"), ("32 bits", "holds"), ("2 bytes", "wrong")])
def test_the_width_of_a_format_is_in_bits_or_in_bytes(value, verdict):
    text = f"A number in FP32 takes {value}."
    assert one(text, kind="number_format", that="number_format", format="fp32", fact="bits", value=value)[
        "verdict"
    ] == (verdict)


@pytest.mark.parametrize(("total", "verdict"), [("90 min", "holds"), ("75 min", "holds"), ("150 min", "wrong")])
def test_a_sum_of_ranges_may_lie_anywhere_between_its_ends(total, verdict):
    text = f"Setup takes 5 min, pretraining 30-45 min and fine-tuning 35-55 min, in all {total}."
    ends = ["[5 min] + [30 min] + [35 min]", "[5 min] + [45 min] + [55 min]"]
    assert one(text, kind="arithmetic", that="expression", value=total, readings=ends)["verdict"] == verdict


@pytest.mark.parametrize(("opinion", "verdict"), [("holds", "cannot be judged"), ("wrong", "wrong"), (None, "wrong")])
def test_statements_that_their_reader_holds_compatible_do_not_contradict_each_other(opinion, verdict):
    text = "It takes 4 hours, of which the training alone takes 1.5 hours."
    said = {} if opinion is None else {"opinion": opinion}
    assert one(text, kind="agreement", that="agreement", words=["4 hours", "1.5 hours"], **said)["verdict"] == verdict


def test_a_conclusion_from_the_utilisation_needs_a_utilisation():
    said = {"kind": "conclusion", "that": "compute_bound"}
    row = one("It is compute-bound, since the GPU-hours were halved.", **said)
    assert row["verdict"] == "unplaced" and "does not speak of" in row["claim"]
    assert one("It is compute-bound: utilisation is 99 %.", **said)["verdict"] == "does not follow"


@pytest.mark.parametrize(
    ("correct", "objected"),
    [("170 k", False), ("180 k", False), ("400 k", True), ("", False)],
)
def test_an_objection_stands_against_arithmetic_that_holds_only_with_another_value(tmp_path, correct, objected):
    text = "24 sequences of 7,000 tokens are 168 k tokens."
    claim = {"id": "c", "text": "claimed", "quote": text, "kind": "arithmetic", "that": "expression", "value": "168 k",
             "readings": ["[24] * [7,000]"], "opinion": "wrong", "because": "the length is longer"}  # fmt: skip
    report = tmp_path / "report.md"
    report.write_text(text)
    answer = json.dumps({"title": "t", "run": {}, "claims": [claim | ({"correct": correct} if correct else {})]})
    (audit,) = audit_cards([report], Store(tmp_path), answer=answer)
    assert [judged.judgement.ruling for judged in audit.judged] == [Ruling.HOLDS]
    assert list(objections(audit)) == (
        [f"claimed (line 1, c): the length is longer; {correct} instead"] if objected else []
    )


@pytest.mark.parametrize(("active", "verdict"), [("2 billion", "holds"), ("20 billion", "wrong")])
def test_a_mixture_of_experts_computes_with_its_active_parameters(active, verdict):
    # 8 x 6 x 2e9 x 12,500 / (8 x 312e12): an MFU of 48 %; ten times that is impossible
    text = f"100,000 tok/s on 8 A100 with 20 billion parameters, {active} of them active, are an MFU of 48 %."
    run = {"gpu": "a100", "gpus": 8, "parameters": "20 billion", "active_parameters": active}
    claim = {"kind": "quantity", "that": "mfu", "value": "48 %", "rate": "100,000 tok/s"}
    assert one(text, run, **claim)["verdict"] == verdict


@pytest.mark.parametrize(("start", "end"), [("6.32 min", "4.80 min"), ("1.58 it/s", "2.08 it/s")])
def test_faster_is_said_of_times_and_of_speeds(start, end):
    text = f"From {start} to {end} it is 31 % faster."
    units = {"from": start.removesuffix(" it/s"), "to": end.removesuffix(" it/s")}
    row = one(text, kind="arithmetic", that="change", value="31 %", way="faster", **units)
    assert row["verdict"] == "holds"


@pytest.mark.parametrize(("size", "verdict"), [("12 GB", "holds"), ("24 GB", "wrong")])
def test_the_bytes_of_tokens_are_not_those_of_the_parameters(size, verdict):
    text = f"6 B tokens of 2 bytes each take {size}."
    run = {"depth": 12, "width": 768, "vocab_size": 50257}
    row = one(text, run, kind="quantity", that="bytes", value=size, tokens="6 B", bytes_each="2")
    assert row["verdict"] == verdict


@pytest.mark.parametrize(("value", "verdict"), [("-8.1 %", "holds"), ("8.1 %", "holds"), ("-18 %", "wrong")])
def test_a_sign_says_which_way_as_the_words_do(value, verdict):
    text = f"The error fell from 0.712 to 0.654, {value}."
    row = one(text, kind="arithmetic", that="change", value=value, way="less", **{"from": "0.712", "to": "0.654"})
    assert row["verdict"] == verdict


@pytest.mark.parametrize(("step", "verdict"), [("step 0", "wrong"), ("step 10", "cannot be judged")])
def test_a_loss_after_some_steps_is_none_of_an_untrained_model(step, verdict):
    text = f"With a vocabulary of 50257 the loss at {step} is 8.96."
    assert one(text, {"vocab_size": 50257}, kind="initial_loss", value="8.96")["verdict"] == verdict


@pytest.mark.parametrize(("value", "verdict"), [("50M", "holds"), ("50.0M", "wrong"), ("40M", "wrong")])
def test_a_round_number_of_tokens_is_rounded(value, verdict):
    text = f"800 steps of 65,536 tokens are {value} tokens."  # 52.4 M
    row = one(text, kind="quantity", that="tokens", value=value, steps="800", step_tokens="65,536")
    assert row["verdict"] == verdict


def test_a_time_of_day_is_no_number():
    text = "Started at 08:31 and 2.1 hours long, it ends at 10:38."
    row = one(text, kind="arithmetic", that="expression", value="10:38", readings=["[8] + [2.1]"])
    assert row["verdict"] == "unplaced" and "time of day" in row["claim"]
