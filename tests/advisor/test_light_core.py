"""Planning, predicting, reading logs and auditing without PyTorch, tokenizers, pyarrow and the app's packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = "torch tokenizers safetensors pyarrow streamlit altair vl_convert sentencepiece gpuhunt".split()  # noqa: SIM905
ANSWERED = (
    "plan --gpu l4 --budget 5 --json",
    "predict --gpu l4 --model gpt2 --json",
    "plan --gpu l4 --model gpt2 --finetune lora --examples 5k --json",
    "plan --layout any --model mixtral-8x7b --gpu h100-80gb-sxm --gpus 64 --json",
    "gpus --json",
    "runs --json",
    "analyze train.log --json",
    "audit report.md",
)
NEEDS = {
    "calibrate --gpu cpu --budget-seconds 10": "calibrating needs the package torch",
    "data prepare text.txt --out data": "needs the package tokenizers",
    "gpus --refresh": "needs the package gpuhunt",
    "app": "the app's packages are not installed",
}
ASKS = f"""
import sys
sys.modules.update(dict.fromkeys({HIDDEN!r}))  # None: as if it were not installed
import json
import advisor
from tests.terminal import advisor as command
done = {{words: command(*words.split()) for words in json.load(sys.stdin)}}
answers = {{words: (one.returncode, one.stdout, one.stderr) for words, one in done.items()}}
print(json.dumps(answers | {{"python": (0, advisor.plan(gpu="l4", budget="5").to_json(), "")}}))
"""


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Exit code, output and errors of each command in one process that can import the core's packages alone."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "train.log").write_text("".join(f"iter {n}: loss {4 - n / 200:.4f}, time 50.00ms\n" for n in range(200)))
    (folder / "report.md").write_text("Tokens: 10 B\nSteps: 20,000\nTokens per step: 500,000\n")
    (folder / "text.txt").write_text("words " * 500)
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": root, "ADVISOR_HOME": str(folder / "home")}
    done = subprocess.run([sys.executable, "-c", ASKS], input=json.dumps([*ANSWERED, *NEEDS]), capture_output=True,
                          text=True, env=environment, cwd=folder, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("words", [*ANSWERED, "python"])
def test_it_plans_predicts_reads_logs_and_reports(light, words: str):
    code, out, error = light[words]
    assert code in ((0, 1) if words.startswith("audit") else (0,)), error
    assert words.startswith("audit") or json.loads(out) is not None


@pytest.mark.parametrize(("words", "package"), NEEDS.items())
def test_what_needs_more_says_which_extra(light, words: str, package: str):
    code, _, error = light[words]
    said = " ".join(error.split())
    assert code in (1, 2) and package in said and "pip install" in said and "unexpected" not in said
