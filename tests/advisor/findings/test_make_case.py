"""From facts to a workload: derived where there is one answer, assumed in words, refused in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.findings.detectors.money import detect_cost
from advisor.findings.make_case import make_case
from advisor.findings.workload_of import infer
from advisor.hardware.offers import cheapest_offer
from advisor.laws import flops
from advisor.readers.run_table import names_of
from tests.advisor.findings import build

LLM_C = {
    "depth": 12,
    "width": 768,
    "heads": 12,
    "vocab_size": 50304,
    "seq_len": 1024,
    "parameters": 124_475_904,
    "micro_batch": 32,
    "step_tokens": 524_288,
    "world_size": 1,
    "precision": "bf16",
    "gpu": "NVIDIA A100-PCIE-40GB",
}


def test_everything_stated():
    inferred = infer(build.run(facts=LLM_C, framework="llm.c"))
    w = inferred.workload
    assert (w.gpu, w.gpus, w.micro_batch, w.grad_accum, w.compile) == ("a100-40gb-pcie", 1, 32, 16, True)
    assert flops.parameters(w.shape) == 124_475_904  # as the log prints it
    assert inferred.unsure == () and inferred.missing == ()


def test_nanochat_by_its_parameter_count():
    facts = {
        "parameters": 560_988_160,
        "step_tokens": 524_288,
        "world_size": 8,
        "micro_batch": 32,
        "gpu": "h100-80gb-sxm",
    }
    inferred = infer(build.run(facts=facts, framework="nanochat"))
    assert (inferred.workload.shape.depth, inferred.workload.shape.vocab_size) == (20, 65536)  # sources §1.1: d20
    assert inferred.workload.grad_accum == 1  # 524,288 / (8 · 2,048 · 32)
    assert any("depth 20" in text for text in inferred.unsure)


def test_the_vocabulary_that_fits_the_count():
    # 2·32768·1280 + 12·20·1280² = 477,102,080
    facts = {"parameters": 477_102_080, "depth": 20, "step_tokens": 2**19, "gpu": "h100-80gb-sxm", "world_size": 8}
    assert infer(build.run(facts=facts, framework="nanochat")).workload.shape.vocab_size == 32768


def test_a_contradicting_count_is_unsure():
    inferred = infer(build.run(facts={**LLM_C, "parameters": 200e6}, framework="llm.c"))
    assert inferred.workload is not None
    assert "124,475,904 parameters, 200,000,000 declared" in inferred.unsure[0]


def test_what_the_user_gives_wins():
    inferred = infer(build.run(facts=LLM_C, framework="llm.c"), {"gpu": "h100-80gb-sxm", "world_size": 2})
    assert (inferred.workload.gpu, inferred.workload.gpus, inferred.workload.grad_accum) == ("h100-80gb-sxm", 2, 8)


@pytest.mark.parametrize(
    ("dropped", "words"),
    [("gpu", "the GPU (--gpu)"), ("depth", "the shape"), ("seq_len", "context length")],
)
def test_holes_are_said(dropped, words):
    facts = {name: value for name, value in LLM_C.items() if name not in (dropped, "parameters")}
    inferred = infer(build.run(facts=facts))
    assert inferred.workload is None
    assert words in " ".join(inferred.missing)


def test_an_ambiguous_card_is_not_guessed():
    inferred = infer(build.run(facts={**LLM_C, "gpu": "A100"}, framework="llm.c"))
    assert inferred.gpu is None and "could be any of" in inferred.missing[0]


# Llama 3.1 8B: 32 · (2·4096²·1.25 + 3·4096·14336 + 2·4096) + 4096 + 2·128256·4096
LLAMA = {"depth": 32, "width": 4096, "heads": 32, "ffn_width": 14336, "vocab_size": 128_256, "seq_len": 8192}
LLAMA |= {"parameters": 8_030_261_248, "micro_batch": 1, "grad_accum": 1, "gpu": "8 GPUs of a kind unknown"}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, ("llama", 8)),  # eight key/value heads by the count
        ({"parameters": 8.0e9}, ("llama", 8)),
        ({"parameters": None, "ffn_width": None}, ("gpt2", 32)),
        ({"parameters": None}, "leave it open"),
        ({"heads": 30}, "leave it open"),
        ({"parameters": 20e9}, "no dense decoder of these sizes has 20,000,000,000 parameters"),
        ({"heads": None}, "all of depth, width, heads and vocab_size"),
    ],
)
def test_a_family_that_no_word_names_follows_from_sizes_and_count(changes, found):
    facts = {name: value for name, value in (LLAMA | changes).items() if value is not None}
    said = infer(build.run(facts=facts, framework="")).missing
    assert "the GPU (--gpu): '8 GPUs of a kind unknown' is not in the catalog" in said
    if isinstance(found, str):
        assert any(found in one for one in said)
        return
    shape = infer(build.run(facts=facts, framework=""), {"gpu": "h100-80gb-sxm"}).workload.shape
    assert (shape.family, shape.kv_heads) == found


def test_a_batch_by_rate_and_time():
    facts = {k: v for k, v in LLM_C.items() if k not in ("micro_batch", "step_tokens")}
    table = build.run(seconds=4.0, tokens_per_second=131_072, facts=facts, framework="llm.c")
    w = infer(table).workload
    assert w.step_tokens == 524_288 and w.micro_batch == 32
    assert any("micro-batch" in text for text in infer(table).unsure)


def test_make_case_predicts_and_prices():
    card = build.profile("a100-40gb-pcie")
    case = make_case(build.run(facts=LLM_C, framework="llm.c"), given={"usd_per_hour": 1.5}, profile=card)
    assert case.expected.tokens_per_second.value > 50_000
    assert case.usd_per_hour == 1.5 and case.notes == {"price": "stated"}
    assert case.run.facts["usd_per_hour"] == 1.5
    listed = make_case(build.run(facts={**LLM_C, "gpu": "h100-80gb-sxm"}, framework="llm.c"))
    assert listed.usd_per_hour > 0 and "on demand" in listed.notes["price"]
    assert listed.expected is None  # no profile


def test_all_devices_are_paid_for_even_where_the_model_is_unknown():
    one, eight = (make_case(build.run(facts={"gpu": "h100-80gb-sxm", "world_size": count})) for count in (1, 8))
    assert one.workload is None and eight.workload is None
    assert eight.usd_per_hour == cheapest_offer("h100-80gb-sxm", 8).usd_per_hour > 5 * one.usd_per_hour


def test_cards_that_nobody_rents_together_have_no_price():
    """The GH200 is rented one by one: eight of them are no sum of eight."""
    case = make_case(build.run(facts={"gpu": "gh200-96gb", "world_size": 8}))
    assert case.usd_per_hour is None and case.notes["price"] == "no provider offers 8 x gh200-96gb together"
    assert "no provider offers 8 x gh200-96gb together" in detect_cost(case).missing
    assert "or the name of a GPU in the price lists" in detect_cost(make_case(build.run(facts={}))).missing


def test_a_profile_of_another_card_predicts_nothing():
    case = make_case(build.run(facts=LLM_C, framework="llm.c"), profile=build.profile("l4"))
    assert case.expected is None and case.workload is not None


names = st.sampled_from(sorted(names_of("facts")))
junk = st.one_of(st.none(), st.booleans(), st.integers(-3, 10**15), st.floats(), st.text(max_size=6), st.just("H100"))


@given(st.dictionaries(names, junk), st.sampled_from([None, "nanochat", "llm.c", "keras"]))
def test_no_facts_make_it_fail(facts, framework):
    case = make_case(build.run(steps=3, facts=facts, framework=framework))
    assert (case.workload is None) == bool(case.notes.get("missing"))
