"""How logs say that they ended, where the runs of one log begin, and what it took: what only looks so is beside it."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta

import numpy as np
import pytest

from advisor.errors import AdvisorError
from advisor.findings.durations import file_seconds, run_seconds, spent_seconds
from advisor.findings.make_case import make_case
from advisor.readers.cells import duration_seconds
from advisor.readers.clock import BAR, SPOKEN, STAMPS, WHOLE_BYTES, bars_in, spoken_seconds
from advisor.readers.event_lines import read_line
from advisor.readers.starts import Words, segments
from tests.advisor.findings import build
from tests.advisor.readers.reading import read, verify

BANNER = "Using device: cuda\nParameters in the model: 12345\nLoading the data from disk\nOptimizer: AdamW\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 9, in main\nFileExistsError: out\n'
DONE = "Training complete in 30 s\n"
OOM = "RuntimeError: CUDA out of memory. Tried to allocate 174.00 MiB (GPU 0; 15.00 GiB total capacity)\n"
NOT_FOUND = "/var/spool/job1/slurm_script: line 9: SBATCH: command not found\n"
KILLED = "run.sh: line 3:  4242 Killed                  python train.py\n"
VIEW = "wandb: View run at https://wandb.example/runs/x\n"
PREPARED = "Using device: cuda\ndataset: 5000 images\nTotal params: 12,345\nStarting training for 30 epochs...\n"
PARTS = "loading the configuration\nbuilding the data module\nbuilding the model now\nmaking the trainer\n"
SFT = "100000 samples\n" + "".join(f'{{"step": {20 * n}, "of": 782, "loss_lm": {1 / n}}}\n' for n in range(1, 40))


def steps(first: int, last: int, planned: int = 100) -> str:
    return "".join(f"step {i}/{planned} | loss {4 - i / 50:.4f}\n" for i in range(first, last + 1))


def each(line: str, numbers=range(1, 9)) -> str:
    return "".join(line.format(n=n, l=2 - n / 20) + "\n" for n in numbers)


def silent(*lasts: int) -> str:
    """Runs that end without a word, each at its step."""
    rows = [
        "--- next ---\n" + each("  step {n:3d} loss={l:.4f}" + f"{at}", range(0, last + 1, 5))
        for at, last in enumerate(lasts)
    ]
    return "".join(rows)


ENDS = {
    "a bare traceback": (steps(1, 29, 90) + TRACEBACK.rpartition("FileExists")[0], {"status": "crashed"}),
    "where a run can be viewed": (VIEW + steps(1, 29, 90), {"status": "incomplete"}),
    "an outcome": (each("epoch {n} loss {l:.4f}") + "Classification report\n", {"status": "completed"}),
    "an outcome before the planned end": (each("epoch {n}/20 loss {l:.4f}") + "Classification report\n",
        {"status": "incomplete"}),
    "prepared, and no record": (PREPARED, {"status": "incomplete", "rows": 0,
        "says": "Starting training for 30 epochs"}),
    "the end of a training alone": (
        "  Train acc: see table\n\nTraining complete. Best checkpoint kept\nLoading the test set ...\n",
            {"status": "completed"}),
    "a wrapper's log": (
        "2026-03-01 10:00:00 Running: train_heads.py --epochs 20\n2026-03-01 12:30:00 Total time: 150 min\n",
                        {"status": "completed"}),
    "killed, and resumed for its last record": (
        each("step {n}0/1000 loss {l:.4f}", range(1, 100)) + KILLED
            + "resuming from step 990\nstep 1000/1000 loss 2.0\n",
        {"status": "completed"}),
    "killed before its last record": (
        each("step {n}0/1000 loss {l:.4f}", range(1, 100)) + KILLED + "step 1000/1000 loss 2.0\n",
            {"status": "killed"}),
    "two starts without records": (
        PARTS + TRACEBACK + PARTS + "Starting training!\nBest checkpoint: a/epoch_9.ckpt\n",
        {"runs": ["crashed", "completed"], "status": "completed"}),
    "a method's end": (each("[x] step={n}0 loss={l:.3f}") + "sft done, steps: 782\n",
        {"status": "completed", "says": "sft done, steps: 782"}),
    "words between lines of JSON": (SFT + "sft done, steps: 782\n", {"status": "completed"}),
    "out of memory between lines of JSON": (SFT + OOM, {"status": "out_of_memory"}),
    "a command that is not found, then another end": (NOT_FOUND + TRACEBACK.rpartition("FileExists")[0] + OOM,
        {"status": "out_of_memory"}),
    "a command that is not found": (NOT_FOUND, {"status": "crashed"}),
    "a round last step": (each("Step: {n}0, loss = {l:.4f}", range(1, 201)), {"status": "no_end_recorded"}),
    "a round last step that was tested": (
        each("Step: {n}0, loss = {l:.4f}", range(1, 201)) + "Accuracy on Test-Set: 71.4%\n", {"status": "completed"}),
    "as far as its configuration": ("args = Namespace(lr=0.1, epochs=30)\n" + each("Epoch {n}: train loss {l:.4f}",
        range(1, 31)),
                                    {"status": "completed"}),
    "not as far as its command": ("python train.py --epochs 40\n" + each("Epoch {n}: train loss {l:.4f}", range(1, 31)),
                                  {"status": "incomplete"}),
    "not as far as its option": ("train.py --n_epoch=40 --lr=1e-3\n" + each("Epoch {n}: train loss {l:.4f}", range(31)),
                                 {"status": "incomplete"}),
    "farther than its configuration": ("epochs: 7\n" + each("Epoch {n}: train loss {l:.4f}", range(1, 31)),
        {"status": "no_end_recorded"}),
    **{f"one bar, {done} of 40": (
        each("{{'loss': {l:.2f}, 'learning_rate': 1e-05, 'epoch': {n}}}") + "\r".join(
            f"{i}/40 [00:{i:02d}<00:01, 1.00it/s]" for i in range(done + 1)),
        {"status": status, "runs": [status], "says": "progress bar"}) for done,
            status in ((40, "completed"), (25, "incomplete"))},
    # several runs
    "killed, then done": (
        BANNER + steps(1, 40) + "Killed\n" + BANNER + steps(1, 100) + DONE,
        {"runs": [{"status": "killed", "last_step": 40},
                  {"status": "completed", "first_step": 1, "last_step": 100, "declared_seconds": 30}],
         "status": "completed", "says": "run 2 of 2"}),
    "runs that end where others did": (silent(30, 30, 10, 30, 10), {"runs": ["completed"] * 5, "status": "completed"}),
    "the last may have been cut there": (silent(30, 30, 30, 25), {"runs": ["no_end_recorded"] * 4}),
    "two that end alike": (silent(30, 30), {"runs": ["no_end_recorded"] * 2}),
    "a start that failed": (BANNER + steps(1, 100) + DONE + BANNER + TRACEBACK,
                            {"runs": [{"phase": 0}, {"phase": None}], "status": "crashed"}),
    "a start behind one that failed": (
        BANNER + steps(1, 100) + DONE + BANNER + TRACEBACK + BANNER,
        {"runs": [{"status": "completed"}, {"status": "crashed"}, {}], "status": "completed"}),
    "a stage that fails after training": (
        BANNER + steps(1, 90) + DONE + "Exporting the model\n" + TRACEBACK,
            {"runs": ["completed", "crashed"], "status": "crashed"}),
    "resumed": (BANNER + steps(1, 60) + "Killed\n" + BANNER + "Resuming from step 50\n" + steps(51, 100),
                {"runs": [{"starts": 2, "status": "completed"}]}),
    "ranks that print the banner each": (BANNER * 4 + steps(1, 100), {"runs": [{}]}),
    "tracebacks of many ranks": (BANNER + TRACEBACK * 8 + BANNER + steps(1, 100), {"runs": ["crashed", "completed"]}),
    # clocks
    "stamps of the start alone": ("2024-01-01 10:00:00 hello\n2024-01-01 10:00:05 go\n" + steps(1, 100),
        {"runs": [{"clock_seconds": None}]}),
    "a bar's clock that begins anew": (
        "\n".join("\r".join(f"Epoch {e}: {10 * i}%| {i}/10 [00:{took * i // 10:02d}<00:01, loss={3 - i / 10}]"
            for i in range(11))
                  for e, took in ((1, 50), (2, 40))) + "\n", {"runs": [{"clock_seconds": 90, "clock": BAR}]}),
    "bars printed at their ends": (  # of each epoch one of training and one of evaluation
        "".join(f"Epoch   box_loss   cls_loss\n{e}/100  1.9  2.5  512: 100%|##| 265/265 [00:{a:02d}<00:00, 9it/s]\n"
                f"        Class  Images: 100%|##| 39/39 [00:{b:02d}<00:00, 9it/s]\n          all    1229   0.{e}\n"
                for e, (a, b) in enumerate(((50, 12), (51, 11), (50, 13)), 1)) + steps(1, 4),
        {"runs": [{"clock_seconds": 151 + 36, "clock": BAR}]}),
    "bars of several epochs end no run": (
        "".join(f"Epoch {e}\n100%|##| 50/50 [00:20<00:00, 2.5it/s]\ntrain loss: {2 - e / 10}\n" for e in range(1, 5)),
        {"runs": [{"status": "no_end_recorded", "first_loss": 1.9, "last_loss": 1.6, "last_step": 4,
            "clock_seconds": 80}]}),
    "bars in a row have their own times": (
        each("100%|##| 50/50 [00:2{n}<00:00, 2.5it/s, loss={l}]\nval loss {l}", range(1, 5)),
            {"status": "no_end_recorded", "seconds": 90}),
    "bars that name their epochs": (
        each("Epoch {n}/10: 100%|##| 50/50 [00:20<00:00, 2.5it/s, loss={l}]", range(1, 5)), {"seconds": 80}),
    "one bar drawn again at its end": (
        "".join(f"\r{10 * i}%|#| {i}/10 [00:{3 * i:02d}<00:03, loss={3 - i / 10}]" for i in range(11))
        + "\nsaving\nevaluating\n100%|#| 10/10 [00:31<00:00, loss=2.0]\n", {"runs": [{"clock_seconds": 31}]}),
    "a total said of each epoch": (each("[epoch:{n}/1200] [loss:{l}] [lr:0.009] [total time:0:02:2{n}]", (1, 3, 2, 4)),
        {"seconds": 570}),
    "a total that rises": (each("[epoch:{n}/1200] [loss:{l}] [lr:0.009] [total time:0:0{n}:20]", (1, 2, 3, 4)),
        {"seconds": 260}),
    "epochs alone are timed": (
        "".join(f"[INFO] Epoch {e}/9 started\n" + "".join(f"[INFO] step={n}/40 loss={5 - e - n / 100:.3f}\n"
            for n in (10, 20, 30, 40))
                + "[INFO] Epoch train finished, avg_loss=3.1, time=120.5s\n" for e in (1, 2)),
        {"runs": [{"clock_seconds": 241.0, "clock": SPOKEN}]}),
    # as version 5 of transformers prints it
    "a runtime with an exponent": (
        each("{{'loss': '{l:.3f}', 'epoch': '0.{n}'}}")
            + "{'train_runtime': '1.573e+04', 'train_loss': '0.5', 'epoch': '1'}\n",
        {"facts": {"total_seconds": 15730.0}, "runs": [{"declared_seconds": 15730.0}]}),
    "one duration that a summary says again": (
        "Number of graphs: 600\nTRAINING START\nEpochs: 200\nTraining completed in 76.25 seconds\nTest Accuracy: 0.48\n"
        "Training time: 76.25 seconds\n", {"runs": [{"declared_seconds": 76.25}]}),
    "times on lines of their own": (
        each("Epoch {n}/5\n  Train Loss: {l:.4f}  Acc: 0.19\n  Val   Loss: 3.6\n  Time: 1m 34s\n", range(1, 6)),
                                    {"runs": [{"clock_seconds": 5 * 94}]}),
    "times of steps on lines of their own": ("Epoch 1/1\n" + each("step {n} loss {l:.4f}\n  Time: 1m 34s", range(1, 6)),
                                             {"runs": [{"clock_seconds": None}]}),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_ends_and_runs(tmp_path, name):
    text, expected = ENDS[name]
    verify(read(tmp_path, text), **expected)


def test_a_run_that_ends_where_others_did_says_so(tmp_path):
    assert "ends at step 30, as 2 other runs" in read(tmp_path, silent(30, 30, 10, 30, 10)).runs[0].status_reason


@pytest.mark.parametrize(
    "text",
    [
        "Dear all,\nthe training of our new colleagues is done.\nRegards\n",
        "We are starting training of the model with batch size 8 on a GPU; the dataset is small.\n",
    ],
)
def test_a_letter_about_a_training_is_no_log(tmp_path, text):
    with pytest.raises(AdvisorError, match="nothing that looks like"):
        read(tmp_path, text, "letter.md")


def test_row_numbers_go_on_where_iterations_start_again(tmp_path):
    text = "index,iteration,training_loss\n" + "".join(f"{n},{n % 7},{5 - n / 50}\n" for n in range(31))
    verify(read(tmp_path, text, "train.csv"), first_step=0, last_step=30, runs=[{}])


def test_an_evaluation_out_of_turn_at_the_last_step_ends_a_run(tmp_path):
    rows = [f"{step},{4 - step / 900:.4f},{4 - step / 900 if step % 50 == 0 else ''}" for step in range(0, 331, 10)]
    text = "step,loss,val_loss\n" + "\n".join(rows)
    verify(read(tmp_path, text, "m.csv"), status="no_end_recorded")
    verify(read(tmp_path, text + "3.6", "m.csv"), status="completed")  # step 330 is no multiple of 50
    lost = text.replace("\n100,3.8889,3.888888888888889", "\n100,3.8889,")  # the one at 100
    assert lost != text
    verify(read(tmp_path, lost + "3.6", "m.csv"), status="completed")


@pytest.mark.parametrize(
    "line",
    ["Training epoch 3 finished", "The model is pushed when training is completed", "Done (t=0.05s)",
     "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
     "FutureWarning: this will raise an error once training", "If the process was killed, run again",
     "Finished training data preparation", "exit_code: 0 means success", "early_stopping_patience: 10"],
)  # fmt: skip
def test_lines_that_end_nothing(line):
    assert read_line(line) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("55:03", 3303), ("1:02:03.5", 3723.5), ("3h 12m", 11520), ("90 s", 90), ("1.5 hours", 5400), ("soon", None)],
)
def test_durations(text, seconds):
    assert duration_seconds(text) == seconds


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
    verify(run, runs=[{"clock_seconds": pytest.approx(8 * 3600, abs=61), "clock": STAMPS}])


def test_bars_that_fill_one_line_take_time_in_proportion():
    line = b"Epoch: 100%|##| 5/5 [00:02<00:00, 9it/s, loss=1.0]"

    def seconds(count: int) -> float:
        began = time.process_time()
        assert [bar.seconds for bar in bars_in([(0, line * count)])] == [2]
        return time.process_time() - began

    assert seconds(20_000) < 10 * max(seconds(5_000), 0.005)  # in proportion 4, quadratic 16


def test_the_hours_of_a_log_are_those_of_its_runs_without_the_days_between(tmp_path):
    first = stamped("2024-03-01 10:00:00", "%Y-%m-%d %H:%M:%S", 3600)
    again = stamped("2024-03-09 10:00:00", "%Y-%m-%d %H:%M:%S", 7200)
    case = make_case(read(tmp_path, BANNER + first + BANNER + again))
    assert run_seconds(case) == [3600, 7200] and file_seconds(case) == 10800  # a week between them


def test_the_total_of_another_run_is_not_that_of_the_main_one(tmp_path):
    timed = "".join(f"iter {i}: loss 3.0, time 2000.00ms, mfu 1.00%\n" for i in range(1, 101))
    short = "".join(f"iter {i}: loss 2.0, time 1000.00ms, mfu 1.00%\n" for i in range(1, 11))
    run = read(tmp_path, BANNER + timed + BANNER + short + "Training complete in 12 s\n")
    verify(run, facts={"total_seconds": None})
    assert run_seconds(make_case(run)) == [200, 12]


def test_a_printed_clock_that_begins_anew_is_added():
    elapsed = np.concatenate((np.arange(1.0, 101), np.arange(1.0, 301)))
    assert spent_seconds(build.case(build.without(build.run(elapsed_seconds=elapsed), "seconds"))) == 400


def bar(done: int, total: int, seconds: int, head: str = "") -> str:
    rest = f"{seconds // 60:02d}:{seconds % 60:02d}<00:00, 2.00it/s]"
    return f"{head}{100 * done // total:3d}%|##| {done}/{total} [{rest}"


def drawn(total: int, seconds: int, head: str = "") -> str:
    return "".join(bar(total * part // 4, total, seconds * part // 4, head) + "\r" for part in range(5))


FULL = "[INFO] epoch {n}\n" + bar(100, 100, 300) + "\n[INFO] Evaluation\n" + bar(20, 20, 30) + "\nmean loss: 0.{n}\n"
HOURS = {
    "bars printed when full, and one cut off": ("".join(FULL.format(n=n) for n in range(1, 5))
        + "[INFO] epoch 5\n" + bar(9, 100, 27), 4 * 330 + 27),
    "bars of training, validation and a longer test": ("".join(f"{drawn(100, 40, f'Epoch {n}/9 train:')}\n"
        f"{drawn(10, 4, f'Epoch {n}/9 val:')}\n{drawn(10, 80, '[Eval]')}\nEpoch {n}/9 Train Loss: {3 / n:.4f}\n"
        for n in range(1, 4)), 3 * 124),
    "two bars of one length, the second one left at once": ("".join(f" epoch {n}\n{bar(90, 90, 60)}\n"
        f"{bar(2, 90, 1)}\nEpoch {n} mean loss: 0.7{9 - n}\n" for n in range(5)), 5 * 60),
    "bars within a bar": (bar(0, 3, 0) + "\r" + "".join(f"{drawn(50, 100, 'in')}\r{bar(n, 3, 110 * n)}\r\n"
        f"epoch {n}: loss {4 - n:.2f}\n" for n in (1, 2, 3)), 330),
    "bars within a bar of which only the end is left": (bar(3, 3, 330, "Epochs:") + "\n"
        + "".join(f"Epoch {n}: {bar(50, 50, 100)}\nepoch {n}: loss {4 - n:.2f}\n" for n in (1, 2, 3)), 330),
    "an epoch still under way": (bar(0, 9, 0) + "\r" + "".join(f"{drawn(50, 100, 'in')}\r{bar(n, 9, 110 * n)}\r\n"
        f"epoch {n}: loss {4 - n:.2f}\n" for n in (1, 2, 3)) + bar(1, 50, 2, "in") + "\r" + bar(25, 50, 50, "in"), 380),
    "iterations per second beside a batch size": ("".join(
        f"[{n:06d}/05000] cats | loss {4 - n / 5000:.4f} | 2.50 it/s | ETA 9.1 min | batch 16\n"
        for n in range(0, 5000, 100)), 4901 / 2.5),
    "tokens per second and those of a step": ("Tokens / optimizer step : 32,768\n" + "".join(
        f"step {n} | loss {4 - n / 500:.4f} | 16.384k tok/s\n" for n in range(10, 510, 10)), 500 * 2.0),
    "tokens per second and a batch in tokens": ("Effective batch size: 64 (65,536 tokens)\n" + "".join(
        f"step {n} | loss {4 - n / 500:.4f} | 16.384k tok/s\n" for n in range(10, 510, 10)), 500 * 4.0),
    "samples per second and a batch": ("batch_size: 64\n" + "".join(
        f"step {n} | loss {4 - n / 500:.4f} | 128.0 img/s\n" for n in range(10, 510, 10)), 500 * 0.5),
    "seconds of an epoch as a rate": (each("Epoch {n} | loss {l:.4f} | 61.5 s/epoch"), 8 * 61.5),
    "seconds of an epoch between dashes": (each("Epoch {n} - 61.5s - loss: {l:.4f} - val_loss: 1.5"), 8 * 61.5),
    "a runtime on each epoch's row": (each("Epoch {n} Loss {l:.4f} Runtime 61.5"), 8 * 61.5),
    "an estimate of the rest, called the epoch's time": ("".join(
        f"Epoch:[1/1]({n}/100) loss:{4 - n / 99:.3f} epoch_time:{100 - n}.0min\n" for n in range(1, 101)), 98 * 60),
    "a time behind the words of the end": (steps(1, 100) + "Finished training. Time: 500.0 seconds\n", 500),
    "a scheduler's account": (steps(1, 100) + "resources_used.walltime=00:08:20\n", 500),
    "a Trainer's summary under rows of its own": (steps(1, 100)
        + "{'train_runtime': 500.0, 'train_samples_per_second': 2.0, 'epoch': 1.0}\n", 500),
    "a script's own clock": (steps(1, 100) + "--- 500.0 seconds ---\n", 500),
    "its own statement, which a start of minutes exceeds": ("2026-01-01 10:00:00 loading\n" + "".join(
        f"2026-01-01 10:05:{n:02d} timer\n[Step {n}/50] Loss: {4 - n / 50:.4f}\n" for n in range(1, 51))
        + "Training done in 50.50 seconds.\n", 50.5),
    "durations alone on their lines": ("".join(f"iter {n}:, loss={4 - n / 5000:.5f}\n"
        + "0:04:10.250000\n" * (n % 1000 == 0) for n in range(100, 4100, 100)) + "Training COMPLETE\n", 4 * 250.25),
    "the times of epochs on each of their rows": ("".join(
        f"Epoch {e} step {n} loss {3 - e - n / 99:.3f} time_per_epoch: {60.5 + e}s\n"
        for e in (0, 1) for n in (1, 2, 3)), 60.5 + 61.5),
}  # fmt: skip


@pytest.mark.parametrize("case", HOURS)
def test_hours_without_a_stamp_on_each_row(tmp_path, case):
    text, seconds = HOURS[case]
    assert file_seconds(make_case(read(tmp_path, text))) == pytest.approx(seconds, rel=0.01)


def test_bars_and_words_of_a_long_log_are_all_counted(tmp_path):
    def log(between: int) -> str:
        rest = "".join(f"image {n} of the set was looked at\n" for n in range(between))
        return "".join(f"{drawn(100, 40)}\n{rest}epoch {n}: loss {4 / n:.3f}\n" for n in range(1, 21))

    short, long = (read(tmp_path, log(between), f"{between}.log") for between in (1, 5000))
    assert len(log(5000)) > WHOLE_BYTES and [one.runs[0].clock_seconds for one in (short, long)] == [800, 800]


@pytest.mark.parametrize(("name", "factor"), [("time_sec", 1), ("time", 1), ("train_time_min", 60)])
def test_a_time_in_a_table_of_epochs_is_that_of_the_epoch(tmp_path, name, factor):
    rows = [{"epoch": n, "avg_loss": 2 - n / 9, name: 205.5 + (-1) ** n} for n in range(8)]
    run = read(tmp_path, json.dumps(rows, indent=2), "history.json")
    assert (run.format, run.first_loss, run.last_step) == ("jsonl", 2.0, 7)
    assert file_seconds(make_case(run)) == pytest.approx(8 * 205.5 * factor)


LEFT = [200.0 - 2 * n for n in range(1, 101)]  # of a run of 200 min, in 100 lines


@pytest.mark.parametrize(
    ("line", "values", "seconds"),
    [
        ("Epoch {n} finished, mean loss 4.1, time={t}s", [100.5, 99.5, 101.0], 301.0),
        ("Time for epoch {n}: {t} min", [1.5, 1.5], 180.0),
        ("epoch {n} done (loss falls) took {t} s", [60.0], 60.0),
        ("Epoch {n}: elapsed {t} s", [10.0, 20.0, 31.0, 40.0], 40.0),  # counts on
        ("Epoch {n}, 第{n}轮 耗时 {t} 秒", [30.0, 31.0], 61.0),
        ("Epoch {n}/50 completed in 2m 30s. Loss: {t}", [0.8, 0.7, 0.6], 3 * 150.0),
        ("Epoch {n} took 1h 2m 3s and {t} more", [1.0, 2.0], 2 * 3723.0),
        ("Epoch {n} took 1 hour, 1 minute", [0.0, 0.0], 2 * 3660.0),
        ("Epoch {n} ETA {t} s", [30.0, 20.0], None),
        ("Epoch {n} time per batch: {t} s", [0.3, 0.3], None),
        ("Epoch {n} acc ({t}) next", [0.5, 0.6], None),
        ("Epoch [1/3] step {n} loss 0.5 time: {t} s", [1.25] * 50, None),  # of every step
        # a time that falls to nothing is what is left: half of it at the middle
        ("Epoch:[1/1]({n}/100) loss: 2.0, epoch_time: {t}min", LEFT, 2 * LEFT[50] * 60),
    ],
)  # fmt: skip
def test_epochs_durations_add_up(line, values, seconds):
    text = "\n".join(line.format(n=n, t=t) for n, t in enumerate(values, 1)).encode()
    assert spoken_seconds(text) == (None if seconds is None else pytest.approx(seconds))
