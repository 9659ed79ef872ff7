"""Planning, predicting, reading logs and auditing without PyTorch, tokenizers, pyarrow and the app's packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = "torch tokenizers safetensors pyarrow streamlit altair vl_convert sentencepiece gpuhunt".split()  # noqa: SIM905
HIDES = f"import sys; sys.modules.update(dict.fromkeys({HIDDEN!r}))"  # None: as if it were not installed


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory):
    """Runs a command of the advisor, or code, where only the core's packages can be imported."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "sitecustomize.py").write_text(HIDES, encoding="utf-8")
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{root}", "ADVISOR_HOME": str(folder / "home")}

    def run(*words: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *(("-c", code) if code else ("-m", "advisor", *words))]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=120)

    return run


@pytest.mark.parametrize(
    "words",
    ["plan --gpu l4 --budget 5", "predict --gpu l4 --model gpt2",
     "plan --gpu l4 --model gpt2 --finetune lora --examples 5k",
     "plan --layout any --model mixtral-8x7b --gpu h100-80gb-sxm --gpus 64", "gpus", "runs"],
)  # fmt: skip
def test_it_plans_and_predicts(light, words: str):
    done = light(*words.split(), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) is not None


def test_it_reads_logs_and_reports_and_is_imported(light, tmp_path: Path):
    log = tmp_path / "train.log"
    lines = [f"iter {n}: loss {4 - n / 200:.4f}, time 50.00ms" for n in range(200)]
    log.write_text("\n".join(lines), encoding="utf-8")
    assert light("analyze", str(log), "--json").returncode == 0
    report = tmp_path / "report.md"
    report.write_text("Tokens: 10 B\nSteps: 20,000\nTokens per step: 500,000\n", encoding="utf-8")
    assert light("audit", str(report)).returncode in (0, 1)
    done = light(code="import advisor; print(advisor.plan(gpu='l4', budget='5').to_json()[:1])")
    assert done.stdout.strip() == "{", done.stderr


@pytest.mark.parametrize(
    ("words", "package"),
    [
        ("calibrate --gpu cpu --budget-seconds 10", "calibrating needs the package torch"),
        ("data prepare TEXT --out data", "needs the package tokenizers"),
        ("gpus --refresh", "needs the package gpuhunt"),
        ("app", "the app's packages are not installed"),
    ],
)
def test_what_needs_more_says_which_extra(light, tmp_path: Path, words: str, package: str):
    text = tmp_path / "text.txt"
    text.write_text("words " * 500, encoding="utf-8")
    done = light(*words.replace("TEXT", str(text)).split())
    said = " ".join(done.stderr.split())
    assert done.returncode in (1, 2) and package in said and "pip install" in said and "unexpected" not in said
