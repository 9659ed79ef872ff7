"""The list of runs and what the store keeps of it: the same answer as without, when folders come, go and change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from advisor.engines.state import this_host
from advisor.store.folders import example_run
from advisor.store.run_folder import read_launch, run_row, write_launch
from advisor.store.store import default_store
from trainer.budget import Attempt, Spent, write_spent


@pytest.fixture
def runs(advisor_home) -> list[Path]:
    """Two runs that are over: the first registered, the second copied in."""
    folders = [default_store().home / "runs" / name for name in ("first", "second")]
    for folder in folders:
        shutil.copytree(example_run(), folder)
        write_launch(folder, replace(read_launch(folder), id=f"id-{folder.name}", name=folder.name))
        write_spent(
            folder, Spent(attempts=(Attempt(session="a", host=None, began=0.0, seconds=9.0, usd_per_hour=0.0),))
        )
    default_store().register_run(run_row(folders[0]))
    return folders


def listed(call) -> dict[str, dict]:
    code, out, err = call("runs", "--json")
    assert code == 0, err
    return {row["name"]: row for row in json.loads(out)["runs"]}


def kept() -> Path:
    (path,) = (default_store().home / "listing").glob("*.json")
    return path


def test_a_folder_is_read_again_only_after_one_of_its_files_changed(call, runs):
    before = listed(call)
    assert {row["outcome"] for row in before.values()} == {"completed"}
    log = runs[1] / "log.jsonl"
    text, stat = log.read_text(), log.stat()
    log.write_text(text.replace('"outcome":"completed"', '"outcome":"diverged" '))
    os.utime(log, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert listed(call) == before  # as long, as old and the same file: nothing says that it changed
    log.touch()
    assert listed(call)["second"]["outcome"] == "diverged"
    assert listed(call)["first"] == before["first"]


def test_folders_that_come_go_and_move_are_told_as_if_nothing_was_kept(call, runs):
    listed(call)
    shutil.rmtree(runs[1])
    runs[0].rename(runs[0].with_name("moved"))
    shutil.copytree(example_run(), runs[1].with_name("third"))
    with_kept = call("runs", "--json")
    assert len(json.loads(kept().read_text())["runs"]) == 2  # no line of a folder that is gone
    kept().unlink()
    assert call("runs", "--json") == with_kept
    states = sorted((row["name"], row["state"], Path(row["path"]).name) for row in json.loads(with_kept[1])["runs"])
    assert states == [("first", "finished", "moved"), ("nanochat-d2", "finished", "third")]


OF = '{"schema": 1, "runs": '


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 999}', '{"schema": 1}', OF + "[]}", OF + '{"RUN": 1}}',
                                  OF + '{"RUN": ["", {"x": 1}]}}'])  # fmt: skip
def test_what_was_kept_is_made_anew_when_damaged(call, runs, text):
    before = listed(call)
    sound = kept().read_text()
    kept().write_text(text.replace("RUN", str(runs[0])))
    assert listed(call) == before
    assert kept().read_text() == sound


def test_a_run_whose_process_died_without_a_word_is_told_at_once(call, runs):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started = psutil.Process(process.pid).create_time()
        for folder in runs:
            log = [line for line in (folder / "log.jsonl").read_text().splitlines(True) if '"final"' not in line]
            (folder / "log.jsonl").write_text("".join(log))
            write_launch(
                folder, replace(read_launch(folder), host=this_host(), pid=process.pid, process_started=started)
            )
        assert {row["state"] for row in listed(call).values()} == {"running"}
    finally:
        process.kill()
        process.wait()
    assert {row["state"] for row in listed(call).values()} == {"died"}


def test_one_damaged_folder_that_was_copied_in_hides_no_other(call, runs):
    (runs[1] / "run.json").write_text("{")
    rows = listed(call)
    assert rows["first"]["outcome"] == "completed"
    assert rows["second"]["state"] == "damaged" and "launch record" in rows["second"]["problem"]


def test_a_folder_that_is_being_deleted_is_not_listed(call, runs):
    runs[1].rename(runs[1].with_name(".deleted-second"))
    assert list(listed(call)) == ["first"]
