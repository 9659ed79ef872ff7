"""A sentence that speaks of the training of the one before it, and numbers of several steps."""

from __future__ import annotations

import pytest

from advisor.auditing.verdict import Ruling
from advisor.store.store import default_store
from advisor.workflows.audit import audit_cards

SETUP = "We train a 7B model on one RTX 4090 with bf16 on 100B tokens."


def judged(tmp_path, text):
    path = tmp_path / "plan.md"
    path.write_text(f"# Plan\n\n{text}\n")
    [found] = audit_cards([path], default_store())
    return found


@pytest.mark.parametrize("says", ["This takes 3 days and costs $50.", "The run will take 3 days and should cost $50."])
def test_what_this_takes_is_what_the_sentence_before_trains(tmp_path, says):
    found = judged(tmp_path, f"{SETUP} {says}")
    kinds = {one.claim.kind: one.judgement for one in found.judged}
    # 6 x 7e9 x 1e11 FLOPs in 259,200 s on 165 TFLOP/s dense: 98 times the peak by that formula
    assert kinds["training_time"].ruling is Ruling.WRONG and "times the peak" in kinds["training_time"].arithmetic
    assert kinds["training_cost"].ruling is Ruling.WRONG


@pytest.mark.parametrize(
    "says",
    [
        "The evaluation takes 3 days and costs $50.",  # of something else
        "It takes 3 days to tokenize 100B tokens.",  # has a size of its own
        "Afterwards we rest.\n\nThis takes 3 days.",  # speaks of another sentence
    ],
)
def test_what_speaks_of_something_else_is_not_the_trainings(tmp_path, says):
    found = judged(tmp_path, f"{SETUP} It reaches 400 tokens per second. {says}")
    assert not [one for one in found.judged if one.claim.kind in ("training_time", "training_cost")]


def test_the_time_of_fifty_steps_is_not_that_of_their_tokens_once(tmp_path):
    text = "A 100M model on an RTX 4090 runs 50 steps of 1,000 tokens in 10 seconds, that is 5,000 tokens per second."
    found = judged(tmp_path, text)
    assert [one.claim.text for one in found.judged if one.judgement.ruling is not Ruling.HOLDS] == []
    assert not any(one.claim.text.startswith(":") for one in found.judged)
