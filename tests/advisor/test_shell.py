"""The command line: completion, paths, names that it had before."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from advisor.cli import FORMER, FORMS, PROGRAMS, VERBS, formed, main
from advisor.cli.verb import SectionedOption
from benchmarks.reference import commands
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


RUNS = ("run", "runs")  # arguments that name a run, by its folder among others


def read_or_written() -> Iterator[tuple[str, click.Command, click.Parameter]]:
    """Every parameter of every command that holds a path."""
    for name, command in commands():
        for parameter in command.params:
            if isinstance(parameter.type, click.Path) or parameter.name in RUNS:
                yield name, command, parameter


def is_written(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and isinstance(parameter.type, click.Path) and not parameter.type.exists


PATHS = [pytest.param(*one, id=f"{one[0]}-{one[2].name}") for one in read_or_written()]
READ = [one for one in PATHS if not is_written(one.values[2])]
KINDS = [
    pytest.param(*one.values, wanted, id=f"{one.id}-{wanted}")
    for one in PATHS
    for kind in [one.values[2].type]
    if isinstance(kind, click.Path) and kind.file_okay != kind.dir_okay
    for wanted in ["folder" if kind.dir_okay else "file"]
]


def refused(name: str, command: click.Command, parameter: click.Parameter, value: Path, others: dict[str, Path]) -> int:
    """Call a command with `value` for one parameter and something fitting for all others that it must have."""
    arguments: list[str] = name.split()[1:]
    for one in command.params:
        if one is not parameter and not one.required:
            continue
        kind = "file" if isinstance(one.type, click.Path) and one.type.file_okay else "folder"
        given = str(value if one is parameter else others[kind])
        if isinstance(one.type, click.Choice):
            given = one.type.choices[0]
        arguments += [one.opts[0], given] if isinstance(one, click.Option) else [given]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def test_there_are_commands_to_hold_to_it() -> None:
    names = {f"{one.values[0]} {one.values[2].name}" for one in READ}
    assert {"advisor launch plan", "advisor audit papers", "advisor analyze paths", "advisor predict rows"} <= names
    assert {"advisor plan data", "advisor data show folder", "advisor watch run", "advisor compare runs"} <= names


@pytest.mark.parametrize(("name", "command", "parameter"), READ)
def test_a_path_that_does_not_exist_is_wrong_usage(
    name: str, command: click.Command, parameter: click.Parameter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    missing = tmp_path / "missing"
    assert refused(name, command, parameter, missing, {"file": tmp_path / "file", "folder": tmp_path}) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and str(missing) in said


@pytest.mark.parametrize(("name", "command", "parameter", "wanted"), KINDS)
def test_a_path_of_the_wrong_kind_is_wrong_usage(
    name: str,
    command: click.Command,
    parameter: click.Parameter,
    wanted: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "file"
    file.touch()
    wrong = tmp_path if wanted == "file" else file
    assert refused(name, command, parameter, wrong, {"file": file, "folder": tmp_path}) == 2
    assert f"'{wrong}' is a {'file' if wrong == file else 'directory'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "name", "rest"),
    [
        ("calibrate --list --json", "profiles", "--json"),
        ("calibrate --gpu cpu", "calibrate", "--gpu cpu"),
        ("watch --gpus --hz 50", "monitor", "--hz 50"),
        ("watch latest --once", "watch", "latest --once"),
        ("runs --import folder --plan plan.yaml", "import", "folder --plan plan.yaml"),
        ("compare one --settings other", "diff", "one other"),
        ("compare a.yaml b.yaml --json", "diff", "a.yaml b.yaml --json"),
        ("compare latest --plan plan.yaml", "compare", "latest --plan plan.yaml"),
        ("launch p.yaml --max-usd 25 --max-hours 1.5", "launch", "p.yaml --budget 25 --deadline 1.5h"),
        ("launch p.yaml --max-hours=2 --detach", "launch", "p.yaml --deadline=2h --detach"),
        ("launch p.yaml --max-hours many", "launch", "p.yaml --deadline many"),
        ("analyze x.log --target-usd 5 --target-time 8h", "analyze", "x.log --budget 5 --deadline 8h"),
        ("sample --tokens 5 --samples 2", "sample", "--max-tokens 5 --texts 2"),
        ("plan --tokens 5B", "plan", "--tokens 5B"),
        ("accuracy --device l4", "accuracy", "--gpu l4"),
        ("adopt --name x -- train --tune --max-usd 3", "adopt", "--name x -- train --tune --max-usd 3"),
    ],
)
def test_words_lead_to_their_command(typed, name, rest):
    assert formed(typed.split()) == (name, rest.split())


@pytest.mark.parametrize("verb", [verb for verb in VERBS.values() if verb.form_of])
def test_both_names_show_the_same_help(verb):
    old, new = (advisor(*words, "--help", expect=0).stdout for words in ([verb.name], verb.called.split()))
    assert old == new and f"Usage: advisor {verb.called}" in new


def test_a_command_says_what_else_it_does():
    said = " ".join(advisor("calibrate", "--help", expect=0).stdout.split())
    assert "See also: advisor calibrate --list --help" in said


@pytest.mark.parametrize(
    "typed", ["tune plan.yaml", "tune --help", "calibrate --depth 4 --tune plan.yaml", "calibrate --tune"]
)
def test_a_command_that_is_gone_names_its_replacement(typed):
    said = advisor(*typed.split(), expect=2).stderr
    assert "tune` any more" in said and said.count("\n") == 2
    assert said.endswith("hint: what each setting gives on this machine: advisor calibrate --settings\n")


def test_what_was_renamed_is_offered_by_no_command():
    shown = " ".join(advisor(*verb.called.split(), "--help", expect=0).stdout for verb in VERBS.values())
    assert not {option for option in FORMER[""] if f" {option} " in shown}
    of_people = [verb for verb in VERBS.values() if verb.form_of is None and verb.section != PROGRAMS]
    assert len(of_people) <= 20 and len(FORMS) == 14


@pytest.mark.parametrize(
    "option",
    ["--price", "--budget", "--deadline", "--tokens", "--gpus", "--epochs", "--depth", "--micro-batch", "--seq-len",
     "--precision", "--sharding", "--gate", "--stop-loss", "--plan", "--budget-seconds", "--md"],
)  # fmt: skip
def test_an_option_that_commands_share_is_made_from_a_table(option):
    found = {name: param for name, command in commands() for param in command.params if option in param.opts}
    assert len(found) > 1 and all(isinstance(param, SectionedOption) for param in found.values()), found
