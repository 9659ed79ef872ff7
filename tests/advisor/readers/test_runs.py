"""Several runs in one log: where each begins, how it ended, how long it took; and what the whole is then called."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import numpy as np
import pytest

from advisor.findings.make_case import make_case
from advisor.findings.savings import file_seconds, run_seconds, spent_seconds
from advisor.readers.line_clock import BAR, STAMPS, _bars
from advisor.readers.read import read_run
from advisor.readers.run_table import Status
from advisor.readers.starts import Words, segments
from tests.advisor.findings import build

BANNER = "Using device: cuda\nParameters in the model: 12345\nLoading the data from disk\nOptimizer: AdamW\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 9, in main\nFileExistsError: out\n'


def steps(first: int, last: int, planned: int = 100) -> str:
    return "".join(f"step {i}/{planned} | loss {4 - i / 50:.4f}\n" for i in range(first, last + 1))


def read(tmp_path, text: str):
    path = tmp_path / "train.log"
    path.write_text(text)
    return read_run(path)


def test_runs_of_one_log_are_told_apart_and_judged_each(tmp_path):
    run = read(tmp_path, BANNER + steps(1, 40) + "Killed\n" + BANNER + steps(1, 100) + "Training complete in 30 s\n")
    killed, done = run.runs
    assert (killed.status, killed.last_step) == (Status.KILLED, 40)
    assert (done.status, done.first_step, done.last_step, done.declared_seconds) == (Status.COMPLETED, 1, 100, 30)
    assert run.status is Status.COMPLETED and run.status_reason.startswith("run 2 of 2")


def silent(*lasts: int) -> str:
    rows = ["--- next ---\n" + "".join(f"  step {i:3d} loss={4 - i / (50 + at):.4f}\n" for i in range(0, last + 1, 5))
            for at, last in enumerate(lasts)]  # fmt: skip
    return "".join(rows)


def test_runs_that_each_end_where_another_did_have_ended(tmp_path):
    run = read(tmp_path, silent(30, 30, 10, 30, 10))
    assert [part.status for part in run.runs] == [Status.COMPLETED] * 5 and run.status is Status.COMPLETED
    assert "ends at step 30, as 2 other runs" in run.runs[0].status_reason
    cut = read(tmp_path, silent(30, 30, 30, 25))  # the last may have been cut there
    assert len(cut.runs) == 4 and {part.status for part in cut.runs} == {Status.INCOMPLETE}
    two = read(tmp_path, silent(30, 30))
    assert len(two.runs) == 2 and {part.status for part in two.runs} == {Status.INCOMPLETE}


def test_a_start_that_never_trained_decides_only_where_it_failed(tmp_path):
    done = BANNER + steps(1, 100) + "Training complete in 30 s\n"
    failed = read(tmp_path, done + BANNER + TRACEBACK)
    assert [part.phase for part in failed.runs] == [0, None] and failed.status is Status.CRASHED
    again = read(tmp_path, done + BANNER + TRACEBACK + BANNER)
    assert [part.status for part in again.runs][:2] == [Status.COMPLETED, Status.CRASHED]
    assert again.status is Status.COMPLETED


def test_a_stage_that_fails_after_training_is_a_run_of_its_own(tmp_path):
    run = read(tmp_path, BANNER + steps(1, 90) + "Training complete in 30 s\nExporting the model\n" + TRACEBACK)
    assert [part.status for part in run.runs] == [Status.COMPLETED, Status.CRASHED]
    assert run.status is Status.CRASHED


@pytest.mark.parametrize(
    ("setting", "status"),
    [("args = Namespace(lr=0.1, epochs=30)", Status.COMPLETED), ("python train.py --epochs 40", Status.INCOMPLETE),
     ("epochs: 7", Status.INCOMPLETE)],
)  # fmt: skip
def test_how_far_a_run_goes_is_in_its_configuration(tmp_path, setting, status):
    epochs = "".join(f"Epoch {i}: train loss {3 - i / 20:.4f}\n" for i in range(1, 31))
    assert read(tmp_path, f"{setting}\n{epochs}").status is status


def test_a_resumed_run_is_one_run_of_two_starts(tmp_path):
    run = read(tmp_path, BANNER + steps(1, 60) + "Killed\n" + BANNER + "Resuming from step 50\n" + steps(51, 100))
    (part,) = run.runs
    assert (part.starts, part.status) == (2, Status.COMPLETED)


def test_ranks_that_print_the_banner_each_are_one_start(tmp_path):
    assert len(read(tmp_path, BANNER * 4 + steps(1, 100)).runs) == 1


def test_tracebacks_of_many_ranks_are_no_starts(tmp_path):
    run = read(tmp_path, BANNER + TRACEBACK * 8 + BANNER + steps(1, 100))
    assert [part.status for part in run.runs] == [Status.CRASHED, Status.COMPLETED]


def test_words_of_the_end_belong_to_the_run_before_them():
    found = segments([(10, 20), (40, 50)], [], Words(decisive=[22, 30]), np.array([10, 20, 40, 50]))
    assert [(part.first_line, part.end_line, part.phase) for part in found] == [(1, 31, 0), (31, float("inf"), 1)]


def stamped(began: str, spelling: str, seconds: int, lines: int = 50) -> str:
    at = datetime.fromisoformat(began)
    rows = ((at + timedelta(seconds=seconds * i / lines)).strftime(spelling) for i in range(lines + 1))
    return "".join(f"{stamp} step {i + 1}/51 | loss {4 - i / 50:.4f}\n" for i, stamp in enumerate(rows))


@pytest.mark.parametrize(
    "spelling",
    ["%Y-%m-%d %H:%M:%S", "[%Y-%m-%d %H:%M:%S,000]", "[%m/%d %H:%M:%S d2.utils]:", "%m/%d %I:%M:%S %p", "%H:%M:%S",
     "%a %b %d %H:%M:%S %Y", "%b %d %H:%M:%S host", "[%d %b %Y %H:%M:%S]", "%m/%d/%Y %H:%M:%S"],
)  # fmt: skip
def test_time_stamps_in_any_spelling_go_on_past_midnight_and_new_year(tmp_path, spelling):
    run = read(tmp_path, "Start\n" + stamped("2024-12-31 20:00:00", spelling, 8 * 3600))
    assert (run.runs[0].clock_seconds, run.runs[0].clock) == (pytest.approx(8 * 3600, abs=61), STAMPS)


def test_stamps_of_the_start_alone_are_no_clock(tmp_path):
    run = read(tmp_path, "2024-01-01 10:00:00 hello\n2024-01-01 10:00:05 go\n" + steps(1, 100))
    assert run.runs[0].clock_seconds is None


def test_a_bars_clock_is_added_where_it_begins_anew(tmp_path):
    def bar(epoch: int, seconds: int) -> str:
        went = ((i, seconds * i // 10) for i in range(11))
        return "\r".join(f"Epoch {epoch}: {10 * i}%| {i}/10 [00:{s:02d}<00:01, loss={3 - i / 10}]" for i, s in went)

    run = read(tmp_path, bar(1, 50) + "\n" + bar(2, 40) + "\n")
    assert (run.runs[0].clock_seconds, run.runs[0].clock) == (90, BAR)


def epochs_of_bars(seconds: list[tuple[int, int]]) -> str:
    """Of each epoch a bar of its training and one of its evaluation, drawn at their ends alone."""
    shown = "Epoch   box_loss   cls_loss\n{e}/100  1.9  2.5  512: 100%|##| 265/265 [00:{a:02d}<00:00, 9it/s]\n"
    shown += "        Class  Images: 100%|##| 39/39 [00:{b:02d}<00:00, 9it/s]\n          all    1229   0.{e}\n"
    return "".join(shown.format(e=epoch, a=a, b=b) for epoch, (a, b) in enumerate(seconds, 1))


def test_bars_printed_at_their_ends_are_one_each_and_those_behind_them_count(tmp_path):
    run = read(tmp_path, epochs_of_bars([(50, 12), (51, 11), (50, 13)]) + steps(1, 4))
    assert (run.runs[0].clock_seconds, run.runs[0].clock) == (151 + 36, BAR)


def test_bars_of_several_epochs_at_their_ends_end_no_run(tmp_path):
    shown = "Epoch {e}\n100%|##| 50/50 [00:20<00:00, 2.5it/s]\ntrain loss: {v}\n"
    run = read(tmp_path, "".join(shown.format(e=e, v=2 - e / 10) for e in range(1, 5)))
    assert run.runs[0].status is not Status.COMPLETED
    assert (run.runs[0].first_loss, run.runs[0].last_loss, run.runs[0].last_step) == (1.9, 1.6, 4)  # epochs, no steps
    assert run.runs[0].clock_seconds == 80


def test_bars_in_a_row_end_no_run_and_each_has_its_own_time(tmp_path):
    shown = "100%|##| 50/50 [00:2{e}<00:00, 2.5it/s, loss={v}]\nval loss {v}\n"
    run = read(tmp_path, "".join(shown.format(e=e, v=2 - e / 10) for e in range(1, 5)))
    assert run.runs[0].status is not Status.COMPLETED
    assert spent_seconds(make_case(run)) == 21 + 22 + 23 + 24


def test_bars_that_name_their_epochs_are_one_each(tmp_path):
    shown = "Epoch {e}/10: 100%|##| 50/50 [00:20<00:00, 2.5it/s, loss={v}]\n"
    run = read(tmp_path, "".join(shown.format(e=e, v=2 - e / 10) for e in range(1, 5)))
    assert spent_seconds(make_case(run)) == 80


def test_bars_that_fill_one_line_take_time_in_proportion(tmp_path):
    line = b"Epoch: 100%|##| 5/5 [00:02<00:00, 9it/s, loss=1.0]"

    def seconds(count: int) -> float:
        began = time.process_time()
        assert [bar.seconds for bar in _bars([(0, line * count)])] == [2]
        return time.process_time() - began

    assert seconds(20_000) < 10 * max(seconds(5_000), 0.005)  # in proportion 4, quadratic 16


def test_one_bar_drawn_again_at_its_end_counts_once(tmp_path):
    went = "".join(f"\r{10 * i}%|#| {i}/10 [00:{3 * i:02d}<00:03, loss={3 - i / 10}]" for i in range(11))
    again = "saving\nevaluating\n100%|#| 10/10 [00:31<00:00, loss=2.0]\n"
    run = read(tmp_path, went + "\n" + again)
    assert run.runs[0].clock_seconds == 31


def test_a_total_said_of_each_epoch_is_added_and_one_that_rises_is_not(tmp_path):
    each = "[epoch:{e}/1200] [loss:{v}] [lr:0.009] [total time:0:02:2{e}]\n"
    run = read(tmp_path, "".join(each.format(e=e, v=1 / e) for e in (1, 3, 2, 4)))
    assert spent_seconds(make_case(run)) == 4 * 140 + 10
    rises = "[epoch:{e}/1200] [loss:{v}] [lr:0.009] [total time:0:0{e}:20]\n"
    run = read(tmp_path, "".join(rises.format(e=e, v=1 / e) for e in (1, 2, 3, 4)))
    assert spent_seconds(make_case(run)) == 260


def test_the_hours_of_a_log_are_those_of_its_runs_without_the_days_between(tmp_path):
    first = stamped("2024-03-01 10:00:00", "%Y-%m-%d %H:%M:%S", 3600)
    again = stamped("2024-03-09 10:00:00", "%Y-%m-%d %H:%M:%S", 7200)
    case = make_case(read(tmp_path, BANNER + first + BANNER + again))
    assert run_seconds(case) == [3600, 7200] and file_seconds(case) == 10800  # a week between them


def test_the_total_of_another_run_is_not_that_of_the_main_one(tmp_path):
    timed = "".join(f"iter {i}: loss 3.0, time 2000.00ms, mfu 1.00%\n" for i in range(1, 101))
    short = "".join(f"iter {i}: loss 2.0, time 1000.00ms, mfu 1.00%\n" for i in range(1, 11))
    short += "Training complete in 12 s\n"
    run = read(tmp_path, BANNER + timed + BANNER + short)
    assert "total_seconds" not in run.facts
    assert run_seconds(make_case(run)) == [200, 12]


def test_a_printed_clock_that_begins_anew_is_added():
    elapsed = np.concatenate((np.arange(1.0, 101), np.arange(1.0, 301)))
    assert spent_seconds(build.case(build.without(build.run(elapsed_seconds=elapsed), "seconds"))) == 400


@pytest.mark.parametrize(("done", "status"), [(40, Status.COMPLETED), (25, Status.INCOMPLETE)])
def test_one_bar_to_the_end_says_how_far_a_run_came(tmp_path, done, status):
    bar = "\r".join(f"{i}/40 [00:{i:02d}<00:01, 1.00it/s]" for i in range(done + 1))
    rows = "".join(f"{{'loss': {3 - i / 40:.2f}, 'learning_rate': 1e-05, 'epoch': {i / 5}}}\n" for i in range(1, 11))
    run = read(tmp_path, rows + bar)
    assert (run.status, run.runs[0].status) == (status, status) and "progress bar" in run.status_reason


def test_a_round_last_step_that_was_tested_is_an_end(tmp_path):
    rows = "".join(f"Step: {i}, loss = {3 - i / 2000:.4f}\n" for i in range(10, 2001, 10))
    assert read(tmp_path, rows).status is Status.INCOMPLETE
    assert read(tmp_path, rows + "Accuracy on Test-Set: 71.4%\n").status is Status.COMPLETED
