"""Names that commands and options had once still work, and lead to what they are called today."""

from __future__ import annotations

import pytest

from advisor.cli import FORMER, FORMS, PROGRAMS, VERBS, formed
from advisor.cli.reference import commands
from advisor.cli.verb import SectionedOption
from tests.terminal import advisor


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
    assert len(of_people) <= 19 and len(FORMS) == 8


@pytest.mark.parametrize(
    "option",
    ["--price", "--budget", "--deadline", "--tokens", "--gpus", "--epochs", "--depth", "--micro-batch", "--seq-len",
     "--precision", "--sharding", "--gate", "--stop-loss", "--plan", "--budget-seconds", "--md"],
)  # fmt: skip
def test_an_option_that_commands_share_is_made_from_a_table(option):
    found = {name: param for name, command in commands() for param in command.params if option in param.opts}
    assert len(found) > 1 and all(isinstance(param, SectionedOption) for param in found.values()), found
