"""What a shell and a terminal make of the command line: completion, the manual page, colours, pipes."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.terminal import advisor

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def shell(tmp_path: Path):
    """Environment of a shell that finds `advisor`."""
    program = tmp_path / "advisor"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m advisor "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize(("typed", "wanted"), [("pl", "plan"), ("plan --bud", "--budget"), ("completion f", "fish")])
def test_bash_completes_commands_options_and_choices(shell, tmp_path: Path, typed: str, wanted: str) -> None:
    (tmp_path / "script").write_text(advisor("completion", "bash", expect=0).stdout)
    words = ["advisor", *typed.split()]
    script = f"""source {tmp_path}/script
COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}
_advisor_completion advisor; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", script], env=shell, capture_output=True, text=True, timeout=60)
    assert wanted in done.stdout.split(), done.stderr


def test_the_scripts_of_other_shells_are_theirs() -> None:
    scripts = {name: advisor("completion", name, expect=0).stdout for name in ("zsh", "fish")}
    assert "#compdef advisor" in scripts["zsh"] and "complete " in scripts["fish"]
    for name, script in scripts.items():
        if program := shutil.which(name):
            assert subprocess.run([program, "-n"], input=script, text=True, timeout=60).returncode == 0
    assert "is not one of 'bash', 'zsh', 'fish'" in advisor("completion", "tcsh", expect=2).stderr


def test_the_manual_page_is_one() -> None:
    page = ROOT / "docs" / "advisor.1"
    if (groff := shutil.which("groff")) is None:
        pytest.skip("groff is not installed")
    done = subprocess.run([groff, "-man", "-ww", "-Tutf8", page], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""
    text = re.sub(r"\x1b\[\d*m|.\x08", "", done.stdout)
    assert "advisor plan [OPTIONS]" in text and "--budget DOLLARS" in text and "EXIT STATUS" in text


def on_terminal(*words: str, **variables: str) -> str:
    """What a command writes to a terminal of its own."""
    here, there = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "120", **variables}
    command = [sys.executable, "-m", "advisor", *words]
    with subprocess.Popen(command, stdout=there, stderr=there, env=environment):
        os.close(there)
        parts = []
        while True:
            try:
                parts.append(os.read(here, 65536))
            except OSError:  # whoever wrote has closed it
                break
    os.close(here)
    return b"".join(parts).decode()


def test_a_terminal_has_styles_and_no_colour_where_that_is_asked_for() -> None:
    words = ("compare", str(ROOT / "examples" / "run"), "--no-record")
    coloured = re.compile(r"\x1b\[[\d;]*(?:3[0-7]|9[0-7]|38|48)[\d;]*m")
    assert "\x1b[1m" in on_terminal("gpus")
    assert not coloured.search(on_terminal(*words, NO_COLOR="1"))
    assert "\x1b[" not in on_terminal("gpus", TERM="dumb")


@pytest.mark.parametrize(
    "words", ["gpus", "gpus l4", "plan --gpu l4 --budget 5 --all", "predict --gpu l4 --model gpt2", "schema", "runs"]
)
def test_no_line_in_a_pipe_ends_in_blanks_or_has_styles(words: str) -> None:
    out = advisor(*words.split(), expect=0).stdout
    assert out and not re.search(r"[ \t]+$|\x1b", out, re.MULTILINE)
