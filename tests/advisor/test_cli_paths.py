"""One rule for every command: a path that is not there, or is of the wrong kind, is wrong usage and exits 2 at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from advisor.cli import main
from advisor.cli.reference import commands

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
