"""Between reading and judging: what an assistant read counts where the text has its words and its numbers."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from advisor.auditing.gate import gated
from advisor.auditing.kinds import forms
from advisor.auditing.load import card_from_dict
from advisor.auditing.schema import examples
from advisor.auditing.verdict import Ruling
from advisor.report.audit import document, markdown, text_lines
from advisor.store.store import Store
from advisor.workflows.audit import audit_cards

TEXT = """# A plan for H200 GPUs

We train **1.3 billion** parameters on 26 billion tokens, which is
20 tokens per parameter. Each step takes 24 x 2,048 = 49,152 tokens.

| model | tokens/s | step time |
|-------|----------|-----------|
| small | 98,304   | 500 ms    |

## Costs

The run of 7B parameters needs eight A100s and fits their memory of 80 GB.
"""
RATIO = {"kind": "tokens_per_parameter", "value": "20", "parameters": "1.3 billion", "tokens": "26 billion"}
QUOTE = "We train 1.3 billion parameters on 26 billion tokens, which is 20 tokens per parameter."
STEP = {"kind": "expression", "value": "49,152", "readings": ["[24] * [2,048]"], "quote": "24 x 2,048 = 49,152 tokens"}


def read(*claims: dict[str, Any], **card: Any) -> dict[str, Any]:
    entries = [{"id": f"a{n}", "text": "said", **claim} for n, claim in enumerate(claims)]
    return gated({"title": "t", "run": {}, "claims": entries, **card}, TEXT)


@pytest.mark.parametrize(
    ("claim", "line"),
    [
        ({**RATIO, "quote": QUOTE}, 3),  # over two lines, emphasis left out
        (STEP, 4),
        ({"kind": "throughput", "value": "98,304 tok/s", "step_time": "500 ms",
          "quote": "| small | 98,304   | 500 ms    |"}, 8),
        ({**RATIO, "quote": "which is 20 tokens per parameter", "also": ["1.3 billion parameters on 26 billion tokens"],
          "line": 4}, 3),
    ],
)  # fmt: skip
def test_what_the_text_bears_out_is_judged_on_its_line(claim, line):
    [kept] = read(claim)["claims"]
    assert kept["line"] == line


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ({**RATIO}, "quotes nothing"),
        ({**RATIO, "quote": "We train 1.3 billion parameters on 62 billion tokens"}, "does not have the words"),
        ({**RATIO, "quote": "20 tokens per parameter"}, "does not have the number 1.3"),
        ({**STEP, "readings": ["[24] * [2,048] * [8]"]}, "does not have the number 8"),
        ({"kind": "card_memory", "value": "80 GB", "gpu": "l4", "quote": "fits their memory of 80 GB"}, "the GPU l4"),
        ({"kind": "training_memory", "parameters": "7 billion", "value": "80 GB",
          "quote": "The run of 7B parameters needs eight A100s and fits their memory of 80 GB"}, "how many"),
        ({"kind": "no such kind", "quote": "Each step takes"}, "unknown"),
        ({"kind": "expression", "value": "49,152", "quote": "24 x 2,048 = 49,152 tokens"}, "readings: missing"),
    ],
)  # fmt: skip
def test_what_it_does_not_bear_out_is_unplaced_with_the_reason(claim, why):
    card = read(claim)
    assert card["claims"] == [] and len(card["unplaced"]) == 1 and why in card["unplaced"][0]


def test_one_quote_read_in_two_ways_is_judged_in_the_first_alone():
    text = "| small | 98,304   | 500 ms    |"
    one = {"kind": "sustained_rate", "gpu": "h200", "value": "98,304 TFLOP/s", "quote": text}
    card = read(one, {**one, "value": "500 TFLOP/s"})
    assert [claim["id"] for claim in card["claims"]] == ["a0"] and "in two ways" in card["unplaced"][0]


def test_a_configuration_has_what_the_text_states():
    card = read(run={"seq_len": 2048, "depth": 24, "vocab_size": 50257, "gpus": 1, "gpu": "h200", "nonsense": 3})
    assert card["run"] == {"seq_len": 2048, "depth": 24, "gpus": 1, "gpu": "h200"}
    assert any(words.startswith("run.vocab_size: 50257") for words in card["unplaced"])


def test_what_a_card_cannot_hold_is_left_out_with_the_reason_and_the_rest_is_judged():
    """Numbers as people write them are read; fields, parts and names that a card does not know cost nothing else."""
    run = {"seq_len": "2,048", "precision": "half", "gpu": "H2000", "step_time": "500ms", "depth": "deep"}
    claims = [{**STEP, "id": "x"}, {**STEP, "id": "x", "about": "nobody"}, {"kind": "rests_on", "quote": "## Costs"}]
    card = read(*claims, run=run, rows={"columns": ["colour"], "values": []}, notes="mine", others=[{"depth": 3}])
    run = {"seq_len": "2,048", "step_time": "500ms", "gpu": "h200"}  # of the title
    assert card["run"] == run and "rows" not in card and "notes" not in card
    assert [claim["id"] for claim in card["claims"]] == ["x"] and card["others"] == []
    for word in ("run.precision", "run.gpu", "run.depth", "rows.columns", "nobody", "premises: missing"):
        assert any(word in words for words in card["unplaced"]), word
    problems: list[str] = []
    made = card_from_dict({**card, "id": "x", "title": "t"}, problems)
    assert made is not None and made.run.seq_len == 2048, problems


@pytest.mark.parametrize("raw", [{}, {"claims": 3}, {"claims": ["x", None, {}]}, {"run": [], "others": {"a": 1}}])
def test_any_object_becomes_a_card(raw):
    problems: list[str] = []
    assert card_from_dict(gated({**raw, "id": "x", "title": "t"}, TEXT), problems) is not None, problems


def test_an_answer_is_judged_and_its_opinion_shown_beside(tmp_path):
    path = tmp_path / "plan.md"
    path.write_text(TEXT.replace("49,152", "59,152"))
    wrong = {
        **STEP,
        "value": "59,152",
        "quote": "24 x 2,048 = 59,152 tokens",
        "opinion": "holds",
        "because": "I trust it",
    }
    answer = json.dumps({"title": "t", "run": {}, "claims": [{"id": "s", "text": "tokens of a step", **wrong}]})
    [judged] = audit_cards([path], Store(tmp_path / "home"), lambda prompt: f"Here it is:\n```json\n{answer}\n```")
    [claim] = judged.judged
    assert claim.judgement.ruling is Ruling.WRONG and claim.claim.opinion == "holds" and claim.claim.line == 4
    assert judged.card.source == "plan.md" and judged.card.title == "A plan for H200 GPUs"


def test_examples_of_kinds_pass_the_gate_where_the_text_says_them():
    """Of every kind that states all its numbers: the example's own sentence and fields."""
    passed = 0
    for that, entry in examples().items():
        claim = {"id": "x", "text": entry["says"], "quote": entry["says"], "kind": entry["kind"], "that": that}
        claim |= entry["fields"]
        passed += len(gated({"title": "t", "run": {}, "claims": [claim]}, entry["says"])["claims"])
    assert passed >= 60


PRINTED = {
    "seconds": ("3 s", "~2 h", "<5 s"), "gpu_hours": ("10 GPU-h",), "work": ("1e20 FLOP",), "bytes": ("24 GB", "0 GB"),
    "fraction": ("40 %", "0 %"), "times": ("2 x", "3-8 x"), "rate": ("100 tok/s", "0 tok/s"), "usd": ("$5",),
    "usd_per_hour": ("$2/h",), "flops": ("989 TFLOP/s",), "hertz": ("100 Hz",), "gpu": ("h100", "t4"),
    "count": ("16", "0", "<2.7", "7 billion"), "setup": ("run",),
    "number": ("5", "20-23 GB", "<3"), "text": ("abc",), "whole": (1, 300), "flag": (True, False),
}  # fmt: skip
WORDS = {"text": "short", "about": "run", "opinion": "wrong", "because": "so", "correct": "7", "line": 1}
WORDS_OR_NULL = st.fixed_dictionaries({}, optional={name: st.sampled_from((v, None)) for name, v in WORDS.items()})


def value_of(spec: str) -> st.SearchStrategy[Any]:
    """What an assistant may write into a field, by the field's type: nothing or null if it is optional."""
    if spec.startswith("["):
        return st.lists(value_of(spec[1:-1]), min_size=1, max_size=3)
    if "|" in spec:
        return st.sampled_from(spec.split("|"))
    return st.sampled_from([value for one in spec.split(" or ") for value in PRINTED[one]])


@settings(max_examples=8, deadline=None, phases=[Phase.generate])  # to shrink 170 claims takes minutes
@given(st.data())
def test_claims_of_all_forms_are_judged_whatever_they_leave_out_or_leave_null(data: st.DataObject) -> None:
    claims = []
    for form in forms().values():
        needed = {name: value_of(spec) for name, spec in form.fields.items() if not spec.endswith("?")}
        free = {name: value_of(spec[:-1]) | st.none() for name, spec in form.fields.items() if spec.endswith("?")}
        fields = data.draw(st.fixed_dictionaries(needed, optional=free))
        claims.append({"kind": form.kind, "that": form.name, **fields, "quote": f"{form.name} MFU {fields}"})
        claims[-1] |= data.draw(WORDS_OR_NULL)
    text = "\n".join(str(claim["quote"]) for claim in claims)
    answer = json.dumps({"title": None, "run": {"steps": 300, "steps_done": 16}, "others": None, "claims": claims})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.md"
        path.write_text(text, encoding="utf-8")
        [one] = audit_cards([path], Store(Path(folder)), answer=answer)
    assert len(one.judged) > len(claims) / 2
    assert [*text_lines(one)] and markdown([one]) and document(one)
    [ruling] = [judged.judgement.ruling for judged in one.judged if judged.claim.form == "not_judged"]
    assert ruling is Ruling.CANNOT_BE_JUDGED


HEADED = """# Runs on an A100

Its MFU is 45 % at 140 TFLOP/s.

## The other machine

**Table 2: H100**

| model | TFLOP/s | MFU |
|-------|---------|-----|
| small | 400     | 40 % |
| large, on a T4 | 40 | 40 % |

## A100 against H100

It reaches 150 TFLOP/s.
"""


def subject(quote: str, **run: str) -> tuple[str | None, str | None]:
    """The GPU of the run and of one claim that names none, as the gate leaves them."""
    claim = {"id": "a", "kind": "mfu", "value": "40 %", "quote": quote}
    card = gated({"title": "t", "run": run, "claims": [{**claim, "value": quote.split(" %")[0][-2:] + " %"}]}, HEADED)
    assert len(card["claims"]) == 1, card
    return card["run"].get("gpu"), card["claims"][0].get("gpu")


def test_a_gpu_that_only_a_heading_names_is_the_subject_of_what_stands_under_it():
    """The title's is the run's; a table's own heading goes before it; a row that names a GPU is about that."""
    assert subject("MFU is 45 % at 140 TFLOP/s") == ("a100", None)
    assert subject("| small | 400     | 40 % |") == ("a100", "h100")
    assert subject("| small | 400     | 40 % |", gpu="h100-80gb-sxm") == ("h100-80gb-sxm", None)
    assert subject("| large, on a T4 | 40 | 40 % |") == ("a100", None)


def test_a_heading_of_two_gpus_decides_nothing_and_one_that_has_ended_names_nothing():
    claim = {"id": "a", "kind": "flops", "value": "150 TFLOP/s", "quote": "It reaches 150 TFLOP/s."}
    assert "gpu" not in gated({"run": {}, "claims": [claim]}, HEADED)["claims"][0]
    over = HEADED.replace("## A100 against H100", "## Later").replace("# Runs on an A100", "# Runs")
    card = gated({"run": {}, "claims": [{**claim, "gpu": "h100"}]}, over)
    assert card["claims"] == [] and "does not name the GPU h100" in card["unplaced"][0]


def test_a_claim_under_a_heading_is_judged_by_that_heading_s_gpu(tmp_path):
    """400 TFLOP/s are 40 % of an H100's 989 and 128 % of an A100's 312."""
    path = tmp_path / "runs.md"
    path.write_text(HEADED)
    claim = {"id": "a", "kind": "mfu", "value": "40 %", "flops": "400 TFLOP/s", "quote": "| small | 400     | 40 % |"}
    [one] = audit_cards([path], Store(tmp_path), answer=json.dumps({"run": {}, "claims": [claim]}))
    assert one.judged[0].judgement.ruling is Ruling.HOLDS, one.judged[0].judgement
