"""What a run has used, counted through kills, lost files, moved folders, jumping clocks and changing prices."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace

import pytest

from tests.trainer.small import config, start, wait_for_step, wait_until
from tests.waiting import waited
from trainer.budget import BUDGET_NAME, PRICE_VARIABLE, Budget, Spent, read_spent, with_log
from trainer.guard import Guard
from trainer.run_folder import FolderInUseError, RunFolder
from trainer.runlog import RunLogWriter, load_run_log, read_records
from trainer.schema import CheckpointConfig, ConfigError, StopConfig, config_from_dict, dump_config, to_dict


class Clock:
    def __init__(self):
        self.now = 50.0

    def __call__(self):
        return self.now


def opened(folder, clock, **stop):
    return Budget(lambda: folder, StopConfig(**stop), read_spent(folder), clock=clock)


def test_a_killed_attempt_was_booked_ahead_and_an_orderly_one_is_exact(tmp_path):
    clock = Clock()
    killed = opened(tmp_path, clock)
    killed.book()
    assert read_spent(tmp_path).seconds == 1.0  # half a second until the next write, half a second for its lateness
    for _ in range(400):  # 100 s
        clock.now += 0.25
        killed.book()
    counted = read_spent(tmp_path).seconds
    assert 100.0 < counted <= 105.5
    orderly = opened(tmp_path, clock)
    clock.now += 7.0
    orderly.end()
    clock.now += 1000.0
    orderly.book()  # over: nothing more is counted
    assert read_spent(tmp_path).seconds == pytest.approx(counted + 7.0)


def test_dollars_are_counted_at_each_attempts_own_price(tmp_path, monkeypatch):
    """An hour at $2, half an hour at $6: of $8 are $3 left, half an hour at $6."""
    clock = Clock()
    for seconds, price in ((3600.0, 2.0), (1800.0, 6.0)):
        attempt = opened(tmp_path, clock, max_usd=8.0, usd_per_hour=price)
        clock.now += seconds
        attempt.end()
    assert attempt.usd == pytest.approx(5.0) and attempt.seconds_left() == pytest.approx(1800.0)
    monkeypatch.setenv(PRICE_VARIABLE, "12")  # said by whoever started it on another machine
    dearer = opened(tmp_path, clock, max_usd=8.0, max_seconds=7200.0, usd_per_hour=6.0)
    assert dearer.seconds_left() == pytest.approx(900.0) and dearer.share_used() == pytest.approx(0.75)
    cheap = opened(tmp_path, clock, max_usd=8.0, max_seconds=5500.0, usd_per_hour=6.0)
    assert cheap.seconds_left() == pytest.approx(100.0)  # of the hours


def test_dollars_need_a_price():
    with pytest.raises(ConfigError, match="usd_per_hour"):
        config_from_dict(to_dict(config(stop=StopConfig(max_usd=3.0))))


def log_of(folder, *attempts):
    """(session, seconds between header and last step by the wall clock, seconds the step took)"""
    now = [1000.0]
    with RunLogWriter(folder / "log.jsonl", clock=lambda: now[0]) as log:
        for session, wall, measured in attempts:
            log.write("header", schema=1, session=session, startup_seconds=2.0, usd_per_hour=1.0)
            now[0] += wall
            log.write("step", step=1, seconds=measured)
            now[0] += 100.0
    return load_run_log(folder / "log.jsonl")


def test_the_log_stands_in_for_a_lost_budget_and_checks_one_that_is_there(tmp_path):
    log = log_of(tmp_path, ("a", 10.0, 9.0), ("b", 20.0, 19.0))
    assert with_log(Spent(), log).seconds == 12.0 + 22.0
    clock = Clock()
    before = Budget(lambda: tmp_path, StopConfig(), Spent(), clock=clock)
    before.session = "a"
    clock.now += 50.0
    before.end()
    assert with_log(read_spent(tmp_path), log).seconds == 50.0 + 22.0  # a is known, b is added
    before._ended, clock.now = False, 55.0  # a copy from its fifth second
    before.end()
    assert with_log(read_spent(tmp_path), log).seconds == 11.0 + 22.0  # a measured 11 s, whatever the clock said


def test_a_wall_clock_that_is_set_does_not_change_what_was_used(tmp_path):
    """The machine's clock goes back an hour, then a day forward, in attempts that the budget counted."""
    log = log_of(tmp_path, ("a", -3600.0, 30.0), ("b", 86400.0, 30.0))
    assert log.lifetimes[0].seconds == 32.0  # never less than what was measured
    clock = Clock()
    for session in "ab":
        attempt = opened(tmp_path, clock)
        attempt.session = session
        clock.now += 40.0
        attempt.end()
    assert with_log(read_spent(tmp_path), log).seconds == 80.0


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[: len(raw) // 2], lambda raw: raw.replace(b"40.0", b"4.00"), lambda _: b""]
)
def test_a_damaged_budget_is_told_and_never_believed(tmp_path, damage):
    clock, told = Clock(), []
    attempt = opened(tmp_path, clock)
    clock.now += 40.0
    attempt.end()
    path = tmp_path / BUDGET_NAME
    path.write_bytes(damage(path.read_bytes()))
    assert read_spent(tmp_path, told.append).seconds == 0.0 and "damaged" in told[0]


def test_checkpoints_alone_still_know_what_was_used(tmp_path):
    """Somebody copies the checkpoints to another machine, and nothing else."""
    clock = Clock()
    attempt = opened(tmp_path, clock)
    clock.now += 40.0
    folder = tmp_path / "there" / "checkpoints" / "step-00000010"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"extra": {"budget": attempt.record()}}))
    assert read_spent(tmp_path / "there").seconds == 40.0


def test_an_attempt_that_could_only_start_does_not(tmp_path):
    """30 s to the end of its first step, a step of 5 s, a checkpoint of 10 s: 44 s are too few."""
    spent = Budget(lambda: tmp_path, StopConfig(), Spent(), clock=lambda: 0.0)
    spent.start_seconds, spent.step_seconds, spent.checkpoint_seconds = 30.0, 5.0, 10.0
    spent.end()
    with Guard(StopConfig(max_seconds=44.0), tmp_path) as guard:
        assert "44 s allowed" in guard.no_room_to_start()
    with Guard(StopConfig(max_seconds=46.0), tmp_path) as guard:
        assert guard.no_room_to_start() is None


def test_four_fifths_of_the_budget_are_told_once(tmp_path):
    with Guard(StopConfig(max_usd=10.0, usd_per_hour=360.0), tmp_path, age_seconds=79.0) as guard:
        guard.warn_of_budget()
    with Guard(StopConfig(max_usd=20.0, usd_per_hour=360.0), tmp_path, age_seconds=82.0) as guard:
        guard.warn_of_budget()
        guard.warn_of_budget()
    records, _ = read_records(tmp_path / "log.jsonl")
    [warning] = [record["text"] for record in records]  # 79 and 82 s at 10 cents a second
    assert "80 % of the limit is used: $16.1" in warning and "of the $20 allowed" in warning


def test_limits_are_read_again_where_the_folders_configuration_is_written_anew(tmp_path):
    """95 of 100 s are used, and 400 s are given; what cannot be read then changes nothing."""
    with Guard(StopConfig(max_seconds=100.0), tmp_path, age_seconds=95.0) as guard:
        assert guard.budget.seconds_left() < 5.0
        (tmp_path / "run.yaml").write_text(dump_config(config(stop=StopConfig(max_seconds=400.0))))
        waited(lambda: guard.budget.seconds_left() > 200.0)
        guard.warn_of_budget()
        (tmp_path / "run.yaml").write_text("stop: [")
        waited(lambda: guard.warn_of_budget() or len(read_records(tmp_path / "log.jsonl")[0]) == 2)
        assert 200.0 < guard.budget.seconds_left() < 305.0
    said = [(record["level"], record["text"]) for record in read_records(tmp_path / "log.jsonl")[0]]
    assert said[0][0] == "info" and said[0][1].startswith("new limits: 95.") and "of the 400 s allowed" in said[0][1]
    assert said[1] == ("warning", "the changed run.yaml cannot be read and changes nothing")


def test_a_trainer_ends_at_a_limit_that_it_was_given_while_it_ran(tmp_path):
    settings = config(steps=1_000_000, stop=StopConfig(max_seconds=3600.0))
    process = start(tmp_path, settings)
    wait_for_step(tmp_path, 5, process)
    (tmp_path / "run.yaml").write_text(dump_config(replace(settings, stop=StopConfig(max_seconds=0.5))))
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "of the 0.5 s allowed are used" in output, output
    log = load_run_log(tmp_path / "log.jsonl")
    assert log.checkpoints[-1]["step"] == log.final["step"] >= 5


def test_a_folder_has_one_trainer_at_a_time_and_is_followed_where_it_is_moved(tmp_path):
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.lock()
    with pytest.raises(FolderInUseError, match=f"process {os.getpid()}"):
        second.lock(wait_seconds=0.2)
    (tmp_path / "run").rename(tmp_path / "moved")
    assert first.path == tmp_path / "moved" and not first.is_gone
    first.close()
    second.lock(wait_seconds=0.2)
    (tmp_path / "moved" / ".trainer.lock").unlink()
    (tmp_path / "moved").rmdir()
    assert second.is_gone
    second.close()


# --- processes -------------------------------------------------------------------------------------------------------


def logged_seconds(folder):
    """What all attempts used by the clock of their log, which owes nothing to the budget's."""
    return sum(life.seconds for life in load_run_log(folder / "log.jsonl").lifetimes)


@pytest.mark.long
def test_kills_are_counted_and_the_limit_holds_over_them(tmp_path):
    """Two attempts killed without a word; the third ends within what their lives have left of the limit."""
    settings = config(steps=1_000_000, checkpoint=CheckpointConfig(every_steps=50))
    began = time.monotonic()
    for step in (10, 60):
        process = start(tmp_path, settings)
        wait_for_step(tmp_path, step, process)
        wait_until(lambda: read_spent(tmp_path).start_seconds is not None, process)  # written twice a second
        process.send_signal(signal.SIGKILL)
        process.communicate()
    lives, spent = time.monotonic() - began, read_spent(tmp_path)
    # each attempt books a second ahead; by its log, from its start to its last step, it used no more
    assert logged_seconds(tmp_path) - 2.0 < spent.seconds < lives + 2.0
    limit = spent.seconds + 5.0 + 2 * spent.start_seconds
    last = start(tmp_path, replace(settings, stop=StopConfig(max_seconds=limit)))
    output, _ = last.communicate(timeout=300)
    assert last.returncode == 0 and f"{limit:g} s allowed" in output, output
    log = load_run_log(tmp_path / "log.jsonl")
    longest = [max(record["seconds"] for record in kind) for kind in (log.steps, log.checkpoints)]
    assert max(logged_seconds(tmp_path), read_spent(tmp_path).seconds) < limit + sum(longest) + 1.0
    assert log.checkpoints[-1]["step"] == log.final["step"]
