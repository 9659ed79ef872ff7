"""Words that people type for GPUs, moments, numbers and verbs, through the command's own front door."""

from __future__ import annotations

import json
import re
from datetime import datetime

import pytest

from advisor.cli.verb import Typed
from advisor.options import OPTIONS, Goal
from advisor.planning.command import plan_command
from advisor.units import parse_deadline, parse_seconds, parse_tokens, parse_usd, write_count, write_duration
from tests.advisor.plans import goal_of
from tests.terminal import advisor


@pytest.mark.parametrize(
    ("words", "gpu", "counts", "own"),
    [
        ("--gpu h100 --gpus 8", "h100-80gb-sxm", (8,), ()),
        ("--gpu 8xh100", "h100-80gb-sxm", (8,), ()),
        ("--gpu a100:16", "a100-80gb-sxm", (16,), ()),
        ("--gpu h100:8,a100:8", "h100-80gb-sxm,a100-80gb-sxm", (8,), ()),
        ("--gpu 4xany", "any", (4,), ()),
        ("--own h100:8", "own", (1, 2, 4, 8), (("h100-80gb-sxm", 8),)),
        ("--own 2x4090", "own", (1, 2), (("rtx-4090", 2),)),
    ],
)
def test_a_gpu_is_named_alike_wherever_one_is(words, gpu, counts, own):
    goal = goal_of([*words.split(), "--tokens", "1B"])
    assert (goal.gpu, goal.counts or (goal.gpus,)) == (gpu, counts)
    assert tuple((machine.gpu, machine.gpus) for machine in goal.own) == own


def test_a_price_names_a_gpu_alike():
    [price] = goal_of(["--gpu", "h100,a100", "--price", "h100=2.5", "--tokens", "1B"]).prices
    assert (price.gpu, price.usd_per_gpu_hour) == ("h100-80gb-sxm", 2.5)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("plan", "--gpu", "8xh100", "--gpus", "4", "--tokens", "1B"), "states several numbers of GPUs"),
        (("plan", "--gpu", "h100:8,a100:16", "--tokens", "1B"), "states several numbers of GPUs"),
        (("plan", "--gpu", "m3-max"), "of Apple's GPUs the catalog has none"),
        (("calibrate", "--gpu", "8xh100"), "'8xh100' includes a number of GPUs, not allowed here"),
        (("plan", "--gpu", "l4", "--price", "2xl4=0.5", "--tokens", "1B"), "'2xl4' includes a number of GPUs"),
        (("diff", "a.yaml", "b.yaml", "--gpu", "h100:8"), "'h100:8' includes a number of GPUs"),
        (("plan", "--gpu", "h100", "--precision", "fp8"), "the trainer here has no fp8 yet"),
        (("plan", "--gpus", "0"), "'0' is neither a whole number above zero"),
        (("plan", "--budget", "-5"), "'-5' is below zero"),
        (
            ("plan", "--gpu", "l4", "--qlora", "--tokens", "1B"),
            "`advisor plan` has no --qlora hint: plan a fine-tune",
        ),
        (
            ("plan", "--tp", "8", "--gpu", "h100", "--tokens", "1B"),
            "has no --tensor-parallel hint: the best layout",
        ),
        (("plan", "--gpu", "h100", "--model", "gpt-oss-20b"), "does not build mixtures of experts"),
    ],
)
def test_what_cannot_be_taken_says_what_can(words, problem):
    error = advisor(*words, expect=2).stderr
    assert problem in " ".join(error.split()) and "hint: " in error


def test_how_words_were_read_stands_on_stderr_alone():
    done = advisor("gpus", "2xh100", "--json")
    assert json.loads(done.stdout)["key"] == "h100-80gb-sxm"
    assert done.stderr.startswith("2xh100 read as 2 x h100-80gb-sxm (other forms: h100-80gb-pcie, h100-94gb-nvl)")
    assert advisor("gpus", "h100-80gb-sxm", "--json").stderr == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2 weeks", 1_209_600), ("2w", 1_209_600), ("1 day", 86_400), ("1 week 2 days", 777_600), ("1.5d", 129_600)],
)
def test_weeks_and_days_are_durations(text, seconds):
    assert parse_seconds(text) == parse_deadline(text, datetime(2026, 11, 26, 15, 0)) == seconds


@pytest.mark.parametrize(
    ("text", "hours"),
    [("Monday", 3 * 24 + 9), ("mon", 3 * 24 + 9), ("tomorrow", 9), ("Thursday", 6 * 24 + 9), ("2026-11-28", 33)],
)
def test_a_day_without_an_hour_is_its_beginning(text, hours):
    assert parse_deadline(text, datetime(2026, 11, 26, 15, 0)) == hours * 3600  # a Thursday


def test_a_moment_says_which_one_it_is(capsys):
    deadline = Typed(OPTIONS["deadline"])
    seconds = deadline.convert("Monday", None, None)
    said = " ".join(capsys.readouterr().err.split())
    assert re.match(r"Monday read as Monday, \d{4}-\d\d-\d\d 00:00, .* from now", said) and 0 < seconds <= 7 * 86400
    deadline.convert("8h", None, None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "count"), [("15 trillion tokens", 15e12), ("7 billion", 7e9), ("1.5bn", 1.5e9), ("124M params", 124e6)]
)
def test_numbers_are_read_in_words(text, count):
    assert parse_tokens(text) == count


def test_money_is_read_as_it_is_written():
    assert (parse_usd("$1.2M"), parse_usd("USD 20"), parse_usd("2 million")) == (1.2e6, 20.0, 2e6)


@pytest.mark.parametrize(
    ("seconds", "text"), [(33987, "9h26min27s"), (48 * 3600, "2d"), (36 * 3600, "36h"), (90, "1min30s"), (0.5, "0.5s")]
)
def test_a_command_says_durations_and_counts_as_a_person_would(seconds, text):
    assert write_duration(seconds) == text and parse_seconds(text) == seconds
    assert [write_count(n) for n in (10**10, 1.5e9, 2**19, 1000, 7)] == ["10B", "1.5B", "524288", "1k", "7"]
    goal = Goal(gpu="l4", tokens=10**10, deadline_seconds=float(seconds))
    assert plan_command(goal) == f"advisor plan --gpu l4 --deadline {text} --tokens 10B"


def test_help_is_a_verb_too():
    assert advisor("help").stdout == advisor("--help").stdout
    assert advisor("help", "plan").stdout == advisor("plan", "--help").stdout


def layout(columns: str, *arguments: str) -> list[str]:
    return advisor(*arguments, expect=0, COLUMNS=columns).stdout.split("\n")


def test_nothing_is_filled_with_blanks_where_it_is_piped():
    lines = layout("", "gpus", "l4")
    assert len(lines) > 10 and not any(line.endswith(" ") for line in lines)


def test_a_table_that_is_too_wide_for_its_words_is_a_list():
    lines = layout("60", "gpus")
    assert max(map(len, lines)) <= 60
    assert {"gpu: rtx-4090", "memory: 24 GB", "bandwidth: 1.01 TB/s"} <= set(lines)


@pytest.mark.parametrize("columns", ["60", "72", "80"])
def test_no_number_is_parted_from_its_unit(columns):
    lines = layout(columns, "plan", "--gpu", "8xh100", "--budget", "50")
    texts = [line for line in lines if "advisor " not in line]
    assert not any(re.match(r"\s*(h|min|days|%|[kMBT] tok/s|tokens/s|B parameters)\b", line) for line in texts)
    assert not any(re.search(r"\d-$|\d x$", line) for line in texts)


@pytest.mark.parametrize("verb", [("launch",), ("export", "--to", "slurm")])
def test_a_log_in_place_of_a_plan_is_called_none(tmp_path, verb):
    log = tmp_path / "train.log"
    log.write_text("{'loss': 2.5, 'epoch': 0.1} 12:00\nstep: 2 | loss: 2.4\n")
    done = advisor(*verb, log)
    error = done.stderr
    assert (
        done.returncode != 0
        and f"{log} is not a plan: not valid YAML, line " in error
        and f"advisor analyze {log}" in error
    )
    assert "byte string" not in error


def test_a_log_is_told_its_gpus_in_the_same_words(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(f"iter {i}: loss {5 - i * 0.01:.4f}, time 200.00ms, mfu 30.00%\n" for i in range(60)))
    done = advisor("analyze", log, "--gpu", "8xh100", "--json")
    facts = json.loads(done.stdout)["facts"]
    assert (facts["gpu"], facts["world_size"]) == ("h100-80gb-sxm", 8) and "read as 8 x h100-80gb-sxm" in done.stderr


def test_two_numbers_of_gpus_are_one_too_many(call):
    for verb in (("predict", "--model", "gpt2"), ("plan", "--tokens", "1B")):
        code, _, err = call(*verb, "--gpu", "8xh100", "--gpus", "4")
        assert code == 2 and "numbers of GPUs" in err


def test_the_folder_of_the_texts_is_prepared_as_the_hint_says(call, tmp_path):
    texts = tmp_path / "mytext"
    texts.mkdir()
    (texts / "a.txt").write_text(" ".join(f"word{n % 300} is read" for n in range(20_000)))
    words = ("plan", "--gpu", "4090", "--tokens", "20M", "--depth", "4")
    code, _, err = call(*words, "--data", str(texts))
    hint = err.partition("hint: advisor ")[2].split()
    assert code == 1 and hint == ["data", "prepare", str(texts), "--out", f"{texts}-tokens"]
    code, _, err = call(*hint, "--vocab-size", "400")
    assert code == 0, err
    assert call(*words, "--data", f"{texts}-tokens")[0] == 0
