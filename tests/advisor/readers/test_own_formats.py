"""Formats that are not shipped: of a user's own file, of the data folder, and of an assistant that saw a log."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from itertools import pairwise

import jsonschema
import pytest

from advisor.readers import own_formats
from benchmarks.reference import findings
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


OUTCOME = {"status": "crashed", "cause": "the oven was too cold", "lines": [108, 109],
           "first_loss": f"{cost(1):.4f}", "last_loss": f"{cost(102):.4f}", "last_step": "102"}  # fmt: skip
ANSWER = {"format": ENTRY, "outcome": OUTCOME}
COLD = ("~ oven 17 below 200", "~ oven 17 below 200")
SECRETS = ("hf_" + "a1B2" * 6, "ada@lab.example.org", "geheim77")


@pytest.fixture
def broken(tmp_path, home):
    """109 lines, the last two of them in words that only its own people understand; with secrets in the head."""
    lines = zorp(102, ends=False).splitlines()
    lines[1:1] = [f"token {SECRETS[0]} of {SECRETS[1]}", f"password={SECRETS[2]}"]
    path = tmp_path / "broken.log"
    path.write_text("\n".join([*lines, *COLD]) + "\n")
    return path


@pytest.fixture
def reader(tmp_path):
    """A command that notes what it is asked and gives the answer in a file, between other words."""

    def answering(answer: object) -> str:
        said = answer if isinstance(answer, str) else f"Gladly:\n```json\n{json.dumps(answer)}\n```\n"
        (tmp_path / "said").write_text(said)
        script = tmp_path / "assistant.py"
        script.write_text(
            f"import pathlib, sys\npathlib.Path({str(tmp_path / 'asked')!r}).write_text(sys.stdin.read())\n"
            f"sys.stdout.write(pathlib.Path({str(tmp_path / 'said')!r}).read_text())\n"
        )
        return f"{sys.executable} {script}"

    return answering


def test_an_answer_that_holds_gives_rows_and_words_and_the_next_log_needs_no_assistant(broken, home, reader, tmp_path):
    found = document("analyze", broken, "--reader", reader(ANSWER))
    assert (found["format"], found["rows"], found["first_loss"], found["last_loss"]) == (
        "zorp",
        102,
        cost(1),
        cost(102),
    )
    assert found["last_step"] == 102 and found["facts"]["planned_steps"] == 102
    [kept] = (home / "formats").glob("*.yaml")
    assert found["assistant"] == {"accepted": True, "refused": None, "format": kept.name, "status": "crashed",
                                  "cause": "the oven was too cold", "lines": [108, 109]}  # fmt: skip
    words = "an assistant read: the oven was too cold (crashed); lines 108, 109"
    assert words in found["notes"]
    asked = (tmp_path / "asked").read_text()
    assert "\n7: ~ u3 :: cost" in asked and not any(secret in asked for secret in SECRETS)
    assert not any(secret in kept.read_text() for secret in SECRETS)
    second = tmp_path / "second.log"
    second.write_text(zorp())
    again = document("analyze", second)
    read_as_zorp(again)
    assert again["assistant"] is None
    assert f"by the format zorp ({kept.name}), which an assistant described" in again["notes"]
    other = tmp_path / "other.log"  # of another program: read without that format
    other.write_text("".join(f"iter {i}: loss {cost(i)}, time 50.00ms, mfu 30.00%\n" for i in range(50)))
    assert document("analyze", other)["format"] == "nanogpt"


def test_where_the_log_leaves_the_end_open_the_assistants_status_counts_as_its_own(broken, reader):
    broken.write_text(broken.read_text().replace("planning 102 updates", "planning many updates"))
    settings = {"settings": {"gpu": "on card"}}
    command = reader({"format": ENTRY | settings, "outcome": OUTCOME | {"lines": [108]}})
    done = advisor("analyze", broken, "--reader", command, expect=0, COLUMNS=200)
    assert "What happened: The zorp run crashed after 102" in done.stdout
    assert "n assistant read: the oven was too cold (crashed); line 108" in done.stdout


@pytest.mark.parametrize(
    ("format", "outcome", "why"),
    [
        ({"rows": [r"-- u(?P<step>\d+) (?P<loss>\S+)"]}, {}, "its patterns match no line of the log"),
        ({"rows": [r"(?P<step>\d*)(?P<loss>\d*)"]}, {}, "match 119 of 119 lines, of 17 kinds"),
        ({"rows": [r"cost \d+\.(?P<step>\d+) ; pace (?P<loss>\d+)"]}, {}, "its steps fall from 9403 to 8812 at line 6"),
        ({}, {"first_loss": "9.9999"}, "its first_loss 9.9999 is not what its patterns find at line 5"),
        ({}, {"last_loss": None, "last_step": "600"}, "its last_loss None is not what its patterns find at line 107; "
         "its last_step 600 is not what"),
        ({"rows": [r"~ u(?P<step>\d+) :: cost (?P<loss>(?P<seconds>[\d.]+))"]}, {}, "they are the time that is left"),
        ({}, {"lines": []}, "names no line as evidence"),
        ({}, {"lines": [119, 120]}, "the log has 119 lines, and none of number 120"),
        ({}, {"lines": ["109"]}, "the log has 119 lines, and none of number 109"),
        ({}, {"status": "great"}, "status: it is one of completed"),
        ({}, {"cause": " "}, "cause: there is none"),
        ({"run": "__import__('os').system('touch pwned')"}, {}, "its format: run: no such field"),
        ({"name": "../../../pwned"}, {}, "its format: name"),
        ({"rows": ["(a+)+(?P<step>\\d)(?P<loss>\\d)$"]}, {}, "its patterns need more than 1 s"),
        ({"rows": [ROW] * 9}, {}, "at most 8 texts"),
        ("no json at all", {}, "not JSON"),
        ('{"format": {"name": ', {}, "not JSON"),
        ("[" * 50_000, {}, "not JSON"),
        ("{" + '"a":{' * 10_000 + "}" * 10_001, {}, "not JSON"),
        ('{"format": 3, "outcome": []}', {}, "it has no format or no outcome"),
        ("x" * 70_000, {}, "it has 70,000 characters, more than 65,536"),
    ],
)  # fmt: skip
def test_an_answer_that_does_not_hold_is_refused_and_the_log_is_read_without_it(
    broken, home, reader, tmp_path, monkeypatch, format, outcome, why
):
    monkeypatch.setattr(own_formats, "SECONDS", 1.0)
    kinds = [f"{letter * 60} warming {letter}" for letter in "cdefghijk"]
    broken.write_text("\n".join([broken.read_text().strip(), *kinds, "a" * 60 + "b"]) + "\n")
    alone = document("analyze", broken)
    answer = format if isinstance(format, str) else {"format": ENTRY | format, "outcome": OUTCOME | outcome}
    found = document("analyze", broken, "--reader", reader(answer))
    assert not found["assistant"]["accepted"] and why in found["assistant"]["refused"], found["assistant"]
    assert any(note.startswith("an assistant's answer was refused") and why in note for note in found["notes"])
    same = ("format", "rows", "status", "status_reason", "first_loss", "last_loss", "last_step", "verdict")
    assert [found[name] for name in same] == [alone[name] for name in same]
    assert not (home / "formats").exists() and not (tmp_path / "pwned").exists()


def test_of_a_table_or_document_the_outcome_is_taken_though_no_format_of_lines_fits(tmp_path, home):
    history = [{"loss": 3 - i / 10, "epoch": i, "step": 10 * i} for i in range(1, 12)]
    log = tmp_path / "trainer_state.json"
    log.write_text(json.dumps({"log_history": history, "global_step": 110, "max_steps": 0}, indent=1))
    form = {"name": "state", "rows": [r'"loss": (?P<loss><<LOSS>>),'], "steps": "printed"}
    outcome = {"status": "stopped", "cause": "a person ended it", "lines": [3], "first_loss": "2.9",
               "last_loss": "1.9", "last_step": "110"}  # fmt: skip
    found = document("analyze", log, "--answer", "-", given=json.dumps({"format": form, "outcome": outcome}))
    assert found["assistant"]["accepted"] and found["assistant"]["format"] is None and found["rows"] == 11
    wrong = json.dumps({"format": form, "outcome": outcome | {"last_loss": "1.5"}})
    assert not document("analyze", log, "--answer", "-", given=wrong)["assistant"]["accepted"]


def test_a_loss_that_was_quoted_counts_more_than_the_one_that_a_known_format_reads(tmp_path, home):
    rows = [f"Epoch {i}/9 loss: {2 - i / 10:.4f} total: {5 - i / 10:.4f}" for i in range(10)]
    log = tmp_path / "two.log"
    log.write_text("\n".join(rows) + "\n")
    assert document("analyze", log)["first_loss"] == 2.0
    form = {"name": "two", "rows": [r"Epoch (?P<epoch>\d+)/9 loss: \S+ total: (?P<loss><<LOSS>>)"]}
    outcome = {"status": "completed", "cause": "nine epochs of nine", "lines": [10], "first_loss": "5.0000",
               "last_loss": "4.1000", "last_step": "9"}  # fmt: skip
    found = document("analyze", log, "--answer", "-", given=json.dumps({"format": form, "outcome": outcome}))
    assert (found["format"], found["first_loss"], found["last_loss"]) == ("two", 5.0, 4.1)


@pytest.mark.parametrize(("step", "accepted"), [("400", True), (None, True), ("417", False)])
def test_where_a_bar_counts_the_last_step_is_the_number_to_which_it_came(tmp_path, home, step, accepted):
    log = tmp_path / "bar.log"
    bars = [f"{i // 4:3d}%|####      | {i}/400 [00:{i % 60:02d}<00:30,  1.00it/s]" for i in range(1, 401)]
    log.write_text("\n".join(f"{bar}\n## cost {cost(i):.4f}" if i % 10 == 9 else bar for i, bar in enumerate(bars)))
    form = {"name": "zap", "rows": [r"## cost (?P<loss><<LOSS>>)"], "steps": "bar"}
    outcome = {"status": "completed", "cause": "the bar is full", "lines": [3], "first_loss": f"{cost(9):.4f}",
               "last_loss": f"{cost(399):.4f}", "last_step": step}  # fmt: skip
    found = document("analyze", log, "--answer", "-", given=json.dumps({"format": form, "outcome": outcome}))
    assert found["assistant"]["accepted"] is accepted, found["assistant"]
    assert (found["format"], found["last_step"]) == ("zap", 400) or not accepted


def test_a_sample_shows_the_first_and_last_rows_and_both_ends_of_long_lines(tmp_path, home):
    banner = [f"option {'abcdefghij'[i // 10]}{'abcdefghij'[i % 10]} of the oven" for i in range(100)] * 2
    rows = [f"~ u{i} :: cost {cost(i):.4f}" for i in range(1, 1001)]
    last = [f"{word} is put away in /home/ada/{word}" for word in banner]
    log = tmp_path / "long.log"
    log.write_text("\n".join([*banner, "x" * 250 + "y" * 250, *rows, *last]) + "\n")
    lines = document("analyze", log, "--schema")["prompt"].splitlines()
    shown = {int(number): text for number, _, text in (line.partition(": ") for line in lines) if number.isdigit()}
    assert {202, 203, 1200, 1201} <= shown.keys() and shown[202] == rows[0] and shown[1201] == rows[-1]
    assert len(shown) <= 250 and any(500 < number < 900 for number in shown)
    assert shown[len(last) + 1201].endswith("/home/[hidden]/option jj of the oven")


def test_the_middle_of_a_long_line_is_left_out(tmp_path, home):
    log = tmp_path / "wide.log"
    log.write_text("x" * 250 + "y" * 250 + "\n" + "\n".join(f"~ u{i} :: cost {cost(i):.4f}" for i in range(9)) + "\n")
    assert f"\n1: {'x' * 200} … {'y' * 97}\n" in document("analyze", log, "--schema")["prompt"]


def test_a_count_in_a_setting_may_have_a_letter(log, tmp_path):
    log.write_text(zorp(more=("brain size: 124.5M", "appetite=2 billion")))
    file = tmp_path / "own.yaml"
    names = {"settings": {"parameters": "brain size", "dataset_tokens": "appetite"}}
    file.write_text(json.dumps(ENTRY | names))
    facts = document("analyze", log, "--format", file)["facts"]
    assert facts["parameters"] == 124_500_000 and facts["dataset_tokens"] == 2_000_000_000


def test_the_prompt_can_be_carried_by_hand(broken, tmp_path):
    asked = document("analyze", broken, "--schema")
    shown = advisor("analyze", broken, "--schema", expect=0).stdout
    assert shown.strip() == asked["prompt"].strip() and not any(secret in shown for secret in SECRETS)
    jsonschema.validate(ANSWER, asked["schema"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"format": ENTRY}, asked["schema"])
    for line in ("1: ZORP trainer 3, host gold-102", "109: ~ oven 17 below 200"):
        assert line in shown.splitlines()
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps(ANSWER))
    by_file = document("analyze", broken, "--answer", answer)
    assert by_file["assistant"]["accepted"] and by_file["rows"] == 102
    assert document("analyze", broken, "--answer", "-", given=json.dumps(ANSWER))["assistant"] == by_file["assistant"]
    assert document("analyze", broken, "--format", answer)["rows"] == 102
    assert "take one log" in advisor("analyze", broken, broken, "--answer", answer, expect=2).stderr


def test_a_sample_of_a_long_log_has_lines_of_all_its_parts(tmp_path, home):
    long = tmp_path / "long.log"
    long.write_text("".join(f"line {i} {'y' * 400}\n" for i in range(1, 10_001)))
    shown = advisor("analyze", long, "--schema", expect=0).stdout.partition("The lines:\n\n")[2].strip().split("\n")
    numbers = [int(line.partition(":")[0]) for line in shown]
    assert 240 <= len(numbers) <= 250 and numbers[:3] == [1, 2, 3] and numbers[-3:] == [9998, 9999, 10_000]
    assert max(b - a for a, b in pairwise(numbers)) < 200  # with nothing else to show, all over the log
    assert numbers == sorted(set(numbers)) and set(range(2501, 2510)) < set(numbers)
    assert all(text.startswith(f"{number}: line {number} yyy") for number, text in zip(numbers, shown, strict=True))


def test_of_a_bar_that_overwrites_its_line_a_sample_has_the_first_and_the_last_state(tmp_path, home):
    bar = "\r".join(f"loading {i}/900" for i in range(1, 901))
    (tmp_path / "bar.log").write_text(f"zap\n{bar}\nit=1 err=2.5\n")
    shown = advisor("analyze", tmp_path / "bar.log", "--schema", expect=0).stdout.partition("The lines:\n\n")[2]
    assert shown.split("\n")[:4] == ["1: zap", "2: loading 1/900", "2: loading 900/900", "3: it=1 err=2.5"]
    (tmp_path / "empty.log").touch()
    assert "is empty" in advisor("analyze", tmp_path / "empty.log", "--schema", expect=1).stderr
    assert "a folder" in advisor("analyze", tmp_path, "--schema", expect=2).stderr


def test_lines_that_are_not_understood_are_named_with_the_way_to_an_assistant(tmp_path, home):
    strange = tmp_path / "strange.log"
    lines = ["using cuda", "model has 1234567 parameters, training starts"]
    lines += [f"<< {i} | err {cost(i)} | {i * 3} >>" for i in range(1, 30)]
    strange.write_text("\n".join([*lines, "CUDA out of memory. Tried to allocate 2.00 GiB"]) + "\n")
    done = advisor("analyze", strange, expect=0)
    assert "not read as rows with a loss: lines like 3; an assistant" in " ".join(done.stdout.split())
    assert "advisor analyze strange.log --reader CMD" in " ".join(done.stdout.split())
    nothing = tmp_path / "nothing.log"
    nothing.write_text("".join(f"<< {i} | qq {cost(i)} >>\n" for i in range(30)))
    assert "of your own program: --reader CMD" in advisor("analyze", nothing, expect=1).stderr


def test_the_documents_example_of_a_format_reads_the_documents_example_of_a_log(tmp_path, home):
    section = findings().partition("## A format of your own")[2].partition("\n## ")[0]
    log, form = re.findall(r"```(?:yaml)?\n(.*?)```", section, re.DOTALL)
    (tmp_path / "zorp.log").write_text(log)
    (tmp_path / "zorp.yaml").write_text(form)
    found = document("analyze", tmp_path / "zorp.log", "--format", tmp_path / "zorp.yaml")
    assert (found["format"], found["last_step"], found["last_loss"], found["status"]) == (
        "zorp",
        100,
        4.1718,
        "completed",
    )
    assert (found["facts"]["planned_steps"], found["facts"]["gpu"]) == (2000, "RTX 4090")
    assert all(f"- `{name}`: " in section for name in own_formats.FIELDS)


def test_a_format_that_the_program_knows_tells_more_than_one_written_from_a_sample(tmp_path, home):
    log = tmp_path / "nano.log"
    log.write_text("".join(f"iter {i}: loss {cost(i):.4f}, time 50.00ms, mfu 30.00%\n" for i in range(1, 51)))
    said = {"format": {"name": "nanogpt", "rows": [r"iter (?P<step>\d+): loss (?P<loss><<LOSS>>)"]},
            "outcome": {"status": "incomplete", "cause": "no end \x1b[31m is printed", "lines": [50],
                        "first_loss": cost(1), "last_loss": cost(50), "last_step": 50}}  # fmt: skip
    found = document("analyze", log, "--answer", "-", given=json.dumps(said))
    assert (found["format"], found["rows"]) == ("nanogpt", 50) and "seconds" in found["columns"]
    assert found["assistant"]["cause"] == "no end [31m is printed"
    [kept] = (home / "formats").iterdir()
    asked = document("analyze", log, "--format", kept)
    assert asked["format"] == "nanogpt-own" and "seconds" not in asked["columns"]


@pytest.mark.parametrize(
    ("steps", "lines", "row", "last"),
    [
        ("rows", [f"## cost {cost(i):.4f}" for i in range(1, 41)], r"## cost (?P<loss><<LOSS>>)", None),
        ("bar", [line for i in range(1, 401)
                 for line in (f"{i // 4:3d}%|####      | {i}/400 [00:{i % 60:02d}<00:30,  1.00it/s]",
                              *([f"## cost {cost(i):.4f}"] if i % 10 == 0 else []))],
         r"## cost (?P<loss><<LOSS>>)", 400),
        ("printed", [f"pass {1 + i // 10} u{i % 10 + 1} cost {cost(i):.4f}" for i in range(40)],
         r"pass (?P<epoch>\d+) u(?P<step>\d+) cost (?P<loss><<LOSS>>)", 4),  # in passes
        ("printed", [f"pass {1 + i // 10} step {i % 10 + 1}/12 cost {cost(i):.4f} | 2.0 it/s" for i in range(40)],
         r"pass (?P<epoch>\d+) step (?P<step>\d+)/\d+ cost (?P<loss><<LOSS>>)", 3 * 12 + 10),
    ],
)  # fmt: skip
def test_steps_are_counted_as_the_format_says(tmp_path, home, steps, lines, row, last):
    (tmp_path / "a.log").write_text("\n".join(["zap on cuda", *lines]) + "\n")
    (tmp_path / "zap.yaml").write_text(json.dumps({"name": "zap", "rows": [row], "steps": steps}))
    found = document("analyze", tmp_path / "a.log", "--format", tmp_path / "zap.yaml")
    assert (found["rows"], found["last_step"]) == (40, last), found["notes"]
    if "it/s" in lines[0] and steps == "printed":  # the format does not name the rate
        assert found["runs"][0]["hours"] == pytest.approx(46 / 2.0 / 3600)


def test_digits_tell_kinds_of_rows_apart_and_a_line_above_or_below_adds_its_numbers(tmp_path, home):
    lines = ["zap on cuda"]
    for epoch in (1, 2, 3):
        lines.append(f"== round {epoch} of 3")
        for i in range(10, 41, 10):
            lines += [f"{i}/40 - cost {cost(40 * epoch + i):.4f}", f"   took {i} ms"]
        lines.append(f"5/5 - cost {cost(40 * epoch + 50):.4f}")
    log = tmp_path / "a.log"
    log.write_text("\n".join(lines) + "\n")
    form = {"name": "zap", "context": [r"== round (?P<epoch>\d+) of (?P<planned_epochs>\d+)"],
            "rows": [r"(?P<step>\d+)/40 - cost (?P<loss><<LOSS>>)"], "more": [r"took (?P<seconds__ms>\d+) ms"],
            "validation": [r"5/5 - cost (?P<eval_loss><<LOSS>>)"]}  # fmt: skip
    outcome = {"status": "completed", "cause": "three rounds of three", "lines": [len(lines)],
               "first_loss": cost(50), "last_loss": cost(160), "last_step": 40}  # fmt: skip
    found = document("analyze", log, "--answer", "-", given=json.dumps({"format": form, "outcome": outcome}))
    assert found["assistant"]["accepted"], found["assistant"]
    assert (found["rows"], found["first_loss"], found["last_loss"]) == (12, cost(50), cost(160))
    assert (found["last_step"], found["status"], found["status_reason"]) == (3, "completed", "reached epoch 3 of 3")
    assert found["measured"]["step_seconds"]["mean"] == pytest.approx(0.025)  # of 10, 20, 30 and 40 ms
    assert found["columns"]["eval_loss"] == "as printed"


def test_of_a_log_without_rows_the_outcome_alone_is_told(tmp_path, home):
    log = tmp_path / "early.log"
    log.write_text(
        "cuda, batch size 8, dataset ready\nStarting training\n" + "".join(f"widget {i} fell off\n" for i in range(9))
    )
    outcome = {"status": "crashed", "cause": "the widgets fell off", "lines": [3, 11], "first_loss": None,
               "last_loss": None, "last_step": None}  # fmt: skip

    def answered(**change: object) -> dict:
        said = json.dumps({"format": None, "outcome": outcome | change})
        return document("analyze", log, "--answer", "-", given=said)

    told = answered()
    assert (told["status"], told["rows"], told["assistant"]["format"]) == ("crashed", 0, None)
    assert told["status_reason"] == "an assistant read: the widgets fell off (crashed); lines 3, 11"
    assert answered(last_step="7")["assistant"]["refused"] == "its last_step 7 is not anything that its patterns find"
    assert "none of number 12" in answered(lines=[12])["assistant"]["refused"] and not (home / "formats").exists()
