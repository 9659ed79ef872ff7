"""Names that commands had once still work, and lead to what they are called today."""

from __future__ import annotations

import pytest

from advisor.cli import FORMS, PROGRAMS, VERBS, formed
from advisor.cli.reference import commands
from advisor.cli.verb import SectionedOption
from tests.terminal import advisor


@pytest.mark.parametrize(
    ("typed", "name", "rest"),
    [
        ("calibrate --tune plan.yaml --json", "tune", "plan.yaml --json"),
        ("calibrate --gpu cpu", "calibrate", "--gpu cpu"),
        ("watch --gpus --hz 50", "monitor", "--hz 50"),
        ("watch latest --once", "watch", "latest --once"),
        ("runs --import folder --plan plan.yaml", "import", "folder --plan plan.yaml"),
        ("compare one --settings other", "diff", "one other"),
        ("compare a.yaml b.yaml --json", "diff", "a.yaml b.yaml --json"),
        ("compare latest --plan plan.yaml", "compare", "latest --plan plan.yaml"),
        ("adopt --name x -- train --tune", "adopt", "--name x -- train --tune"),
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
    assert "See also: advisor calibrate --tune --help" in said and "advisor calibrate --list --help" in said


def test_people_are_offered_few_commands():
    of_people = [verb for verb in VERBS.values() if verb.form_of is None and verb.section != PROGRAMS]
    assert len(of_people) <= 19 and len(FORMS) == 9


@pytest.mark.parametrize(
    "option",
    ["--price", "--budget", "--deadline", "--tokens", "--gpus", "--epochs", "--depth", "--micro-batch", "--seq-len",
     "--precision", "--sharding", "--gate", "--stop-loss", "--plan", "--budget-seconds", "--md"],
)  # fmt: skip
def test_an_option_that_commands_share_is_made_from_a_table(option):
    found = {name: param for name, command in commands() for param in command.params if option in param.opts}
    assert len(found) > 1 and all(isinstance(param, SectionedOption) for param in found.values()), found
