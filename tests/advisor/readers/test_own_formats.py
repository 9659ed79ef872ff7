"""Formats that are not shipped: of a user's own file, of the data folder, and of an assistant that saw a log."""

from __future__ import annotations

import json
import math
import time

import pytest

from advisor.readers import own_formats
from tests.terminal import advisor, document

ROW = r"~ u(?P<step>\d+) :: cost (?P<loss><<LOSS>>) ; pace (?P<tokens_per_second>\d+) tk/s"
ENTRY = {
    "name": "zorp",
    "rows": [ROW],
    "validation": [r"~~ exam :: cost (?P<eval_loss><<LOSS>>)"],
    "ends": {"finished": ["nothing left to do"]},
    "settings": {"planned_steps": "planning", "gpu": "on card"},
}


def cost(update: int) -> float:
    return round(3 + 6 * math.exp(-update / 100), 4)


def zorp(updates: int = 300, card: str = "RTX 4090", ends: bool = True, more: tuple[str, ...] = ()) -> str:
    """What an invented program prints: updates with a cost, an exam every hundredth, and its own last words."""
    lines = [f"ZORP trainer 3, host gold-{updates}", f"planning {updates} updates on card {card}", *more]
    for i in range(1, updates + 1):
        lines.append(f"~ u{i} :: cost {cost(i):.4f} ; pace {41000 + i} tk/s")
        lines += [f"~~ exam :: cost {cost(i) + 0.25:.4f}"] if i % 100 == 0 else []
    return "\n".join([*lines, *(["zorp has nothing left to do"] if ends else [])]) + "\n"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def log(tmp_path, home):
    path = tmp_path / "zorp.log"
    path.write_text(zorp())
    return path


def read_as_zorp(found: dict) -> None:
    assert (found["format"], found["status"], found["rows"]) == ("zorp", "completed", 300)
    assert (found["first_step"], found["last_step"]) == (1, 300)
    assert (found["first_loss"], found["last_loss"]) == (cost(1), cost(300))
    assert found["facts"]["planned_steps"] == 300 and found["facts"]["gpu"] == "RTX 4090"


@pytest.mark.parametrize("place", ["file", "folder", "name"])
def test_a_users_own_format_reads_the_log_of_its_program(log, home, tmp_path, place):
    file = tmp_path / "own.yaml" if place == "file" else home / "formats" / "mine.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(ENTRY))  # JSON is YAML
    found = document("analyze", log, *({"file": ["--format", file], "name": ["--format", "zorp"]}.get(place, [])))
    read_as_zorp(found)
    assert any("exam" not in note and file.name in note for note in found["notes"])
    assert found["measured"] and found["columns"]["eval_loss"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": [r"u(?P<stepp>\d+) (?P<loss>\S+)"]}, "rows: group stepp is not a column"),
        ({"rows": [r"u(?P<seconds__week>\d+) (?P<loss>\S+)"]}, "rows: group seconds__week has no known unit"),
        ({"rows": [r"u(?P<step>\d+ (?P<loss>\S+"]}, "rows: no regular expression"),
        ({"rows": "(" * 1900}, "rows: no regular expression"),
        ({"rows": [r"cost (?P<loss>\S+)"]}, "rows: the pattern has no group step"),
        ({"rows": [r"u(?P<step>\d+)"]}, "rows: the pattern has no group loss"),
        ({"rows": ["x" * 2001]}, "at most 8 texts of at most 2,000 characters"),
        ({"rows": [{"run": "rm"}]}, "rows: it must be a text or a list of texts"),
        ({"steps": "sideways"}, "steps: it is one of printed, bar, rows"),
        ({"ends": {"done": ["x"]}}, "ends.done: no such name"),
        ({"settings": {"lr": "rate"}}, "settings.lr: no such name"),
        ({"finish": "os.system"}, "finish: no such field"),
        ({"name": "../../etc/passwd"}, "name: the program's name"),
        ({"rows": [r"no such line (?P<step>\d+) (?P<loss>\S+)"]}, "rows: no pattern matches a line of zorp.log"),
    ],
)  # fmt: skip
def test_a_format_that_cannot_be_used_is_refused_by_entry_and_field(log, tmp_path, change, words):
    file = tmp_path / "own.yaml"
    file.write_text(json.dumps(ENTRY | change))
    done = advisor("analyze", log, "--format", file)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode in (1, 2) and words in said and "own.yaml" in said, said


def test_a_pattern_that_tries_a_line_in_every_division_is_ended(log, tmp_path, monkeypatch):
    monkeypatch.setattr(own_formats, "SECONDS", 1.0)
    log.write_text(zorp(more=("a" * 60 + "b",)))
    file = tmp_path / "own.yaml"
    file.write_text(json.dumps(ENTRY | {"rows": [ROW, r"^(a+)+(?P<step>\d)(?P<loss>\d)$"]}))
    began = time.monotonic()
    done = advisor("analyze", log, "--format", file, expect=1)
    assert "more than 1 s" in " ".join(done.stderr.split()) and time.monotonic() - began < 30
