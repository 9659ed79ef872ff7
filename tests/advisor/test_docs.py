"""The documentation says what the program does: commands, profiles, rooms."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest

from advisor.cli import VERBS
from advisor.cli.reference import commands, reference
from advisor.hardware.catalog import GPU_COLUMNS
from advisor.hardware.prices import PRICE_COLUMNS
from advisor.report.catalogue import page as findings_page

# what the advisor may import of the trainer: the contract, and readers of its files that need no torch
OPEN_TO_THE_ADVISOR = {"damage", "schema", "plain", "budget", "runlog", "messages", "token_folder", "telemetry_files"}
ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_the_list_of_findings_is_up_to_date() -> None:
    assert (ROOT / "docs" / "findings.md").read_text(encoding="utf-8") == findings_page(), "run `make docs`"


def test_every_command_and_option_is_documented() -> None:
    text = reference()
    for name, command in commands():
        page = text.split(f"### {name}\n")[1].split("\n### ")[0]
        assert command.help, f"{name} has no help"
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.opts[0] in page, f"{name} {parameter.opts[0]}"


@pytest.mark.parametrize("name", [name for name, verb in VERBS.items() if verb.exists() and name != "app"])
def test_every_command_speaks_json(name: str) -> None:
    leaves = [one for full, one in commands() if full.split()[1] == name and not isinstance(one, click.Group)]
    assert leaves
    for leaf in leaves:
        assert any("--json" in parameter.opts for parameter in leaf.params), leaf.name


def test_every_column_of_the_profiles_is_documented() -> None:
    text = (ROOT / "profiles" / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9_]+)`", text))
    assert set(GPU_COLUMNS) | set(PRICE_COLUMNS) <= named


def test_links_between_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_import_contract_names_every_trainer_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    closed = next(c["forbidden_modules"] for c in contracts if "torch" in c.get("forbidden_modules", ()))
    modules = {path.stem for path in (ROOT / "trainer").glob("*.py")} - {"__init__"}
    assert modules - OPEN_TO_THE_ADVISOR == {name.removeprefix("trainer.") for name in closed} - {"torch"}
