"""The documentation says what the program does: commands, profiles, rooms."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from advisor.cli import VERBS
from advisor.hardware.catalog import GPU_COLUMNS
from advisor.hardware.prices import PRICE_COLUMNS
from benchmarks.reference import commands, findings, llms, manual, reference

# what the advisor may import of the trainer: the contract, and readers of its files that need no torch
OPEN_TO_THE_ADVISOR = {"damage", "schema", "plain", "budget", "runlog", "messages", "token_folder", "telemetry_files"}
ROOT = Path(__file__).resolve().parents[2]
SKILL = ROOT / "skills" / "training-advisor" / "SKILL.md"


def test_the_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == reference(), "run `make docs`"
    assert (ROOT / "docs" / "advisor.1").read_text(encoding="utf-8") == manual(), "run `make docs`"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert (ROOT / "llms.txt").read_text(encoding="utf-8") == llms(readme), "run `make docs`"


def test_the_list_of_findings_is_up_to_date() -> None:
    assert (ROOT / "docs" / "findings.md").read_text(encoding="utf-8") == findings(), "run `make docs`"


def test_every_command_and_option_is_documented() -> None:
    text = reference()
    for name, command in commands():
        page = text.split(f"### {name}\n")[1].split("\n### ")[0]
        assert command.help, f"{name} has no help"
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.opts[0] in page, f"{name} {parameter.opts[0]}"


@pytest.mark.parametrize("name", [verb.called for verb in VERBS.values() if verb.name not in ("app", "mcp")])
def test_every_command_speaks_json(name: str) -> None:
    leaves = [
        one
        for full, one in commands()
        if full.removeprefix("advisor ").startswith(name) and not isinstance(one, click.Group)
    ]
    assert leaves
    for leaf in leaves:
        assert any("--json" in parameter.opts for parameter in leaf.params), leaf.name


def test_every_column_of_the_profiles_is_documented() -> None:
    text = (ROOT / "profiles" / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9_]+)`", text))
    assert set(GPU_COLUMNS) | set(PRICE_COLUMNS) <= named


def test_links_between_documents_lead_somewhere() -> None:
    for document in [ROOT / "llms.txt", SKILL, *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_import_contract_names_every_trainer_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    closed = next(c["forbidden_modules"] for c in contracts if "torch" in c.get("forbidden_modules", ()))
    modules = {path.stem for path in (ROOT / "trainer").glob("*.py")} - {"__init__"}
    assert modules - OPEN_TO_THE_ADVISOR == {name.removeprefix("trainer.") for name in closed} - {"torch"}


@pytest.mark.parametrize(("page", "least", "most"), [("architecture", 60, 16_000), ("how-it-predicts", 25, 30_000)])
def test_what_the_documents_name_is_there(page: str, least: int, most: int) -> None:
    """Each `path` and `path:name` of a document exists; NAME stands for a file that the reader is to write."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:advisor|trainer|benchmarks|tests|profiles)/[\w./-]*?)(?::(\w+))?`", text)
    assert len(named) > least
    for path, name in [(path, name) for path, name in named if "NAME" not in path]:
        assert (ROOT / path).exists(), path
        if name:
            source = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"^ *(?:def|class) {name}\b|^{name}\b[^=\n]*=", source, re.MULTILINE), f"{path}:{name}"
    assert len(text.encode()) < most


def test_the_skill_is_one_and_its_commands_are_those_of_the_program() -> None:
    """A name like its folder's and a description that fits; every option that it types is the command's."""
    _, head, body = SKILL.read_text(encoding="utf-8").split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["name"] == SKILL.parent.name and 100 < len(about["description"]) <= 1024
    assert len(body.splitlines()) < 500
    known = {full.removeprefix("advisor "): command for full, command in commands()}
    typed = re.findall(r"`advisor ([^`]+)`", body)
    assert len(typed) > 12
    for words in typed:
        ours, *_ = words.split(" -- ")
        name = next((name for name in known if ours.startswith(name)), None)
        assert name is not None or ours.startswith(("--", "COMMAND", "mcp")), words
        parameters = known[name].params if name else []
        options = {option for one in parameters for option in (*one.opts, *one.secondary_opts)}
        given = set(re.findall(r"--[a-z-]+", ours.removeprefix(name or "")))
        assert given <= options | {"--help"}, f"{words}: {given - options}"
