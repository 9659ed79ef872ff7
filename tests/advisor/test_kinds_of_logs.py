"""Kinds of fault that logs of strangers showed: each a small log of that kind and what `analyze` must say of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from advisor.api import analyze
from advisor.workflows.analysis import Analysis


def loss(i: int, of: int = 100) -> float:
    return 3 + 6 * math.exp(-4 * i / of)


def analysed(tmp_path, lines: Iterable[str] | bytes, name: str = "train.log") -> Analysis:
    path = tmp_path / name
    path.write_bytes(lines if isinstance(lines, bytes) else ("\n".join(lines) + "\n").encode())
    [found] = analyze(path).record
    return found


def stamped(start: datetime, rows: int, minutes: float, form: str = "%Y-%m-%d %H:%M:%S", first: int = 0) -> list[str]:
    moments = (start + timedelta(minutes=minutes * i) for i in range(rows))
    return [
        f"[{at.strftime(form)}] step {100 * (first + i)} loss {loss(first + i):.4f}" for i, at in enumerate(moments)
    ]


def verify(
    found: Analysis,
    *,
    hours: Any = "",
    status: str = "",
    says: Mapping[str, str] | None = None,
    runs: int = 0,
    silent: Sequence[str] = (),
    ends: Sequence[Any] = (),
    rows: int = 0,
    absent: Sequence[str] = (),
) -> None:
    """Asserts hours, status, findings by code with words of "severity: title", number of runs, ends and rows."""
    run = found.run
    titles = {one.code: f"{one.severity}: {one.title}" for one in found.findings}
    if hours != "":
        assert found.spent_hours == (pytest.approx(hours) if isinstance(hours, int | float) else hours)
    assert status in ("", run.status), run.status_reason
    for code, words in (says or {}).items():
        assert code in titles and words in titles[code], titles
    assert not set(silent) & titles.keys(), titles
    assert runs in (0, len(run.runs)) and rows in (0, run.rows)
    seen = (run.first_step, run.last_step, run.first_loss, run.last_loss)
    assert not ends or seen == tuple(ends), seen
    assert not set(absent) & set(run.columns)  # fmt: skip


LISTING = ["2024-03-01 08:00 ckpt-1000.pt", "2024-03-01 12:00 ckpt-5000.pt", "2024-03-01 18:00 ckpt-9900.pt"]
ROWS = [f"step {100 * i} | loss {loss(i):.4f} | lr 0.0003" for i in range(100)]
FIRST, SECOND = stamped(datetime(2024, 1, 1, 10), 21, 6), stamped(datetime(2024, 1, 3, 9), 31, 6, first=20)
EPOCH_CLOCK = [
    line
    for e in range(1, 13)
    for line in (
        *(f"Epoch: {e:3d} | Batch: {b:5d}/ 1330 | Loss: {loss(e, 30):.4f} | Time: {b * 0.3:.1f}s" for b in range(100,
            1301, 100)),
        f"| end of epoch {e:3d} | time: 400.00s | valid loss {loss(e, 30):.2f}",
    )
]  # fmt: skip
DATED = [
    f"[2024-01-01 {10 + i // 10}:{6 * (i % 10):02d}:00] {i * 100} {loss(i):.4f} 0.0003 {1 + i % 3}.5" for i in range(50)
]
PLAIN = "".join(f"step {i} loss {loss(i):.4f}\n" for i in range(1, 101)).encode()
HOURS = {
    # start-up and a last evaluation beside the rows are of the run
    "a listing before the rows": (LISTING + ROWS, {"hours": None}),
    "a listing behind the rows": (ROWS + ["saved:", *LISTING], {"hours": None}),
    "a tokenizer's date": (["2024-03-01 08:00:00 tokenizer of this date found",
        *stamped(datetime(2024, 3, 2, 10), 121, 1)], {"hours": 2}),
    "reading and testing": (
        ["2024-03-02 09:48:00 reading", *stamped(datetime(2024, 3, 2, 10), 100, 1), "2024-03-02 12:00:00 tested"],
            {"hours": 2.2}),
    "rows without stamps between two": (["started 2024-03-02 09:00:00", *ROWS, "ended 2024-03-02 14:00:00"],
        {"hours": 5}),
    # the time between sessions is no hour of the run
    "resumed two days later": ([*FIRST, "Resumed from step 2000", *SECOND], {"hours": 5}),
    "finished, and again": ([*FIRST, "Training finished.", *stamped(datetime(2024, 1, 4, 10), 31, 6)], {"hours": 5}),
    "a duration in other words": (
        ["Starting training of the model", "epochs: 3, optimizer: AdamW, batch size 8",
            "Training completed in 2:30:00.31",
         "Completed training in 9000.52s", "Training complete"], {"hours": pytest.approx(2.5, rel=0.01)}),
    "an epoch's own clock, and its sum": (EPOCH_CLOCK, {"hours": pytest.approx(12 * 400 / 3600, rel=0.05)}),
    "an epoch's own clock": ([line for line in EPOCH_CLOCK if "end" not in line], {"hours": 12 * 390 / 3600}),
    # read at all
    "bytes of zero": (b"\0" * 5000 + PLAIN[:900] + b"\0" * 300 + PLAIN[900:],
                      {"ends": (1, 100, round(loss(1), 4), round(loss(100), 4)), "rows": 100}),
}  # fmt: skip


@pytest.mark.parametrize(
    "form",
    ["%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y %I:%M:%S %p",
     "%d/%m/%y %H:%M:%S", "%m/%d/%y %H:%M:%S", "%y/%m/%d %H:%M:%S"],
)  # fmt: skip
@pytest.mark.parametrize("day", [11, 2])  # of February: either order of the first days is a date, or of all of them
def test_the_whole_log_decides_which_number_is_the_day(tmp_path, form, day):
    found = analysed(tmp_path, stamped(datetime(2024, 2, day, 20), 100, 20, form))
    assert found.spent_hours == pytest.approx(33.0)


def test_of_a_large_log_only_the_time_between_its_sessions_is_left_out(tmp_path):
    filler = "x" * 90
    rows = [f"{row} {filler}" for row in stamped(datetime(2024, 1, 1, 10), 9000, 0.2)]
    later = [f"{row} {filler}" for row in stamped(datetime(2024, 1, 5, 10), 9000, 0.2, first=9000)]
    assert sum(map(len, rows + later)) > 2**21  # of which only parts are looked at
    verify(analysed(tmp_path, [*rows, "Resuming from step 900000", *later]), hours=pytest.approx(60, rel=0.02))


def held_out(epoch: int) -> float:
    return 1.2 + 0.9 * math.exp(-epoch / 3) + max(0, epoch - 8) * 0.06


def own(epoch: int) -> float:
    return 0.1 + 2 * math.exp(-epoch / 7)


def both(row: str, head: Sequence[str] = ()) -> list[str]:
    return [*head, *(row.format(e=e, t=own(e), v=held_out(e), h=held_out(e) / 2, o=own(e) / 2) for e in range(1, 31))]


OVERFIT = {"says": {"overfitting": ""}}
NAMES = {
    # validation under a short name shows overfitting
    **{row: (both(row), OVERFIT) for row in (
        "epoch {e}, t_loss {t:.4f}, v_loss {v:.4f}", "epoch {e} loss: {t:.4f} vloss: {v:.4f}",
        "Epoch {e:03d} | trn_loss: {t:.4f} | dev_loss: {v:.4f}",
            "epoch {e} - loss_train: {t:.4f} - loss_vali: {v:.4f}")},
    **{f"{head}.csv": (both("{e},{t:.4f},{v:.4f}", [f"epoch,{head}"]), OVERFIT) for head in (
        "tr_loss,vl_loss", "trainLoss,valLoss", "t_loss,va_loss")},
    # a critic's or a speed's loss is no validation
    **{f"{name}.csv": (both("{e},{t:.4f},0.1,{v:.4f}", [f"step,loss,{name},v_loss"]),
        {"silent": ["overfitting"], "absent": ["eval_loss"]})
       for name in ("pg_loss", "policy_loss", "u_loss", "entropy_loss")},
    "noise at chance": (
        [f"epoch {e} t_loss {0.69 - 0.005 * e:.4f} val_loss {0.693 + 0.0025 * max(0, e - 8) + math.sin(e) / 500:.4f}"
         f" val_acc {0.5 + 0.012 * math.sin(7 * e):.3f}" for e in range(1, 41)],
        {"silent": ["overfitting"],
         "says": {"at_chance": "warning: Held-out data are never known better than by a guess among 2 classes"}}),
    "what was right of how many is no step": (
        [f"epoch {e}\nloss: {loss(e):.4f}\ntest accuracy: {e / 2:.2f}%, ({e * 120}/24661)" for e in range(1, 81)],
        {"ends": (1, 80, round(loss(1), 4), round(loss(80), 4))}),
}  # fmt: skip


def test_a_letter_that_pairs_names_marks_the_held_out_split_of_an_autoencoder_too(tmp_path):
    row = "Epoch {e}: v_recons {h:.4f} recons {o:.4f} v_loss {v:.4f} loss {t:.4f} v_kl 0.1 kl 0.1"
    run = analysed(tmp_path, both(row), "vae.log").run
    assert run.column("eval_loss")[-1] == pytest.approx(round(held_out(30), 4))
    assert run.last_loss == pytest.approx(round(own(30), 4))


TRACE = ["Traceback (most recent call last):", '  File "train.py", line 88, in main', "    loss.backward()"]
STOPPED = [*TRACE, "KeyboardInterrupt"]
FAILED = [*TRACE, "ValueError: bad shape"]
TRACKER = ["wandb: Run history:", "wandb: Run summary:", "wandb: best_val_acc 0.93", "wandb: Synced 5 W&B file(s)"]
BANNER = ["Using device: cuda", "Loading dataset from data/train.bin", "Model has 12.3M parameters", "Optimizer: AdamW"]
STEPS = [f"step {10 * i} loss {loss(i):.4f}" for i in range(1, 61)]
HUNDREDTHS = [f"step {100 * i} loss {loss(i):.4f}" for i in range(1, 101)]
EPOCHS = [f"Epoch {e}/20 train loss {loss(e, 20):.4f}" for e in range(1, 21)]
SHORT = [f"Epoch {e}/50 train loss {loss(e, 20):.4f}" for e in range(1, 21)]
WHOLE = [*BANNER, *EPOCHS, "Training complete."]
INSTALLERS = ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
    "E: Unable to locate package libfoo",
              "npm ERR! code ENOSPC: No space left on device",
                  "dpkg: error processing package foo (--configure):"]  # fmt: skip
FULL = "OSError: [Errno 28] No space left on device (preview image, ignored)"
NO_FAULT = ("crashed", "later_failure")
LOGGED = [f"2025-06-11 09:{e:02d}:00.0 | INFO    | app:train:58 - epoch {e} loss {loss(e, 20):.4f}" for e in range(20)]


def logged(last: str, status: str) -> tuple[list[str], dict[str, str]]:
    return [*LOGGED, f"2025-06-11 09:21:00.0 | {last}"], {"status": status}


# a run is complete only by evidence that nothing contradicts
ENDS = {
    # the tail of a tracker ends nothing, and contradicts nothing
    "stopped, then a tracker": ([*STEPS, *STOPPED, *TRACKER], {"status": "stopped"}),
    "stopped behind a sign": ([*STEPS, "^C" + TRACE[0], *STOPPED[1:], *TRACKER], {"status": "stopped"}),
    "a tracker alone": ([*SHORT, *TRACKER], {"status": "incomplete"}),
    "crashed, then a tracker": ([*SHORT, *TRACE, "RuntimeError: shape mismatch", "Cleaning up", "Done.", *TRACKER],
        {"status": "crashed"}),
    "killed, then a tracker": ([*SHORT, "Received signal 15, terminating", *TRACKER], {"status": "killed"}),
    # what a program says once it has caught an interrupt
    "interrupted": ([*SHORT, "Interrupted! Saving the model to out/last.pt", "Training finished, best val loss 3.2"],
        {"status": "stopped"}),
    "SIGINT": ([*SHORT, "Received SIGINT, saving", "Final checkpoint saved to out/final.pt", "Done!"],
        {"status": "stopped"}),
    "plots are closed": ([*EPOCHS, "Training complete.", "showing plots", *STOPPED], {"status": "completed"}),
    # a start behind a run that had finished
    "a start that was stopped": ([*WHOLE, *BANNER, *EPOCHS[:3], *STOPPED], {"status": "stopped"}),
    "a start that was stopped at once": ([*WHOLE, *BANNER, *STOPPED, *TRACKER], {"status": "stopped"}),
    "a start that breaks off": ([*WHOLE, *BANNER, *EPOCHS[:3]], {"status": "incomplete"}),
    # steps that look round because every hundredth is printed
    "round steps": (HUNDREDTHS, {"status": "no_end_recorded"}),
    "round steps and a checkpoint": ([*HUNDREDTHS, "saving checkpoint to out/ckpt.pt"], {"status": "no_end_recorded"}),
    "round epochs": ([f"epoch {e} train loss {loss(e):.4f} val loss {loss(e) + 0.1:.4f}" for e in range(1, 101)],
        {"status": "no_end_recorded"}),
    "as far as was said": (["max_steps: 10000", *HUNDREDTHS], {"status": "completed"}),
    # the last epoch has only begun when it is first named
    "the only epoch": (["Epochs: 1", "Total steps: 4000", *(f"epoch 1/1 {step}" for step in STEPS)],
        {"status": "incomplete"}),
    # last words behind a logger's level
    "finished": logged("SUCCESS | app:train:97 - finished, best model saved", "completed"),
    "done": logged("INFO    | app:train:97 - Done, the best model has been saved", "completed"),
    "all done": logged("SUCCESS | app:train:97 - All done!", "completed"),
    "saved, as after any epoch": logged("INFO    | app:train:97 - best model saved", "no_end_recorded"),
    "done with whatever it did": logged("INFO    | app:save:12 - done", "no_end_recorded"),
    "an epoch finished": logged("SUCCESS | app:train:97 - epoch 19 finished", "no_end_recorded"),
    # an installer's error is none of the run
    "installers before": ([*INSTALLERS, *EPOCHS, "Training complete."], {"status": "completed", "silent": NO_FAULT}),
    "installers after": ([*EPOCHS, "Training complete.", *INSTALLERS], {"status": "completed", "silent": NO_FAULT}),
    "a full disk that it went on after": ([*EPOCHS[:9], FULL, *EPOCHS[9:], "Training complete."],
        {"status": "completed"}),
    "a full disk": ([*EPOCHS[:9], *TRACE, FULL], {"status": "crashed"}),
    # a crash of a collective is no lack of memory
    **{f"a collective {n}": ([*SHORT, *TRACE, *words], {"status": "crashed", "silent": ["out_of_memory"]}) for n,
        words in enumerate((
        ["torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled cuda error",
         "ncclUnhandledCudaError: Call to CUDA function failed.", "Last error:", "Cuda failure 'out of memory'"],
        ["RuntimeError: NCCL communicator was aborted on rank 2. Original reason for failure was: ncclSystemError:"
         " System call (e.g. socket, malloc) or library call failed, or out of memory"],
        ["[rank3]:[E ProcessGroupNCCL.cpp:523] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9,"
         " OpType=ALLREDUCE, NumelIn=33, Timeout(ms)=1800000) ran for 1800403 milliseconds before timing out."]))},
    "a rate lowered where the loss stands.csv": (
        ["epoch,loss,lr", *(f"{e},{loss(e, 24):.4f},{0.001 * 0.2 ** (e // 5):.2e}" for e in range(24))],
            {"status": "no_end_recorded"}),
}  # fmt: skip


def rounds(row: str, end: str = "", epochs: int = 19) -> list[str]:
    lines = []
    for epoch in range(epochs):
        lines += [row.format(b=b, loss=loss(epoch * 5 + b // 100, 5 * epochs)) for b in range(0, 500, 100)]
        lines += [end.format(e=epoch)] if end else []
    return lines


def lsf(job: int) -> list[str]:
    return ["------------------------------------------------------------",
            f"Subject: Job {job}: <train> in cluster <c1> Exited",
            f"Job was executed on host(s) <gpu05>, in queue <v100>, at Fri Apr 25 {job % 24:02d}:31:44 2025",
            f"Started at Fri Apr 25 {job % 24:02d}:31:44 2025", "Your job looked like:", "#BSUB -q v100",
            "Exited with exit code 1.", "The output (if any) is above this job summary.", "PS:",
            "Read file <train.err> for stderr output of this job."]  # fmt: skip


JOBS = [line for k in range(30) for line in (
    f"==== job {k} ====", *BANNER, *(f"Epoch {e}/5 train loss {loss(e, 9) + k / 99:.4f}" for e in range(1,
        3 if k < 20 else 6)),
    *(FAILED if k < 20 else ["Training complete."]))]  # fmt: skip
EACH_EPOCH = [line for e in range(1, 16) for line in (
    f"EPOCH {e} COMPLETED @ {e}:07 AM",
    f"2024-03-31 {e + 4:02d}:08:00.847277: I tensorflow/shuffle_dataset_op.cc:422] Filling up buffer",
    f"2024-03-31 {e + 4:02d}:08:02.034692: I tensorflow/shuffle_dataset_op.cc:452] Shuffle filled.",
        f"SAVED CHECKPOINT @ EPOCH {e}")]  # fmt: skip
BARS = [line for e in range(95) for line in (
    "100%|####| 500/500 [00:25<00:00, 20.1it/s]", "100%|####| 50/50 [00:02<00:00, 20.1it/s]",
    f"train loss: {loss(e, 95):.4f}, val loss: {loss(e, 95) + 0.1:.4f}")]  # fmt: skip
ONE_RUN = {"runs": 1, "rows": 95}
FETCHING = [f"DEBUG download: {words}" for words in (
    "asking for the next shard", "acquiring its lock", "lock acquired", "opening a connection", "shard written",
        "releasing its lock",
    "lock released")]  # fmt: skip
LOOP = [*BANNER, "ERROR cannot load the tokenizer", *BANNER, *(20 * FETCHING), "Training complete."]
RANKS = [f"2024-01-01 10:00:0{k} {line}" for k in range(6) for line in BANNER]
ONES = "warning: 24 of 25 runs in this log ended before their first step"
COPIES = [f"step {50 * i}/1000 loss {loss(i) + k / 50:.4f}" for i in range(1, 21) for k in range(3)]
RUNS = {
    # neither each epoch nor each bar is a run
    "batches of epochs": (rounds("iter {b}/500 loss {loss:.4f}"), ONE_RUN),
    "batches, and a word of each epoch": (  # what is said of each epoch is added
        rounds("iter {b} loss {loss:.4f} lr 0.001", "Training complete for epoch {e} in 0m 32s"),
            ONE_RUN | {"hours": 19 * 32 / 3600}),
    "bars of epochs": (rounds("Training:  10%|#         | {b}/500 [00:04<00:10, 20.1it/s, loss={loss:.4f}]"), ONE_RUN),
    "bars between epochs": (BARS, ONE_RUN),
    "a sweep whose runs begin anew": ([f"iter {b}/500 loss {loss(b, 500) + k / 50:.4f}" for k in range(5)
        for b in range(0, 500, 20)], {"runs": 5}),
    "jobs that failed": (JOBS, {"runs": 30, "status": "completed",
        "says": {"failed_runs": "error: 20 of 30 runs in this log failed"}}),
    "jobs that a scheduler sums up": (
        [line for job in range(20) for line in ("Using device: cuda", "trainable params: 3,407,872", *lsf(job))],
        {"runs": 20, "status": "crashed", "says": {"failed_runs": "warning: 20 of 20 runs in this log"}}),
    "what each epoch prints again": (
        [*EACH_EPOCH, "slurmstepd: error: *** JOB 3073 ON c17 CANCELLED AT 2024-04-01T01:06:20 DUE TO TIME LIMIT ***"],
        {"runs": 1, "status": "time_limit", "silent": ["failed_runs"]}),
    "a loop of the first start": (
        [f"{datetime(2025, 1, 7, 9) + timedelta(minutes=2 * n):%Y-%m-%d %H:%M:%S} {line}" for n,
            line in enumerate(LOOP)],
        {"runs": 1, "status": "completed"}),
    "many starts that never trained": ([*(24 * (BANNER + FAILED)), *BANNER, *EPOCHS], {"says": {"failed_runs": ONES}}),
    "starts of ranks": ([*RANKS, *(f"2024-01-01 11:{i:02d}:00 {row}" for i, row in enumerate(EPOCHS))],
        {"silent": ["failed_runs"]}),
    "processes that print the same steps": (COPIES, {"says": {"copies_of_one_run": "note: 3 processes"}}),
    "one process": (COPIES[::3], {"silent": ["copies_of_one_run"]}),
}  # fmt: skip


def test_a_banner_behind_rows_makes_each_banner_a_start(tmp_path):
    rows = [f"step {20 * i}/44660 lr: 0.000000 loss: {9.1 - 0.1 * i:.4f}" for i in range(5)]
    failed = [*BANNER, *BANNER, *FAILED]  # the first of two starts leaves no word
    found = analysed(tmp_path, [*(3 * failed), *BANNER, *rows, *failed, *(2 * failed)])
    assert [part.phase for part in found.run.runs] == [*[None] * 6, 0, *[None] * 6]
    said = {
        "failed_runs": "warning: 12 of 13 runs in this log ended before their first step",
        "crashed": "before the first step of run 13",
    }
    verify(found, says=said, silent=["learning_rate_zero"])  # of a warm-up only the digits are 0
    again = analysed(tmp_path, [*(3 * failed), *BANNER, *rows, *failed, *BANNER, *rows, *failed])
    assert [part.phase for part in again.run.runs] == [*[None] * 6, 0, None, None, 1, None, None]
    verify(again, says={"failed_runs": "warning: 10 of 12 runs in this log ended before their first step"})


def test_batches_have_no_step_of_the_run_and_networks_one_after_the_other_are_a_run_each(tmp_path):
    run = analysed(tmp_path, rounds("iter {b}/500 loss {loss:.4f}")).run
    assert run.first_step is None and run.last_step is None and run.last_loss == pytest.approx(loss(94, 95), abs=0.01)
    rows = [
        f"Epoch: {epoch}, Step: {step}, all_loss: {net + loss(epoch * 5 + step // 200):.4f}, lr:0.01"
        for net in range(3)
        for epoch in range(1, 21)
        for step in range(0, 1000, 200)
    ]
    run = analysed(tmp_path, rows, "three.log").run
    assert [(part.first_step, part.last_step) for part in run.runs] == [(1, 20)] * 3


def scheduled(rates: Sequence[float], notes: Mapping[int, str] | None = None) -> list[str]:
    """Rows of every tenth step at these rates; `notes` stand before the row of their number."""
    rows = [f"step {10 * i} | loss {loss(i):.4f} | lr {rate:.3e}" for i, rate in enumerate(rates)]
    return [line for i, row in enumerate(rows) for line in ((notes or {}).get(i), row) if line]


def cosine(rows: int, peak: float = 1e-3) -> list[float]:
    return [peak * (1 + math.cos(math.pi * i / rows)) / 2 for i in range(rows)]


def timed(seconds: Iterable[float], tokens: Iterable[int] | None = None) -> list[str]:
    """Rows of every tenth of 1,000 steps, the steps of which take these seconds."""
    counts = [f" | tokens {n}" for n in tokens] if tokens is not None else [""] * 100
    rows = enumerate(zip(seconds, counts, strict=True), 1)
    return [f"step {10 * i}/1000 | loss {loss(i):.4f} | {1000 * s:.1f} ms/step{more}" for i, (s, more) in rows]


def wobbly(*parts: tuple[int, float]) -> list[float]:
    return [seconds * (1 + 0.03 * math.sin(7 * i)) for rows, seconds in parts for i in range(rows)]


def classes(loss: float, accuracy: float, epochs: int = 8) -> list[str]:
    """Epochs of a classifier that stands still but for noise of the loss."""
    return [f"Epoch {e}/{epochs} train_loss: {loss * (1 + (-1) ** e / 500):.4f} val_loss: {loss:.4f} "
            f"val_acc: {accuracy:.4f}" for e in range(1, epochs + 1)]  # fmt: skip


def groups(rewards: list[float], spread: float, entropy: Sequence[float] = ()) -> list[str]:
    """Records of TRL's GRPO trainer."""
    return [str({"loss": 0.001 * (n % 7), "grad_norm": 0.3, "learning_rate": 1e-6, "completions/mean_length": 99.0,
                 "reward": reward, "reward_std": spread, "entropy": [*entropy, *[0.7] * 99][n], "epoch": n / 50})
            for n, reward in enumerate(rewards)]  # fmt: skip


RESUMED = {60: "Resuming from checkpoint out/step_590"}
WARMED = [1e-3 * min(1, i / 10) * (1 - i / 120) for i in range(100)]
ANEW, SLOWER, CPU = ({"silent": [code]} for code in ("schedule_starts_again", "slower_for_good", "cpu_fallback"))
LITTLE_LEFT = [f"step {100 * i} loss {0.0052 + 0.0001 * (i % 7):.4f}" for i in range(100)]
FALLS_BACK = {"says": {"cpu_fallback": "warning"}}


def verl(generation: float, longest: int, cut: float) -> list[str]:
    """What verl prints of 30 steps whose other parts take 53.3 s."""
    return [
        f"(TaskRunner pid=7) step:{n} - actor/pg_loss:{n % 7 / 1000:.5f} - actor/grad_norm:0.3 - actor/entropy:0.3 - "
        f"critic/score/mean:{0.3 + n / 100:.3f} - response_length/mean:230.0 - response_length/max:{longest}.0 - "
        f"response_length/clip_ratio:{cut} - timing_s/gen:{generation} - timing_s/old_log_prob:8.3 - "
        f"timing_s/ref:8.7 - timing_s/update_actor:36.3 - timing_s/step:{generation + 53.3:.1f}"
        for n in range(1, 31)
    ]


FOUND = {
    # cos(0.59 π) leaves 36 % of the peak
    "a schedule that starts anew": (scheduled(cosine(100)[:60] + cosine(100)[:40], RESUMED),
                          {"says": {"schedule_starts_again": "starts anew after the restart at step 600: 0.00036"}}),
    "a warm-up that starts anew": (scheduled(WARMED[:60] + WARMED[1:40], RESUMED),
                          {"says": {"schedule_starts_again": "warms up anew after the restart at step 600: 0.000508"}}),
    "a schedule again": (scheduled(cosine(60) + cosine(60)),
                         {"says": {"schedule_starts_again": "starts again: 6.85e-07 at step 590, 0.001 at step 600"}}),
    "resumed with its schedule": (scheduled(cosine(100), RESUMED), ANEW),
    "resumed within its warm-up": (scheduled(WARMED, {5: RESUMED[60]}), ANEW),
    "warm restarts are meant": (scheduled(cosine(25) * 4), ANEW),
    "a rate lowered in steps": (scheduled([1e-3] * 50 + [1e-4] * 50), ANEW),
    # 40 rows of 10 steps take 1 s more each: 400 s
    "steps that stay slower": (
        timed(wobbly((60, 1), (40, 2))),
        {"says": {"slower_for_good": "Steps take 2.01 s instead of 1 s since step 610"},
            "silent": ["goodput"]}),
    "slower for a while": (timed(wobbly((60, 1), (20, 2), (20, 1))), SLOWER),
    "faster": (timed(wobbly((50, 2), (50, 1))), SLOWER),
    "little by little, as answers grow": (timed([1 + i / 100 for i in range(100)]), SLOWER),
    "batches of unlike lengths": (timed([1 + (i % 3 == 0) * i / 100 for i in range(100)]), SLOWER),
    "twice as many tokens": (timed(wobbly((60, 1), (40, 2)), [1000 * (i + max(0, i - 60)) for i in range(1, 101)]),
        SLOWER),
    # a GPU that was asked for and not found
    "CUDA was requested": (["Device: cpu (cuda requested, not available)", *STEPS], FALLS_BACK),
    "CUDA not available": (["CUDA not available, using CPU instead", *STEPS], FALLS_BACK),
    "no GPU found": (["WARNING:absl:No GPU/TPU found, falling back to CPU.", *STEPS], FALLS_BACK),
    "CUDA not there": (["WARNING: CUDA not available, training on CPU", *STEPS], FALLS_BACK),
    "pinned for a GPU": (["'pin_memory' argument is set as true but no accelerator is found", *STEPS], FALLS_BACK),
    "autocast for no GPU": (["User provided device_type of 'cuda', but CUDA is not available. Disabling", *STEPS],
        FALLS_BACK),
    "a GPU beside it": (["GPU available: True (cuda), used: False", *STEPS],
        {"says": {"cpu_fallback": "warning: There is a GPU, and it is not used"}}),
    "a GPU in use": (["GPU available: True (cuda), used: True", *STEPS], CPU),
    "a GPU asked for": (["Namespace(device='cuda', epochs=3)", "Using device: cpu", *STEPS],
        {"says": {"cpu_fallback": "warning: A GPU was asked for, and it trains on the CPU"}}),
    "a GPU asked for and used": (["Namespace(device='cuda', epochs=3)", "Using device: cuda", *STEPS], CPU),
    "a test on the CPU": (
        ["GPU available: True (cuda), used: True", *STEPS, "GPU available: True (cuda), used: False"], CPU),
    "a teacher on the CPU": (["--device cuda", "Using device: cuda:0", "Using device: cpu", *STEPS], CPU),
    "an optimizer on the CPU": (["accelerator: gpu", "  offload_optimizer:", "    device: cpu", *STEPS], CPU),
    "no GPU, and none asked for": (["CUDA available: False", "Device: cpu", *STEPS],
        {"says": {"cpu_fallback": "note: No GPU was found"}}),
    "a CPU as it was meant": (["Device: cpu", *STEPS], CPU),
    "a GPU found": (["GPU found: NVIDIA A100-SXM4-40GB", *STEPS], CPU),
    "one operator falls back": (["UserWarning: the operator 'aten::unique' falls back to run on the CPU", *STEPS], CPU),
    # nothing learnt, or only by heart
    "two classes guessed": (classes(0.6931, 0.5), {"says": {"accuracy_stuck": "warning: Accuracy stays at 50 %"}}),
    "ten classes guessed": (classes(2.3026, 0.1)[:4], {"says": {"accuracy_stuck": "of a guess among 10 classes"}}),
    "one class for all": (classes(0.661, 0.6239, 12), {"says": {"accuracy_stuck": "one class is always predicted"}}),
    "one class for all, by the Trainer": (
        [str({"eval_loss": 0.6, "eval_accuracy": 0.712, "eval_runtime": 3.1, "epoch": float(e)}) for e in range(1, 12)],
        {"says": {"accuracy_stuck": "71.2 %"}}),
    "no token learnt": (
        [f"step {10 * i} loss {10.82 + (i % 3) / 100:.2f} tokens {81920 * i}" for i in range(1, 40)],
        {"says": {"no_learning": "error: No learning: loss 10.83"}}),
    "right of 2,000, and still": (classes(0.02, 0.9945, 12), {"silent": ["accuracy_stuck"]}),
    "nearly as good as at first": (classes(0.61, 0.66), {"silent": ["accuracy_stuck"]}),
    "few rows of many epochs": (
        [f"epoch {e}0 train loss {loss}" for e, loss in enumerate((2.2, 0.7, 0.1, 0.02, 0.01, 0.008), 1)],
        {"says": {"memorised": "loss 2.2 → 0.008"}}),
    "few rows of few epochs": (
        [f"epoch {e} train loss {loss}" for e, loss in enumerate((2.2, 0.7, 0.1, 0.02, 0.01, 0.008), 1)],
        {"silent": ["memorised"]}),
    "rewards of a group alike": (groups([0.5 + n % 5 / 10 for n in range(40)], 0.0),
        {"says": {"dead_signal": "warning: The rewards of a step are all alike in 100 %"}}),
    "rewards of a solved task alike": (groups([min(1.0, 0.1 + n / 20) for n in range(40)], 0.0),
        {"silent": ["dead_signal", "policy_collapsed"]}),
    "rewards that differ": (groups([0.5 + n % 5 / 10 for n in range(40)], 0.3), {"silent": ["dead_signal"]}),
    "always the same reward": (groups([0.5] * 40, 0.3), {"says": {"dead_signal": "The reward is 0.5 in every row"}}),
    "a step of RL that is mostly generation": (verl(80.0, 1024, 0.01),
        {"says": {"generation_sets_step": "note: Generation takes 60 % of a step: the longest answer sets the time"},
         "silent": ["answers_cut"]}),
    "a step of RL that is mostly the update": (verl(20.0, 1024, 0.01), {"silent": ["generation_sets_step"]}),
    "answers that are cut": (verl(20.0, 1024, 0.4), {"says": {"answers_cut": "warning: 40 % of the answers are cut"}}),
    "a policy without choice": (
        groups([0.5 + n % 5 / 10 for n in range(40)], 0.3, [max(0, 1 - n / 20) for n in range(40)]),
        {"says": {"policy_collapsed": "warning: The policy's entropy falls from 0.9 to 0"}}),
    "a policy with a choice": (groups([0.5 + n % 5 / 10 for n in range(40)], 0.3, [1 - n / 50 for n in range(40)]),
        {"silent": ["policy_collapsed"]}),
    # 3.2 % above the best, while the training loss halves
    "a validation loss that creeps up": (
        [f"step {s} train loss {2 * 0.97**s:.4f} val loss {1 + 0.0016 * abs(s - 20):.4f}" for s in range(1, 41)],
        {"says": {"overfitting": "warning: Overfitting: validation loss is best at step 20 (1), then rises to 1.03"}}),
    # copies of one run
    "each row twice": ([step for step in STEPS for _ in "ab"], {"says": {"copies_of_one_run": "in the log 2 times"}}),
    "a log three times": (3 * STEPS, {"says": {"copies_of_one_run": "repeat others to the last digit"}}),
    "each row once": (STEPS, {"silent": ["copies_of_one_run"]}),
    "nothing left to learn": (["GPT language model, 12 layers", "vocab_size: 50257", "block_size: 256", *LITTLE_LEFT],
        {"says": {"too_good": ""}}),
    "a tagger's loss": (["BiLSTM-CRF tagger", "vocab_size: 21128", *LITTLE_LEFT], {"silent": ["too_good"]}),
}  # fmt: skip
CASES = HOURS | NAMES | ENDS | RUNS | FOUND


def bar(done: int, total: int) -> str:
    return f"{100 * done // total:3d}%|##| {done}/{total} [00:{done % 60:02d}<00:10,  1.00it/s]"


BEGUN = "Using device: cuda\nTraining starts\n"
HUGGING = "***** Running training *****\n  Num Epochs = 2\n  Total optimization steps = 28\n"
TRACKED = ("wandb: Run summary:", "train/epoch 0.52", "train/global_step 260", "train/loss 1.4358", "Synced 5 files")
# how far a run came, where no row says so by a step of its own: first and last step
REACHED = {
    "a bar and no row": (HUGGING + "\r".join(bar(n, 28) for n in range(4)), (None, 3)),
    "a tracker's summary and no row": (HUGGING + bar(20, 28) + "\nwandb: ".join(("", *TRACKED)) + "\n", (None, 260)),
    "a counter of all steps before a word and a batch size": ("".join(
        f"[{n:06d}/05000] cats | loss {loss(n, 5000):.4f} | batch 16\n" for n in range(0, 5000, 100)), (0, 4900)),
    "a padded counter": ("".join(f"[{n:6d}] loss {loss(n, 5000):.4f} lr 1e-3\n" for n in range(100, 5000, 100)),
        (100, 4900)),
    "an epoch and its step with a colon": (BEGUN + "".join(f"[{e} : {n:6d}] loss G : {loss(n):.3f} loss D : 1.2\n"
        for e, first in ((0, 0), (1, 100)) for n in range(first + 10, first + 101, 10)), (10, 200)),
    "epochs that end with a word": ("".join(f"EPOCH {n} COMPLETED @ 10:{n:02d} PM\nkept\n" for n in range(1, 16)),
        (1, 15)),
    "scores of epochs, few behind the bar of another stream": (BEGUN + "".join(
        (bar(n, 99) if n % 20 == 0 else "") + f"Epoch {n}: Validation Accuracy: {50 + n / 2:.2f}%\n"
        for n in range(1, 100)), (1, 99)),
    "only validation, with the epoch in brackets": (BEGUN + "".join(f"{bar(132, 132)}\r{bar(29, 29)}\n"
        f"[ Valid | {n:03d}/020 ] loss = {loss(n, 20):.5f}, acc = 0.5{n:03d}\n" for n in range(1, 21)), (1, 20)),
}  # fmt: skip


@pytest.mark.parametrize("case", REACHED)
def test_how_far_a_run_came(tmp_path, case):
    text, ends = REACHED[case]
    run = analysed(tmp_path, text.encode()).run
    assert (run.first_step, run.last_step) == ends, run.notes
    assert "tracker" not in case or run.last_loss == 1.4358


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_of_a_log(tmp_path, name):
    lines, expected = CASES[name]
    verify(analysed(tmp_path, lines, "history.csv" if name.endswith(".csv") else "train.log"), **expected)


def test_the_rest_of_a_slowed_run_takes_as_long_as_its_steps_do_now(tmp_path):
    found = analysed(tmp_path, timed(wobbly((60, 1), (40, 2)))[:80])
    # 200 steps of 2 s are left; 200 slow ones are done and 200 to come, each a second too long
    assert found.forecast.rest_hours.value * 3600 == pytest.approx(400, rel=0.02)
    saved = next(one.saved_hours for one in found.findings if one.code == "slower_for_good")
    assert saved.value * 3600 == pytest.approx(400, rel=0.03)


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


def test_what_came_after_the_best_evaluation_is_counted_in_hours_and_dollars(tmp_path):
    rows = [f"step {s} train loss {2 * 0.97**s:.4f} val loss {1 + 0.01 * abs(s - 20):.4f} 90.0 s/step"
            for s in range(1, 61)]  # fmt: skip
    (tmp_path / "train.log").write_text("\n".join(rows))
    [found] = analyze(tmp_path / "train.log", price=2).record
    risen = next(one for one in found.findings if one.code == "overfitting")
    # 40 of the 60 steps, of 90 s each, at $2 an hour
    assert "66.7 % of the steps came after step 20: 60 min, $2" in risen.evidence[-1].text
