"""A program that the probe cannot see: its own log's steps, its knobs, its batch, and what NVML has of it."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.adopt.by_log import LINES, PRINTED, read_steps
from advisor.adopt.command import Ready
from advisor.adopt.fit import Batch, Seen, fit_time
from advisor.adopt.self_test import as_declared, verdicts
from advisor.adopt.session import Command, adopt, run_burst
from advisor.errors import AdvisorError
from advisor.store.adopted import LOG, AdoptedBurst, BatchShape, Knob, Recipe, Setting

SCRIPT = Path(__file__).parent / "never_seen.py"


def steps_of_lines(tmp_path, lines: list[str], seconds: float, first: float = 100.0):
    path = tmp_path / "output.log"
    path.write_text("\n".join(lines) + "\n")
    return read_steps(path, [first + seconds * n for n in range(len(lines))])


def nanogpt(every: int = 1, count: int = 8) -> list[str]:
    return [f"iter {n * every}: loss {4 - n / 10:.4f}, time 250.00ms, mfu 1.00%" for n in range(count)]


def test_the_time_between_its_lines_is_that_of_the_steps_between_them(tmp_path):
    found = steps_of_lines(tmp_path, ["starting", "compiling", *nanogpt()], seconds=0.5)
    assert found.steps == tuple(range(1, 9)) and found.printed and found.clock == LINES
    assert found.moments[0] == 101.0  # the third line
    assert found.durations == pytest.approx([0.5] * 7)
    tenth = steps_of_lines(tmp_path, nanogpt(every=10), seconds=5.0)
    assert tenth.steps == (1, *range(11, 72, 10)) and tenth.durations == pytest.approx([0.5] * 7)


def test_lines_that_were_held_back_count_as_they_print(tmp_path):
    found = steps_of_lines(tmp_path, nanogpt(), seconds=0.0)
    assert found.clock == PRINTED and found.durations == pytest.approx([0.25] * 7)


def test_rows_without_a_step_are_one_each_and_count_tokens_and_data(tmp_path):
    """As TRL prints them: strings of four digits."""
    rows = [
        f"{{'loss': '6.{n:03}', 'learning_rate': '2e-05', 'num_tokens': '{256 * n:.4g}', 'epoch': '{n / 75:.4g}'}}"
        for n in range(1, 61)
    ]
    found = steps_of_lines(tmp_path, rows, seconds=0.1)
    assert found.steps == tuple(range(1, 61)) and not found.printed
    assert found.tokens == pytest.approx(256, rel=0.01) and found.epochs == pytest.approx(1 / 75, rel=0.01)


def test_a_counter_that_its_rounding_hides_is_not_told(tmp_path):
    rows = [f"{{'loss': 6.{n:03}, 'learning_rate': 2e-05, 'epoch': {round(n / 700, 2)}}}" for n in range(1, 9)]
    assert steps_of_lines(tmp_path, rows, seconds=0.1).epochs is None


def test_no_log_has_no_steps(tmp_path):
    assert steps_of_lines(tmp_path, ["hello", "world"], seconds=1.0) is None


KNOBS = (
    Knob(name="micro_batch", key="--bsz", value=4),
    Knob(name="grad_accum", key="--accum", value=1),
    Knob(name="seq_len", key="--ctx", value=32),
)
RECIPE = Recipe(name="x", knobs=KNOBS)


def burst(tokens: float | None = 128, outcome: str = "stopped", steps: int = 20, **values: float) -> AdoptedBurst:
    settings = tuple(Setting(name=name, value=value) for name, value in values.items())
    return AdoptedBurst(values=settings, outcome=outcome, source=LOG, step_seconds=(0.1,) * 8, steps=steps,
                        step_tokens=tokens)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "tokens", "verdict"),
    [
        ("micro_batch", 8, 256, "works"),
        ("micro_batch", 8, 260, "works"),  # rounded in print
        ("micro_batch", 8, 192, "capped"),
        ("micro_batch", 8, 128, "dead"),
        ("grad_accum", 2, 256, "works"),
        ("grad_accum", 2, 128, "dead"),
        ("seq_len", 16, 64, "works"),
        ("micro_batch", 8, None, "untested"),
    ],
)
def test_knobs_are_judged_by_what_the_log_says_a_step_holds(name, value, tokens, verdict):
    (told,) = (v for v in verdicts(RECIPE, burst(), [burst(tokens, **{name: value})]) if v.name == name)
    assert told.verdict == verdict, told


def test_accumulation_that_follows_from_the_micro_batch_is_no_dead_knob():
    (told,) = verdicts(Recipe(name="x", knobs=KNOBS[:1]), burst(), [burst(128, micro_batch=8)])
    assert told.verdict == "untested" and "follow from it" in told.words


def test_its_number_of_steps_is_counted():
    recipe = Recipe(name="x", knobs=(Knob(name="steps", key="--steps", value=100),))
    for steps, verdict in ((8, "works"), (5, "capped")):
        ended = replace(burst(outcome="completed", steps=steps), values=(Setting(name="steps", value=8),))
        (told,) = verdicts(recipe, burst(), [ended])
        assert told.verdict == verdict


def test_only_knobs_that_are_believed_say_what_the_batch_is():
    others = [burst(256, micro_batch=8), burst(128, grad_accum=2)]
    told = verdicts(RECIPE, burst(), others)
    assert as_declared(RECIPE, burst(), told).shape == BatchShape(rows=4, calls=1, length=32, tokens=128)
    assert as_declared(RECIPE, others[0], told).shape == BatchShape(rows=8, calls=1, length=32, tokens=256)
    assert as_declared(RECIPE, others[1], told).shape is None  # accumulation is dead
    unknown = Recipe(name="x", knobs=())
    assert as_declared(unknown, burst(), ()).shape is None


def test_intervals_are_wider_by_the_log():
    seen = [Seen(batch=Batch(rows=r, calls=1, length=32), value=0.1 * r) for r in (1, 2, 4, 8)]
    probed, logged = (fit_time([replace(s, by_log=by_log) for s in seen]) for by_log in (False, True))
    at = Batch(rows=4, calls=1, length=32)
    assert logged.estimate(at).value == probed.estimate(at).value
    assert logged.estimate(at).high > probed.estimate(at).high


def test_a_python_that_isolates_itself_is_timed_by_its_lines(tmp_path):
    ready = Ready(arguments=(sys.executable, "-I", str(SCRIPT), "--bsz", "16"), variables={"SAY_TOKENS": "1"})
    found = run_burst(ready, (), tmp_path, tmp_path, os.environ, steady_seconds=0.5)
    assert (found.outcome, found.source, found.clock) == ("stopped", LOG, LINES)
    assert found.step_tokens == pytest.approx(16 * 32) and found.shape is None and found.step_printed
    text = (tmp_path / "output.log").read_text().splitlines()
    said = [float(line.split(" seconds ")[1].split()[0]) for line in text if " seconds " in line]
    assert statistics.median(found.step_seconds) == pytest.approx(statistics.median(said), rel=0.3)
    assert found.steps == len(said) + 1 and found.resident_peak_bytes > 1e8


def test_the_memory_of_a_container_is_not_that_of_its_client(tmp_path):
    """A program called docker, whose child is no container, stands for the client."""
    client = tmp_path / "docker"
    client.symlink_to(shutil.which("bash"))
    command = "for i in $(seq 1000); do echo iter $i: loss 4.$((999 - i)), time 50.00ms; sleep 0.05; done"
    ready = Ready(arguments=(str(client), "-c", command), variables={})
    found = run_burst(ready, (), tmp_path, tmp_path, os.environ, steady_seconds=0.5)
    assert (found.outcome, found.source, found.resident_peak_bytes) == ("stopped", LOG, None)
    plain = replace(ready, arguments=("bash", "-c", command))
    assert run_burst(plain, (), tmp_path, tmp_path, os.environ).resident_peak_bytes > 0


def test_a_log_that_numbers_no_step_needs_a_line_of_each(tmp_path):
    program = (
        "import itertools, time\n"
        "for n in itertools.count(1):\n"
        "    time.sleep(0.05)\n"
        "    print({'loss': 5 + 1 / n, 'learning_rate': 2e-05, 'epoch': n / 75})\n"
    )
    command = Command(arguments=(sys.executable, "-I", "-c", program), folder=tmp_path, environment=os.environ,
                      recipe=Recipe(name="x"))  # fmt: skip
    with pytest.raises(AdvisorError, match="how many steps pass between") as refused:
        adopt(command, "x", 60.0, lambda text, gone: None)
    assert "--knob log_every=" in refused.value.hint
