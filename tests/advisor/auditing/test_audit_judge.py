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


def one(text: str, run: dict[str, Any] | None = None, **claim: Any) -> dict[str, Any]:
    """The verdict on one claim whose quote is the last line of a text."""
    entry = {"id": "c", "text": "the claim", "quote": text.splitlines()[-1], **claim}
    row, *_ = audit_judge(f"# Notes\n\n{text}\n", json.dumps({"title": "t", "run": run or {}, "claims": [entry]}))[
        "rows"
    ]
    return row


def bill(value: str, run: dict[str, Any] | None = None, **claim: Any) -> dict[str, Any]:
    return one(BILL.format(value), run, **{"kind": "quantity", "that": "usd", "value": value, **claim})


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
        row = bill(value, run, **claim)
        assert row["verdict"] == verdict and row["so"].startswith(("$173", "$172 to $174")), (value, row)


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ({"time": "144 GPU-h"}, "its quote does not have the number 144"),
        ({"quote": "which costs nothing"}, "the text does not have the words"),
        ({"gpu": "h100"}, "does not name the GPU h100"),
    ],
)
def test_a_claim_that_its_quote_does_not_carry_is_listed_with_the_reason(claim, why):
    row = bill("$172.80", **claim)
    assert row["verdict"] == "unplaced" and why in row["claim"]


@pytest.mark.parametrize("reading", ["4 * 1.20 * 36", "four times [1.20] * [36]"])
def test_an_expression_without_its_brackets_is_refused(reading):
    row = bill("$172.80", **{**WRITTEN, "readings": [reading]})
    assert row["verdict"] in ("cannot be judged", "unplaced") and "brackets" in row.get("so", "brackets")


def sum_of(value, *readings):
    return {"kind": "arithmetic", "that": "expression", "value": value, "readings": list(readings)}


def change(value, before, after, way="less"):
    return {"kind": "arithmetic", "that": "change", "way": way, "value": value, "from": before, "to": after}


def quantity(that, value, **stated):
    return {"kind": "quantity", "that": that, "value": value, **stated}


def agree(*words, **more):
    return {"kind": "agreement", "that": "agreement", "words": list(words), **more}


MACHINE = "We pay $20 an hour for 8 GPUs: 10 hours are $200."
TEN_HOURS = quantity("usd", "$200", time="10 hours", gpus="8")
SETUP = "Setup takes 5 min, pretraining 30-45 min and fine-tuning 35-55 min, in all {}."
ENDS = ("[5 min] + [30 min] + [35 min]", "[5 min] + [45 min] + [55 min]")
FEW = "It takes 4 hours, of which the training alone takes 1.5 hours."
MANY = {"gpus": 256, "gpu": "h100", "price": "$2.00/h"}
LONG = "The 1.4B model with sequences of 65536 reaches 5506 tok/s on one H100, an MFU of 26 %"
MFU = quantity("mfu", "26 %", parameters="1.4B", rate="5506 tok/s", gpu="h100", gpus="1", precision="bf16")
EXPERTS = "100,000 tok/s on 8 A100 with 20 billion parameters, {} of them active, are an MFU of 48 %."
BOUND = {"kind": "conclusion", "that": "compute_bound"}
# the text, the run, the claim, the verdict
CASES = [
    # a price is multiplied unless it is of the whole machine
    ("The machine of 8 GPUs costs $20 an hour: 10 hours are $200.", {}, TEN_HOURS | {"price": "$20/h"}, "holds"),
    ("An 8xH100 at $20 an hour: 10 hours are $200.", {}, TEN_HOURS | {"price": "$20/h"}, "holds"),
    (MACHINE, {"price": "$20/h", "price_of": "machine"}, TEN_HOURS, "holds"),
    (MACHINE, {"price": "$20/h"}, TEN_HOURS, "wrong"),
    # what a report rounds: 94.55 to 94.65 of 98.5 to 99.5 min are 3.9 to 5.0 % less; 11.09 to 3.46 are 68.8 %
    ("It took 94.6 min instead of 99 (4.3 %)", {}, change("4.3 %", 99, 94.6), "holds"),
    ("It fell from 11.09 to 3.46, by 67 %", {}, change("67 %", 11.09, 3.46), "wrong"),
    # a table that cuts decimals off: 28,242 / 2,048 = 13.79
    ("| T | S/s | tok/s |\n|---|---|---|\n| 2048 | 13 | 28242 |", {}, sum_of("13", "[28242] / [2048]"), "holds"),
    ("28242 tokens of 2048 are 13 a second", {}, sum_of("13", "[28242] / [2048]"), "wrong"),
    ("GPU rent: 24 h x $2.29/h = $45", {}, sum_of("$45", "[24 h] * [$2.29/h]"), "wrong"),  # $54.96
    ("24 h x $2.29/h = $55", {}, sum_of("$55", "[24 h] * [$2.29/h]"), "holds"),
    ("$61 here, and there $61.23", {}, agree("$61", "$61.23"), "holds"),
    ("$61 here, and there $64", {}, agree("$61", "$64"), "wrong"),
    ("about +5% here and 5% there", {}, agree("5%", "+5%"), "holds"),
    # weights of 8 billion parameters in 16 bits, which the words say and no number does
    ("In fp16 the weights of an 8B model take 16 GB", {},
     quantity("bytes", "16 GB", parameters="8B", bytes_each="2", part="weights"), "holds"),
    # 24 blocks of 2,048 have 6 times the FLOPs of the weights alone over 65,536 tokens; of usual lengths it is wrong
    (LONG, {}, MFU, "wrong"),
    ("A rate of 3.13E+14 FLOP/s", {}, quantity("flops", "3.13E+14 FLOP/s", gpu="h100"), "unplaced"),
    ("It is fast", {}, {"kind": "not_judged", "that": "not_judged"}, "cannot be judged"),  # needs no reason
    # GPU-hours are paid once, however many GPUs the run has
    *((f"200,000 GPU-hours on 256 H100 at $2.00 an hour cost {usd}.", MANY,
       quantity("usd", usd, time="200,000 GPU-hours", **more), verdict)
      for usd, verdict in (("$400,000", "holds"), ("$102,400,000", "wrong")) for more in ({}, {"gpu": "h100"})),
    # the price of a machine on demand says nothing of a spot machine
    ("On a spot machine the 2 hours on 8 H100 cost only $15.", {"price": "$3/h", "gpus": 8, "gpu": "h100"},
     quantity("usd", "$15", time="2 hours", gpus="8"), "cannot be judged"),
    # the width of a format is in bits or in bytes
    *((f"A number in FP32 takes {value}.", {},
       {"kind": "number_format", "that": "number_format", "format": "fp32", "fact": "bits", "value": value}, verdict)
      for value, verdict in (("4 bytes", "holds"), ("32 bits", "holds"), ("2 bytes", "wrong"))),
    # a sum of ranges may lie anywhere between its ends
    *((SETUP.format(total), {}, sum_of(total, *ENDS), verdict)
      for total, verdict in (("90 min", "holds"), ("75 min", "holds"), ("150 min", "wrong"))),
    # statements that their reader holds compatible do not contradict each other
    (FEW, {}, agree("4 hours", "1.5 hours", opinion="holds"), "cannot be judged"),
    (FEW, {}, agree("4 hours", "1.5 hours", opinion="wrong"), "wrong"),
    (FEW, {}, agree("4 hours", "1.5 hours"), "wrong"),
    # a conclusion from the utilisation needs one
    ("It is compute-bound, since the GPU-hours were halved.", {}, BOUND, "unplaced: does not speak of"),
    ("It is compute-bound: utilisation is 99 %.", {}, BOUND, "does not follow"),
    # active parameters: 8 x 6 x 2e9 x 12,500 / (8 x 312e12) is an MFU of 48 %; ten times that is impossible
    *((EXPERTS.format(active), {"gpu": "a100", "gpus": 8, "parameters": "20 billion", "active_parameters": active},
       quantity("mfu", "48 %", rate="100,000 tok/s"), verdict)
      for active, verdict in (("2 billion", "holds"), ("20 billion", "wrong"))),
    # faster is said of times and of speeds
    ("From 6.32 min to 4.80 min it is 31 % faster.", {}, change("31 %", "6.32 min", "4.80 min", "faster"), "holds"),
    ("From 1.58 it/s to 2.08 it/s it is 31 % faster.", {}, change("31 %", "1.58", "2.08", "faster"), "holds"),
    # the bytes of tokens are not those of the parameters
    *((f"6 B tokens of 2 bytes each take {size}.", {"depth": 12, "width": 768, "vocab_size": 50257},
       quantity("bytes", size, tokens="6 B", bytes_each="2"), verdict)
      for size, verdict in (("12 GB", "holds"), ("24 GB", "wrong"))),
    # a sign says which way, as the words do
    *((f"The error fell from 0.712 to 0.654, {value}.", {}, change(value, "0.712", "0.654"), verdict)
      for value, verdict in (("-8.1 %", "holds"), ("8.1 %", "holds"), ("-18 %", "wrong"))),
    # a loss after some steps is none of an untrained model
    *((f"With a vocabulary of 50257 the loss at {step} is 8.96.", {"vocab_size": 50257},
       {"kind": "initial_loss", "value": "8.96"}, verdict)
      for step, verdict in (("step 0", "wrong"), ("step 10", "cannot be judged"))),
    # a round number of tokens is rounded: 52.4 M
    *((f"800 steps of 65,536 tokens are {value} tokens.", {},
       quantity("tokens", value, steps="800", step_tokens="65,536"), verdict)
      for value, verdict in (("50M", "holds"), ("50.0M", "wrong"), ("40M", "wrong"))),
    ("Started at 08:31 and 2.1 hours long, it ends at 10:38.", {}, sum_of("10:38", "[8] + [2.1]"),
     "unplaced: time of day"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "run", "claim", "verdict"), CASES, ids=[f"{case[0][-40:]} {case[3]}" for case in CASES]
)
def test_a_claim_of_one_sentence(text, run, claim, verdict):
    row = one(text, run, **claim)
    ruling, _, why = verdict.partition(": ")
    assert row["verdict"] == ruling and why in row["claim"], row


def test_attention_over_long_sequences_is_no_fault_of_an_mfu():
    assert one(LONG, {"seq_len": 65536}, **MFU)["verdict"] != "wrong"


@pytest.mark.parametrize(
    ("correct", "objected"),
    [("170 k", False), ("180 k", False), ("400 k", True), ("", False)],
)
def test_an_objection_stands_against_arithmetic_that_holds_only_with_another_value(tmp_path, correct, objected):
    text = "24 sequences of 7,000 tokens are 168 k tokens."
    claim = {"id": "c", "text": "claimed", "quote": text, "opinion": "wrong", "because": "the length is longer"}
    claim |= sum_of("168 k", "[24] * [7,000]") | ({"correct": correct} if correct else {})
    report = tmp_path / "report.md"
    report.write_text(text)
    answer = json.dumps({"title": "t", "run": {}, "claims": [claim]})
    (audit,) = audit_cards([report], Store(tmp_path), answer=answer)
    assert [judged.judgement.ruling for judged in audit.judged] == [Ruling.HOLDS]
    expected = [f"claimed (line 1, c): the length is longer; {correct} instead"] if objected else []
    assert list(objections(audit)) == expected
