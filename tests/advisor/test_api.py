"""The Python API: light to import, the functions whatever was imported before, and the same numbers as the commands."""

from __future__ import annotations

import html
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import advisor
from advisor.documents import schema_of
from tests.terminal import advisor as command

ROOT = Path(__file__).resolve().parents[2]
CALIBRATION = ROOT / "benchmarks" / "raw" / "cpu-nanochat-20261121-042637-seed0.yaml"
FUNCTIONS = (
    "analyze",
    "audit",
    "calibrate",
    "compare",
    "explain",
    "fleet",
    "gpus",
    "launch",
    "plan",
    "predict",
    "runs",
)
CHANGING = ("id", "created", "path")  # the time of day, and a file
QUESTIONS = [  # options in Python, and the same words of a command
    (dict(gpu="any", budget=20), "--gpu any --budget 20"),
    (dict(gpu="l4", budget="$5", deadline="8h", sure=True), "--gpu l4 --budget $5 --deadline 8h --sure"),
    (dict(gpu="h100", gpus=[1, 2, 8], tokens="10B", params="1B"), "--gpu h100 --gpus 1,2,8 --tokens 10B --params 1B"),
    (dict(gpu="8xh100", model="gpt2-xl", tokens=30_000_000_000), "--gpu 8xh100 --model gpt2-xl --tokens 30B"),
    (dict(own="rtx-4090:2", deadline="2d", kwh_price=0.3), "--own rtx-4090:2 --deadline 2d --kwh-price 0.3"),
    (dict(gpu="l4,rtx-4090", price=["l4=0.5", "rtx-4090=0.4"], budget=30),
     "--gpu l4,rtx-4090 --price l4=0.5 --price rtx-4090=0.4 --budget 30"),
    (dict(gpu="a100-80gb-sxm", spot="any", budget=100, interruptions="6h"),
     "--gpu a100-80gb-sxm --spot any --budget 100 --interruptions 6h"),
]  # fmt: skip
PREDICTIONS = [
    (dict(gpu="l4", depth=12), "--gpu l4 --depth 12"),
    (dict(gpu="8xh100", model="gpt2-xl", micro_batch=8), "--gpu 8xh100 --model gpt2-xl --micro-batch 8"),
    (dict(gpu="rtx-4090", params="1.1B", lora_rank=16, qlora=True),
     "--gpu rtx-4090 --params 1.1B --lora-rank 16 --qlora"),
    (dict(gpu="a100", depth=20, software="nanogpt", tokens="10B"),
     "--gpu a100 --depth 20 --software nanogpt --tokens 10B"),
]  # fmt: skip


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


def unchanging(document: dict) -> dict:
    return {name: value for name, value in document.items() if name not in CHANGING}


def test_importing_it_loads_neither_torch_nor_pandas_nor_numpy():
    assert fresh("import sys, advisor; print({'torch', 'pandas', 'numpy', 'scipy'} & set(sys.modules))") == "set()"


@pytest.mark.parametrize(
    "before",
    ["", "import advisor.planning.answer", "import advisor.cli.plan, advisor.workflows.launch",
     "import advisor.api, advisor.auditing.audit, advisor.history.listing"],
)  # fmt: skip
def test_a_name_is_its_function_whatever_was_imported_before(before):
    names = ", ".join(FUNCTIONS)
    code = f"{before}\nfrom advisor import {names}\nprint(all(f.__module__ == 'advisor.api' for f in ({names})))"
    assert fresh(code) == "True"


def test_everything_it_offers_is_there_and_named():
    assert set(FUNCTIONS) | {"Answer", "AdvisorError"} == set(advisor.__all__) <= set(dir(advisor))
    assert all(getattr(advisor, name).__doc__ for name in advisor.__all__)
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        _ = advisor.train
    assert importlib.import_module("advisor").__version__


@pytest.mark.parametrize(("options", "words"), QUESTIONS)
def test_a_plan_is_the_commands(options, words, asked_once):
    said = json.loads(command("plan", *words.split(), "--json", expect=0).stdout)
    answer = advisor.plan(**options)
    assert unchanging(json.loads(answer.to_json())) == unchanging(said)
    assert repr(answer) == said["sentence"] and answer.chosen.tokens == said["chosen"]["tokens"]


@pytest.mark.parametrize(("options", "words"), PREDICTIONS)
def test_a_prediction_is_the_commands(options, words):
    said = json.loads(command("predict", *words.split(), "--json").stdout)
    assert json.loads(advisor.predict(**options).to_json()) == said


def test_prices_and_runs_are_the_commands():
    for names in ((), ("8xh100",), ("l4,8xh100",)):
        assert json.loads(advisor.gpus(*names).to_json()) == json.loads(command("gpus", *names, "--json").stdout)
    assert command("gpus", "l4,8xh100").stdout.count("$") == 3  # the heading, and a price for each
    assert "h999" in command("gpus", "l4,h999").stderr
    assert json.loads(advisor.runs().to_json()) == json.loads(command("runs", "--json").stdout)
    frame = advisor.gpus(count=8, provider="lambda").to_frame().set_index("gpu")
    assert frame.loc["h100-80gb-sxm", "provider"] == "lambda" and frame.loc["h100-80gb-sxm", "usd_per_hour"] > 8


def test_a_frame_has_each_estimate_with_its_ends_and_shows_itself():
    answer = advisor.plan(gpu="l4", budget=5)
    frame = answer.to_frame()
    row = frame[frame["name"] == "balanced"].iloc[0]
    cost = answer.chosen.cost_usd
    assert (row["usd"], row["usd_low"], row["usd_high"]) == (cost.value, cost.low, cost.high)
    assert row["hours"] == pytest.approx(answer.chosen.total_seconds.value / 3600)
    assert answer.sentence in html.unescape(answer._repr_html_()) and "<table" in answer._repr_html_()


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda: advisor.plan(budgt=3), "there is no option 'budgt'", "did you mean budget"),
        (lambda: advisor.plan(gpu="l4", deadline=8), "'8' has no unit", "8h"),
        (lambda: advisor.plan(gpu="l4", tokens="many"), "--tokens: ", "3.7B"),
        (lambda: advisor.plan(gpu="l4", spot="maybe"), "--spot maybe: there is no such choice", "none, any or only"),
        (lambda: advisor.plan(gpu="l4", sure="yes"), "neither True nor False", "give one of them"),
        (lambda: advisor.plan(gpu="l4", budget=-1), "--budget -1: must be more than 0", "leave --budget out"),
        (lambda: advisor.plan(gpu="cpu", budget=5), "--budget limits nothing", "--deadline"),
        (lambda: advisor.predict(gpu="l4", dept=3), "there is no option 'dept'", "depth"),
        (lambda: advisor.predict(gpu="l4"), "no model is given", "--depth 12"),
        (lambda: advisor.predict(gpu="l4", depth=4, gpus=[1, 2]), "--gpus: [1, 2] is not one number", "gpus=8"),
        (lambda: advisor.analyze("nowhere.log"), "nowhere.log", None),
        (lambda: advisor.analyze("nowhere.log", card="l4"), "there is no option 'card'", "gpu"),
        (lambda: advisor.analyze("nowhere.log", price="much"), "'much' is not an amount of dollars", "$20"),
        (lambda: advisor.compare(), "no run is given", "latest"),
        (lambda: advisor.audit(), "no report is given", "report.md"),
    ],
)
def test_what_cannot_be_meant_is_an_error_with_the_next_step(call, message, hint):
    with pytest.raises(advisor.AdvisorError) as refused:
        call()
    assert message in refused.value.message and (hint is None or hint in refused.value.hint)


def test_from_a_calibration_to_a_scored_run(advisor_home, tmp_path):
    """Planned, launched, waited for, compared, analysed: each by its function."""
    (advisor_home / "calibrations").mkdir()
    shutil.copy(CALIBRATION, advisor_home / "calibrations")
    made = advisor.plan(gpu="cpu", depth=1, seq_len=32, vocab_size=128, tokens=20_000, synthetic=True)
    started = advisor.launch(made, run_dir=tmp_path / "run", deadline="5min")
    done = command("watch", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert started.run_dir == tmp_path / "run" and [run.name for run in advisor.runs()] == [started.launch.name]
    scored = advisor.compare(tmp_path / "run", record=False)
    assert scored[0].scored.outcome == "completed"
    said = json.loads(command("compare", str(tmp_path / "run"), "--no-record", "--json", expect=0).stdout)
    assert json.loads(scored.to_json()) == said
    assert {"predicted", "actual"} <= set(scored.to_frame().columns)
    judged = advisor.analyze(tmp_path / "run", price=2, budget="$5", deadline="8h")
    words = ("analyze", str(tmp_path / "run"), "--price", "2", "--budget", "5", "--deadline", "8h", "--json")
    assert json.loads(judged.to_json()) == json.loads(command(*words, expect=0).stdout)
    assert judged[0].run.status == "completed" and judged[0].verdict.lines[0][1] in judged.sentence
    assert json.loads(judged.to_json())["last_step"] == made.chosen.steps


def test_a_report_is_audited(tmp_path):
    paper = tmp_path / "report.md"
    text = "Ten hours at $2.50 an hour: 10 x 2.50 = $30."
    paper.write_text(text)
    claim = {"id": "a", "kind": "expression", "value": "$30", "readings": ["[10] * [2.50]"], "quote": text}
    said = json.dumps({"title": "t", "run": {}, "claims": [claim]})
    answer = advisor.audit(paper, answer=said)
    (tmp_path / "answer.json").write_text(said)
    words = ("audit", str(paper), "--answer", str(tmp_path / "answer.json"), "--json")
    assert json.loads(answer.to_json()) == json.loads(command(*words, expect=0).stdout)
    assert [str(one.judgement.ruling) for one in answer[0].judged] == ["wrong"] and len(answer.to_frame()) == 1


@pytest.mark.parametrize(
    "options",
    [dict(gpu="l4", budget=5), dict(gpu="any", model="Qwen/Qwen3-8B", finetune="lora", examples="50k"),
     dict(gpu="h100", layout="any", model="mixtral-8x7b", gpus="64", tokens="1T")],
)  # fmt: skip
def test_the_numbers_of_every_plan_are_explained(options, asked_once):
    """Throughput is the step's tokens over its time; each formula's section is one of the page that derives it."""
    from advisor.explanation import FORMULAS

    plan, page = advisor.plan(**options), (ROOT / "docs" / "how-it-predicts.md").read_text()
    assert all(f"\n## {formula.section}\n" in page for formula in FORMULAS.values())
    speed = advisor.explain(plan, "throughput")
    assert speed.value.value == pytest.approx(
        speed.inputs["step_tokens"] / speed.inputs["step_seconds"].value, rel=1e-6
    )
    for name in ("cost", "hours", "mfu", "fit_probability", "peak_allocated_bytes", "tokens"):
        explained = advisor.explain(plan, name)
        assert explained.value is not None and explained.inputs and explained.formula in repr(explained)
    jsonschema.validate(json.loads(speed.to_json()), schema_of("explanation"))
    with pytest.raises(advisor.AdvisorError, match="no number 'colour'"):
        advisor.explain(plan, "colour")
    with pytest.raises(advisor.AdvisorError, match="only plans and predictions"):
        advisor.explain(advisor.runs(), "cost")
