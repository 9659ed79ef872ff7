"""How logs say that they ended, in many words; and what only looks like an end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.readers.cells import duration_seconds
from advisor.readers.event_lines import read_line
from advisor.readers.read import read_run
from advisor.readers.run_table import Event, Status
from advisor.readers.status import status_of

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    model(x)\n'


@pytest.mark.parametrize(
    "line",
    [
        "Training epoch 3 finished",
        "The model is pushed when training is completed",
        "Done (t=0.05s)",
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
        "FutureWarning: this will raise an error once training",
        "If the process was killed, run again",
        "Finished training data preparation",
        "exit_code: 0 means success",
        "early_stopping_patience: 10",
    ],
)
def test_lines_that_end_nothing(line):
    assert read_line(line) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("55:03", 3303), ("1:02:03.5", 3723.5), ("3h 12m", 11520), ("90 s", 90), ("1.5 hours", 5400), ("soon", None)],
)
def test_durations(text, seconds):
    assert duration_seconds(text) == seconds


def event(kind: str, line: int, rows_after: int = 0, text: str = "words") -> Event:
    return Event(kind=kind, text=text, line=line, numbers={"rows_after": rows_after})


def exited(code: int) -> Event:
    return Event(kind="child_failed", text="exit code", line=9, numbers={"rows_after": 0, "exitcode": code})


STATUSES = [
    ("killed, as a shell says it", [exited(137)], Status.KILLED),
    ("control-C, as a shell says it", [exited(130)], Status.STOPPED),
    ("a program's own code", [exited(1)], Status.CRASHED),
    ("stage after a training that ended well fails", [event("finished", 8), event("exception", 9)], Status.CRASHED),
    ("handled, then done", [event("exception", 5), event("finished", 9)], Status.COMPLETED),
    ("signals after the last words", [event("finished", 8), event("signal", 9)], Status.COMPLETED),
    ("said after every epoch", [event("finished", 3, 5), event("finished", 9, text="words")], Status.INCOMPLETE),
    ("stopped early by its own rule", [event("early_stop", 9)], Status.COMPLETED),
    ("a record without a counter", [], Status.INCOMPLETE),
    ("tested in the end", [event("afterwards", 9, text="Test accuracy: 0.91")], Status.COMPLETED),
    ("saved the final model", [event("checkpoint", 9, text="Saved final model to out/m.pt")], Status.COMPLETED),
    ("saved a model", [event("checkpoint", 9, text="Saved model to out/m.pt")], Status.INCOMPLETE),
    ("the machine's memory", [event("host_memory", 9)], Status.OUT_OF_MEMORY),
]


@pytest.mark.parametrize(("events", "status"), [s[1:] for s in STATUSES], ids=[s[0] for s in STATUSES])
def test_status(events, status):
    assert status_of(events, 90, None, 0.0)[0] is status


def test_a_log_that_ends_in_a_traceback_crashed(tmp_path):
    path = tmp_path / "train.log"
    rows = "".join(f"step {i}/90 | loss {3 - i / 50:.4f}\n" for i in range(1, 30))
    path.write_text(rows + 'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in main\n')
    assert read_run(path).status is Status.CRASHED


def test_an_evaluation_out_of_turn_at_the_last_step_ends_a_run(tmp_path):
    def csv(last: int) -> str:
        rows = [f"{step},{4 - step / 900:.4f},{4 - step / 900 if step % 50 == 0 else ''}" for step in range(0, 331, 10)]
        return "step,loss,val_loss\n" + "\n".join(rows[:last]) + ",\n" * 0

    path = tmp_path / "metrics.csv"
    path.write_text(csv(34))
    assert read_run(path).status is Status.UNKNOWN  # no end is recorded
    path.write_text(csv(34) + "3.6")  # step 330 is no multiple of 50
    assert read_run(path).status is Status.COMPLETED
    path.write_text(csv(34).replace("\n100,3.8889,3.8889", "\n100,3.8889,") + "3.6")  # the one at 100 was lost
    assert read_run(path).status is Status.COMPLETED


def test_where_a_run_can_be_viewed_is_said_at_its_start_and_ends_nothing(tmp_path):
    path = tmp_path / "run.log"
    steps = "".join(f"step {i}/90 | loss {3 - i / 50:.4f}\n" for i in range(1, 30))
    path.write_text("wandb: View run at https://wandb.example/runs/x\n" + steps)
    assert read_run(path).status is Status.INCOMPLETE
    path.write_text("wandb: View run at https://wandb.example/runs/x\n")
    assert read_run(path, "generic").status is not Status.COMPLETED


def test_an_outcome_ends_only_a_run_that_was_to_go_no_further(tmp_path: Path) -> None:
    rows = [f"epoch {n} loss {1 / n:.4f}" for n in range(1, 9)]
    path = tmp_path / "a.log"
    path.write_text("\n".join([*rows, "test  AUROC 0.93  acc 0.87"]) + "\n")
    assert read_run(path).status is Status.COMPLETED
    planned = [f"epoch {n}/20 loss {1 / n:.4f}" for n in range(1, 9)]
    path.write_text("\n".join([*planned, "test  AUROC 0.93  acc 0.87"]) + "\n")
    assert read_run(path).status is Status.INCOMPLETE


def test_a_training_that_was_prepared_and_printed_no_record_is_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(
        "Using device: cuda\ndataset: 5000 images\nTotal params: 12,345\nStarting training for 30 epochs...\n"
    )
    run = read_run(path)
    assert run.status is Status.INCOMPLETE
    assert run.rows == 0
    assert "Starting training for 30 epochs" in run.status_reason


def test_a_log_that_holds_the_end_of_a_training_alone_is_of_one_that_ended(tmp_path: Path) -> None:
    path = tmp_path / "tail.txt"
    path.write_text("  Train acc: see table\n\nTraining complete. Best checkpoint kept\nLoading the test set ...\n")
    assert read_run(path).status is Status.COMPLETED
    path = tmp_path / "wrapper.log"
    path.write_text(
        "2026-03-01 10:00:00 Running: train_heads.py --epochs 20\n2026-03-01 12:30:00 Total time: 150 min\n"
    )
    assert read_run(path).status is Status.COMPLETED
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear all,\nthe training of our new colleagues is done.\nRegards\n")
    with pytest.raises(AdvisorError):
        read_run(letter)


def test_a_letter_about_a_training_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("We are starting training of the model with batch size 8 on a GPU; the dataset is small.\n")
    with pytest.raises(AdvisorError, match="nothing that looks like"):
        read_run(path)


def test_a_start_that_was_killed_and_resumed_for_its_last_record_did_not_end_so(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    killed = ["run.sh: line 3:  4242 Killed                  python train.py", "resuming from step 990"]
    rows = [f"step {step}/1000 loss {4 - step / 500:.4f}" for step in range(10, 1001, 10)]
    path.write_text("\n".join([*rows[:-1], *killed, rows[-1]]) + "\n")
    assert read_run(path).status is Status.COMPLETED
    path.write_text("\n".join([*rows[:-1], killed[0], rows[-1]]) + "\n")
    assert read_run(path).status is Status.KILLED


@pytest.mark.parametrize("said", ["[launch.py:163:main] dist_world_size=8", "'nproc_per_node': 8", "nproc_per_node=8"])
def test_gpus_that_a_launcher_names(tmp_path: Path, said: str) -> None:
    path = tmp_path / "a.log"
    rows = "".join(f"step {step}/1000 loss {4 - step / 500:.4f}\n" for step in range(10, 501, 10))
    path.write_text(f"{said}\n{rows}")
    assert read_run(path).facts["world_size"] == 8


def test_the_second_of_two_starts_without_records_decides(tmp_path: Path) -> None:
    banner = ["loading the configuration", "building the data module", "building the model now", "making the trainer"]
    crash = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "TypeError: no such width"]
    path = tmp_path / "a.log"
    path.write_text(
        "\n".join([*banner, *crash, *banner, "Starting training!", "Best checkpoint: a/epoch_9.ckpt"]) + "\n"
    )
    run = read_run(path)
    assert [part.status for part in run.runs] == [Status.CRASHED, Status.COMPLETED]
    assert run.status is Status.COMPLETED


@pytest.mark.parametrize(
    "last",
    ["sft done, steps: 782", "dpo done -> checkpoints\\tiny\\last.pt", "done. per-epoch log -> results/log.json"],
)
def test_other_words_of_an_end(tmp_path, last):
    path = tmp_path / "train.log"
    path.write_text("".join(f"[x] step={10 * n} loss={5 / n:.3f}\n" for n in range(1, 9)) + last + "\n")
    run = read_run(path)
    assert (run.status, last in run.status_reason) == ("completed", True)


def test_words_between_lines_of_json_are_heard(tmp_path):
    path = tmp_path / "sft.log"
    rows = "".join(json.dumps({"step": 20 * n, "of": 782, "loss_lm": 1 / n}) + "\n" for n in range(1, 40))
    path.write_text(f"100000 samples\n{rows}sft done, steps: 782\n")
    assert read_run(path).status == "completed"
    path.write_text(
        f"100000 samples\n{rows}torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    assert read_run(path).status == "out_of_memory"


def test_a_command_that_is_not_found_ends_no_script(tmp_path):
    path = tmp_path / "job.err"
    oom = "RuntimeError: CUDA out of memory. Tried to allocate 174.00 MiB (GPU 0; 15.00 GiB total capacity)"
    path.write_text(f"/var/spool/job1/slurm_script: line 9: SBATCH: command not found\n{TRACEBACK}{oom}\n")
    assert read_run(path).status == "out_of_memory"
    path.write_text("/var/spool/job1/slurm_script: line 9: SBATCH: command not found\n")
    assert read_run(path).status == "crashed"
