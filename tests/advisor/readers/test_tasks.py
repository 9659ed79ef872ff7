"""Lists of tasks that a wrapper writes: runs whose own logs are elsewhere."""

from __future__ import annotations

import pytest

from advisor.errors import AdvisorError
from advisor.readers.read import read_run
from advisor.readers.run_table import Status

LIST = (
    "Seed sweep of the small model on GPU 0\n"
    "[1/4] width 64 | started at 2026-03-01 23:50:00\n[1/4] width 64 | DONE\n"
    "[2/4] width 128 | started at 2026-03-02 00:10:00\n[2/4] width 128 | DONE\n"
    "[3/4] width 256 | started at 2026-03-02 00:30:00\n[3/4] width 256 | DONE\n"
    "[4/4] width 512 | started at 2026-03-02 00:30:40\n[4/4] width 512 | DONE at 2026-03-02 01:00:40\n"
)


def read(tmp_path, text: str, name: str = "sweep.out"):
    path = tmp_path / name
    path.write_text(text)
    return read_run(path)


def test_a_list_is_a_table_of_runs_with_their_times(tmp_path):
    run = read(tmp_path, LIST)
    assert (run.format, run.status, run.status_reason, run.rows) == ("tasks", Status.COMPLETED, "4 of 4 tasks ended", 0)
    assert [part.name for part in run.runs] == ["1: width 64", "2: width 128", "3: width 256", "4: width 512"]
    assert [part.clock_seconds for part in run.runs] == [1200, 1200, 40, 1800]
    assert all(part.status is Status.COMPLETED and part.elsewhere for part in run.runs)


def test_what_the_list_says_of_a_task_decides_of_it(tmp_path):
    text = (
        "=== Running experiment 1/3: lr=0.1 ===\nexperiment 1/3 finished in 9m 10s\n"
        "=== Running experiment 2/3: lr=1 ===\nexperiment 2/3 failed (exit code 1) after 00:01:05\n"
        "=== Running experiment 3/3: lr=0.01 ===\n"
    )
    run = read(tmp_path, text)
    assert [part.status for part in run.runs] == [Status.COMPLETED, Status.CRASHED, Status.INCOMPLETE]
    assert [part.declared_seconds for part in run.runs] == [550, 65, None]
    assert [part.name for part in run.runs] == ["1: lr=0.1", "2: lr=1", "3: lr=0.01"]
    assert run.status is Status.INCOMPLETE and run.status_reason.startswith("the list ends in task 3 of 3; 2 of 3")


def test_a_wrapper_that_fails_on_its_way_has_failed(tmp_path):
    begun = "".join(f"[{i}/9] training seed {i} started\n[{i}/9] seed {i} done\n" for i in range(1, 5))
    error = 'Traceback (most recent call last):\n  File "sweep.py", line 9, in <module>\nKeyError: "lr"\n'
    run = read(tmp_path, begun + "[5/9] training seed 5 started\n" + error)
    assert run.status is Status.CRASHED and "in task 5 of 9" in run.status_reason and "KeyError" in run.status_reason


@pytest.mark.parametrize(
    "text",
    [
        "[1/3] Installing packages ... done\n[2/3] Building wheels ... done\n[3/3] Copying files ... done\n",
        "".join(f"[{i}/9] Building CXX object of the model {i}.o\n" for i in range(1, 10)),  # nothing begins or ends
        "training\n[1/4] started\n[3/4] started\n[7/9] started\n",  # no list
    ],
)
def test_steps_of_something_else_are_no_tasks(tmp_path, text):
    with pytest.raises(AdvisorError, match="looks like a training log"):
        read(tmp_path, text)


def test_a_log_with_records_is_read_as_what_it_is(tmp_path):
    records = "".join(f"step {i} | loss {4 - i / 50:.4f}\n" for i in range(40))
    assert read(tmp_path, LIST + records).rows == 40
