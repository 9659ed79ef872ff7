"""`advisor audit`: verdict first, JSON, Markdown, and refusals in words."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from advisor.auditing.tables import lines_of_sentences
from advisor.store.store import Store
from tests.advisor.plans import small_plan
from tests.terminal import advisor

CARDS = Path(__file__).resolve().parents[3] / "examples" / "reports"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return advisor("audit", *arguments)


def test_the_verdict_comes_first_and_the_page_says_the_same(tmp_path: Path) -> None:
    page = tmp_path / "audit.md"
    done = run(CARDS / "report-4.yaml", "--md", page)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1] == "35 claims: 23 hold, 12 wrong, 0 do not follow, 0 cannot be judged"
    text = page.read_text(encoding="utf-8")
    assert f"**{lines[1]}.**" in text
    assert len(re.findall(r"(?:^\* |; )\*\*", text, re.M)) == 12  # every claim named, those of one reason in one line
    assert "the first step (8.25 s) is no slower than the others" in text


def test_json_has_every_claim_and_the_findings() -> None:
    done = run(CARDS / "report-0.yaml", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["counts"] == {"holds": 24, "wrong": 5, "does not follow": 9, "cannot be judged": 1}
    claims = {claim["id"]: claim for claim in document["claims"]}
    assert claims["parameters"]["verdict"] == "holds"
    assert claims["date"]["line"] == 4
    assert len(document["findings"]) == 14
    assert {"code", "severity", "title", "evidence", "confidence"} <= set(document["findings"][0])


def test_claims_that_fail_for_one_reason_are_told_it_once(tmp_path: Path) -> None:
    page = tmp_path / "audit.md"
    shown = run(CARDS / "report-0.yaml", "--md", page).stdout
    for text in (" ".join(shown.split()), page.read_text(encoding="utf-8")):
        # six remedies while the software is 26 times too slow: each named, the reason once
        for claim in ("fill-memory", "low-utilisation", "progressing", "bigger-batch", "bigger-card", "l4-dear"):
            assert claim in text
        assert text.count("MFU 0.455 % where") == 1
        so = "The software is the limit; a larger batch will not mend it; patience will not mend it; a faster GPU will"
        assert so in text
    # two cards that fail for different reasons stay apart
    assert shown.count("in fact:") == 14 - 5


def test_several_cards_are_one_document() -> None:
    done = run(CARDS / "report-2.yaml", CARDS / "report-3.yaml", "--json")
    assert [one["card"] for one in json.loads(done.stdout)["audits"]] == ["report-2", "report-3"]


@pytest.mark.parametrize(
    ("content", "says"),
    [(b" \n", "is empty"), (bytes(range(256)), "is a binary file"), (b"It costs $5.", "has sentences, and no table")],
)
def test_what_holds_no_claim_says_why(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "report.md").write_bytes(content)
    done = run(tmp_path / "report.md")
    assert done.returncode == 1 and says in done.stderr


def test_a_broken_card_is_refused_with_all_its_problems(tmp_path: Path) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(
        "schema: 1\nid: x\nrun: {depth: none}\nclaims:\n  - {id: a, kind: mfu, text: t}\n", encoding="utf-8"
    )
    done = run(path)
    assert done.returncode == 1
    for part in ("title: missing", "run.depth: expected a whole number", "claims[0] (a).value: missing"):
        assert part in done.stderr


def test_a_plan_is_no_card_and_is_told_so_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    Store(tmp_path).save_plan(small_plan(), path)
    done = run(path)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 2
    assert "is a plan" in done.stderr and "advisor launch" in done.stderr


def test_terminal_and_markdown_have_the_same_sections(tmp_path: Path) -> None:
    """Every section with the number of its claims, and what was assumed: one heading, two layouts."""
    page = tmp_path / "audit.md"
    shown = run(CARDS / "report-1.yaml", "--md", page).stdout
    headings = [line.removeprefix("## ") for line in page.read_text(encoding="utf-8").splitlines() if line[:3] == "## "]
    assert len(headings) == 6 and headings[4] == "What else follows from the declared facts"
    assert "Does not follow (13)" in headings
    assert headings[-1] == "Assumed, because the report does not say"
    assert [line.removesuffix(":") for line in shown.splitlines() if line.removesuffix(":") in headings] == headings
    counts = [int(number) for number in re.findall(r"\((\d+)\)$", "\n".join(headings), re.M)]
    assert sum(counts) == int(shown.splitlines()[1].split()[0])


REPORT = """# My run

| setting | value |
|---|---|
| depth | 10 |
| width | 640 |
| heads | 10 |
| vocab size | 32000 |
| sequence length | 1024 |
| precision | bf16 |
| GPU | A100 80GB SXM |
| throughput | {rate} tok/s |

| step | loss | grad norm |
|---|---|---|
| 1 | 10.4 | 2.0 |
| 100 | 7.2 | 1.2 |
| 1000 | 4.9 | 0.5 |

A 7B model on one RTX 4090 sees 100 B tokens in 3 days, and 12 x 64 = 700.
"""


def test_tables_are_read_without_an_assistant_and_sentences_are_not(tmp_path: Path) -> None:
    """496,435,200 FLOP a token: 218,453 tok/s are 34.8 % of 312 TFLOP/s, and three times as many 104 %."""
    report, card = tmp_path / "report.md", tmp_path / "card.yaml"
    report.write_text(REPORT.format(rate="218,453"))
    document = json.loads(run(report, "--card", card, "--json").stdout)
    facts = {one["id"]: one for one in document["volunteered"]}
    assert document["claims"] == [] and "34.8 %" in facts["facts-mfu"]["so"]
    assert json.loads(run(card, "--json").stdout)["volunteered"] == document["volunteered"]
    assert document["title"] == "My run" and [one for one in facts.values() if one["verdict"] != "holds"] == []
    shown = " ".join(run(report).stdout.split())
    assert "No claim could be checked" in shown and "4090" not in shown
    for way in ("advisor audit report.md --reader CMD", "advisor audit report.md --schema", "--answer FILE"):
        assert way in shown
    report.write_text(REPORT.format(rate="655,359"))
    [bad] = [one for one in json.loads(run(report, "--json").stdout)["volunteered"] if one["verdict"] != "holds"]
    assert bad["id"] == "facts-mfu" and "104 %" in bad["so"]


def test_a_report_states_its_settings_and_steps_in_tables_and_lines(tmp_path: Path) -> None:
    """Of mangled letters and contradicting values as much as is certain; a report is no log."""
    card, logs = tmp_path / "card.yaml", Path(__file__).parents[1] / "recorded" / "logs"
    run(logs / "report.md", "--card", card)
    found = yaml.safe_load(card.read_text())
    sizes = {"depth": 8, "width": 384, "vocab_size": 4000, "seq_len": 512, "gpus": 1, "steps": 50_000, "gpu": "l4"}
    rates = {"learning_rate": 5e-5, "min_learning_rate": 5e-6, "warmup_steps": 1000, "grad_clip": 1.0}
    told = {"precision": "bf16", "price": "$0.7/h", "initial_loss": "8.3783"}
    assert {name: found["run"].get(name) for name in sizes | rates | told} == sizes | rates | told
    steps = dict(zip(found["rows"]["columns"], zip(*found["rows"]["values"], strict=True), strict=True))
    assert steps["step"] == (1, 100, 4853) and steps["loss"] == (8.3783, 8.0451, 4.396)
    assert steps["tokens_per_second"] == (3901, 5187, 4657) and steps["memory_mib"] == (15, 3399, 3587)
    run(logs / "report_mojibake.md", "--card", card)
    found = yaml.safe_load(card.read_text())["run"]
    assert (found["gpu"], found["gpus"], found["micro_batch"], found["seq_len"]) == ("l4", 2, 8, 1024)
    assert "depth" not in found  # 12 and 24
    assert "advisor audit" in advisor("analyze", str(logs / "report_mojibake.md"), expect=1).stderr


def test_a_text_of_sentences_alone_is_answered_with_what_can_be_done(tmp_path: Path) -> None:
    (tmp_path / "plan.md").write_text("A 7B model on one RTX 4090: 100 B tokens in 3 days, for $50.\n")
    done = run(tmp_path / "plan.md")
    assert done.returncode == 1 and "no table" in done.stderr and "Traceback" not in done.stderr
    for way in ("advisor audit plan.md --reader CMD", "advisor audit plan.md --schema", "--answer FILE"):
        assert way in done.stderr


def test_a_card_in_json_is_a_card(tmp_path: Path) -> None:
    raw = yaml.safe_load((CARDS / "report-3.yaml").read_text(encoding="utf-8"))
    (tmp_path / "card.json").write_text(json.dumps(raw, default=str))
    assert run(tmp_path / "card.json", "--json").stdout == run(CARDS / "report-3.yaml", "--json").stdout


@pytest.mark.parametrize(
    ("columns", "rows", "verdicts", "says"),
    [
        ("GPUs|hours|$/GPU-hour|cost", ("8|10|2.50|$200", "16|12|2.50|$640"), ["holds", "wrong"], "$480, not $640"),
        ("GPUs|GPU hours|$/GPU-hour|cost", ("8|80|2.50|$200", "16|192|2.50|$640"), ["holds", "wrong"], "not $640"),
        ("GPUs|hours|$/GPU-hour|cost", ("8|80|2.50|$200",), [], "its hours are of all GPUs, or its price is of the"),
        ("GPUs|hours|price per hour|cost", ("8|10|20|$200",), [], "its hours are of all GPUs, or its price is of the"),
        ("batch|seq len|steps|tokens", ("512|2048|20,000|21B", "512|2048|20,000|12B"), ["holds", "wrong"], "21 B, not"),
        ("GPUs|global batch|seq len|steps|tokens", ("8|512|2048|20,000|21B",), ["holds"], "holds"),
        ("GPUs|batch|seq len|steps|tokens", ("8|512|2048|20,000|12B",), [], "'batch' may be the batch of one GPU or"),
        ("mast|sail|tokens", ("3|4|5B",), [], "no check knows the columns mast, sail"),
    ],
)  # fmt: skip
def test_a_row_is_checked_by_the_product_of_its_cells(tmp_path, columns, rows, verdicts, says) -> None:
    """It knew neither "$/GPU-hour" nor "batch", and called for a time and a price that stood in the row."""
    rule, other = "|".join("-" * len(columns.split("|"))), "| model | MFU | days |\n|-|-|-|\n| a | 30 % | 3 |"
    path = tmp_path / "report.md"
    path.write_text("\n".join([columns, rule, *rows, "", other, ""]), encoding="utf-8")
    document = json.loads(run(path, "--json").stdout)
    assert [claim["verdict"] for claim in document["claims"]] == verdicts
    assert says in json.dumps(document)


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [  # 6 x 8e9 x 180,000 FLOP/s are 8.6 PFLOP/s, and eight H100 have 7.9 in bf16
        ("", ["wrong"]),
        ("# A LoRA fine-tune\n", []),
        ("Inference of Llama 8B with vLLM.\n\n", []),
        ("Nodes: 16\n", []),
        ("Precision: fp8\n", []),
        ("Model: Mixtral\n", []),
        ("Throughput is per GPU.\n\n", []),
    ],
)
def test_a_speed_is_impossible_only_where_all_weights_of_a_dense_model_are_trained(tmp_path, text, verdicts) -> None:
    lines = "Parameters: 8B\nGPU: H100\nGPUs: 8\nTokens: 100B\nThroughput: 180,000 tokens/s\n"
    path = tmp_path / "plan.md"
    path.write_text(text + lines, encoding="utf-8")
    document = json.loads(run(path, "--json").stdout)
    assert [claim["verdict"] for claim in document["claims"]] == verdicts
    assert not verdicts or "impossible: 109 %" in json.dumps(document)


@pytest.mark.parametrize(
    ("sentence", "lines"),
    [
        ("A 70B model was trained on 1,024 H100 GPUs with 2T tokens at 900k tokens/s.",
         "parameters: 70B\ntokens: 2T\ntokens per second: 900k tokens/s\nGPU: h100-80gb-sxm\nGPUs: 1024"),
        ("We use H100s for 10 days.", "duration: 10 days\nGPU: h100-80gb-sxm"),
        ("It took 10 days on 16 nodes of 8x H100.", "duration: 10 days\nGPU: h100-80gb-sxm"),
        ("We saw 2080 runs, 3090 steps and 3 days.", "steps: 3090\nduration: 3 days"),
        ("It cost $30 first, then $40.", ""),
    ],
)  # fmt: skip
def test_figures_of_a_sentence_become_lines_and_none_is_made_up(sentence: str, lines: str) -> None:
    assert lines_of_sentences(sentence) == lines
