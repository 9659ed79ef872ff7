"""Every error says what to do next, and where the fault lies."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from advisor.engines.backend import engine_of
from advisor.errors import AdvisorError
from advisor.history.devices import read_devices
from advisor.history.follow import RunFollower
from advisor.readers.chunks import parse_json
from advisor.readers.config_names import read_config
from advisor.readers.own_log import read
from advisor.readers.telemetry_file import read_telemetry
from advisor.store.run_folder import read_run_config
from advisor.store.store import Store
from trainer.runlog import RunLogWriter

ADVISOR = Path(__file__).parents[2] / "advisor"
SOURCES = sorted(ADVISOR.rglob("*.py"))


def test_errors_are_raised_with_a_next_step():
    bare = [f"{path.relative_to(ADVISOR)}:{line}" for path in SOURCES for line in without_hint(path)]
    assert not bare


def without_hint(path: Path) -> list[int]:
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    errors = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "AdvisorError"]
    return [call.lineno for call in errors if not says_next(call)]


def says_next(call: ast.Call) -> bool:
    unpacked = any(isinstance(arg, ast.Starred) for arg in call.args)
    return len(call.args) > 1 or unpacked or "hint" in {word.arg for word in call.keywords}


@pytest.mark.parametrize(
    ("name", "text", "where", "step"),
    [
        ("a.yaml", "depth: 6\nwidth: [1,\n", "line 3", "mend that line"),
        ("a.toml", "depth = 6\nwidth = = 1\n", "line 2", "mend that line"),
        ("a.json", '{"depth": 6', "char 11", "was it cut while being copied?"),
        ("a.yml", "- 6\n", "holds no names", "give the file that holds the run's settings"),
    ],
)
def test_a_configuration_that_cannot_be_read_names_file_and_place(tmp_path, name, text, where, step):
    (tmp_path / name).write_text(text)
    with pytest.raises(AdvisorError) as caught:
        read_config(tmp_path / name)
    assert str(tmp_path / name) in caught.value.message and where in caught.value.message and step in caught.value.hint


def test_a_damaged_log_names_its_line(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"kind":"step","step":1,"loss":2.0}\ngarbage\n')
    with pytest.raises(AdvisorError, match=r"log\.jsonl, line 2") as caught:
        read(tmp_path / "log.jsonl")
    assert caught.value.hint.startswith("mend or remove that line")


def test_what_cannot_be_used_says_what_to_do(tmp_path):
    (tmp_path / "telemetry.parquet").write_bytes(b"PAR1 cut off")
    for asked in (lambda: read_devices(tmp_path), lambda: read_telemetry(tmp_path)):
        with pytest.raises(AdvisorError, match=r"telemetry\.parquet is damaged") as caught:
            asked()
        assert "without it" in caught.value.hint
    with pytest.raises(AdvisorError, match="no handle of a run") as caught:
        engine_of("/some/folder")
    assert caught.value.hint == "see all runs: advisor runs"
    with pytest.raises(AdvisorError, match="nested too deeply") as caught:
        parse_json("[" * 100_000, "a.json")
    assert caught.value.hint == "give the log that the trainer wrote"


def test_a_header_of_another_version_asks_for_the_configuration(tmp_path):
    with RunLogWriter(tmp_path / "log.jsonl") as log:
        log.write("header", config={"from": "the future"})
    with pytest.raises(AdvisorError, match=r"the header of .*log\.jsonl") as caught:
        RunFollower(tmp_path, Store(tmp_path / "home")).look()
    assert "run.yaml next to the log" in caught.value.hint
    with pytest.raises(AdvisorError, match=r"run\.yaml"):
        read_run_config(tmp_path)
