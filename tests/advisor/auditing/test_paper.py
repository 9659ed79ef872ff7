"""`advisor audit` of a text: what is found in sentences and tables, and how each is judged. All texts are made up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from advisor.auditing.audit import Judged
from advisor.auditing.examples import EXAMPLES
from advisor.auditing.kinds import KINDS
from advisor.auditing.load import card_from_dict
from advisor.auditing.paper.document import document_of, read_document
from advisor.auditing.paper.figures import figures
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
    assert figures("LLaMA-2 on 2026-02-05, see arXiv:2309.09530 and v1.2.3") == []
    assert [f.quantity.text for f in figures("24 × 2048 on 8×H100")] == ["24", "2048", "8"]


def test_lines_are_those_of_the_file_in_markdown_html_and_wrapped_text(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<html><body>\n<h1>A run</h1>\n<p>We used\n8 GPUs.</p>\n<table>\n<tr><th>Model</th><th>MFU</th></tr>\n"
        "<tr><td>1B</td><td>40%</td></tr></table></body></html>",
        encoding="utf-8",
    )
    document = read_document(page)
    assert [(p.line, p.text) for p in document.passages] == [(2, "A run"), (3, "We used 8 GPUs.")]
    assert [(g.line, g.rows[0].line, g.rows[0].cells) for g in document.grids] == [(6, 7, ("1B", "40%"))]
    wrapped = document_of(
        list(
            enumerate(["# T", "", "This line is long enough to be wrapped by its writer at", "eighty. It took 3 h."], 1)
        ),
        "t",
    )
    assert [(p.line, p.text) for p in wrapped.passages][-1] == (4, "It took 3 h.")


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


def test_speed_batch_and_step_time_of_one_model_must_agree_across_tables(tmp_path: Path) -> None:
    text = (
        "# Runs\n\n| Model | Tokens per step | GPUs |\n|---|---|---|\n| Alpha 0.9B | 262,144 | 4 |\n| Beta 2B |"
        " 524,288 | 4 |\n\n"
        "| Model | Time/step | Throughput |\n|---|---|---|\n| Alpha | 2.0 s | 131,000 tok/s |\n| Beta | 4.0 s |"
        " 90,000 tok/s |\n"
    )
    assert accused(tmp_path, text) == [11]
    per_card = text.replace("90,000 tok/s", "32,800 tok/s")  # of each of the four cards
    assert accused(tmp_path, per_card) == []


def test_tokens_and_money_follow_from_steps_and_hours(tmp_path: Path) -> None:
    text = (
        "# Bill\n\n## Run\n- Steps: 10,000\n- Tokens per step: 500,000\n- Total tokens: 50B\n\n"
        "| Job | GPU-hours | Cost @ $2.00/h |\n|---|---|---|\n| small | 100 | $200 |\n| large | 5,000 | $1,000 |\n"
    )
    assert accused(tmp_path, text) == [6, 11]


def test_no_training_is_faster_than_the_peak_wherever_it_is_stated(tmp_path: Path) -> None:
    """6·7e9·100e9 = 4.2e21 FLOP; one RTX 4090 does 165e12 at most: 295 days."""
    assert accused(tmp_path, "# Plan\n\nWe train a 7B model on 100B tokens on one RTX 4090 in 3 days.\n") == [3]
    listed = "# Plan\n\n- Model: 7B\n- GPU: one RTX 4090\n- Tokens: 100B\n- Duration: 3 days\n- Cost: $50\n"
    assert 6 in accused(tmp_path, listed)
    slow = "# Plan\n\nWe train a 7B model on 100B tokens on 64 H100 in 2 days.\n"  # 38 % of 989e12
    assert accused(tmp_path, slow) == []


def test_hours_must_fit_the_utilisation_that_is_assumed(tmp_path: Path) -> None:
    """6·3e9·60e9 ÷ (0.4·989e12·3600) = 758 card-hours."""
    text = (
        "# Cost\n\n| Job | H100 GPU-hours |\n|---|---|\n| Pretrain 3B model on 60B tokens | {} |\n\nThese"
        " assume 40% MFU.\n"
    )
    assert accused(tmp_path, text.format("~760")) == []
    assert accused(tmp_path, text.format("~9,000")) == [5]


def test_a_share_of_a_wrong_peak_is_no_utilisation(tmp_path: Path) -> None:
    """1,800 of 9,000 is 20 %, whatever the peak; of two B200, 4,500 dense, it is 40 %."""
    text = (
        "# Box\n\n- Device: NVIDIA B200\n- GPUs: 2\n- Hardware peak: {} TFLOPS (B200 bf16)\n"
        "- MFU: {} │ Achieved: 1800.0 TFLOPS\n"
    )
    assert accused(tmp_path, text.format("9000", "20.0%")) == [5, 6]
    assert accused(tmp_path, text.format("4500", "40.0%")) == []


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("FP16 minimum positive value: 0.00006 (approximately)", False),  # the smallest normal one; 2^-24 = 6e-8
        ("The smallest positive normal FP16 value is 6.1e-5.", True),
        ("The maximum FP16 value is 65,504.", True),
        ("In FP16, gradients smaller than 6e-5 become zero.", False),
        ("In FP16, gradients below 6 x 10^-8 are flushed to zero.", True),
        ("With fp16 the learning rate should stay below 6e-5.", True),
    ],
)
def test_the_ends_of_a_number_format(tmp_path: Path, said: str, right: bool) -> None:
    assert accused(tmp_path, f"# Formats\n\n{said}\n") == ([] if right else [3])


def test_peaks_are_dense_unless_the_text_says_sparse(tmp_path: Path) -> None:
    wrong = "# Box\n\n- Device: NVIDIA B200\n- GPUs: 4\n- Hardware peak: 18000 TFLOPS (bf16)\n"
    assert accused(tmp_path, wrong) == [5]
    assert accused(tmp_path, wrong.replace("18000", "9000")) == []
    assert accused(tmp_path, wrong.replace("(bf16)", "(bf16, with sparsity)")) == []
    named = wrong.replace("(bf16)", "(B200 bf16)")  # the card beside the figure, their number in the section
    assert accused(tmp_path, named) == [5]
    assert accused(tmp_path, named.replace("18000", "9000")) == []
    assert accused(tmp_path, "# Peak\n\nAn A100 sustains 312 TFLOP/s of usable BF16 compute.\n") == [3]
    assert accused(tmp_path, "# Card\n\nThe machine has 4x A100 (64GB each).\n") == [3]
    assert accused(tmp_path, "# Card\n\nThe L4 (24GB) and an H100 80GB; H200 (141 GB).\n") == []


def test_training_state_must_fit_the_card(tmp_path: Path) -> None:
    """7 B parameters keep 112 GB with AdamW, 56 GB all in bf16."""
    table = "# Training on a single GPU\n\n| GPU | VRAM | Models |\n|---|---|---|\n| A100 40GB | 40GB | {} |\n"
    assert accused(tmp_path, table.format("Llama 7B (batch=2)")) == [5]
    assert accused(tmp_path, table.format("Llama 7B (QLoRA)")) == []
    assert accused(tmp_path, table.format("Llama 1B")) == []
    assert accused(tmp_path, "# Guide\n\nA single H100 trains 30B models easily.\n") == [3]
    assert accused(tmp_path, "# Guide\n\nA single H100 serves 30B models easily.\n") == []
    replicated = "# Ways\n\n## Data Parallel\n\nReplicates the model; good for models under 70B parameters.\n"
    assert accused(tmp_path, replicated) == [5]


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


def test_every_kind_has_an_example_that_is_a_card() -> None:
    assert list(EXAMPLES) == list(KINDS)
    for kind, (says, fields) in EXAMPLES.items():
        claim = {"id": "a", "kind": kind, "text": says, **(yaml.safe_load(f"{{{fields}}}") or {})}
        problems: list[str] = []
        assert card_from_dict({"schema": 1, "id": "x", "title": "t", "run": {}, "claims": [claim]}, problems), problems


def test_an_unknown_card_is_refused(tmp_path: Path) -> None:
    claim = {"id": "a", "kind": "card_memory", "text": "t", "value": "80 GB", "gpu": "h1000"}
    problems: list[str] = []
    card_from_dict({"schema": 1, "id": "x", "title": "t", "run": {"gpu": "rtx-9999"}, "claims": [claim]}, problems)
    assert len(problems) == 2 and all("unknown GPU" in problem for problem in problems)


def test_any_text_is_drafted_or_refused(tmp_path: Path) -> None:
    """Lines of sound texts cut, joined and shuffled at random: a card comes out, or a refusal in words."""
    from tests.advisor.auditing.test_paper_contradictions import TIMES
    from tests.advisor.auditing.test_true_papers import TEXTS

    lines = "\n".join((*TEXTS.values(), TIMES)).split("\n")
    chance = random.Random(7)
    for _ in range(40):
        chosen = [line[: chance.randint(1, 90)] for line in chance.choices(lines, k=25)]
        accused(tmp_path, "\n".join(chosen).replace("5", chance.choice(["5", "0", "5e9", "-", "5%"])))


def test_a_claim_stands_on_the_line_that_prints_its_number(tmp_path: Path) -> None:
    text = (
        "A plan\n\nThe whole of the data is read by the cards of one box, which is rented for a while, and the\n"
        "training of the 7B model on all 100B tokens is done on one RTX 4090, with a break on\n"
        "each of the evenings, in no more than 3 days of work of the machine.\n"
    )
    assert accused(tmp_path, text, "plan.txt") == [5]


def test_samples_a_second_and_batches_in_tokens_are_not_tokens_a_second_and_sequences(tmp_path: Path) -> None:
    """48 sequences of 2,048 tokens a step of 4 s: 12 samples and 24,576 tokens a second, 3,072 on each of 8 cards."""
    header = "| SeqLen (T) | # GPUs | GlobalBatchSize | Throughput (S/s) | Throughput (T/s) | Throughput (T/s/GPU) |"
    rows = [
        header + " GlobalBatchSize (T) |",
        "|---|---|---|---|---|---|---|",
        "| 2048 | 8 | 48 | 12 | 24576 | 3072 | 98304 |",
        "| 2048 | 8 | 48 | 12 | 24576 | 5072 | 98304 |",
    ]
    assert accused(tmp_path, "\n".join(["# Speeds", "", *rows, ""])) in ([], [6])  # never the true row
