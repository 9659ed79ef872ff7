"""Runs that are killed, moved, starved and damaged at random moments: what was durable stays, what goes on is the same.

ADVISOR_CHAOS_KILLS (default 40) is how often runs are killed; `make chaos` asks for 200 and writes docs/reliability.md.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from advisor.prediction.wallclock import lost_share
from tests.chaos.attempt import CONTEXT, start
from tests.chaos.tally import EVERY, KILLS, TALLY
from tests.trainer.small import config
from tests.trainer.test_data import write_folder
from trainer.budget import read_spent
from trainer.checkpoint_files import list_checkpoints, verify
from trainer.runlog import LOG_NAME, load_run_log, read_records
from trainer.schema import CheckpointConfig, DataConfig, EvalConfig, Outcome, StopConfig

SETTINGS = config(
    steps=120,
    eval=EvalConfig(tokens=256, every_steps=12),
    checkpoint=CheckpointConfig(every_steps=EVERY, every_seconds=None, keep=2, background=False),
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Losses of training and evaluation of a run that nobody killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    start(SETTINGS, folder).join(300)
    log = load_run_log(folder / LOG_NAME)
    assert log.final["outcome"] == Outcome.COMPLETED
    return curve(log)


@pytest.fixture(scope="module")
def attempt_seconds(undisturbed, tmp_path_factory) -> float:
    """What a whole run takes here now, from the fork to the end."""
    began = time.monotonic()
    start(SETTINGS, tmp_path_factory.mktemp("timed")).join(300)
    return time.monotonic() - began


def curve(log):
    return [(s["step"], s["loss"]) for s in log.steps], [(e["step"], e["loss"]) for e in log.evals]


def newest(folder: Path) -> int:
    """The newest durable step; every checkpoint that has its name must be whole."""
    steps = [verify(path)["step"] for path in list_checkpoints(folder / "checkpoints")]
    return max(steps, default=0)


def records(folder: Path) -> list[dict]:
    path = folder / LOG_NAME
    return read_records(path)[0] if path.exists() else []


def logged(folder: Path, kind: str) -> int:
    return sum(record["kind"] == kind for record in records(folder))


def kill_at_some_moment(process, folder: Path, rng: random.Random) -> bool:
    """SIGKILL: while it starts, before its first step, mostly while it trains; False where it had ended before."""
    until = rng.choices(["", "header", "step"], weights=[1, 1, 5])[0]
    before, deadline = logged(folder, until), time.monotonic() + 30
    while until and process.is_alive() and logged(folder, until) <= before and time.monotonic() < deadline:
        time.sleep(0.01)
    process.join(rng.uniform(0.0, 0.8))
    if not process.is_alive():
        return False
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("background", [False, True])
def test_killed_runs_go_on_as_if_nothing_had_been(undisturbed, tmp_path, background):
    """Each resumes from the newest durable checkpoint, loses nothing that was durable, and ends with the same curve."""
    rng = random.Random(20261122 + background)
    settings = replace(SETTINGS, checkpoint=replace(SETTINGS.checkpoint, background=background))
    kills, runs = 0, 0
    while kills < KILLS // 2:
        folder, runs = tmp_path / f"run-{runs}", runs + 1
        folder.mkdir()
        durable = 0
        for _ in range(200):
            process = start(settings, folder)
            killed = kills < KILLS // 2 and kill_at_some_moment(process, folder, rng)
            process.join()
            said = records(folder)
            headers = [r for r in said if r["kind"] == "header"]
            if headers and len(headers) > runs_headers(folder):
                assert headers[-1]["resumed_from_step"] == durable
                note_headers(folder, len(headers))
            if not killed:
                break
            kills += 1
            durable = newest(folder)
            steps = [r["step"] for r in said if r["kind"] == "step"]
            TALLY.after[said[-1]["kind"] if said else "nothing"] += 1
            TALLY.again.append(max(0, (steps[-1] if steps else 0) - durable))
        log = load_run_log(folder / LOG_NAME)
        assert log.final["outcome"] == Outcome.COMPLETED, log.final
        assert curve(log) == undisturbed
        assert newest(folder) == settings.steps
        assert not [p for p in (folder / "checkpoints").iterdir() if p.name.startswith(".")], "left from a kill"
    TALLY.kills += kills
    TALLY.completed += runs


_HEADERS: dict[Path, int] = {}


def runs_headers(folder: Path) -> int:
    return _HEADERS.get(folder, 0)


def note_headers(folder: Path, count: int) -> None:
    _HEADERS[folder] = count


def empty_life() -> float:
    """What a process that does nothing takes here now, from its fork until it is known to be gone."""
    began = time.monotonic()
    process = CONTEXT.Process(target=int)
    process.start()
    process.join()
    return time.monotonic() - began


def test_a_budget_is_kept_over_all_kills(attempt_seconds, tmp_path):
    """The lives of all attempts together: never more than the limit, a step and a checkpoint."""
    rng = random.Random(5)
    done = 0
    while done < KILLS // 4:
        limit = rng.uniform(2.0, 4.0) * attempt_seconds
        folder = tmp_path / f"run-{done}"
        folder.mkdir()
        settings = replace(SETTINGS, steps=10**6, stop=StopConfig(max_seconds=limit))
        used, waits, kills = 0.0, 0.0, 0
        for _ in range(200):
            began = time.monotonic()
            process = start(settings, folder)
            killed = kill_at_some_moment(process, folder, rng)
            used += time.monotonic() - began
            waits += 0.3 + 2 * empty_life()
            kills += killed
            if not killed:
                break
        log = load_run_log(folder / LOG_NAME)
        assert log.final["outcome"] == Outcome.STOPPED and "are used" in log.final["reason"]
        longest = max((s["seconds"] for s in log.steps), default=0.0)
        saved = max((c["seconds"] for c in log.checkpoints), default=0.0)
        ending = 0.1 + 0.25 * attempt_seconds  # of its last process, on a machine as slow as it is now
        assert read_spent(folder).seconds <= limit + longest + saved + ending  # by its own account
        # by this process's clock, which also counts forks, and the wait until the system says that a process is gone
        assert used <= limit + longest + saved + waits
        TALLY.budgets.append((limit, used, kills))
        done += max(1, kills)


def test_restarts_cost_what_plans_reckon_with(attempt_seconds, tmp_path):
    """Runs that are killed after exponential lives take what Daly's complete model says (sources §6.1)."""
    rng = random.Random(11)
    settings = replace(SETTINGS, steps=600, eval=EvalConfig(tokens=0))
    settings = replace(settings, checkpoint=replace(settings.checkpoint, every_steps=40))
    mean_life, used, kills, runs = 1.5 * attempt_seconds, 0.0, 0, 0
    work: list[tuple[float, float, float]] = []  # seconds of all steps and of a checkpoint of a run, and to start one
    while kills < max(10, KILLS // 4):
        folder, runs = tmp_path / f"run-{runs}", runs + 1
        folder.mkdir()
        starts = []
        for _ in range(200):
            forked, clock = time.time(), time.monotonic()
            process = start(settings, folder)
            process.join(rng.expovariate(1 / mean_life))
            if killed := process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                kills += 1
            used += time.monotonic() - clock
            headers = [r for r in records(folder) if r["kind"] == "header" and r["time"] >= forked]
            starts += [headers[0]["time"] - forked] if headers else []
            if not killed:
                break
        log = load_run_log(folder / LOG_NAME)
        assert log.final["outcome"] == Outcome.COMPLETED
        seconds = statistics.fmean(r["seconds"] for r in (*log.steps, *log.superseded) if "grad_norm" in r)
        saves = statistics.fmean(r["seconds"] for r in log.checkpoints)
        work.append((600 * seconds, saves, statistics.fmean(starts)))
    total, save, begin = (statistics.fmean(values) for values in zip(*work, strict=True))
    interval = total / 15
    lost = lost_share(*map(np.float64, (interval, save, begin, mean_life)))
    expected = runs * (begin + (total + 15 * save) * (1 + lost))
    TALLY.restarts = (runs, kills, expected, used)
    assert used == pytest.approx(expected, rel=0.35)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_checkpoint_is_passed_over(undisturbed, tmp_path, damage):
    rng = random.Random(damage)
    _stop_after(tmp_path, 30)
    last = list_checkpoints(tmp_path / "checkpoints")[-1]
    path = rng.choice([p for p in last.iterdir() if p.suffix == ".safetensors"])
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.unlink() if damage == "remove" else path.write_bytes(
        content[: len(content) // 2 if damage == "truncate" else None]
    )
    before = int(list_checkpoints(tmp_path / "checkpoints")[-2].name.split("-")[1])
    start(SETTINGS, tmp_path).join(300)
    log = load_run_log(tmp_path / LOG_NAME)
    assert [r for r in records(tmp_path) if r["kind"] == "header"][-1]["resumed_from_step"] == before
    assert any("is damaged" in m["text"] for m in log.messages)
    assert curve(log) == undisturbed


def test_a_log_that_was_cut_anywhere_is_gone_on_with(undisturbed, tmp_path):
    rng = random.Random(8)
    whole = tmp_path / "whole"
    whole.mkdir()
    _stop_after(whole, 40)
    for number in range(4):
        folder = tmp_path / f"cut-{number}"
        shutil.copytree(whole, folder)
        content = (folder / LOG_NAME).read_bytes()
        (folder / LOG_NAME).write_bytes(content[: rng.randrange(len(content) // 3, len(content))])
        start(SETTINGS, folder).join(300)
        log = load_run_log(folder / LOG_NAME)
        assert log.final["outcome"] == Outcome.COMPLETED
        kept = dict(log_steps := curve(log)[0])
        assert kept == {step: loss for step, loss in undisturbed[0] if step in kept} and log_steps[-1][0] == 120


def test_a_log_with_a_flipped_bit_is_gone_on_with(undisturbed, tmp_path):
    rng = random.Random(13)
    whole = tmp_path / "whole"
    whole.mkdir()
    _stop_after(whole, 40)
    for number in range(4):
        folder = tmp_path / f"flipped-{number}"
        shutil.copytree(whole, folder)
        content = bytearray((folder / LOG_NAME).read_bytes())
        content[rng.randrange(len(content) // 3, len(content))] ^= 1 << rng.randrange(8)
        (folder / LOG_NAME).write_bytes(content)
        durable = newest(folder)
        start(SETTINGS, folder).join(300)
        log = load_run_log(folder / LOG_NAME)
        assert log.final["outcome"] == Outcome.COMPLETED
        assert log.header["resumed_from_step"] == durable
        after = [(step, loss) for step, loss in curve(log)[0] if step > durable]
        assert after == [(step, loss) for step, loss in undisturbed[0] if step > durable]


def test_a_folder_that_becomes_read_only_keeps_what_is_durable(undisturbed, tmp_path):
    folder, settings = tmp_path / "run", replace(SETTINGS, steps=SETTINGS.steps)
    folder.mkdir()
    process = start(settings, folder, plain_user=True)
    while not any(r["kind"] == "checkpoint" for r in records(folder)):
        time.sleep(0.01)
    for place in (folder / "checkpoints", folder):
        place.chmod(0o555)
    process.join(300)
    durable = newest(folder)
    assert process.exitcode == 0 and 0 < durable < SETTINGS.steps
    said = [r["text"] for r in records(folder) if r["kind"] == "message"]
    assert any("Permission denied" in text for text in said), said
    for place in (folder, folder / "checkpoints"):
        place.chmod(0o755)
    start(settings, folder, plain_user=True).join(300)
    log = load_run_log(folder / LOG_NAME)
    assert log.header["resumed_from_step"] == durable and curve(log) == undisturbed


def test_a_data_file_that_shrinks_ends_the_run_in_words_and_once_restored_it_goes_on(tmp_path):
    tokens = np.random.default_rng(1).integers(0, 64, 6000)
    data = write_folder(tmp_path / "data", tokens, tokens[:600], vocab_size=64)
    settings = replace(SETTINGS, data=DataConfig(path=str(data)))
    for name in ("whole", "run"):
        (tmp_path / name).mkdir()
    start(settings, tmp_path / "whole").join(300)
    folder, content = tmp_path / "run", (data / "tokens.bin").read_bytes()
    process = start(settings, folder)
    while not any(r["kind"] == "checkpoint" and r["step"] >= 20 for r in records(folder)):
        time.sleep(0.01)
    os.truncate(data / "tokens.bin", 1000)
    process.join(300)
    log = load_run_log(folder / LOG_NAME)
    assert log.final["outcome"] == Outcome.FAILED and "tokens.bin ends at byte 1000" in log.final["reason"]
    start(settings, folder).join(300)  # refused while it is short
    assert "promises 12000" in load_run_log(folder / LOG_NAME).final["reason"]
    durable = newest(folder)
    (data / "tokens.bin").write_bytes(content)
    start(settings, folder).join(300)
    log = load_run_log(folder / LOG_NAME)
    assert log.header["resumed_from_step"] == durable >= 20
    assert curve(log) == curve(load_run_log(tmp_path / "whole" / LOG_NAME))


def test_a_full_disk_ends_no_run_and_spoils_no_checkpoint(undisturbed, tmp_path):
    _stop_after(tmp_path, 20)
    durable = newest(tmp_path)
    largest = max(p.stat().st_size for p in (tmp_path / "checkpoints").rglob("*.safetensors"))
    start(replace(SETTINGS, steps=40), tmp_path, file_limit=largest // 2).join(300)
    assert newest(tmp_path) == durable
    start(SETTINGS, tmp_path).join(300)
    log = load_run_log(tmp_path / LOG_NAME)
    assert log.final["outcome"] == Outcome.COMPLETED and curve(log)[0][-1] == undisturbed[0][-1]


def test_a_second_trainer_in_the_folder_is_refused_and_the_first_goes_on(undisturbed, tmp_path):
    first = start(SETTINGS, tmp_path)
    while not records(tmp_path):
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGSTOP)  # or it may be done before the second gives up waiting
    second = start(SETTINGS, tmp_path)
    second.join(300)
    os.kill(first.pid, signal.SIGCONT)
    first.join(300)
    assert (first.exitcode, second.exitcode) == (0, 1)
    assert f"process {first.pid} on {socket.gethostname()} trains in it" in (tmp_path / "stdout.log").read_text()
    assert len([r for r in records(tmp_path) if r["kind"] == "header"]) == 1
    assert curve(load_run_log(tmp_path / LOG_NAME)) == undisturbed


def test_a_run_folder_may_be_moved_while_it_trains(undisturbed, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    process = start(SETTINGS, here)
    while not any(r["kind"] == "step" for r in records(here)):
        time.sleep(0.02)
    here.rename(there)
    process.join(300)
    assert curve(load_run_log(there / LOG_NAME)) == undisturbed and newest(there) == 120
    assert not here.exists()


def test_a_clock_that_is_set_changes_nothing(undisturbed, tmp_path):
    settings = replace(SETTINGS, stop=StopConfig(max_seconds=600.0))
    start(settings, tmp_path, clock_jump_seconds=86400.0).join(300)
    log = load_run_log(tmp_path / LOG_NAME)
    assert log.final["outcome"] == Outcome.COMPLETED and curve(log) == undisturbed


def _stop_after(folder: Path, step: int) -> None:
    """An attempt that is killed once a step was logged."""
    process = start(SETTINGS, folder)
    while not any(r["kind"] == "step" and r["step"] >= step for r in records(folder)):
        time.sleep(0.02)
        assert process.is_alive()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
