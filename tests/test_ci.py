"""The check that others run in CI: its steps, run by bash as the runner does; and the files, as CI reads them."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.terminal import advisor, document

ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def log(path: Path, milliseconds: float) -> Path:
    """A training log whose steps take so long, with noise."""
    drawn = random.Random(path.name)
    lines = []
    for n in range(300):
        took = drawn.gauss(milliseconds, 2)
        speed = f"dt: {took:.2f}ms | tok/sec: {8192e3 / took:,.0f}"
        lines.append(f"step {n:05d}/00300 | loss: {4 - n / 300:.4f} | {speed}\n")
    path.write_text("".join(lines))
    return path


def checked(folder: Path, **inputs: str) -> tuple[int, str, list[str]]:
    """Exit code, comment and the words that `gh` was called with, of the action's steps run one after the other."""
    binaries = folder / "bin"
    binaries.mkdir(parents=True)
    programs = {"advisor": f'exec {sys.executable} -m advisor "$@"', "gh": f'printf "%s\\n" "$@" > {folder}/gh'}
    for name, script in programs.items():
        (binaries / name).write_text(f"#!/bin/bash\n{script}\n")
        (binaries / name).chmod(0o755)
    known = {f"inputs.{name}": str(entry["default"]) for name, entry in ACTION["inputs"].items()}
    known |= {f"inputs.{name.replace('_', '-')}": value for name, value in inputs.items()}
    known |= {"github.token": "", "github.event.pull_request.number": "7", "inputs.install": ""}
    code = 0
    for step in ACTION["runs"]["steps"]:
        if step["name"] == "Install":  # skipped where it is empty, as here
            continue
        output, summary = folder / "output", folder / "summary"
        output.write_text("")
        values = {name: re.sub(r"\$\{\{ (.+?) \}\}", lambda found: known[found[1]], text)
                  for name, text in step.get("env", {}).items()}  # fmt: skip
        environment = {
            **os.environ, **values, "PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
            "RUNNER_TEMP": str(folder), "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_REPOSITORY": "someone/model",
        }  # fmt: skip
        assert step["shell"] == "bash" and "${{" not in step["run"], "what is typed must not become a script"
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
        code = done.returncode
        assert code == 0 or step["name"].startswith("Fail"), done.stderr
        for line in output.read_text().splitlines():
            name, _, value = line.partition("=")
            known[f"steps.{step['id']}.outputs.{name}"] = value
    comment = Path(known["steps.judge.outputs.comment"]).read_text()
    assert comment in (folder / "summary").read_text()
    return code, comment, (folder / "gh").read_text().splitlines()


def test_what_fits_costs_what_it_may_and_is_as_fast_passes(tmp_path: Path) -> None:
    code, comment, told = checked(
        tmp_path / "ci", predict="--gpu rtx-4090 --model gpt2", plan="--gpu l4 --budget 5",
        accepted_log=str(log(tmp_path / "accepted.log", 50)), log=str(log(tmp_path / "new.log", 50.2)),
    )  # fmt: skip
    assert code == 0, comment
    assert comment.startswith("### Training advisor: all 3 passed or open\n")
    assert "| fits 1 x rtx-4090 | passed | peak memory " in comment and "| time and cost | passed | Train " in comment
    assert re.search(r"\| new.log as fast as accepted \| passed \| speed x .*not slower by more than 2 %", comment)
    assert told[:2] == ["pr", "comment"] and told[-1].endswith("comment.md") and "--create-if-none" in told


def test_what_does_not_fit_or_is_slower_than_the_noise_fails(tmp_path: Path) -> None:
    code, comment, _ = checked(
        tmp_path / "ci", predict="--gpu l4 --params 30B", plan="--gpu l4 --params 30B --tokens 1T --budget 5",
        accepted_log=str(log(tmp_path / "accepted.log", 50)), log=str(log(tmp_path / "new.log", 55)),
    )  # fmt: skip
    assert code == 3 and comment.startswith("### Training advisor: 3 of 3 failed\n"), comment
    assert "| an answer | failed | " in comment and ": slower by more than 2 %" in comment


def test_documents_that_answer_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text(advisor("gpus", "--json").stdout)
    (tmp_path / "none.json").write_text("{}")
    assert "contains nothing to check" in document("check", tmp_path / "gpus.json", expect=2)["error"]
    assert "not a document of this program" in document("check", tmp_path / "none.json", expect=2)["error"]


def test_pairs_of_runs_fail_only_where_the_difference_is_certain(tmp_path: Path) -> None:
    """Of `ab`: the logarithm of the step times' ratio with its 95 % interval."""

    def pairs(low: float, high: float) -> Path:
        difference = {"value": (low + high) / 2, "low": low, "high": high}
        contrast = {"arm": "new", "quantity": "step_seconds", "difference": difference}
        path = tmp_path / "ab.json"
        path.write_text(json.dumps({"document": "ab", "contrasts": [contrast]}))
        return path

    assert document("check", pairs(0.03, 0.05), expect=3)["failed"] == 1
    assert "not surely slower" in document("check", pairs(-0.01, 0.05))["judged"][0]["words"]
    assert "not slower" in document("check", pairs(-0.01, 0.01))["judged"][0]["words"]
    assert document("check", pairs(0.03, 0.05), "--slower", "0.1")["failed"] == 0


@pytest.mark.parametrize("schema", ["vendor.github-workflows", "vendor.github-actions"])
def test_the_files_are_what_the_runner_reads(schema: str) -> None:
    pytest.importorskip("check_jsonschema", reason="the extra dev is not whole: check-jsonschema")
    files = WORKFLOWS if schema.endswith("workflows") else [ROOT / "action.yml"]
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_every_command_of_the_workflows_is_there() -> None:
    """`make` targets exist, and the version that a release compares its tag with is found."""
    steps = [step.get("run", "") for path in WORKFLOWS for job in yaml.safe_load(path.read_text())["jobs"].values()
             for step in job["steps"]]  # fmt: skip
    targets = {target for step in steps for target in re.findall(r"\bmake (\w+)", step)}
    assert targets and all(
        re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for target in targets
    )
    (same,) = (step for step in steps if "GITHUB_REF_NAME" in step)
    version = re.search(r'"(.+)"', (ROOT / "advisor/__init__.py").read_text().partition("__version__ = ")[2])[1]
    for tag, code in ((f"v{version}", 0), ("v999", 1)):
        environment = {**os.environ, "GITHUB_REF_NAME": tag}
        assert subprocess.run(["bash", "-e", "-c", same], cwd=ROOT, env=environment).returncode == code


def test_the_dockerfile_is_sound_and_copies_what_the_wheel_is_made_of(tmp_path: Path) -> None:
    """Its linter has nothing to say, both targets are there, and the wheel is built of nothing but what is copied."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert {"light", "train"} <= {line.rpartition(" AS ")[2] for line in lines if line.startswith("FROM ")}
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    let_in = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert all((ROOT / name).exists() and f"!{name}" in let_in for name in copied)
    for name in copied:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path / "wheels", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if "hatchling" in done.stderr and "No matching distribution" in done.stderr:
        pytest.skip("hatchling cannot be fetched here")
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "wheels").glob("training_advisor-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    assert any(name.endswith("/share/man/man1/advisor.1") for name in names)
    assert {"advisor/schemas.json", "advisor/_profiles/gpus.csv", "advisor/_examples/run/log.jsonl"} <= names
    if (linter := shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")) is None:
        pytest.skip("hadolint is not installed: the Dockerfile is not linted")
    linted = subprocess.run([linter, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("there", [True, False])
def test_the_set_up_uses_uv_where_it_is_there(tmp_path: Path, there: bool) -> None:
    if there:
        (tmp_path / "uv").write_text("#!/bin/sh\n")
        (tmp_path / "uv").chmod(0o755)
    found = [folder for folder in os.environ["PATH"].split(":") if not (Path(folder) / "uv").exists()]
    command = ["make", "--dry-run", f"VENV={tmp_path / 'new'}", str(tmp_path / "new/core.stamp")]
    environment = {**os.environ, "PATH": ":".join([str(tmp_path), *found])}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    installs = [line for line in said.splitlines() if "--constraint constraints.txt" in line]
    assert len(installs) == 2 and "about 1.4 gb" in said.lower()
    assert all(line.startswith("uv pip install --python") == there for line in installs)
