"""Several logs at once, and logs that are still written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from advisor.findings.chart_data import learning_rate_points, mfu_points, step_points
from advisor.history.comparison import compare_runs, compare_those_far_enough
from advisor.readers.run_table import Status
from advisor.readers.several_logs import logs_of
from advisor.report import rows as report_rows
from advisor.report.files import write_reports
from advisor.report.progress import line_of_log as line
from advisor.workflows.analysis import Given
from advisor.workflows.analyze import analyze, runs_of
from advisor.workflows.live import Follower, look
from tests.terminal import advisor, document

PNG = b"\x89PNG\r\n\x1a\n"


def write_log(path, *, steps=200, planned=200, gain=0.0, lowered_from=None, seed=0):
    """A run as nanochat prints it: learning rates as shares of the peak, MFU in percent, minutes since the start."""
    noise = np.random.default_rng(seed).normal(0, 0.01, steps)
    lines = []
    for step in range(steps):
        loss = 3 - gain + 8 * (step + 1) ** -0.5 + noise[step]
        share = (
            1.0 if lowered_from is None or step < lowered_from else 1 - (step - lowered_from) / (steps - lowered_from)
        )
        lines.append(
            f"step {step:05d}/{planned:05d} ({100 * step / planned:.2f}%) | loss: {loss:.6f} | lrm: {share:.2f} | "
            f"dt: 1200.00ms | tok/sec: 430,000 | mfu: 43.80 | total time: {step * 1.2 / 60:.2f}m"
        )
    path.write_text("Total batch size 524,288 => gradient accumulation steps: 2\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "logs"
    made.mkdir()
    write_log(made / "training_a.log")
    write_log(made / "training_b.log", gain=0.2, seed=1)
    write_log(made / "training_c.log", steps=100, gain=0.3, lowered_from=50, seed=2)
    (made / "training_d.log").write_text("starting\nFileNotFoundError: no data here\n")
    (made / "notes.md").write_text("# what I tried\n\nnothing yet\n")
    return made


def analyses(folder, store):
    return [
        analyze(path, Given(gpu="h100-80gb-sxm", gpus=2, usd_per_gpu_hour=2.0), store) for path in runs_of(folder)[:3]
    ]


def test_logs_of_one_format_side_by_side_are_runs_and_what_belongs_to_one_run_is_not(folder, tmp_path):
    assert [log.stem for log in logs_of(folder)] == ["training_a", "training_b", "training_c", "training_d"]
    one = tmp_path / "one"
    (one / "checkpoint-100").mkdir(parents=True)
    write_log(one / "rank0.log")
    write_log(one / "rank1.log")
    write_log(one / "train.log")
    assert logs_of(one) == [] and runs_of(one) == [one]
    for name in ("a", "b"):
        (tmp_path / "sweep" / name).mkdir(parents=True)
        write_log(tmp_path / "sweep" / name / "train.log")
    assert [log.name for log in logs_of(tmp_path / "sweep")] == ["a", "b"]


def test_the_run_table_has_what_each_log_says(folder, store):
    rows = report_rows.run_table(analyses(folder, store)).rows
    assert [row[0] for row in rows] == ["training_a.log", "training_b.log", "training_c.log"]
    name, status, steps, tokens, takes, rate, share, costs, loss, phase = rows[2]
    assert (status, steps, share, phase) == ("incomplete", "100 of 200", "43.8 % as logged", "2 % of peak LR")
    assert tokens == "52.4 M" and rate == "437 k"  # 100 x 524,288 tokens; these in 1.2 s
    assert (takes, costs) == ("2 min", "$0.13")  # 100 x 1.2 s on two cards at $2
    assert rows[0][9] == "100 % of peak LR" and float(loss) == pytest.approx(3 - 0.3 + 0.8, abs=0.05)


def test_runs_in_different_phases_are_not_called_better(folder, store):
    cases = [analysis.case for analysis in analyses(folder, store)]
    against = compare_runs([cases[0], cases[2]], ["a", "c"])
    last = [point for point in against.points if point.at != "schedule"][-1]
    assert not last.comparable and "phase" in last.problem
    assert not any("not known" in note for note in against.notes)  # shares of the peak are learning rates too
    same = compare_runs(cases[:2], ["a", "b"])
    gap = [one for one in same.differences if one.axis == "tokens"][-1]
    assert gap.comparable and gap.difference.value == pytest.approx(-0.2, abs=0.02)


def test_a_run_that_broke_off_does_not_hold_the_others_to_its_few_steps(folder, store, tmp_path):
    short = analyze(write_log(tmp_path / "short.log", steps=6), Given(), store)
    cases = [*(analysis.case for analysis in analyses(folder, store)[:2]), short.case]
    against, words = compare_those_far_enough(cases, ["a", "b", "short"])
    assert max(one.at for one in against.differences if one.axis == "tokens") == pytest.approx(199 * 524_288)
    assert words == ["short: not compared, it went to 5 where the longest went to 199, because it broke off early"]


def test_curves_are_placed_on_every_axis(folder, store):
    case = analyses(folder, store)[2].case
    rates, steps, shares = learning_rate_points(case), step_points(case), mfu_points(case)
    assert (rates[0].value, rates[-1].value) == (1.0, pytest.approx(0.02, abs=0.005))
    assert {point.value for point in steps} == {1.2} and shares[-1].value == pytest.approx(0.438)
    for point in (rates[-1], steps[-1], shares[-1]):
        assert (point.step, point.tokens) == (99, 99 * 524_288)
        assert point.hours == pytest.approx(99 * 1.2 / 3600, abs=1e-4)
        assert point.usd == pytest.approx(point.hours * 4)


def test_the_reports_of_several_hold_table_overlays_and_comparison(folder, store, tmp_path):
    found = analyses(folder, store)
    against = compare_runs([analysis.case for analysis in found], report_rows.names_of(found))
    paths = {"html": tmp_path / "m.html", "md": tmp_path / "m.md", "tables": tmp_path / "t"}
    write_reports(found, paths, comparison=against, left_out=["left out: training_d.log"])
    page = paths["html"].read_text().split("<script>")[0]
    for words in ("<h1>3 runs</h1>", "Over each other", "Learning rate against tokens seen", "MFU against dollars",
                  "Step time against time", "Compared with each other", "left out: training_d.log"):  # fmt: skip
        assert words in page, words
    assert "| training_b.log | completed" in paths["md"].read_text()
    table = pd.read_csv(paths["tables"] / "training_c.log.csv")
    wanted = {"step", "loss", "learning_rate_share", "seconds", "tokens_per_second", "mfu", "elapsed_seconds"}
    assert len(table) == 100 and wanted <= set(table) and table.learning_rate_share.iloc[-1] == 0.02


def test_overlays_are_drawn_into_a_folder(store, tmp_path):
    """Of logs that say next to nothing: each picture takes a third of a second."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.log").write_text("".join(f"step {n} loss {9 - n / 20:.3f}\n" for n in range(1, 60)))
    found = [analyze(tmp_path / f"{name}.log", Given(), store) for name in ("a", "b")]
    write_reports(found, {"plots": tmp_path / "p"})
    pictures = sorted((tmp_path / "p").iterdir())
    assert {path.suffix for path in pictures} == {".png", ".svg"}
    assert all(path.read_bytes().startswith(PNG) for path in pictures if path.suffix == ".png")
    drawing = (tmp_path / "p" / "training-loss-against-step.svg").read_text()
    assert drawing.startswith("<svg") and "b.log" in drawing


def test_a_folder_typed_on_the_command_line_is_analysed_run_by_run(folder, tmp_path):
    shown = advisor("analyze", folder, "--price", "2", expect=0).stdout
    assert "Side by side" in shown and re.search(r"training_a\.log\s+completed", shown)
    told = document("analyze", folder, "--price", "2")
    names = [run["source"].rsplit("/", 1)[1] for run in told["runs"]]
    assert names[:3] == ["training_a.log", "training_b.log", "training_c.log"] and told["comparison"]["differences"]
    assert len(names) == 4 or any("training_d" in line for line in told["left_out"])


def rows(first, last, every=10):
    return "".join(
        f"[progress] step {n:6d}/2000 | seq 128 | tokens {n * 512:9d} | loss {9 - n / 500:8.4f} | lr  1.0e-4\n"
        for n in range(first, last + 1, every)
    )


def at(path, moment):
    os.utime(path, (moment, moment))


def test_how_fast_it_goes_is_what_it_gained_while_it_was_watched(tmp_path):
    """From step 500 to 700 in 100 s of the clock: half a second a step, and 1,300 steps are left."""
    path = tmp_path / "train.log"
    path.write_text(rows(10, 500))
    at(path, 1000.0)
    following = Follower(path, clock=lambda: 1004.0)
    before = following.look()
    assert (before.step, before.planned, before.loss) == (500, 2000, 8.0) and before.seconds_per_step is None
    path.write_text(rows(10, 700))
    at(path, 1100.0)
    following._clock = lambda: 1160.0
    seen = following.look()
    assert (seen.seconds_per_step, seen.left_seconds, seen.quiet_seconds) == (0.5, 650.0, 60.0)
    assert (
        line(seen) == "step 700/2,000   loss 7.6   500 ms a step, as watched   10.8 min left   nothing written for 60 s"
    )


def test_a_log_that_begins_again_is_timed_anew(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(rows(10, 500))
    following = Follower(path)
    following.look()
    path.write_text(rows(10, 100))
    assert following.look().seconds_per_step is None


def test_an_end_is_told_with_its_reason_and_its_exit_code(call, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(rows(10, 500) + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert look(path).status is Status.OUT_OF_MEMORY
    code, out, _ = call("watch", str(path))
    assert code == 1 and "step 500/2,000" in out and f"next: advisor analyze {path}" in out
    path.write_text(rows(10, 500))
    code, out, _ = call("watch", str(path), "--once")
    assert code == 0 and "out of memory" not in out
    code, out, _ = call("watch", str(path), "--json")
    document = json.loads(out)
    assert code == 0 and document["step"] == 500 and document["over"] is False


def test_what_is_no_log_is_refused(call, tmp_path):
    (tmp_path / "x.txt").write_text("hello\n")
    code, _, err = call("watch", str(tmp_path / "x.txt"))
    assert code == 1 and "nothing that looks like a training log" in err


@pytest.mark.long
def test_a_log_that_grows_is_followed_to_its_end(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(rows(10, 500))
    command = [sys.executable, "-m", "advisor", "watch", str(path)]
    with open(tmp_path / "said", "w") as said:
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
    for last, sign in ((600, "step 500/2,000"), (2000, "a step, as watched")):
        while sign not in (tmp_path / "said").read_text():
            assert watching.poll() is None
            time.sleep(0.1)
        path.write_text(rows(10, last) + ("Training complete\n" if last == 2000 else ""))
    out, _ = watching.communicate(timeout=300)
    assert watching.returncode == 0 and "step 2,000/2,000" in out and "completed" in out
