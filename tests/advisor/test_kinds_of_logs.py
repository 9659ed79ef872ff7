"""Kinds of fault that logs of strangers showed, each by a small log of that kind, through `analyze`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from advisor.store.store import Store
from advisor.workflows.analysis import Analysis, Given
from advisor.workflows.analyze import analyze


def loss(i: int, of: int = 100) -> float:
    return 3 + 6 * math.exp(-4 * i / of)


def analysed(tmp_path: Path, lines: Iterable[str], name: str = "train.log") -> Analysis:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return analyze(path, Given(), Store(tmp_path / "home"))


def stamped(start: datetime, rows: int, minutes: float, form: str = "%Y-%m-%d %H:%M:%S", first: int = 0) -> list[str]:
    moments = (start + timedelta(minutes=minutes * i) for i in range(rows))
    return [
        f"[{at.strftime(form)}] step {100 * (first + i)} loss {loss(first + i):.4f}" for i, at in enumerate(moments)
    ]


@pytest.mark.parametrize(
    "form",
    ["%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y %I:%M:%S %p",
     "%d/%m/%y %H:%M:%S", "%m/%d/%y %H:%M:%S", "%y/%m/%d %H:%M:%S"],
)  # fmt: skip
@pytest.mark.parametrize("day", [11, 2])  # of February: either order of the first days is a date, or of all of them
def test_the_whole_log_decides_which_number_is_the_day(tmp_path, form, day):
    found = analysed(tmp_path, stamped(datetime(2024, 2, day, 20), 100, 20, form))
    assert found.spent_hours == pytest.approx(33.0)


LISTING = ["2024-03-01 08:00 ckpt-1000.pt", "2024-03-01 12:00 ckpt-5000.pt", "2024-03-01 18:00 ckpt-9900.pt"]
ROWS = [f"step {100 * i} | loss {loss(i):.4f} | lr 0.0003" for i in range(100)]


@pytest.mark.parametrize(
    ("lines", "hours"),
    [
        (LISTING + ROWS, None),
        (ROWS + ["saved:", *LISTING], None),
        (["2024-03-01 08:00:00 tokenizer of this date found", *stamped(datetime(2024, 3, 2, 10), 121, 1)], 2.0),
        # start-up and a last evaluation beside the rows are of the run
        (
            ["2024-03-02 09:48:00 reading", *stamped(datetime(2024, 3, 2, 10), 100, 1), "2024-03-02 12:00:00 tested"],
            2.2,
        ),
        # rows without stamps between two that have one
        (["started 2024-03-02 09:00:00", *ROWS, "ended 2024-03-02 14:00:00"], 5.0),
    ],
)
def test_only_stamps_on_or_around_rows_are_the_runs_clock(tmp_path, lines, hours):
    found = analysed(tmp_path, lines)
    assert found.spent_hours == (None if hours is None else pytest.approx(hours))


def test_the_time_between_sessions_is_no_hour_of_the_run(tmp_path):
    first, second = stamped(datetime(2024, 1, 1, 10), 21, 6), stamped(datetime(2024, 1, 3, 9), 31, 6, first=20)
    assert analysed(tmp_path, [*first, "Resumed from step 2000", *second]).spent_hours == pytest.approx(5.0)
    again = stamped(datetime(2024, 1, 4, 10), 31, 6)
    assert analysed(tmp_path, [*first, "Training finished.", *again]).spent_hours == pytest.approx(5.0)


def test_a_duration_said_twice_in_other_words_is_one(tmp_path):
    said = ["Starting training of the model", "epochs: 3, optimizer: AdamW, batch size 8"]
    said += ["Training completed in 2:30:00.31", "Completed training in 9000.52s", "Training complete"]
    assert analysed(tmp_path, said).spent_hours == pytest.approx(2.5, rel=0.01)


def test_an_epochs_own_clock_begins_anew_with_the_next(tmp_path):
    rows = [
        line
        for epoch in range(1, 13)
        for line in (
            *(f"Epoch: {epoch:3d} | Batch: {b:5d}/ 1330 | Loss: {loss(epoch, 30):.4f} | Time: {b * 0.3:.1f}s"
              for b in range(100, 1301, 100)),
            f"| end of epoch {epoch:3d} | time: 400.00s | valid loss {loss(epoch, 30):.2f}",
        )
    ]  # fmt: skip
    assert analysed(tmp_path, rows).spent_hours == pytest.approx(12 * 400 / 3600, rel=0.05)
    assert analysed(tmp_path, [row for row in rows if "end" not in row]).spent_hours == pytest.approx(12 * 390 / 3600)


def ends(found: Analysis) -> tuple[float | None, ...]:
    run = found.run
    return run.first_step, run.last_step, run.first_loss, run.last_loss


def test_rows_of_numbers_behind_a_date_are_read_with_a_header(tmp_path):
    rows = [
        f"[2024-01-01 {10 + i // 10}:{6 * (i % 10):02d}:00] {i * 100} {loss(i):.4f} 0.0003 {1 + i % 3}.5"
        for i in range(50)
    ]
    told = (0, 4900, round(loss(0), 4), round(loss(49), 4))
    assert ends(analysed(tmp_path, ["[2024-01-01 09:59:00] step loss lr norm", *rows], "headed.log")) == told


def test_rows_behind_bytes_of_zero_are_read(tmp_path):
    rows = "".join(f"step {i} loss {loss(i):.4f}\n" for i in range(1, 101))
    (tmp_path / "cut.log").write_bytes(b"\0" * 5000 + rows[:900].encode() + b"\0" * 300 + rows[900:].encode())
    found = analyze(tmp_path / "cut.log", Given(), Store(tmp_path / "home"))
    assert ends(found) == (1, 100, round(loss(1), 4), round(loss(100), 4)) and found.run.rows == 100


def held_out(epoch: int) -> float:
    return 1.2 + 0.9 * math.exp(-epoch / 3) + max(0, epoch - 8) * 0.06


def own(epoch: int) -> float:
    return 0.1 + 2 * math.exp(-epoch / 7)


@pytest.mark.parametrize(
    "row",
    [
        "epoch {e}, t_loss {t:.4f}, v_loss {v:.4f}",
        "epoch {e} loss: {t:.4f} vloss: {v:.4f}",
        "Epoch {e:03d} | trn_loss: {t:.4f} | dev_loss: {v:.4f}",
        "epoch {e} - loss_train: {t:.4f} - loss_vali: {v:.4f}",
    ],
)
def test_validation_under_a_short_name_shows_overfitting(tmp_path, row):
    found = analysed(tmp_path, (row.format(e=e, t=own(e), v=held_out(e)) for e in range(1, 31)))
    assert ends(found)[2:] == (round(own(1), 4), round(own(30), 4))
    assert "overfitting" in {finding.code for finding in found.findings}


@pytest.mark.parametrize(
    "header", ["loss,v_loss", "tr_loss,vl_loss", "loss_t,loss_v", "trainLoss,valLoss", "t_loss,va_loss"]
)
def test_columns_of_validation_under_a_short_name_show_overfitting(tmp_path, header):
    rows = [f"epoch,{header}", *(f"{e},{own(e):.4f},{held_out(e):.4f}" for e in range(1, 31))]
    assert "overfitting" in {finding.code for finding in analysed(tmp_path, rows, "history.csv").findings}


@pytest.mark.parametrize("beside", ["pg_loss", "policy_loss", "u_loss", "entropy_loss"])
def test_a_critics_or_a_speeds_loss_is_no_validation(tmp_path, beside):
    rows = [f"step,loss,{beside},v_loss", *(f"{e},{own(e):.4f},0.1,{held_out(e):.4f}" for e in range(1, 31))]
    assert not {"overfitting", "no_validation"} <= {f.code for f in analysed(tmp_path, rows, "ppo.csv").findings}
    assert "eval_loss" not in analysed(tmp_path, rows, "ppo.csv").run.columns


def test_a_letter_that_pairs_names_marks_the_held_out_split_of_an_autoencoder_too(tmp_path):
    rows = [
        f"Epoch {e}: v_recons {held_out(e) / 2:.4f} recons {own(e) / 2:.4f} v_loss {held_out(e):.4f} loss {own(e):.4f} "
        f"v_kl {held_out(e) / 9:.4f} kl {own(e) / 9:.4f}"
        for e in range(1, 31)
    ]
    run = analysed(tmp_path, rows, "vae.log").run
    assert run.column("eval_loss")[-1] == pytest.approx(round(held_out(30), 4))
    assert run.last_loss == pytest.approx(round(own(30), 4))


TRACE = ["Traceback (most recent call last):", '  File "train.py", line 88, in main', "    loss.backward()"]
STOPPED = [*TRACE, "KeyboardInterrupt"]
TRACKER = ["wandb: Run history:", "wandb: Run summary:", "wandb: best_val_acc 0.93", "wandb: Synced 5 W&B file(s)"]
BANNER = ["Using device: cuda", "Loading dataset from data/train.bin", "Model has 12.3M parameters", "Optimizer: AdamW"]
STEPS = [f"step {10 * i} loss {loss(i):.4f}" for i in range(1, 61)]
HUNDREDTHS = [f"step {100 * i} loss {loss(i):.4f}" for i in range(1, 101)]
EPOCHS = [f"Epoch {e}/20 train loss {loss(e, 20):.4f}" for e in range(1, 21)]
SHORT = [f"Epoch {e}/50 train loss {loss(e, 20):.4f}" for e in range(1, 21)]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        # the tail of a tracker ends nothing, and contradicts nothing
        ([*STEPS, *STOPPED, *TRACKER], "stopped"),
        ([*STEPS, "^C" + TRACE[0], *TRACE[1:], *TRACKER], "stopped"),
        ([*SHORT, *TRACKER], "incomplete"),
        ([*SHORT, *TRACE, "RuntimeError: shape mismatch", "Cleaning up", "Done.", *TRACKER], "crashed"),
        ([*SHORT, "Received signal 15, terminating", *TRACKER], "killed"),
        # what a program says once it has caught an interrupt
        ([*SHORT, "Interrupted! Saving the model to out/last.pt", "Training finished, best val loss 3.2"], "stopped"),
        ([*SHORT, "Received SIGINT, saving", "Final checkpoint saved to out/final.pt", "Done!"], "stopped"),
        ([*EPOCHS, "Training complete.", "showing plots", *STOPPED], "completed"),
        # a start behind a run that had finished
        ([*BANNER, *EPOCHS, "Training complete.", *BANNER, *EPOCHS[:3], *STOPPED], "stopped"),
        ([*BANNER, *EPOCHS, "Training complete.", *BANNER, *STOPPED, *TRACKER], "stopped"),
        ([*BANNER, *EPOCHS, "Training complete.", *BANNER, *EPOCHS[:3]], "incomplete"),
        # steps that look round because every hundredth is printed
        (HUNDREDTHS, "incomplete"),
        ([*HUNDREDTHS, "saving checkpoint to out/ckpt.pt"], "incomplete"),
        ([f"epoch {e} train loss {loss(e):.4f} val loss {loss(e) + 0.1:.4f}" for e in range(1, 101)], "incomplete"),
        (["max_steps: 10000", *HUNDREDTHS], "completed"),
        # the last epoch has only begun when it is first named
        (["Epochs: 1", "Total steps: 4000", *(f"epoch 1/1 {step}" for step in STEPS)], "incomplete"),
        ([*STEPS, "[2026-06-26 18:39:46] run complete @ step 600: 13.2 min training time"], "completed"),
    ],
)  # fmt: skip
def test_a_run_is_complete_only_by_evidence_that_nothing_contradicts(tmp_path, lines, status):
    found = analysed(tmp_path, lines)
    assert found.run.status == status, found.run.status_reason


def findings(found: Analysis) -> dict[str, str]:
    return {finding.code: f"{finding.severity}: {finding.title}" for finding in found.findings}


LOGGED = [f"2025-06-11 09:{e:02d}:00.0 | INFO    | app:train:58 - epoch {e} loss {loss(e, 20):.4f}" for e in range(20)]


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("SUCCESS | app:train:97 - finished, best model saved", "completed"),
        ("INFO    | app:train:97 - Done, the best model has been saved", "completed"),
        ("SUCCESS | app:train:97 - All done!", "completed"),
        ("INFO    | app:train:97 - best model saved", "incomplete"),  # after any epoch
        ("INFO    | app:save:12 - done", "incomplete"),  # with whatever it did
        ("SUCCESS | app:train:97 - epoch 19 finished", "incomplete"),
    ],
)
def test_last_words_behind_a_loggers_level_are_an_end(tmp_path, last, status):
    found = analysed(tmp_path, [*LOGGED, f"2025-06-11 09:21:00.0 | {last}"])
    assert found.run.status == status, found.run.status_reason


def test_each_stage_of_a_script_is_judged(tmp_path):
    held = [1.2, 1.0, 0.9, 0.85, 0.9, 1.0, 1.1, 1.2]  # overfitting in the shorter stage
    first = [f"step {10 * i} | loss {2 - 0.1 * i:.4f} | val loss {v:.4f}" for i, v in enumerate(held, 1)]
    first += [f"step {10 * i} | loss {2 - 0.1 * i:.4f} | val loss 1.3" for i in range(9, 13)]
    lines = ["=== Stage 1: pretrain ===", *first, "=== Stage 2: tune ===", *STEPS, "Training complete."]
    found = analysed(tmp_path, lines)
    ends = [(part.name, part.status, part.status_reason) for part in found.run.runs]
    assert ends[0] == ("stage 1", "completed", "stage 2 follows it") and ends[1][1] == "completed"
    assert "“stage 1”: Overfitting: validation loss is best at step 40" in findings(found)["other_runs"]
    cut = analysed(tmp_path, lines[:-5], "cut.log")
    assert [part.status for part in cut.run.runs] == ["completed", "incomplete"]
    failed = ["=== Stage 1 ===", *first, *FAILED, "=== Stage 2 ===", *STEPS]
    assert analysed(tmp_path, failed, "failed.log").run.runs[0].status == "crashed"


FAILED = [*TRACE, "ValueError: bad shape"]


def test_many_starts_that_never_trained_are_said(tmp_path):
    lines = [line for _ in range(24) for line in (*BANNER, *FAILED)]
    said = findings(analysed(tmp_path, [*lines, *BANNER, *EPOCHS]))["failed_runs"]
    assert said == "warning: 24 of 25 runs in this log ended before their first step"
    rows = [f"2024-01-01 11:{i:02d}:00 {row}" for i, row in enumerate(EPOCHS)]
    together = [f"2024-01-01 10:00:0{k} {line}" for k in range(6) for line in BANNER]
    assert "failed_runs" not in findings(analysed(tmp_path, [*together, *rows], "ranks.log"))


def test_a_banner_behind_rows_makes_each_banner_a_start(tmp_path):
    rows = [f"step {20 * i}/44660 lr: 0.000000 loss: {9.1 - 0.1 * i:.4f}" for i in range(5)]
    failed = [*BANNER, *BANNER, *FAILED]  # the first of two starts leaves no word
    lines = [*(3 * failed), *BANNER, *rows, *failed, *(2 * failed)]
    found = analysed(tmp_path, lines)
    assert [part.phase for part in found.run.runs] == [*[None] * 6, 0, *[None] * 6]
    said = findings(found)
    assert said["failed_runs"] == "warning: 12 of 13 runs in this log ended before their first step"
    assert said["crashed"].endswith("before the first step of run 13")
    assert "learning_rate_zero" not in said  # of a warm-up only the digits are 0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([f"| {k} | {'failed' if k < 93 else 'completed'} | |" for k in range(100)], "error: 93 runs"),
        ([f"{k:3d}  {'CRASHED' if k < 93 else 'ok'}" for k in range(100)], "error: 93 runs"),
        (["93 of 100 runs failed"], "error: 93 of 100 runs"),
        (["Failed: 4/100"], "warning: 4 of 100 runs"),
    ],
)
def test_the_last_of_many_jobs_does_not_speak_for_all(tmp_path, table, said):
    assert findings(analysed(tmp_path, [*table, *STEPS, "Training complete."]))["failed_runs"].startswith(said)


def test_of_many_jobs_in_one_log_those_that_failed_are_counted(tmp_path):
    jobs = [
        line
        for k in range(30)
        for line in (
            f"==== job {k} ====",
            *BANNER,
            *(f"Epoch {e}/5 train loss {loss(e, 9) + k / 99:.4f}" for e in range(1, 3 if k < 20 else 6)),
            *(FAILED if k < 20 else ["Training complete."]),
        )
    ]
    found = analysed(tmp_path, jobs)
    assert found.run.status == "completed" and len(found.run.runs) == 30
    assert findings(found)["failed_runs"] == "error: 20 of 30 runs in this log failed"


def rounds(row: str, end: str = "", epochs: int = 19) -> list[str]:
    lines = []
    for epoch in range(epochs):
        lines += [row.format(b=b, loss=loss(epoch * 5 + b // 100, 5 * epochs)) for b in range(0, 500, 100)]
        lines += [end.format(e=epoch)] if end else []
    return lines


@pytest.mark.parametrize(
    "lines",
    [
        rounds("iter {b}/500 loss {loss:.4f}"),
        rounds("iter {b} loss {loss:.4f} lr 0.001", "Training complete for epoch {e} in 0m 32s"),
        rounds("Training:  10%|#         | {b}/500 [00:04<00:10, 20.1it/s, loss={loss:.4f}]"),
        [line for e in range(95) for line in ("100%|####| 500/500 [00:25<00:00, 20.1it/s]",
                                              "100%|####| 50/50 [00:02<00:00, 20.1it/s]",
                                              f"train loss: {loss(e, 95):.4f}, val loss: {loss(e, 95) + 0.1:.4f}")],
    ],
)  # fmt: skip
def test_neither_each_epoch_nor_each_bar_is_a_run(tmp_path, lines):
    run = analysed(tmp_path, lines).run
    assert (len(run.runs), run.rows) == (1, 95) and run.last_loss == pytest.approx(loss(94, 95), abs=0.01)
    assert run.first_step is None and run.last_step is None  # a batch's number is no step of the run


def test_a_sweep_whose_runs_begin_anew_is_no_run_of_epochs(tmp_path):
    rows = [f"iter {b}/500 loss {loss(b, 500) + k / 50:.4f}" for k in range(5) for b in range(0, 500, 20)]
    assert len(analysed(tmp_path, rows).run.runs) == 5


def test_what_is_said_of_each_epoch_is_added(tmp_path):
    lines = rounds("iter {b} loss {loss:.4f} lr 0.001", "Training complete for epoch {e} in 0m 32s")
    assert analysed(tmp_path, lines).spent_hours == pytest.approx(19 * 32 / 3600)


def test_what_was_right_of_how_many_is_no_step(tmp_path):
    rows = [f"epoch {e}\nloss: {loss(e):.4f}\ntest accuracy: {e / 2:.2f}%, ({e * 120}/24661)" for e in range(1, 81)]
    assert ends(analysed(tmp_path, rows))[:2] == (1, 80)


INSTALLERS = [
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
    "E: Unable to locate package libfoo",
    "npm ERR! code ENOSPC: No space left on device",
    "dpkg: error processing package foo (--configure):",
]


@pytest.mark.parametrize("place", ["before", "after"])
def test_an_installers_error_is_none_of_the_run(tmp_path, place):
    run = [*EPOCHS, "Training complete."]
    found = analysed(tmp_path, [*INSTALLERS, *run] if place == "before" else [*run, *INSTALLERS])
    assert found.run.status == "completed" and not {"crashed", "later_failure"} & findings(found).keys()


def test_a_full_disk_that_the_run_went_on_after_did_not_end_it(tmp_path):
    full = "OSError: [Errno 28] No space left on device (preview image, ignored)"
    assert analysed(tmp_path, [*EPOCHS[:9], full, *EPOCHS[9:], "Training complete."]).run.status == "completed"
    assert analysed(tmp_path, [*EPOCHS[:9], *TRACE, full], "full.log").run.status == "crashed"


def test_noise_at_chance_is_no_overfitting(tmp_path):
    rows = [
        f"epoch {e} train_loss {0.69 - 0.005 * e:.4f} val_loss {0.693 + 0.0025 * max(0, e - 8) + math.sin(e) / 500:.4f}"
        f" val_acc {0.5 + 0.012 * math.sin(7 * e):.3f}"
        for e in range(1, 41)
    ]
    said = findings(analysed(tmp_path, rows))
    assert "overfitting" not in said
    assert said["at_chance"] == "warning: Held-out data are never known better than by a guess among 2 classes"


@pytest.mark.parametrize(
    "words",
    [
        ["torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled cuda error",
         "ncclUnhandledCudaError: Call to CUDA function failed.", "Last error:", "Cuda failure 'out of memory'"],
        ["RuntimeError: NCCL communicator was aborted on rank 2. Original reason for failure was: ncclSystemError:"
         " System call (e.g. socket, malloc) or library call failed, or out of memory"],
        ["[rank3]:[E ProcessGroupNCCL.cpp:523] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9,"
         " OpType=ALLREDUCE, NumelIn=33, Timeout(ms)=1800000) ran for 1800403 milliseconds before timing out."],
    ],
)  # fmt: skip
def test_a_crash_of_a_collective_is_no_lack_of_memory(tmp_path, words):
    found = analysed(tmp_path, [*SHORT, *TRACE, *words])
    assert found.run.status == "crashed" and "out_of_memory" not in findings(found)


def test_a_rate_lowered_where_the_loss_stands_still_ends_no_run(tmp_path):
    rows = ["epoch,loss,lr", *(f"{e},{loss(e, 24):.4f},{0.001 * 0.2 ** (e // 5):.2e}" for e in range(24))]
    assert analysed(tmp_path, rows, "plateau.csv").run.status == "unknown"


def lsf(job: int, code: int) -> list[str]:
    ended = f"Exited with exit code {code}." if code else "Successfully completed."
    return [
        "------------------------------------------------------------",
        f"Subject: Job {job}: <train> in cluster <c1> {'Exited' if code else 'Done'}",
        f"Job was executed on host(s) <gpu05>, in queue <v100>, at Fri Apr 25 {job % 24:02d}:31:44 2025",
        f"Started at Fri Apr 25 {job % 24:02d}:31:44 2025",
        "Your job looked like:",
        "#BSUB -q v100",
        ended,
        "The output (if any) is above this job summary.",
        "PS:",
        "Read file <train.err> for stderr output of this job.",
    ]


def test_jobs_that_a_scheduler_sums_up_in_one_file_are_one_run_each(tmp_path):
    lines = [line for job in range(20) for line in ("Using device: cuda", "trainable params: 3,407,872", *lsf(job, 1))]
    found = analysed(tmp_path, lines, "train.out")
    assert len(found.run.runs) == 20 and found.run.status == "crashed"
    assert findings(found)["failed_runs"].startswith("warning: 20 of 20 runs in this log")


def test_what_each_epoch_prints_again_is_no_start(tmp_path):
    lines = [
        line
        for epoch in range(1, 16)
        for line in (
            f"EPOCH {epoch} COMPLETED @ {epoch}:07 AM",
            f"2024-03-31 {epoch + 4:02d}:08:00.847277: I tensorflow/shuffle_dataset_op.cc:422] Filling up buffer",
            f"2024-03-31 {epoch + 4:02d}:08:02.034692: I tensorflow/shuffle_dataset_op.cc:452] Shuffle filled.",
            f"SAVED CHECKPOINT @ EPOCH {epoch}",
        )
    ]
    limit = "slurmstepd: error: *** JOB 3073 ON c17 CANCELLED AT 2024-04-01T01:06:20 DUE TO TIME LIMIT ***"
    found = analysed(tmp_path, [*lines, limit])
    assert len(found.run.runs) == 1 and "failed_runs" not in findings(found) and found.run.status == "time_limit"


def test_networks_trained_one_after_the_other_are_a_run_each_however_many_epochs(tmp_path):
    rows = [
        f"Epoch: {epoch}, Step: {step}, all_loss: {net + loss(epoch * 5 + step // 200):.4f}, lr:0.01"
        for net in range(3)
        for epoch in range(1, 21)
        for step in range(0, 1000, 200)
    ]
    run = analysed(tmp_path, rows).run
    assert [(part.first_step, part.last_step) for part in run.runs] == [(1, 20)] * 3


def test_a_language_model_that_begins_with_nothing_left_to_learn_is_too_good(tmp_path):
    banner = ["GPT language model, 12 layers", "vocab_size: 50257", "block_size: 256"]
    rows = [f"step {100 * i} loss {0.0052 + 0.0001 * (i % 7):.4f}" for i in range(100)]
    assert "too_good" in findings(analysed(tmp_path, [*banner, *rows]))
    tagger = ["BiLSTM-CRF tagger", "vocab_size: 21128", *rows]
    assert "too_good" not in findings(analysed(tmp_path, tagger, "tagger.log"))


def test_of_a_large_log_only_the_time_between_its_sessions_is_left_out(tmp_path):
    filler = "x" * 90
    rows = [f"{row} {filler}" for row in stamped(datetime(2024, 1, 1, 10), 9000, 0.2)]
    later = [f"{row} {filler}" for row in stamped(datetime(2024, 1, 5, 10), 9000, 0.2, first=9000)]
    assert sum(map(len, rows + later)) > 2**21  # of which only parts are looked at
    assert analysed(tmp_path, [*rows, "Resuming from step 900000", *later]).spent_hours == pytest.approx(60, rel=0.02)


def test_a_loop_of_the_first_start_is_no_start(tmp_path):
    each = ["asking for the next shard", "acquiring its lock", "lock acquired", "opening a connection", "shard written"]
    fetching = [f"DEBUG download: {words}" for words in (*each, "releasing its lock", "lock released")]
    lines = [*BANNER, "ERROR cannot load the tokenizer", *BANNER, *(20 * fetching), "Training complete."]
    day = datetime(2025, 1, 7, 9)
    stamps = [f"{day + timedelta(minutes=2 * n):%Y-%m-%d %H:%M:%S}" for n in range(len(lines))]
    found = analysed(tmp_path, [f"{stamp} {line}" for stamp, line in zip(stamps, lines, strict=True)])
    assert len(found.run.runs) == 1 and found.run.status == "completed"


def scheduled(rates: Sequence[float], notes: Mapping[int, str] | None = None) -> list[str]:
    """Rows of every tenth step at these rates; `notes` stand before the row of their number."""
    rows = [f"step {10 * i} | loss {loss(i):.4f} | lr {rate:.3e}" for i, rate in enumerate(rates)]
    return [line for i, row in enumerate(rows) for line in ((notes or {}).get(i), row) if line]


def cosine(rows: int, peak: float = 1e-3) -> list[float]:
    return [peak * (1 + math.cos(math.pi * i / rows)) / 2 for i in range(rows)]


RESUMED = {60: "Resuming from checkpoint out/step_590"}
WARMED = [1e-3 * min(1, i / 10) * (1 - i / 120) for i in range(100)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        # cos(0.59 π) leaves 36 % of the peak
        (scheduled(cosine(100)[:60] + cosine(100)[:40], RESUMED), "step 600, the learning rate starts anew: 0.00036"),
        (scheduled(WARMED[:60] + WARMED[1:40], RESUMED), "warms up anew: 0.000508 before, 9.92e-05 after"),
        (scheduled(cosine(60) + cosine(60)), "starts again: 6.85e-07 at step 590, 0.001 at step 600"),
        (scheduled(cosine(100), RESUMED), ""),  # resumed with its schedule
        (scheduled(WARMED, {5: RESUMED[60]}), ""),  # within its warm-up
        (scheduled(cosine(25) * 4), ""),  # warm restarts are meant
        (scheduled([1e-3] * 50 + [1e-4] * 50), ""),  # lowered in steps
    ],
)
def test_a_learning_rate_that_starts_again_is_said(tmp_path, lines, said):
    title = findings(analysed(tmp_path, lines)).get("schedule_starts_again", "")
    assert said in title and bool(said) == bool(title)


def timed(seconds: Iterable[float], tokens: Iterable[int] | None = None) -> list[str]:
    """Rows of every tenth of 1,000 steps, the steps of which take these seconds."""
    counts = [f" | tokens {n}" for n in tokens] if tokens is not None else [""] * 100
    rows = enumerate(zip(seconds, counts, strict=True), 1)
    return [f"step {10 * i}/1000 | loss {loss(i):.4f} | {1000 * s:.1f} ms/step{more}" for i, (s, more) in rows]


def wobbly(*parts: tuple[int, float]) -> list[float]:
    return [seconds * (1 + 0.03 * math.sin(7 * i)) for rows, seconds in parts for i in range(rows)]


@pytest.mark.parametrize(
    ("seconds", "tokens", "said"),
    [
        # 40 rows of 10 steps take 1 s more each: 400 s
        (wobbly((60, 1), (40, 2)), None, "From step 610 on a step takes 2.01 s instead of 1 s: 6.68 min lost"),
        (wobbly((60, 1), (20, 2), (20, 1)), None, ""),  # only for a while
        (wobbly((50, 2), (50, 1)), None, ""),  # faster
        ([1 + i / 100 for i in range(100)], None, ""),  # little by little, as answers grow
        ([1 + (i % 3 == 0) * i / 100 for i in range(100)], None, ""),  # batches of unlike lengths
        # twice as many tokens in a step take twice as long
        (wobbly((60, 1), (40, 2)), [1000 * (i + max(0, i - 60)) for i in range(1, 101)], ""),
    ],
)
def test_steps_that_stay_slower_are_said_with_what_they_cost(tmp_path, seconds, tokens, said):
    found = findings(analysed(tmp_path, timed(seconds, tokens)))
    title = found.get("slower_for_good", "")
    assert said in title and bool(said) == bool(title)
    assert "goodput" not in found


def test_the_rest_of_a_slowed_run_takes_as_long_as_its_steps_do_now(tmp_path):
    found = analysed(tmp_path, timed(wobbly((60, 1), (40, 2)))[:80])
    # 200 steps of 2 s are left; 200 slow ones are done and 200 to come, each a second too long
    assert found.forecast.rest_hours.value * 3600 == pytest.approx(400, rel=0.02)
    saved = next(one.saved_hours for one in found.findings if one.code == "slower_for_good")
    assert saved.value * 3600 == pytest.approx(400, rel=0.03)


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("Device: cpu (cuda requested, not available)", "warning"),
        ("CUDA not available, using CPU instead", "warning"),
        ("WARNING:absl:No GPU/TPU found, falling back to CPU.", "warning"),
        ("Device: cpu", ""),  # as it was meant
        ("GPU found: NVIDIA A100-SXM4-40GB", ""),
        ("UserWarning: the operator 'aten::unique' falls back to run on the CPU", ""),
    ],
)
def test_a_gpu_that_was_asked_for_and_not_found_is_said(tmp_path, line, severity):
    said = findings(analysed(tmp_path, [line, *STEPS])).get("cpu_fallback", "")
    assert said.startswith(severity) and bool(said) == bool(severity)


def test_processes_that_print_the_same_steps_are_said(tmp_path):
    rows = [f"step {50 * i}/1000 loss {loss(i) + k / 50:.4f}" for i in range(1, 21) for k in range(3)]
    assert findings(analysed(tmp_path, rows))["copies_of_one_run"].startswith("note: 3 processes")
    assert "copies_of_one_run" not in findings(analysed(tmp_path, rows[::3], "one.log"))


SAVED = ["saving checkpoint to out/step_300.pt"]


@pytest.mark.parametrize(
    ("lines", "lost"),
    [
        ([*STEPS, *TRACE, "FileExistsError: [Errno 17] File exists: 'models/a'"], True),
        ([*STEPS, *TRACE, "RuntimeError: Parent directory ./models does not exist."], True),
        ([*STEPS[:30], *SAVED, *STEPS[30:], *TRACE, "PermissionError: [Errno 13] Permission denied: 'b'"], False),
        ([*STEPS, *TRACE, "FileNotFoundError: [Errno 2] No such file or directory: 'data/7.jpg'"], False),
        ([*TRACE, "FileExistsError: [Errno 17] File exists: 'models/a'"], False),  # nothing was trained
    ],
)
def test_a_crash_in_saving_without_a_checkpoint_leaves_nothing_to_resume(tmp_path, lines, lost):
    found = analysed(tmp_path, lines)
    crash = next(one for one in found.findings if one.code == "crashed")
    assert ("as it wrote its files" in crash.title) == lost
    assert any("resume" in action for action in crash.actions) == (not lost and len(found.run) > 0)
